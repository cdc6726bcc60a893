"""The architecture of a BERT, and Hugging Face's config.json for it.

Sources: transformers, models/bert/configuration_bert.py and modeling_bert.py, version 5.24.
"""

from __future__ import annotations

import ast
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rosetta.convert.config_fields import (
    HF_BOOKKEEPING_FIELDS,
    FieldRules,
    check_fields,
    shorten_value,
)
from rosetta.core.errors import UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHOOSE_BERT = "convert a plain BERT"
# config.json's name of a size -> T5Config's name.
_SIZE_FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "emb_dim",
    "num_attention_heads": "num_heads",
    "intermediate_size": "mlp_dim",
    "num_hidden_layers": "num_encoder_layers",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "token_types",
}
# T5Config's name of an activation -> transformers' name.
_ACTIVATIONS = {"gelu_exact": "gelu", "gelu": "gelu_new", "relu": "relu", "silu": "silu"}
ROW_HEADS = ("classification", "regression")
# The head of a model by the class that saved it.
_CLASSES = {
    ("none", False): "BertModel",
    ("mlm", False): "BertForMaskedLM",
    ("mlm", True): "BertForPreTraining",
    ("classification", False): "BertForSequenceClassification",
    ("regression", False): "BertForSequenceClassification",
}
# The values of T5Config with which its EncoderOnly is the BERT of Hugging Face.
FIXED_FIELDS = {
    "use_biases": True,
    "norm": "layer",
    "norm_order": "post",
    "positions": "absolute",
    "scale_attn_logits": True,
}
_RULES = FieldRules(
    "BERT",
    read=frozenset(
        (
            *_SIZE_FIELDS,
            "architectures",
            "hidden_act",
            "hidden_dropout_prob",
            "id2label",
            "layer_norm_eps",
            "model_type",
            "num_labels",
            "problem_type",
            "transformers_version",
        )
    ),
    fixed={
        "add_cross_attention": (False,),
        "auto_map": (),
        "is_decoder": (False,),
        "is_encoder_decoder": (False,),
        "pad_token_id": (0,),
        "position_embedding_type": ("absolute",),
        "pruned_heads": ({},),
        "quantization_config": (),
        "tie_encoder_decoder": (False,),
        "tie_word_embeddings": (True,),
    },
    # The dropout of attention is that of all layers in T5X.
    harmless=HF_BOOKKEEPING_FIELDS
    | frozenset(
        (
            "attention_probs_dropout_prob",
            "bos_token_id",
            "classifier_dropout",
            "eos_token_id",
            "directionality",
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
            "pooler_type",
            "use_cache",
        )
    ),
    remedy=_CHOOSE_BERT,
)


@dataclass(frozen=True)
class BertArchitecture:
    """What decides the shapes of a BERT's tensors, and what the network computes from them.

    The names and meanings are those of `rosetta.t5x.network.T5Config`, and `has_pooler` is whether
    the row of a model without a head has a pooler.
    """

    vocab_size: int
    emb_dim: int
    num_heads: int
    mlp_dim: int
    num_encoder_layers: int
    max_positions: int
    token_types: int
    mlp_activations: tuple[str, ...] = ("gelu_exact",)
    norm_epsilon: float = 1e-12
    dropout_rate: float = 0.1
    head: str = "none"
    sentence_head: bool = False
    classes: int = 0
    has_pooler: bool = False

    def list_network_fields(self) -> dict[str, Any]:
        """Return the fields of T5Config that describe the network, without its head."""
        values = asdict(self)
        for name in ("head", "sentence_head", "classes", "has_pooler", "dropout_rate"):
            del values[name]
        fixed = {name: value for name, value in FIXED_FIELDS.items() if name != "scale_attn_logits"}
        return {
            **values,
            **fixed,
            "head_dim": self.emb_dim // self.num_heads,
            "num_decoder_layers": 0,
            "logits_via_embedding": True,
        }

    def as_text(self) -> dict[str, str]:
        """Return the fields as the record of a checkpoint has them."""
        values = {
            **self.list_network_fields(),
            **{name: getattr(self, name) for name in ("head", "sentence_head", "classes")},
            "dropout_rate": self.dropout_rate,
        }
        return {name: str(value) for name, value in values.items()}

    def check(self, where: str) -> BertArchitecture:
        """Check that the sizes are those of a possible BERT, and return the architecture.

        Raises:
            UserError: A size is not valid.
        """
        for name in _SIZE_FIELDS.values():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value < 1 << 31:
                raise UserError(
                    f"not valid for a BERT: {name} is {shorten_value(value)}",
                    where,
                    _CHOOSE_BERT,
                    kind=UNSUPPORTED,
                    value=name,
                )
        if self.emb_dim % self.num_heads:
            raise UserError(
                f"{self.emb_dim} features do not divide over {self.num_heads} heads",
                where,
                _CHOOSE_BERT,
                kind=UNSUPPORTED,
                value="num_heads",
            )
        return self


