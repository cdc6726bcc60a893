"""What the options of run_bert_pretraining.py stand for: data, vocabulary and network of a BERT."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

from rosetta.convert import bert_config
from rosetta.core.errors import MISSING, UNSUPPORTED, UserError
from rosetta.core.value_parsing import parse_path
from rosetta.launch.t5_experiments import model
from rosetta.t5x.run import sparse_attention

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.launch.t5_experiments.model import Network

FAMILY = "bert"
_SIZES = ("tiny", "small", "base", "large")
_MODEL_CLASSES = (
    "transformers:BertForPreTraining",
    "transformers:BertForMaskedLM",
    "modeling_bert:BertForPreTraining",
    "modeling_bert:BertForMaskedLM",
)
# Fields of t5-experiments' own BERT.
_SPARSE_CLASS = "BigBirdSparsityConfig"
_SPARSE_FIELDS = ("sparse_config_cls", "sparse_attention")
_OWN_FIELDS = ("pre_layer_norm", "last_layer_norm", "rotary_base", "rotary_dim")
_ROTARY_BASE = 10000


def choose_objective(*, pairs: bool) -> str:
    """Return the objective of Megatron's BERT, whose second text is the first one if swapped."""
    return "mlm_whole_word_sop" if pairs else "mlm_whole_word"


def check_model_class(name: str) -> None:
    """Check that --model_cls names a BERT.

    Raises:
        UserError: The class is not a BERT of transformers or of t5-experiments.
    """
    model.check_model_class(name, _MODEL_CLASSES, remedy="")


def describe_data(option: str, text: str) -> str:
    """Return the data for the prefixes of .bin and .idx files, or for files of JSON lines.

    Args:
        option: The option, for errors.
        text: The prefixes or files, with commas.

    Raises:
        UserError: There is no such file.
    """
    paths = [parse_path(option, path) for path in text.split(",")]
    if all(os.path.isfile(f"{path}.idx") for path in paths):
        return f"megatron:{','.join(paths)}"
    for path in paths:
        if not os.path.isfile(path):
            raise UserError(
                "there is no .idx file of this name, and no file of JSON lines",
                f"{option} {path}",
                "name the prefix of what megatron/preprocess_data.py has written",
                kind=MISSING,
                value=path,
            )
    return f"jsonl:{','.join(paths)}"


def name_tokenizer(text: str) -> str:
    """Return a tokenizer of transformers as VOCAB names it: a path, or hf:OWNER/NAME."""
    if os.path.exists(os.path.expanduser(text)):
        return parse_path("--tokenizer", text)
    if text.startswith("hf:"):
        return text
    return f"hf:{text}" if "/" in text else f"hf:google-bert/{text}"


def read_network(file: Path, where: str) -> Network:
    """Return the network that a config.json of a BERT describes.

    Args:
        file: The file.
        where: The option, for errors.

    Raises:
        UserError: The file does not describe a BERT that T5X can train.
    """
    document = model.read_model_document(file, where)
    sparse_class = document.get("sparse_config_cls") or _SPARSE_CLASS
    if sparse_class.rpartition(":")[2] != _SPARSE_CLASS:
        raise UserError(
            f"the sparse attention is {sparse_class!r}, which the network here does not have",
            f"{where} {file}",
            f"choose {_SPARSE_CLASS} in a copy of the file",
            kind=UNSUPPORTED,
            value=sparse_class,
        )
    own = {name: document.pop(name, None) for name in _OWN_FIELDS}
    position_type = document.pop("position_embedding_type", "absolute")
    document.pop("pad_token_id", None)  # that of the tokenizer counts
    fields = {name: value for name, value in document.items() if name not in _SPARSE_FIELDS}
    architecture = bert_config.parse_config(fields, str(file))
    values = architecture.list_network_fields()
    values["norm_order"] = _choose_norm_order(own, f"{where} {file}")
    values["positions"] = _choose_positions(own, position_type, values, f"{where} {file}")
    if document.get("sparse_attention"):
        values["sparse_attention"] = document["sparse_attention"]
        sparse_attention.parse_sparse_attention(values["sparse_attention"])
    dropout_rate = dataclasses.asdict(architecture)["dropout_rate"]
    return model.describe_network(values, _SIZES, dropout_rate, values["num_encoder_layers"])


def _choose_norm_order(own: dict[str, Any], where: str) -> str:
    """Return where the norms stand.

    Raises:
        UserError: The last layer would have no norm after it.
    """
    if not own["pre_layer_norm"]:
        return "post"
    if not own["last_layer_norm"]:
        raise UserError(
            "'pre_layer_norm' is true and 'last_layer_norm' is not: the network here has a norm "
            "after its last layer",
            where,
            "set 'last_layer_norm' to true in a copy of the file",
            kind=UNSUPPORTED,
            value="last_layer_norm",
        )
    return "pre"


def _choose_positions(
    own: dict[str, Any], position_type: str, values: dict[str, Any], where: str
) -> str:
    """Return the positions of the network.

    Raises:
        UserError: The network here has no such positions.
    """
    is_whole = own["rotary_dim"] in (None, values["head_dim"])
    is_usual = own["rotary_base"] in (None, _ROTARY_BASE)
    if position_type == "absolute" or (position_type == "rotary" and is_whole and is_usual):
        return position_type
    raise UserError(
        f"the positions are {position_type!r}, with rotary_dim {own['rotary_dim']}",
        where,
        "set 'position_embedding_type' to absolute, or to rotary without 'rotary_dim', in a copy "
        "of the file",
        kind=UNSUPPORTED,
        value="position_embedding_type",
    )
