"""Check every field of a model's configuration: Hugging Face's config.json and Meta's params.json.

The converter reads a field, or knows the values that it has in the models it converts, or knows
that it does not change the model. Any other field could change the model, so a configuration that
sets one is refused. A field whose value is null is not set.

The rules of LLaMA and Mistral are here, those of T5 in `rosetta.convert.t5_config`, and those of
GPT-2 and GPT-NeoX in `rosetta.convert.gpt_config`.

Sources: transformers, models/{llama,mistral}/configuration_*.py and configuration_utils.py (names
and defaults); llama, llama/model.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import INVALID, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHOOSE_LLAMA = "convert a LLaMA or a Mistral"


@dataclass(frozen=True)
class FieldRules:
    """What the fields of a configuration may be.

    Attributes:
        model: The name of the model, for errors.
        read: The fields that the caller reads and checks itself.
        fixed: The values that a field may have.
        harmless: The fields that do not change the model.
        remedy: What to do about a value that is not the model's.
    """

    model: str
    read: frozenset[str]
    fixed: Mapping[str, tuple[Any, ...]]
    harmless: frozenset[str]
    remedy: str


# Fields that huggingface.py reads.
_HF_READ_FIELDS = frozenset(
    (
        "head_dim",
        "hidden_size",
        "intermediate_size",
        "model_type",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "sliding_window",
        "tie_word_embeddings",
        "vocab_size",
    )
)
# The values that a field may have in a LLaMA or Mistral. A field of another architecture has the
# values that switch its feature off; an empty tuple allows null only.
_HF_FIXED_VALUES: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "attention_bias": (False,),
    "attention_dropout": (0,),
    "attn_logit_softcapping": (),
    "auto_map": (),
    "clip_qkv": (),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (),
    "hidden_act": ("silu", "swish"),
    "is_encoder_decoder": (False,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1,),
    "pruned_heads": ({},),
    "qk_layernorm": (False,),
    "qk_norm": (False,),
    "quantization_config": (),
    "residual_multiplier": (1,),
    "rope_interleaved": (False,),
    "tie_encoder_decoder": (False,),
    "use_bidirectional_attention": (False,),
    "use_qk_norm": (False,),
    "use_sliding_window": (False,),
}
# Fields on tokens and lengths. A conversion from Hugging Face to Hugging Face copies them.
HF_COPIED_FIELDS = frozenset(
    ("bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings")
)
# Fields of transformers' base class that do not change a model: bookkeeping, outputs, generation
# and labels.
HF_BOOKKEEPING_FIELDS = frozenset(
    (
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_commit_hash",
        "_flash_attn_2_enabled",
        "_name_or_path",
        "attn_implementation",
        "bad_words_ids",
        "begin_suppress_tokens",
        "chunk_size_feed_forward",
        "diversity_penalty",
        "do_sample",
        "dtype",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "gradient_checkpointing",
        "id2label",
        "initializer_range",
        "label2id",
        "length_penalty",
        "max_length",
        "min_length",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_labels",
        "num_return_sequences",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "prefix",
        "problem_type",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict",
        "return_dict_in_generate",
        "sep_token_id",
        "suppress_tokens",
        "task_specific_params",
        "temperature",
        "tf_legacy_loss",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "typical_p",
        "unk_token_id",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
        "use_return_dict",
    )
)
# pretraining_tp splits a product into parts with the same sum.
_HF_HARMLESS_FIELDS = (
    HF_COPIED_FIELDS
    | HF_BOOKKEEPING_FIELDS
    | frozenset(("decoder_start_token_id", "is_decoder", "max_sequence_length", "pretraining_tp"))
)
# The rules by `model_type`.
HF_RULES = {
    model_type: FieldRules(
        model,
        _HF_READ_FIELDS,
        {**_HF_FIXED_VALUES, "architectures": architectures},
        _HF_HARMLESS_FIELDS,
        _CHOOSE_LLAMA,
    )
    for model_type, model, architectures in (
        ("llama", "LLaMA", (["LlamaForCausalLM"], ["LLaMAForCausalLM"])),
        ("mistral", "Mistral", (["MistralForCausalLM"],)),
    )
}

# params.json does not say by which factor `use_scaled_rope` scales: LLaMA 3.1 has 8, 3.2 has 32.
META_RULES = FieldRules(
    "LLaMA",
    read=frozenset(
        (
            "dim",
            "ffn_dim_multiplier",
            "multiple_of",
            "n_heads",
            "n_kv_heads",
            "n_layers",
            "norm_eps",
            "rope_theta",
            "vocab_size",
        )
    ),
    fixed={"use_scaled_rope": (False,)},
    harmless=frozenset(("max_batch_size", "max_seq_len")),
    remedy=_CHOOSE_LLAMA,
)


def check_fields(fields: Mapping[str, Any], rules: FieldRules, where: str) -> None:
    """Check that each field of a configuration is read, has a fixed value, or is harmless.

    Args:
        fields: The fields of the configuration.
        rules: The rules of the model.
        where: The file, and the place in it, for the error.

    Raises:
        UserError: A field is none of these. The error names the field and its value.
    """
    for name, value in fields.items():
        if value is None or name in rules.read or name in rules.harmless:
            continue
        if name not in rules.fixed:
            advice = (
                "if the field does not change the model, remove it from a copy of the file and "
                "convert that"
            )
            raise UserError(
                f"the converter does not know the field {name!r} (its value is "
                f"{shorten_value(value)})",
                where,
                advice,
                kind=UNSUPPORTED,
                value=name,
            )
        allowed_values = rules.fixed[name]
        if not any(equals_strictly(value, allowed) for allowed in allowed_values):
            expected = " or ".join(map(shorten_value, allowed_values)) or "null"
            raise UserError(
                f"{name!r} is {shorten_value(value)}, and {rules.model} has {expected}",
                where,
                rules.remedy,
                kind=UNSUPPORTED,
                value=name,
            )


def equals_strictly(value: Any, allowed: Any) -> bool:
    """Return whether two values are equal; True does not equal 1, and False does not equal 0."""
    return bool(value == allowed) and isinstance(value, bool) == isinstance(allowed, bool)


def check_hf_fields(config: Mapping[str, Any], where: str) -> None:
    """Check Hugging Face's config.json.

    Args:
        config: The fields of the file.
        where: The path of the file, for the error.

    Raises:
        UserError: The configuration is not that of a LLaMA or Mistral, or has an unknown field.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in HF_RULES:
        raise UserError(
            f"'model_type' is {shorten_value(model_type)}, and one of "
            f"{', '.join(map(repr, HF_RULES))} is expected",
            where,
            _CHOOSE_LLAMA,
            kind=UNSUPPORTED,
            value="model_type",
        )
    check_fields(config, HF_RULES[model_type], where)
    check_token_fields(config, where)


