"""Vocabularies as the input pipeline needs them: text to ids with SentencePiece or bytes, without
TensorFlow.
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
BYTE_SPECIALS = 3  # pad, end, unknown: byte b is id b + 3 (Xue et al., "ByT5", 2022)
# Sentinels of span corruption, from the top of the vocabulary downwards (Raffel et al., 2020).
EXTRA_IDS = 100
MAX_EXTRA_IDS = 1024  # that a checkpoint's record is searched for
SENTINEL = re.compile(
    "\u2581?<extra_id_([0-9]{1,6})>"
)  # a piece, with SentencePiece's word mark as T5 spells it, or without
USER_DEFINED = 4  # SentencePiece's type of a piece that always stands for itself


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A name for a vocabulary: cheap to make, compare and send to another process.

    Attributes:
      name: "byte", "ids:SIZE" (ids without text) or the path of a SentencePiece model.
      extra_ids: sentinels added above what the model file holds.
    """

    name: str
    extra_ids: int = EXTRA_IDS

    @property
    def base_size(self) -> int:
        """Ids of the model file, its own sentinels included."""
        if self.name == "byte":
            return BYTE_SPECIALS + 256
        if self.name.startswith("ids:"):
            return int(self.name[4:])
        return int(_load_model(self.name, self.extra_ids).GetPieceSize()) - self.extra_ids

    @property
    def size(self) -> int:
        """Ids in all: a model's vocab_size must not be smaller."""
        return self.base_size + self.extra_ids

    @property
    def sentinel_ids(self) -> tuple[int, ...]:
        """Ids of the sentinels <extra_id_0>, <extra_id_1>, and so on, in the order of their
        numbers.
        """
        return tuple(self.numbered_sentinels.values())

    @property
    def numbered_sentinels(self) -> dict[int, int]:
        """The id of each sentinel <extra_id_N> by N, whoever added it.

        Added ones are the top ids, downwards. Without added ones, a SentencePiece model's own
        pieces `<extra_id_N>` are the sentinels, by N. Bytes without added ones share their last 100
        ids with the sentinels, as the public byT5 weights do.
        """
        if self.extra_ids or self.name == "byte":
            return {number: self.size - 1 - number for number in range(self.extra_ids or EXTRA_IDS)}
        return {} if self.name.startswith("ids:") else find_own_sentinels(self.name)

    @property
    def sentinel_count(self) -> int:
        """Number of sentinels."""
        return len(self.sentinel_ids)

    @property
    def text_size(self) -> int:
        """Ids below the block of sentinels at the top.

        All ids, where sentinels share ids with bytes or stand elsewhere.
        """
        shared = self.name == "byte" and not self.extra_ids
        top = self.sentinel_ids == tuple(
            range(self.size - 1, self.size - 1 - self.sentinel_count, -1)
        )
        return self.size - self.sentinel_count if top and not shared else self.size

    @property
    def eos(self) -> int:
        """Id of the end token: 1 as in T5, or what the model file says (LLaMA: 2)."""
        if self.name == "byte" or self.name.startswith("ids:"):
            return EOS
        return int(_load_model(self.name, self.extra_ids).eos_id())

    def encode(self, texts: Sequence[str]) -> list[Array]:
        """Return each text's ids, int32, without an end token."""
        if self.name == "byte":
            return [
                np.frombuffer(text.encode(), np.uint8).astype(np.int32) + BYTE_SPECIALS
                for text in texts
            ]
        if self.name.startswith("ids:"):
            raise UserError(
                "this vocabulary has no text",
                f"VOCAB={self.name}",
                "name a SentencePiece model or `byte`, or train on synthetic data",
                kind=UNSUPPORTED,
            )
        encode = _load_model(self.name, self.extra_ids).EncodeAsIds
        return [np.asarray(encode(text), np.int32) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the ids up to the first end token; sentinels read <extra_id_N>.

        Where sentinels share ids with bytes, a byte that is not valid UTF-8 where it stands is read
        as a sentinel.
        """
        numbers = [int(number) for number in ids]
        if self.eos in numbers:
            numbers = numbers[: numbers.index(self.eos)]
        if self.name == "byte" and not self.extra_ids:
            return _decode_shared_bytes(numbers)
        names = {
            sentinel: f"<extra_id_{number}>" for number, sentinel in self.numbered_sentinels.items()
        }
        pieces: list[str] = []
        run: list[int] = []
        for number in [*numbers, None]:
            if number is not None and number not in names:
                if number != PAD:
                    run.append(number)
                continue
            if run:
                pieces.append(self._text(run))
                run = []
            if number is not None:
                pieces.append(names[number])
        return " ".join(pieces)

    def _text(self, ids: list[int]) -> str:
        if self.name == "byte":
            return bytes(
                one - BYTE_SPECIALS for one in ids if BYTE_SPECIALS <= one < BYTE_SPECIALS + 256
            ).decode(errors="replace")
        return str(
            _load_model(self.name, self.extra_ids).DecodeIds(
                [one if one < self.size else UNK for one in ids]
            )
        )

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with anything that changes an id."""
        return hashlib.sha256(
            _read_identity(self.name) + f"+{self.extra_ids}".encode()
        ).hexdigest()[:16]


def load_vocabulary(
    name: str, extra_ids: int | None = None, *, causal: bool = False, recorded: str = ""
) -> Vocabulary:
    """Return the vocabulary a user names, checked.

    Args:
      name: "byte", "ids:SIZE", or a SentencePiece model file.
      extra_ids: sentinels to add; None: none to bytes, none where the model file has its own
        <extra_id_N> pieces, else 100.
      recorded: fingerprint of the vocabulary that a run began with, or a cache was made with. Where
        `extra_ids` is None, the number of sentinels follows it.
      causal: whether a language model reads it: any SentencePiece model will do that has an end
        token and no text under id 0, the padding.

    Raises:
      UserError: there is no such file, or it is no SentencePiece model with T5's special ids.
    """
    if extra_ids is not None and extra_ids < 0:
        raise UserError(
            f"extra_ids is {extra_ids}",
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
        if (parse_digits(name[4:]) or 0) < 4:
            raise UserError("ids: needs a size", f"VOCAB={name}", "write ids:32128", kind=INVALID)
        return Vocabulary(name, extra_ids or 0)
    path_checks.check_is_local(name, f"VOCAB={name}")
    if os.path.isdir(name):
        inside = sorted(each for each in os.listdir(name) if each.endswith(".model"))
        raise UserError(
            "it is a folder",
            f"VOCAB={name}",
            f"name the SentencePiece model in it: {os.path.join(name, inside[0])}"
            if inside
            else "name a SentencePiece model, or `byte`",
            kind=INVALID,
        )
    if not os.path.isfile(name):
        raise UserError(
            "there is no such vocabulary file",
            name,
            "name a SentencePiece model, `byte`, or make one: rosetta vocab train",
            kind=MISSING,
        )
    model = _load_model(name)
    special = model.pad_id(), model.eos_id(), model.unk_id()
    if causal:
        if model.eos_id() < 0 or not (model.IsControl(PAD) or model.IsUnknown(PAD)):
            raise UserError(
                (
                    f"its pad, end and unknown ids are {special}: an end token and an id 0 that "
                    "is no text are needed"
                ),
                name,
                "train it with rosetta vocab train, or with --eos_id=1 --pad_id=0",
                kind=INVALID,
                value=special,
            )
    elif special != (PAD, EOS, UNK):
        raise UserError(
            f"its pad, end and unknown ids are {special}, not (0, 1, 2)",
            name,
            "train it with rosetta vocab train, or with --pad_id=0 --eos_id=1 --unk_id=2",
            kind=INVALID,
            value=special,
        )
    own = len(find_own_sentinels(name))
    if extra_ids and own:
        raise UserError(
            f"the model file has {own} sentinels of its own",
            f"EXTRA_IDS={extra_ids}",
            "leave it out, or set it to 0",
            kind=CONFLICT,
            value=own,
        )
    return Vocabulary(
        os.path.abspath(name), (0 if own else EXTRA_IDS) if extra_ids is None else extra_ids
    )


def pad_size(size: int) -> int:
    """Return an embedding's rows for so many ids: the next multiple of 128, so that the output
    layer's GEMM and its shards are aligned.
    """
    return -(-size // 128) * 128


def check_model_size(vocabulary: Vocabulary, vocab_size: int) -> None:
    """Raise UserError where the vocabulary has ids that a model of `vocab_size` rows has no row
    for.
    """
    if vocabulary.size > vocab_size:
        raise UserError(
            (
                f"the vocabulary has {vocabulary.size} ids (with {vocabulary.extra_ids} extra), "
                f"the model's vocab_size is {vocab_size}"
            ),
            vocabulary.name,
            (
                f"{'lower EXTRA_IDS, ' if vocabulary.extra_ids else ''}set "
                f"network.T5Config.vocab_size to {pad_size(vocabulary.size)}, or name the model's "
                "own vocabulary"
            ),
            kind=TOO_BIG,
            value=vocabulary.size,
        )


def check_sentinel_count(vocabulary: Vocabulary, needed: int) -> None:
    """Raise UserError where span corruption would need more sentinels than there are."""
    if needed > vocabulary.sentinel_count:
        raise UserError(
            (
                f"span corruption needs {needed} sentinels at these lengths, the vocabulary has "
                f"{vocabulary.sentinel_count}"
            ),
            vocabulary.name,
            "raise EXTRA_IDS or mean_noise_span_length (bytes: 20), or shorten the inputs",
            kind=TOO_BIG,
            value=needed,
        )


def make_sentinel_piece(number: int) -> bytes:
    """Return one more piece for the end of a serialised model: `<extra_id_N>` behind a word mark,
    as T5 spells it.

    Protocol buffers join by concatenation, and ModelProto.pieces is field 1: {piece = 1, score = 2,
    type = 3} (sentencepiece_model.proto).
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
    """Return what adds `count` sentinels to a serialised model; the last one, with the highest id,
    is <extra_id_0>.
    """
    return b"".join(make_sentinel_piece(number) for number in reversed(range(count)))


@functools.lru_cache(maxsize=8)
def find_own_sentinels(path: str) -> dict[int, int]:
    """Return the id of each of a SentencePiece model's own pieces `<extra_id_N>` by N, in the order
    of N.

    They are known by their text alone, whatever their type and place. Where two pieces have the
    same N, it is the higher id.
    """
    model = _load_model(path)
    found: dict[int, int] = {}
    for index, piece in enumerate(model.IdToPiece(list(range(model.GetPieceSize())))):
        if name := SENTINEL.fullmatch(piece):
            found[int(name[1])] = index
    return dict(sorted(found.items()))


def describe_sentinels(vocabulary: Vocabulary) -> str:
    """Return which ids are sentinels, in the order in which span corruption takes them, for people
    to read.
    """
    ids = vocabulary.sentinel_ids
    if not ids:
        return "none"
    shared = ", shared with bytes" if vocabulary.name == "byte" and not vocabulary.extra_ids else ""
    if len(ids) == 1:
        return f"{ids[0]}{shared}"
    step = ids[1] - ids[0]
    if abs(step) == 1 and ids == tuple(range(ids[0], ids[0] + step * len(ids), step)):
        return f"{ids[0]} to {ids[-1]}{shared}"
    return f"{ids[0]}, {ids[1]}, ... {ids[-1]}"


def _match_fingerprint(vocabulary: Vocabulary, fingerprint: str) -> Vocabulary | None:
    """Return the vocabulary with as many added sentinels as the fingerprint says; None where it is
    of another vocabulary.
    """
    body = hashlib.sha256(_read_identity(vocabulary.name))
    for count in range(MAX_EXTRA_IDS + 1):
        candidate = body.copy()
        candidate.update(f"+{count}".encode())
        if candidate.hexdigest()[:16] == fingerprint:
            return dataclasses.replace(vocabulary, extra_ids=count)
    return None


def has_same_tokens(vocabulary: Vocabulary, fingerprint: str) -> bool:
    """Return whether a fingerprint is of this vocabulary, whatever the number of added sentinels:
    text has the same ids.
    """
    return _match_fingerprint(vocabulary, fingerprint) is not None


def _decode_shared_bytes(ids: Sequence[int]) -> str:
    """Return the text of bytes of which the last 100 are sentinels, too."""
    body = bytes(one - BYTE_SPECIALS for one in ids if BYTE_SPECIALS <= one < BYTE_SPECIALS + 256)
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


_lock = threading.Lock()


def _load_model(path: str, extra_ids: int = 0) -> Any:
    with _lock:
        return _load_model_once(path, extra_ids)


@functools.lru_cache(maxsize=8)
def _load_model_once(path: str, extra_ids: int) -> Any:
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
            "this is no SentencePiece model",
            path,
            "name the .model file, not the .vocab file",
            kind=INVALID,
        ) from None


def _read_identity(name: str) -> bytes:
    """Return what changes with anything that changes an id, but for the sentinels."""
    return name.encode() if name == "byte" or name.startswith("ids:") else _read_content(name)


@functools.lru_cache(maxsize=8)
def _read_content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
