"""Vocabularies: text to ids with SentencePiece or bytes, without TensorFlow.

All programs that read data, size a model or decode its output use them. A sentinel is an id that
stands for a masked span in span corruption. T5 calls the sentinels <extra_id_0>, <extra_id_1>, …
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
import struct
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.core import path_checks
from rosetta.core.errors import CONFLICT, INVALID, MISSING, TOO_BIG, UNSUPPORTED, UserError
from rosetta.core.value_parsing import parse_digits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.data import Array

PAD, EOS, UNK = 0, 1, 2
# Byte b is id b + 3, after padding, end token and unknown token (Xue et al., "ByT5", 2022).
BYTE_SPECIALS = 3
# The number of sentinels in T5's vocabulary. They are its highest ids, downwards (Raffel et al.,
# 2020).
EXTRA_IDS = 100
# The highest number of added sentinels that is tried to match a fingerprint.
MAX_EXTRA_IDS = 1024
# A sentinel as a piece of a SentencePiece model, with the word mark as T5 spells it, or without.
SENTINEL = re.compile("\u2581?<extra_id_([0-9]{1,6})>")
USER_DEFINED = 4  # SentencePiece's type of a piece that always stands for itself
_MIN_IDS = 4


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The name of a vocabulary and its added sentinels.

    An object is cheap to make, to compare and to send to another process: the model file is loaded
    when it is first needed.

    Attributes:
        name: "byte", "ids:SIZE" (ids without text) or the path of a SentencePiece model.
        extra_ids: The number of sentinels added above the ids of the model file.
    """

    name: str
    extra_ids: int = EXTRA_IDS

    @property
    def base_size(self) -> int:
        """The number of ids of the model file, with its own sentinels."""
        if self.name == "byte":
            return BYTE_SPECIALS + 256
        if self.name.startswith("ids:"):
            return int(self.name[4:])
        return int(_load_model(self.name, self.extra_ids).GetPieceSize()) - self.extra_ids

    @property
    def size(self) -> int:
        """The number of all ids. The vocab_size of a model must not be smaller."""
        return self.base_size + self.extra_ids

    @property
    def sentinel_ids(self) -> tuple[int, ...]:
        """The ids of the sentinels <extra_id_0>, <extra_id_1>, and so on."""
        return tuple(self.numbered_sentinels.values())

    @property
    def numbered_sentinels(self) -> dict[int, int]:
        """The id of each sentinel <extra_id_N> by N.

        Added sentinels are the highest ids, downwards. Without added ones, the pieces
        `<extra_id_N>` of a SentencePiece model are the sentinels. The byte vocabulary without added
        sentinels shares its last 100 ids with them, as the public ByT5 checkpoints do.
        """
        if self.extra_ids or self.name == "byte":
            return {number: self.size - 1 - number for number in range(self.extra_ids or EXTRA_IDS)}
        return {} if self.name.startswith("ids:") else find_own_sentinels(self.name)

    @property
    def sentinel_count(self) -> int:
        """The number of sentinels."""
        return len(self.sentinel_ids)

    @property
    def text_size(self) -> int:
        """The number of ids below the block of sentinels at the top.

        It is the number of all ids if the sentinels share ids with bytes or are elsewhere.
        """
        shares_ids = self.name == "byte" and not self.extra_ids
        count = self.sentinel_count
        are_at_top = self.sentinel_ids == tuple(range(self.size - 1, self.size - 1 - count, -1))
        return self.size - count if are_at_top and not shares_ids else self.size

    @property
    def eos(self) -> int:
        """The id of the end token: 1 as in T5, or what the model file says (LLaMA: 2)."""
        if self.name == "byte" or self.name.startswith("ids:"):
            return EOS
        return int(_load_model(self.name, self.extra_ids).eos_id())

    def encode(self, texts: Sequence[str]) -> list[Array]:
        """Return the ids of each text, int32, without an end token.

        Raises:
            UserError: The vocabulary is ids:SIZE, which has no text.
        """
        if self.name == "byte":
            return [
                np.frombuffer(text.encode(), np.uint8).astype(np.int32) + BYTE_SPECIALS
                for text in texts
            ]
        if self.name.startswith("ids:"):
            raise UserError(
                "this vocabulary cannot encode text",
                f"VOCAB={self.name}",
                "name a SentencePiece model or `byte`, or train on synthetic data",
                kind=UNSUPPORTED,
            )
        encode = _load_model(self.name, self.extra_ids).EncodeAsIds
        return [np.asarray(encode(text), np.int32) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids up to the first end token, with sentinels as <extra_id_N>.

        If the sentinels share ids with bytes, a byte that is not valid UTF-8 at its place is read
        as a sentinel.
        """
        numbers = [int(number) for number in ids]
        if self.eos in numbers:
            numbers = numbers[: numbers.index(self.eos)]
        if self.name == "byte" and not self.extra_ids:
            return _decode_shared_bytes(numbers)
        sentinel_names = {
            sentinel: f"<extra_id_{number}>" for number, sentinel in self.numbered_sentinels.items()
        }
        pieces: list[str] = []
        text_ids: list[int] = []  # the ids since the last sentinel
        for number in numbers:
            if number in sentinel_names:
                if text_ids:
                    pieces.append(self._decode_text(text_ids))
                    text_ids = []
                pieces.append(sentinel_names[number])
            elif number != PAD:
                text_ids.append(number)
        if text_ids:
            pieces.append(self._decode_text(text_ids))
        return " ".join(pieces)

    def _decode_text(self, ids: list[int]) -> str:
        """Return the text of ids without sentinels."""
        if self.name == "byte":
            return _select_bytes(ids).decode(errors="replace")
        known_ids = [number if number < self.size else UNK for number in ids]
        return str(_load_model(self.name, self.extra_ids).DecodeIds(known_ids))

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with anything that changes an id."""
        identity = _read_identity(self.name) + f"+{self.extra_ids}".encode()
        return hashlib.sha256(identity).hexdigest()[:16]


def load_vocabulary(
    name: str, extra_ids: int | None = None, *, causal: bool = False, recorded: str = ""
) -> Vocabulary:
    """Return the vocabulary that a user names, and check it.

    Args:
        name: "byte", "ids:SIZE", or a SentencePiece model file.
        extra_ids: The number of sentinels to add. None for the usual number: none for bytes and for
            a model file that has its own <extra_id_N> pieces, else 100.
        causal: Whether a causal language model reads it. Then any SentencePiece model will do that
            has an end token and no text under id 0, the padding.
        recorded: The fingerprint of the vocabulary that a run began with or a cache was made with.
            If `extra_ids` is None, the number of sentinels is chosen to match it.

    Raises:
        UserError: There is no such file, the file is not a SentencePiece model with T5's special
            ids, or the number of sentinels does not fit.
    """
    if extra_ids is not None and extra_ids < 0:
        raise UserError(
            f"{extra_ids} is not a valid number of extra ids",
            f"VOCAB={name}",
            "give 0 or more",
            kind=INVALID,
            value=extra_ids,
        )
    if extra_ids is None and recorded:
        usual = load_vocabulary(name, causal=causal)
        return _match_fingerprint(usual, recorded) or usual
    if name == "byte":
        return Vocabulary("byte", extra_ids or 0)
    if name.startswith("ids:"):
        if (parse_digits(name[4:]) or 0) < _MIN_IDS:
            raise UserError(
                f"the size after ids: must be a number of at least {_MIN_IDS}",
                f"VOCAB={name}",
                "write ids:32128",
                kind=INVALID,
            )
        return Vocabulary(name, extra_ids or 0)
    _check_model_file(name)
    _check_special_ids(name, causal=causal)
    own_sentinels = len(find_own_sentinels(name))
    if extra_ids and own_sentinels:
        raise UserError(
            f"the model file has {own_sentinels} sentinels of its own",
            f"EXTRA_IDS={extra_ids}",
            "leave it out, or set it to 0",
            kind=CONFLICT,
            value=own_sentinels,
        )
    if extra_ids is None:
        extra_ids = 0 if own_sentinels else EXTRA_IDS
    return Vocabulary(os.path.abspath(name), extra_ids)


def _check_model_file(path: str) -> None:
    """Raise UserError if a path is not that of a local file."""
    path_checks.check_is_local(path, f"VOCAB={path}")
    if os.path.isdir(path):
        models = sorted(name for name in os.listdir(path) if name.endswith(".model"))
        if models:
            remedy = f"name the SentencePiece model in it: {os.path.join(path, models[0])}"
        else:
            remedy = "name a SentencePiece model, or `byte`"
        raise UserError("the path is a folder", f"VOCAB={path}", remedy, kind=INVALID)
    if not os.path.isfile(path):
        raise UserError(
            "there is no such vocabulary file",
            path,
            "name a SentencePiece model, `byte`, or make one: rosetta vocab train",
            kind=MISSING,
        )


def _check_special_ids(path: str, *, causal: bool) -> None:
    """Raise UserError if a SentencePiece model does not have the special ids that a run needs."""
    model = _load_model(path)
    special_ids = model.pad_id(), model.eos_id(), model.unk_id()
    if causal:
        if model.eos_id() < 0 or not (model.IsControl(PAD) or model.IsUnknown(PAD)):
            raise UserError(
                f"the pad, end and unknown ids are {special_ids}, but an end token is needed, and "
                "an id 0 that is not text",
                path,
                "train it with rosetta vocab train, or with --eos_id=1 --pad_id=0",
                kind=INVALID,
                value=special_ids,
            )
    elif special_ids != (PAD, EOS, UNK):
        raise UserError(
            f"the pad, end and unknown ids are {special_ids}, not (0, 1, 2)",
            path,
            "train it with rosetta vocab train, or with --pad_id=0 --eos_id=1 --unk_id=2",
            kind=INVALID,
            value=special_ids,
        )


def pad_size(size: int) -> int:
    """Return the rows of an embedding for this many ids: the next multiple of 128.

    Then the matrix product of the output layer and its shards are aligned.
    """
    return -(-size // 128) * 128


def check_model_size(vocabulary: Vocabulary, vocab_size: int) -> None:
    """Check that a model has a row for each id of a vocabulary.

    Args:
        vocabulary: The vocabulary.
        vocab_size: The rows of the model's embedding.

    Raises:
        UserError: The vocabulary has more ids.
    """
    if vocabulary.size > vocab_size:
        remedy = (
            f"set network.T5Config.vocab_size to {pad_size(vocabulary.size)}, or name the model's "
            "own vocabulary"
        )
        if vocabulary.extra_ids:
            remedy = f"lower EXTRA_IDS, {remedy}"
        raise UserError(
            f"the vocabulary has {vocabulary.size} ids (with {vocabulary.extra_ids} extra), the "
            f"model's vocab_size is {vocab_size}",
            vocabulary.name,
            remedy,
            kind=TOO_BIG,
            value=vocabulary.size,
        )


def check_sentinel_count(vocabulary: Vocabulary, needed: int) -> None:
    """Check that a vocabulary has enough sentinels for span corruption.

    Args:
        vocabulary: The vocabulary.
        needed: The number of masked spans in a row.

    Raises:
        UserError: The vocabulary has fewer sentinels.
    """
    if needed > vocabulary.sentinel_count:
        raise UserError(
            f"span corruption needs {needed} sentinels at these lengths, but the vocabulary has "
            f"{vocabulary.sentinel_count}",
            vocabulary.name,
            "raise EXTRA_IDS or mean_noise_span_length (bytes: 20), or shorten the inputs",
            kind=TOO_BIG,
            value=needed,
        )


def make_sentinel_piece(number: int) -> bytes:
    """Return the piece `<extra_id_N>`, to append to a serialised SentencePiece model.

    The piece has a word mark, as T5 spells it. Protocol buffers are joined by concatenation, and
    ModelProto.pieces is field 1: {piece = 1, score = 2, type = 3} (sentencepiece_model.proto).
    """
    name = f"\u2581<extra_id_{number}>".encode()
    piece = (
        b"\x0a"
        + bytes([len(name)])
        + name
        + b"\x15"
        + struct.pack("<f", 0.0)
        + b"\x18"
        + bytes([USER_DEFINED])
    )
    return b"\x0a" + bytes([len(piece)]) + piece


def make_sentinel_pieces(count: int) -> bytes:
    """Return the pieces that add `count` sentinels to a serialised SentencePiece model.

    The last piece, with the highest id, is <extra_id_0>.
    """
    return b"".join(make_sentinel_piece(number) for number in reversed(range(count)))


@functools.lru_cache(maxsize=8)
def find_own_sentinels(path: str) -> dict[int, int]:
    """Return the id of each piece `<extra_id_N>` of a SentencePiece model by N, in ascending order.

    Sentinels are recognised by their text alone, whatever their type and place. If two pieces have
    the same N, the higher id is taken.
    """
    model = _load_model(path)
    sentinels: dict[int, int] = {}
    for index, piece in enumerate(model.IdToPiece(list(range(model.GetPieceSize())))):
        match = SENTINEL.fullmatch(piece)
        if match:
            sentinels[int(match[1])] = index
    return dict(sorted(sentinels.items()))


def describe_sentinels(vocabulary: Vocabulary) -> str:
    """Return the ids of the sentinels for people to read, in the order of their numbers."""
    ids = vocabulary.sentinel_ids
    if not ids:
        return "none"
    shares_ids = vocabulary.name == "byte" and not vocabulary.extra_ids
    note = ", shared with bytes" if shares_ids else ""
    if len(ids) == 1:
        return f"{ids[0]}{note}"
    step = ids[1] - ids[0]
    if abs(step) == 1 and ids == tuple(range(ids[0], ids[0] + step * len(ids), step)):
        return f"{ids[0]} to {ids[-1]}{note}"
    return f"{ids[0]}, {ids[1]}, ... {ids[-1]}"


def _match_fingerprint(vocabulary: Vocabulary, fingerprint: str) -> Vocabulary | None:
    """Return the vocabulary with the number of added sentinels that gives a fingerprint.

    None if the fingerprint is that of another vocabulary.
    """
    digest = hashlib.sha256(_read_identity(vocabulary.name))
    for count in range(MAX_EXTRA_IDS + 1):
        candidate = digest.copy()
        candidate.update(f"+{count}".encode())
        if candidate.hexdigest()[:16] == fingerprint:
            return dataclasses.replace(vocabulary, extra_ids=count)
    return None


def has_same_tokens(vocabulary: Vocabulary, fingerprint: str) -> bool:
    """Return whether a fingerprint is that of this vocabulary with any number of added sentinels.

    If so, text has the same ids.
    """
    return _match_fingerprint(vocabulary, fingerprint) is not None


def _select_bytes(ids: Sequence[int]) -> bytes:
    """Return the bytes of ids of the byte vocabulary, without special ids and sentinels."""
    return bytes(
        number - BYTE_SPECIALS for number in ids if BYTE_SPECIALS <= number < BYTE_SPECIALS + 256
    )


def _decode_shared_bytes(ids: Sequence[int]) -> str:
    """Return the text of ids of bytes, of which the last 100 are sentinels, too."""
    body = _select_bytes(ids)
    pieces: list[str] = [""]
    while body:
        try:
            pieces[-1] += body.decode()
            break
        except UnicodeDecodeError as error:
            pieces[-1] += body[: error.start].decode()
            number = 0xFF - body[error.start]
            if number < EXTRA_IDS:
                pieces += [f"<extra_id_{number}>", ""]
            else:
                pieces[-1] += "\ufffd"
            body = body[error.start + 1 :]
    return " ".join(piece for piece in pieces if piece)


_load_lock = threading.Lock()


def _load_model(path: str, extra_ids: int = 0) -> Any:
    """Return a loaded SentencePiece model with added sentinels. Threads load it only once."""
    with _load_lock:
        return _load_model_once(path, extra_ids)


@functools.lru_cache(maxsize=8)
def _load_model_once(path: str, extra_ids: int) -> Any:
    """Load a SentencePiece model, see _load_model.

    Raises:
        UserError: The sentencepiece package is missing, or the file is not a model.
    """
    try:
        import sentencepiece  # type: ignore[import-not-found]
    except ImportError:
        raise UserError(
            "the sentencepiece package is not installed",
            path,
            "use an environment baked for t5x, or `byte`",
            kind=MISSING,
            value="sentencepiece",
        ) from None
    try:
        if not extra_ids:
            return sentencepiece.SentencePieceProcessor(model_file=path)
        return sentencepiece.SentencePieceProcessor(
            model_proto=_read_content(path) + make_sentinel_pieces(extra_ids)
        )
    except (OSError, RuntimeError):
        raise UserError(
            "not a SentencePiece model file",
            path,
            "name the .model file, not the .vocab file",
            kind=INVALID,
        ) from None


def _read_identity(name: str) -> bytes:
    """Return bytes that change with anything that changes an id, except added sentinels."""
    return name.encode() if name == "byte" or name.startswith("ids:") else _read_content(name)


@functools.lru_cache(maxsize=8)
def _read_content(path: str) -> bytes:
    """Return the bytes of a file."""
    with open(path, "rb") as file:
        return file.read()
