"""Read tokenizer.json, the file of the tokenizers library, such as GPT-2's byte-level BPE.

The file has the pieces and how text is split. Which of them begin and end a text, or stand for
padding, is in tokenizer_config.json or special_tokens_map.json beside it. Text is encoded as
transformers' fast tokenizers do without special tokens.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

from rosetta.core.errors import DAMAGED, DENIED, INVALID, MISSING, UserError

FILE_NAME = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
_SETTINGS_FILES = (SETTINGS_FILE, "special_tokens_map.json")
SENTINEL = re.compile("\u2581?<extra_id_([0-9]{1,6})>")
# Transformers' name of a special token -> the token of BERT.
_BERT_TOKENS = {name: f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
# The end tokens of public models, for a file without settings beside it.
_END_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")


@dataclasses.dataclass(frozen=True)
class JsonTokenizer:
    """A tokenizer of the tokenizers library, and its special ids.

    Attributes:
        tokenizer: The tokenizers.Tokenizer.
        size: The number of ids; the highest id is one less.
        eos: The id of the end token.
        bos: The id with which a text begins; the end token's, if the model has none of its own.
        pad: The id of padding, or None.
        unk: The id of unknown text, or None.
        sentinels: The id of each token `<extra_id_N>` by N, in ascending order.
        mask: The id that masks a token, or None.
        start: The id with which a row of BERT begins; `bos` without one.
        separator: The id with which a part of such a row ends; `eos` without one.
        special_ids: The ids of all special tokens, sorted.
    """

    tokenizer: Any
    size: int
    eos: int
    bos: int
    pad: int | None
    unk: int | None
    sentinels: dict[int, int]
    mask: int | None
    start: int
    separator: int
    special_ids: list[int]

    def list_pieces(self) -> list[str]:
        """Return the text of each id, "" for an id without a token."""
        return [self.tokenizer.id_to_token(number) or "" for number in range(self.size)]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens before and after it."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids. Ids that no token has are left out."""
        known = [number for number in ids if self.tokenizer.id_to_token(number) is not None]
        return str(self.tokenizer.decode(known, skip_special_tokens=False))


_load_lock = threading.Lock()


def load_tokenizer(path: str) -> JsonTokenizer:
    """Return the tokenizer of a file, which is loaded at the first call.

    Args:
        path: The path of a tokenizer.json.

    Raises:
        UserError: The tokenizers package is missing, the file cannot be read or is not a tokenizer,
            or it has no end token.
    """
    with _load_lock:
        return _load_unlocked(path)


@functools.lru_cache(maxsize=8)
def _load_unlocked(path: str) -> JsonTokenizer:
    """Return the tokenizer of a file; called by load_tokenizer, which holds the lock."""
    # The library warns of its threads when a process forks, and one text at a time needs none.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ImportError:
        raise UserError(
            "the tokenizers package is not installed",
            path,
            "pip install tokenizers, or name a SentencePiece model",
            kind=MISSING,
            value="tokenizers",
        ) from None
    tokenizer = _parse_file(tokenizers, path)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    numbers: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    special = _find_special_tokens(path, tokenizer)
    end_token = special.get("eos_token") or _guess_end_token(tokenizer)
    eos = numbers.get(end_token or special.get("sep_token") or "[SEP]")
    if eos is None:
        raise UserError(
            "the tokenizer has no end token",
            path,
            f"name the eos_token in a {SETTINGS_FILE} beside the file",
            kind=INVALID,
        )
    bos = numbers.get(special.get("bos_token", ""))
    sentinels = {
        int(match[1]): number
        for token, number in numbers.items()
        if (match := SENTINEL.fullmatch(token))
    }
    # A file without settings beside it may have the tokens of BERT.
    default_names = _BERT_TOKENS if _BERT_TOKENS["mask"] in numbers else {}
    bos = eos if bos is None else bos
    pad, unk, start, separator, mask = (
        numbers.get(special.get(f"{name}_token") or default_names.get(name, ""))
        for name in ("pad", "unk", "cls", "sep", "mask")
    )
    return JsonTokenizer(
        tokenizer,
        size=max(numbers.values()) + 1,
        eos=eos,
        bos=bos,
        pad=pad,
        unk=unk,
        sentinels=dict(sorted(sentinels.items())),
        mask=mask,
        start=bos if start is None else start,
        separator=eos if separator is None else separator,
        special_ids=_list_special_ids(tokenizer),
    )


def read_identity(path: str) -> bytes:
    """Return bytes that differ if two files, with their special ids, encode any text otherwise."""
    loaded = load_tokenizer(path)
    special_ids = {"eos": loaded.eos, "bos": loaded.bos, "pad": loaded.pad, "unk": loaded.unk}
    return _read_content(path) + json.dumps(special_ids).encode()


@functools.lru_cache(maxsize=8)
def _read_content(path: str) -> bytes:
    """Return the bytes of a file. Raises UserError if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except PermissionError as error:
        raise UserError(
            f"the tokenizer cannot be read ({error.strerror})",
            path,
            f"let this user read it: chmod a+r {path}",
            kind=DENIED,
        ) from None


def _parse_file(tokenizers: Any, path: str) -> Any:
    """Return the tokenizers.Tokenizer of a file.

    Raises:
        UserError: The file is not one that the library reads.
    """
    content = _read_content(path)
    try:
        return tokenizers.Tokenizer.from_buffer(content)
    except Exception:  # noqa: BLE001 (the library raises plain exceptions)
        raise UserError(
            "not a file that the tokenizers library reads",
            path,
            "download or copy it again, or name a SentencePiece model",
            kind=DAMAGED,
        ) from None


def _find_special_tokens(path: str, tokenizer: Any) -> dict[str, str]:
    """Return the special tokens that the files beside a tokenizer name, by transformers' names.

    A token that the tokenizer does not have is left out: transformers would add it above the ids
    that the model was trained with.
    """
    special: dict[str, str] = {}
    for name in reversed(_SETTINGS_FILES):  # the first one counts
        for key, token in read_settings(Path(path).with_name(name)).items():
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str) and tokenizer.token_to_id(text) is not None:
                special[key] = text
    return special


def read_settings(path: Path) -> dict[str, Any]:
    """Return the content of a settings file; {} if there is none.

    Raises:
        UserError: The file is not a JSON document with an object.
    """
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise UserError(
            "not a JSON document with an object",
            str(path),
            "download or copy it again",
            kind=DAMAGED,
        )
    return settings


def _list_special_ids(tokenizer: Any) -> list[int]:
    """Return the ids of all special tokens, sorted."""
    added = tokenizer.get_added_tokens_decoder()
    return sorted(number for number, token in added.items() if token.special)


def _guess_end_token(tokenizer: Any) -> str:
    """Return the first of the usual end tokens that a tokenizer has, or ""."""
    return next((token for token in _END_TOKENS if tokenizer.token_to_id(token) is not None), "")