def parse_config(config: Mapping[str, Any], where: str) -> BertArchitecture:
    """Return the architecture that the fields of a config.json describe, without its head.

    Args:
        config: The fields.
        where: The path of the file, for errors.

    Raises:
        UserError: The model is not a BERT, or a field is not known, missing or not valid.
    """
    if config.get("model_type") != "bert":
        raise UserError(
            f"'model_type' is {shorten_value(config.get('model_type'))}, and a BERT has 'bert'",
            where,
            _CHOOSE_BERT,
            kind=UNSUPPORTED,
            value="model_type",
        )
    check_fields(config, _RULES, where)
    activation = config.get("hidden_act", "gelu")
    names = {hf_name: name for name, hf_name in _ACTIVATIONS.items()}
    if activation not in names:
        raise UserError(
            f"the activation is {shorten_value(activation)}",
            where,
            f"choose a model with one of: {', '.join(sorted(names))}",
            kind=UNSUPPORTED,
            value="hidden_act",
        )
    sizes = {name: config.get(field) for field, name in _SIZE_FIELDS.items()}
    if sizes["token_types"] is None:
        sizes["token_types"] = 2
    return BertArchitecture(
        **sizes,  # type: ignore[arg-type]
        mlp_activations=(names[activation],),
        norm_epsilon=float(config.get("layer_norm_eps", 1e-12)),
        dropout_rate=float(config.get("hidden_dropout_prob", 0.1)),
    ).check(where)


def parse_record(config: Mapping[str, str], where: str) -> BertArchitecture:
    """Return the architecture that the record of a checkpoint of T5X describes.

    Args:
        config: The record's fields of T5Config, as text.
        where: The checkpoint, for errors.

    Raises:
        UserError: The network is not the BERT of Hugging Face.
    """
    for name, value in FIXED_FIELDS.items():
        if config.get(name) != str(value):
            raise UserError(
                f"{name} is {config.get(name)}, and the BERT of Hugging Face has {value}",
                where,
                "train with T5_FAMILY=bert, and leave this field as it is",
                kind=UNSUPPORTED,
                value=name,
            )
    if config.get("sparse_attention", "None") != "None":
        raise UserError(
            "the attention is sparse, and the BERT of Hugging Face has dense attention",
            where,
            "train without sparse_attention",
            kind=UNSUPPORTED,
            value="sparse_attention",
        )
    numbers = {name: int(config[name]) for name in (*_SIZE_FIELDS.values(), "classes", "head_dim")}
    activations = tuple(ast.literal_eval(config["mlp_activations"]))
    is_plain = len(activations) == 1 and activations[0] in _ACTIVATIONS
    if not is_plain or numbers.pop("head_dim") * numbers["num_heads"] != numbers["emb_dim"]:
        raise UserError(
            "the MLP or the heads are not those of the BERT of Hugging Face",
            where,
            "train a network with one activation, and with head_dim = emb_dim / num_heads",
            kind=UNSUPPORTED,
            value="mlp_activations",
        )
    head = config["head"]
    return BertArchitecture(
        **numbers,  # type: ignore[arg-type]
        mlp_activations=activations,
        norm_epsilon=float(config["norm_epsilon"]),
        dropout_rate=float(config["dropout_rate"]),
        head=head,
        sentence_head=head == "mlm" and config["sentence_head"] == "True",
    ).check(where)


def make_config(architecture: BertArchitecture, dtype_name: str) -> dict[str, Any]:
    """Return the fields of config.json.

    Args:
        architecture: The architecture.
        dtype_name: The type of the numbers in the files of weights.
    """
    head: dict[str, Any] = {}
    if architecture.head in ROW_HEADS:
        count = max(architecture.classes, 1)
        names = {str(number): f"LABEL_{number}" for number in range(count)}
        problem = "regression" if architecture.head == "regression" else None
        head = {
            "id2label": names,
            "label2id": {name: int(number) for number, name in names.items()},
            "problem_type": problem or "single_label_classification",
        }
    return {
        "architectures": [_CLASSES[architecture.head, architecture.sentence_head]],
        "model_type": "bert",
        **{field: getattr(architecture, name) for field, name in _SIZE_FIELDS.items()},
        "hidden_act": _ACTIVATIONS[architecture.mlp_activations[0]],
        "hidden_dropout_prob": architecture.dropout_rate,
        "attention_probs_dropout_prob": architecture.dropout_rate,
        "layer_norm_eps": architecture.norm_epsilon,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        **head,
        "torch_dtype": dtype_name,
    }
