"""Copy the tokenizer of a model beside converted weights."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from rosetta.convert import config_fields, json_documents
from rosetta.core.errors import MISSING, UserError
from rosetta.data import model_hub

if TYPE_CHECKING:
    from pathlib import Path

# The fields of config.json and generation_config.json that name ids of the tokenizer.
ID_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_ID_FILES = ("config.json", "generation_config.json")


def copy_tokenizer(folder: Path, out: Path) -> list[str]:
    """Copy the files of a tokenizer that a folder has; return their names.

    Args:
        folder: The folder of a model, or of a tokenizer alone.
        out: The folder to copy into.
    """
    names = [name for name in model_hub.TOKENIZER_FILES if (folder / name).is_file()]
    for name in names:
        shutil.copyfile(folder / name, out / name)
    return names


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder has files of a tokenizer."""
    return any((folder / name).is_file() for name in model_hub.TOKENIZER_FILES)


def read_token_ids(folder: Path) -> dict[str, Any]:
    """Return the ids of special tokens that a folder states beside its tokenizer, by field.

    Args:
        folder: The folder of --tokenizer.

    Raises:
        UserError: The folder has no tokenizer, or an id is not a whole number.
    """
    if not has_tokenizer(folder):
        raise UserError(
            "the folder has no file of a tokenizer",
            f"--tokenizer {folder}",
            f"name a folder that has one of {', '.join(model_hub.TOKENIZER_FILES)}",
            kind=MISSING,
            value=str(folder),
        )
    ids: dict[str, Any] = {}
    for file in _ID_FILES:
        if (folder / file).is_file():
            document = json_documents.read_document(folder / file)
            config_fields.check_token_fields(document, str(folder / file))
            ids |= {name: document[name] for name in ID_FIELDS if document.get(name) is not None}
    return ids
