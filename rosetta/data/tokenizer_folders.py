"""Find the vocabulary in a folder of Hugging Face's layout, such as a downloaded model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import INVALID, MISSING, UserError
from rosetta.data import model_hub, tokenizer_json

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODEL_FILES = ("spiece.model", "tokenizer.model")
# The numbers of sentinels that the classes of transformers add if the folder does not say.
_DEFAULT_SENTINELS = {"T5Tokenizer": 100, "T5TokenizerFast": 100, "ByT5Tokenizer": 125}
_BYTE_CLASS = "ByT5Tokenizer"


def is_tokenizer_folder(path: str) -> bool:
    """Return whether a path is a folder with files of a tokenizer in Hugging Face's layout."""
    names = (*_MODEL_FILES, tokenizer_json.FILE_NAME, tokenizer_json.SETTINGS_FILE)
    return any(os.path.isfile(os.path.join(path, name)) for name in names)


def find_vocabulary(name: str) -> tuple[str, int | None]:
    """Return the vocabulary of a model.

    Args:
        name: hf:OWNER/NAME[@REVISION], or a folder of that layout.

    Returns:
        "byte", or the path of the SentencePiece model and the number of sentinels to add to it;
        None if the files do not say. Without such a model, the path of tokenizer.json.

    Raises:
        UserError: The model cannot be fetched, its files are damaged, or it has another kind of
            tokenizer.
    """
    where = f"VOCAB={name}"
    folder = Path(name)
    if model_hub.is_hub_name(name):
        folder = model_hub.fetch_model(name, where, model_hub.TOKENIZER)
    settings = tokenizer_json.read_settings(folder / tokenizer_json.SETTINGS_FILE)
    class_name = settings.get("tokenizer_class")
    model = next((folder / file for file in _MODEL_FILES if (folder / file).is_file()), None)
    if class_name == _BYTE_CLASS:
        return "byte", _count_sentinels(settings)
    if model is None and (folder / tokenizer_json.FILE_NAME).is_file():
        return str((folder / tokenizer_json.FILE_NAME).absolute()), None
    if model is None:
        raise UserError(
            "the model has no vocabulary (spiece.model, tokenizer.model or tokenizer.json)",
            where,
            "name a model with one, or copy its file into the folder",
            kind=MISSING,
            value=class_name,
        )
    return str(model.absolute()), _count_sentinels(settings)


def _count_sentinels(settings: dict[str, Any]) -> int | None:
    """Return the number of sentinels that transformers adds to the pieces of a model file.

    Args:
        settings: The content of tokenizer_config.json.
    """
    count = settings.get("extra_ids")
    if isinstance(count, bool) or not isinstance(count, (int, type(None))) or (count or 0) < 0:
        raise UserError(
            f"{count!r} is not a valid number of sentinels",
            f"extra_ids of {tokenizer_json.SETTINGS_FILE}",
            "give 0 or more",
            kind=INVALID,
            value=count,
        )
    if count is not None:
        return count
    listed = set(_list_sentinels(settings))
    return len(listed) or _DEFAULT_SENTINELS.get(str(settings.get("tokenizer_class")))


def _list_sentinels(settings: dict[str, Any]) -> Iterator[str]:
    """Yield the numbers of the sentinels that the settings list."""
    tokens = [*(settings.get("additional_special_tokens") or ())]
    added = settings.get("added_tokens_decoder")
    tokens += added.values() if isinstance(added, dict) else ()
    for token in tokens:
        text = token.get("content") if isinstance(token, dict) else token
        match = tokenizer_json.SENTINEL.fullmatch(str(text))
        if match:
            yield match[1]