def check_token_fields(config: Mapping[str, Any], where: str) -> None:
    """Check the fields of config.json on tokens and lengths, and whether embeddings are tied.

    Args:
        config: The fields of the file.
        where: The path of the file, for the error.

    Raises:
        UserError: A field is not a whole number, or not true or false.
    """
    for name in sorted(HF_COPIED_FIELDS):
        value = config.get(name)
        numbers = value if isinstance(value, list) else [value]
        if value is not None and not all(type(number) is int for number in numbers):
            raise UserError(
                f"{name!r} is {shorten_value(value)}, and a whole number is expected",
                where,
                "download or copy it again",
                kind=INVALID,
                value=name,
            )
    tied = config.get("tie_word_embeddings")
    if tied is not None and not isinstance(tied, bool):
        raise UserError(
            f"'tie_word_embeddings' is {shorten_value(tied)}, and true or false is expected",
            where,
            "download or copy it again",
            kind=INVALID,
            value="tie_word_embeddings",
        )


def read_epsilon(fields: Mapping[str, Any], name: str, where: str) -> float:
    """Return the epsilon of the norms.

    Args:
        fields: The fields of the configuration.
        name: The name of the field that has the epsilon.
        where: The file, for the error.

    Raises:
        UserError: The epsilon is missing, or not a number above 0 and at most 1.
    """
    value = fields.get(name)
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or not 0 < value <= 1
    ):
        raise UserError(
            f"{name!r} is {shorten_value(value)}, and a number above 0 and at most 1 is expected",
            where,
            "download or copy it again",
            kind=INVALID,
            value=name,
        )
    return float(value)


def shorten_value(value: Any) -> str:
    """Return a value as an error message shows it, in at most 80 characters."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # Python limits the depth, and the digits of a number.
        return "too long to show"
    return text if len(text) <= 80 else text[:77] + "..."
