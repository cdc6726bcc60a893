"""Vocabularies as the input pipeline needs them: text to ids with SentencePiece or bytes, without TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.data import Array, checks
from rosetta.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

PAD, EOS, UNK = 0, 1, 2
BYTE_SPECIALS = 3  # pad, end, unknown: byte b is id b + 3 (Xue et al., "ByT5", 2022)
EXTRA_IDS = 100  # sentinels of span corruption, from the top of the vocabulary downwards (Raffel et al., 2020)


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
        return int(_load(self.name).GetPieceSize())

    @property
    def size(self) -> int:
        """Ids in all: a model's vocab_size must not be smaller."""
        return self.base_size + self.extra_ids

    @property
    def sentinels(self) -> int:
        """Ids at the top that are sentinels, whoever added them."""
        if self.extra_ids or self.name == "byte" or self.name.startswith("ids:"):
            return self.extra_ids
        return _own_sentinels(self.name)

    @property
    def eos(self) -> int:
        """Id of the end token: 1 as in T5, or what the model file says (LLaMA: 2)."""
        return EOS if self.name == "byte" or self.name.startswith("ids:") else int(_load(self.name).eos_id())

    def encode(self, texts: Sequence[str]) -> list[Array]:
        """Return each text's ids, int32, without an end token."""
        if self.name == "byte":
            return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) + BYTE_SPECIALS for text in texts]
        if self.name.startswith("ids:"):
            raise UserError("this vocabulary has no text", f"VOCAB={self.name}", "name a SentencePiece model or `byte`, or train on synthetic data")
        encode = _load(self.name).EncodeAsIds
        return [np.asarray(encode(text), np.int32) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the ids up to the first end token; sentinels read <extra_id_N>."""
        pieces: list[str] = []
        run: list[int] = []

        def flush() -> None:
            if run:
                pieces.append(self._text(run))
                run.clear()

        first = self.size - self.sentinels
        for one in (int(number) for number in ids):
            if one == self.eos:
                break
            if first <= one < self.size:
                flush()
                pieces.append(f"<extra_id_{self.size - 1 - one}>")
            elif one != PAD:
                run.append(one)
        flush()
        return " ".join(pieces)

    def _text(self, ids: list[int]) -> str:
        if self.name == "byte":
            return bytes(one - BYTE_SPECIALS for one in ids if BYTE_SPECIALS <= one < BYTE_SPECIALS + 256).decode(errors="replace")
        return str(_load(self.name).DecodeIds(ids))

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with anything that changes an id."""
        body = self.name.encode() if self.name == "byte" or self.name.startswith("ids:") else _content(self.name)
        return hashlib.sha256(body + f"+{self.extra_ids}".encode()).hexdigest()[:16]


def named(name: str, extra_ids: int | None = None, *, causal: bool = False) -> Vocabulary:
    """Return the vocabulary a user names, checked.

    Args:
      name: "byte", "ids:SIZE", or a SentencePiece model file.
      extra_ids: sentinels to add; None: none where the model file has its own <extra_id_N> pieces, else 100.
      causal: whether a language model reads it: any SentencePiece model will do that has an end token and no text under id 0, the padding.

    Raises:
      UserError: there is no such file, or it is no SentencePiece model with T5's special ids.
    """
    if extra_ids is not None and extra_ids < 0:
        raise UserError(f"extra_ids is {extra_ids}", f"VOCAB={name}", "give 0 or more")
    if name == "byte":
        return Vocabulary("byte", EXTRA_IDS if extra_ids is None else extra_ids)
    if name.startswith("ids:"):
        if not name[4:].isdecimal() or int(name[4:]) < 4:
            raise UserError("ids: needs a size", f"VOCAB={name}", "write ids:32128")
        return Vocabulary(name, extra_ids or 0)
    checks.local(name, f"VOCAB={name}")
    if os.path.isdir(name):
        inside = sorted(each for each in os.listdir(name) if each.endswith(".model"))
        raise UserError("it is a folder", f"VOCAB={name}", f"name the SentencePiece model in it: {os.path.join(name, inside[0])}" if inside else "name a SentencePiece model, or `byte`")
    if not os.path.isfile(name):
        raise UserError("there is no such vocabulary file", name, "name a SentencePiece model, `byte`, or make one: rosetta vocab train")
    model = _load(name)
    special = model.pad_id(), model.eos_id(), model.unk_id()
    if causal:
        if model.eos_id() < 0 or not (model.IsControl(PAD) or model.IsUnknown(PAD)):
            raise UserError(f"its pad, end and unknown ids are {special}: an end token and an id 0 that is no text are needed", name, "train it with rosetta vocab train, or with --eos_id=1 --pad_id=0")
    elif special != (PAD, EOS, UNK):
        raise UserError(f"its pad, end and unknown ids are {special}, not (0, 1, 2)", name, "train it with rosetta vocab train, or with --pad_id=0 --eos_id=1 --unk_id=2")
    own = _own_sentinels(name)
    if extra_ids and own:
        raise UserError(f"the model file has {own} sentinels of its own", f"extra_ids={extra_ids}", "set extra_ids to 0")
    return Vocabulary(os.path.abspath(name), (0 if own else EXTRA_IDS) if extra_ids is None else extra_ids)


def padded(size: int) -> int:
    """Return an embedding's rows for so many ids: the next multiple of 128, so that the output layer's GEMM and its shards are aligned."""
    return -(-size // 128) * 128


def check_fits(vocabulary: Vocabulary, vocab_size: int) -> None:
    """Raise UserError where the vocabulary has ids that a model of `vocab_size` rows has no row for."""
    if vocabulary.size > vocab_size:
        raise UserError(
            f"the vocabulary has {vocabulary.size} ids (with {vocabulary.extra_ids} extra), the model's vocab_size is {vocab_size}",
            vocabulary.name,
            f"set network.T5Config.vocab_size to {padded(vocabulary.size)}, or name the model's own vocabulary",
        )


def check_sentinels(vocabulary: Vocabulary, needed: int) -> None:
    """Raise UserError where span corruption would need more sentinels than there are."""
    if needed > vocabulary.sentinels:
        raise UserError(
            f"span corruption needs {needed} sentinels at these lengths, the vocabulary has {vocabulary.sentinels}",
            vocabulary.name,
            "raise extra_ids or mean_noise_span_length (bytes: 20), or shorten the inputs",
        )


_lock = threading.Lock()


def _load(path: str) -> Any:
    with _lock:
        return _loaded(path)


@functools.lru_cache(maxsize=8)
def _loaded(path: str) -> Any:
    try:
        import sentencepiece  # type: ignore[import-not-found]  # noqa: PLC0415 (bytes and ids do without)
    except ImportError:
        raise UserError("the sentencepiece package is not installed", path, "use an environment baked for t5x, or `byte`") from None
    try:
        return sentencepiece.SentencePieceProcessor(model_file=path)
    except (OSError, RuntimeError):
        raise UserError("this is no SentencePiece model", path, "name the .model file, not the .vocab file") from None


@functools.lru_cache(maxsize=8)
def _own_sentinels(path: str) -> int:
    model = _load(path)
    count = 0
    while model.IdToPiece(model.GetPieceSize() - 1 - count) == f"<extra_id_{count}>":
        count += 1
    return count


@functools.lru_cache(maxsize=8)
def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
