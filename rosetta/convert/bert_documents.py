"""Write the documents beside the weights of a converted BERT."""

from __future__ import annotations

import shlex
import shutil
from typing import TYPE_CHECKING

from rosetta.convert import bert_config, json_documents, model_card, t5_documents
from rosetta.t5x.run import checkpoint_record

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.convert.bert_config import BertArchitecture
    from rosetta.convert.t5_conversion import Conversion

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
)

describe_changes = t5_documents.describe_changes


def write_config(conversion: Conversion) -> None:
    """Write config.json."""
    config = bert_config.make_config(conversion.architecture, conversion.dtype.name)
    json_documents.write_document(conversion.part.path / "config.json", config)


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy the files of the tokenizer that a model folder has."""
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def make_record(conversion: Conversion, step: int) -> checkpoint_record.Record:
    """Return the record of the checkpoint to write.

    Args:
        conversion: The conversion of a model of Hugging Face.
        step: The step of the checkpoint.
    """
    own_rows, rows = conversion.model.architecture.vocab_size, conversion.architecture.vocab_size
    return checkpoint_record.Record(
        step=step,
        scale_attn_logits=True,
        config={**conversion.architecture.as_text(), "scale_attn_logits": "True"},
        versions={"rosetta convert bert": model_card.describe_converter()},
        unpadded_vocab_size=own_rows if own_rows < rows else None,
    )


def write_gin_file(conversion: Conversion) -> None:
    """Write the gin file with which a run builds the network of the checkpoint."""
    lines = t5_documents.make_gin_lines(conversion.architecture.list_network_fields())
    path = conversion.part.path / t5_documents.GIN_FILE
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def suggest_next(out: str, target: str, architecture: BertArchitecture) -> str:
    """Return the line that says how to use the result."""
    if target == "hf":
        class_name = bert_config.make_config(architecture, "float32")["architectures"][0]
        return f"load it with: {class_name}.from_pretrained({out!r})"
    settings = {
        "T5_FAMILY": "bert",
        "ROSETTA_GIN": f"{out}/{t5_documents.GIN_FILE}",
        "INITIAL_CHECKPOINT_PATH": out,
        "VOCAB": out,
        "DATA": "text:FILES",
    }
    words = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    return f"train from it with: rosetta t5x pretrain {' '.join(words)}"
