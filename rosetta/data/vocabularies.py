"""Vocabularies, which convert text to ids with SentencePiece, tokenizer.json or bytes.

All programs that read data, size a model or decode its output use a `Vocabulary`. A sentinel is an
id that stands for a masked span in span corruption. T5 calls the sentinels <extra_id_0>,
<extra_id_1>, … Sentinels are part of the model file, or rosetta adds them above its ids. The
number of added sentinels is EXTRA_IDS in the variables, and `extra_ids` in this module.
"""

from __future__ import annotations

import contextlib
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
from rosetta.core.errors import CONFLICT, DENIED, INVALID, MISSING, TOO_BIG, UNSUPPORTED, UserError
from rosetta.core.value_parsing import parse_digits
from rosetta.data import model_hub, tokenizer_folders, tokenizer_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.data import Array

PAD, EOS, UNK = 0, 1, 2
NO_ID = -1  # is never a token
# Byte b is id b + 3, after padding, end token and unknown token (Xue et al., "ByT5", 2022).
BYTE_OFFSET = 3
# The number of sentinels in T5's vocabulary. <extra_id_0> is its highest id, <extra_id_1> the next
# one below, and so on (Raffel et al., 2020).
EXTRA_IDS = 100
# `_match_fingerprint` tries numbers of added sentinels up to this one. `Vocabulary` has no limit.
MAX_MATCHED_EXTRA_IDS = 1024
# A piece of a SentencePiece model that is a sentinel. U+2581 marks the beginning of a word; T5's
# sentinels have it, those of other models may not.
SENTINEL_PIECE = re.compile("\u2581?<extra_id_([0-9]{1,6})>")
USER_DEFINED = 4  # SentencePiece's type of a piece that always stands for itself
_MIN_IDS = 4  # PAD, EOS, UNK and one more


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The name of a vocabulary and its added sentinels.

    An object is cheap to make, to compare and to send to another process: the model file is loaded
    when it is first needed.

    Attributes:
        name: "byte", "ids:SIZE" (ids without text), or the path of a SentencePiece model or of a
            tokenizer.json.
        extra_ids: The number of sentinels added above the `base_size` ids; 0 for a tokenizer.json.
    """

    name: str
    extra_ids: int = EXTRA_IDS

    @property
    def _shares_byte_ids(self) -> bool:
        """Whether the ids of the last 100 bytes are also the sentinels, as in public ByT5."""
        return self.name == "byte" and not self.extra_ids

    @property
    def base_size(self) -> int:
        """The number of ids without added sentinels; a model file's own sentinels are counted."""
        if self.name == "byte":
            return BYTE_OFFSET + 256
        if self.name.startswith("ids:"):
            return int(self.name[4:])
        if is_json_file(self.name):
            return tokenizer_json.load_tokenizer(self.name).size
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

        Added sentinels have the highest ids, and <extra_id_0> the highest of all. Without added
        sentinels, the pieces `<extra_id_N>` of a SentencePiece model are the sentinels. In the byte
        vocabulary without added sentinels, the last 100 byte ids are the sentinels too, as in the
        public ByT5 checkpoints.
        """
        if is_json_file(self.name):
            return tokenizer_json.load_tokenizer(self.name).sentinels
        if self.extra_ids or self.name == "byte":
            return {number: self.size - 1 - number for number in range(self.extra_ids or EXTRA_IDS)}
        return find_own_sentinels(self.name) if _is_model_file(self.name) else {}

    @property
    def sentinel_count(self) -> int:
        """The number of sentinels."""
        return len(self.sentinel_ids)

    @property
    def text_size(self) -> int:
        """The number of ids without the sentinels, if these are the highest ids.

        Otherwise, and if the sentinels share their ids with bytes, it is the number of all ids.
        """
        count = self.sentinel_count
        highest_ids = tuple(range(self.size - 1, self.size - 1 - count, -1))
        if self._shares_byte_ids or self.sentinel_ids != highest_ids:
            return self.size
        return self.size - count

    @property
    def has_text(self) -> bool:
        """Whether it encodes text, and is not only a number of ids."""
        return not self.name.startswith("ids:")

    @property
    def eos(self) -> int:
        """The id of the end token: 1 as in T5, or what the model file says (LLaMA: 2)."""
        if not _is_model_file(self.name):
            return EOS
        if is_json_file(self.name):
            return tokenizer_json.load_tokenizer(self.name).eos
        return int(_load_model(self.name, self.extra_ids).eos_id())

    @property
    def bos(self) -> int:
        """The id that a language model reads at the beginning: that of a tokenizer.json, else 0."""
        if not is_json_file(self.name):
            return PAD
        return tokenizer_json.load_tokenizer(self.name).bos

    @property
    def filler(self) -> int:
        """The number at the end of unfinished rows: PAD, or NO_ID if id 0 is a token."""
        if not is_json_file(self.name):
            return PAD
        return PAD if tokenizer_json.load_tokenizer(self.name).pad == PAD else NO_ID

    def encode(self, texts: Sequence[str]) -> list[Array]:
        """Return the ids of each text, int32, without an end token.

        Raises:
            UserError: The vocabulary is ids:SIZE, which has no text.
        """
        if self.name == "byte":
            return [
                np.frombuffer(text.encode(), np.uint8).astype(np.int32) + BYTE_OFFSET
                for text in texts
            ]
        if self.name.startswith("ids:"):
            raise UserError(
                "this vocabulary cannot encode text",
                f"VOCAB={self.name}",
                "name a SentencePiece model or `byte`, or train on synthetic data",
                kind=UNSUPPORTED,
            )
        if is_json_file(self.name):
            encode = tokenizer_json.load_tokenizer(self.name).encode
            return [np.asarray(encode(text), np.int32) for text in texts]
        model = _load_model(self.name, self.extra_ids)
        # Releases before 0.2.3 make lists only, which take a tenth longer.
        encode_all = getattr(model, "EncodeAsNumpy", model.EncodeAsIds)
        return [np.asarray(ids, np.int32) for ids in encode_all(list(texts), num_threads=1)]

    def encode_first_word(self, word: str) -> tuple[int, ...]:
        """Return the ids of a word that stands before a text and a blank.

        The vocabularies with pieces begin the next word with a piece that has the blank.
        """
        (ids,) = self.encode([f"{word} " if self.name == "byte" else word])
        return tuple(ids.tolist())

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids up to the first end token, with sentinels as <extra_id_N>.

        If the sentinels share their ids with bytes, a byte is decoded as a sentinel only where it
        makes the text invalid UTF-8.
        """
        numbers = [int(number) for number in ids]
        if self.eos in numbers:
            numbers = numbers[: numbers.index(self.eos)]
        if self._shares_byte_ids:
            return _decode_bytes_and_sentinels(numbers)
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
            elif number != self.filler:
                text_ids.append(number)
        if text_ids:
            pieces.append(self._decode_text(text_ids))
        return " ".join(pieces)

    def _decode_text(self, ids: list[int]) -> str:
        """Return the text of ids without sentinels."""
        if self.name == "byte":
            return _select_bytes(ids).decode(errors="replace")
        if is_json_file(self.name):
            return tokenizer_json.load_tokenizer(self.name).decode(ids)
        known_ids = [number if number < self.size else UNK for number in ids]
        return str(_load_model(self.name, self.extra_ids).DecodeIds(known_ids))

    def fingerprint(self) -> str:
        """Return 16 hex digits that differ if two vocabularies give any token different ids."""
        identity = _read_identity(self.name) + f"+{self.extra_ids}".encode()
        return hashlib.sha256(identity).hexdigest()[:16]


def load_vocabulary(
    name: str, extra_ids: int | None = None, *, causal: bool = False, recorded: str = ""
) -> Vocabulary:
    """Return the vocabulary that a user names, and check it.

    Args:
        name: "byte", "ids:SIZE", a SentencePiece model file, a tokenizer.json,
            hf:OWNER/NAME[@REVISION], or a folder with the files of a model of Hugging Face.
        extra_ids: The number of sentinels to add. None for the usual number: what the files of a
            model of Hugging Face say, none for bytes and for a model file that has its own
            <extra_id_N> pieces, else 100.
        causal: Whether a causal language model uses the vocabulary. Such a model needs an end
            token, but not T5's special ids. Id 0 of a SentencePiece model may not be text.
        recorded: The fingerprint of the vocabulary that a run began with or a cache was made with.
            If `extra_ids` is None, the number of sentinels that gives this fingerprint is added; if
            none does, the usual number.

    Raises:
        UserError: The file does not exist, is not a SentencePiece model, or does not have the
            special ids that the model needs; `extra_ids` is negative, or sentinels would be added
            to a model file that has its own.
    """
    if extra_ids is not None and extra_ids < 0:
        raise UserError(
            f"{extra_ids} is not a valid number of extra ids",
            f"VOCAB={name}",
            "give 0 or more",
            kind=INVALID,
            value=extra_ids,
        )
    folder_ids = None
    if model_hub.is_hub_name(name) or tokenizer_folders.is_tokenizer_folder(name):
        name, folder_ids = tokenizer_folders.find_vocabulary(name)
    if extra_ids is None and recorded:
        usual = load_vocabulary(name, folder_ids, causal=causal)
        return _match_fingerprint(usual, recorded) or usual
    if extra_ids is None:
        extra_ids = folder_ids
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
    load = _load_json_vocabulary if is_json_file(name) else _load_model_vocabulary
    return load(os.path.abspath(name), extra_ids, causal=causal)


def _load_model_vocabulary(name: str, extra_ids: int | None, *, causal: bool) -> Vocabulary:
    """Return the vocabulary of a SentencePiece model, and check it.

    Args:
        name: The path of the file.
        extra_ids: The number of sentinels to add, or None.
        causal: See load_vocabulary.

    Raises:
        UserError: See load_vocabulary.
    """
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
    return Vocabulary(name, extra_ids)


def _load_json_vocabulary(path: str, extra_ids: int | None, *, causal: bool) -> Vocabulary:
    """Return the vocabulary of a tokenizer.json, and check it.

    Args:
        path: The path of the file.
        extra_ids: The number of sentinels to add, or None.
        causal: See load_vocabulary.

    Raises:
        UserError: See load_vocabulary.
    """
    loaded = tokenizer_json.load_tokenizer(path)
    special_ids = loaded.pad, loaded.eos, loaded.unk
    is_masked = loaded.mask is not None and loaded.pad == PAD
    if not causal and special_ids != (PAD, EOS, UNK) and not is_masked:
        raise UserError(
            f"the pad, end and unknown ids are {special_ids}, but T5 needs (0, 1, 2)",
            path,
            "name a vocabulary of T5 or BERT; this one serves the language models of Pax",
            kind=INVALID,
            value=special_ids,
        )
    if extra_ids and extra_ids != len(loaded.sentinels):
        raise UserError(
            f"no sentinels can be added to a tokenizer.json, which has {len(loaded.sentinels)}",
            f"EXTRA_IDS={extra_ids}",
            "leave it out, or add the tokens <extra_id_N> to the file",
            kind=CONFLICT,
            value=extra_ids,
        )
    return Vocabulary(path, 0)


def _check_model_file(path: str) -> None:
    """Raise UserError unless a path is that of a file on this machine."""
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
            "name a SentencePiece model, tokenizer.json, `byte`, or make one: rosetta vocab train",
            kind=MISSING,
        )


def _check_special_ids(path: str, *, causal: bool) -> None:
    """Raise UserError if a SentencePiece model does not have the special ids that a run needs."""
    model = _load_model(path)
    special_ids = model.pad_id(), model.eos_id(), model.unk_id()
    if causal:
        if model.eos_id() < 0 or not (model.IsControl(PAD) or model.IsUnknown(PAD)):
            raise UserError(
                f"the pad, end and unknown ids are {special_ids}, but a language model needs an "
                "end token, and an id 0 that is not text",
                path,
                "train it with rosetta vocab train, or with spm_train --pad_id=0 --eos_id=1",
                kind=INVALID,
                value=special_ids,
            )
    elif special_ids != (PAD, EOS, UNK):
        raise UserError(
            f"the pad, end and unknown ids are {special_ids}, not (0, 1, 2)",
            path,
            "train it with rosetta vocab train, or with spm_train --pad_id=0 --eos_id=1 --unk_id=2",
            kind=INVALID,
            value=special_ids,
        )


def has_mask_token(vocabulary: Vocabulary) -> bool:
    """Return whether a vocabulary is a tokenizer.json with a mask token, such as BERT's."""
    if not is_json_file(vocabulary.name):
        return False
    return tokenizer_json.load_tokenizer(vocabulary.name).mask is not None


def check_not_masked(vocabulary: Vocabulary, objective: str) -> None:
    """Check that a vocabulary is not one of BERT, which T5 cannot use.

    Args:
        vocabulary: The vocabulary.
        objective: The objective of T5, for the error.

    Raises:
        UserError: The vocabulary has a mask token, and its end token is not T5's.
    """
    if has_mask_token(vocabulary) and vocabulary.eos != EOS:
        raise UserError(
            f"this vocabulary is one of BERT, and {objective} needs one of T5",
            vocabulary.name,
            "name a vocabulary of T5, or train a BERT: T5_FAMILY=bert",
            kind=CONFLICT,
            value=objective,
        )


def list_pieces(vocabulary: Vocabulary) -> list[str]:
    """Return the text of each id of a vocabulary file, "" for an id without text."""
    if is_json_file(vocabulary.name):
        return tokenizer_json.load_tokenizer(vocabulary.name).list_pieces()
    model = _load_model(vocabulary.name, vocabulary.extra_ids)
    return list(model.IdToPiece(list(range(model.GetPieceSize()))))


def round_up_vocab_size(size: int) -> int:
    """Return the vocab_size of a model for this many ids: the next multiple of 128.

    With such a size, the output layer's matrix product and the shards of it are aligned.
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
            f"set network.T5Config.vocab_size to {round_up_vocab_size(vocabulary.size)}, or name "
            "the model's own vocabulary"
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


def check_sentinel_count(
    vocabulary: Vocabulary, needed: int, objective: str = "span_corruption"
) -> None:
    """Check that a vocabulary has enough sentinels for span corruption or ul2.

    Args:
        vocabulary: The vocabulary.
        needed: The number of masked spans in a row.
        objective: The objective, for the message.

    Raises:
        UserError: The vocabulary has fewer sentinels.
    """
    if needed > vocabulary.sentinel_count:
        remedy = (
            "raise EXTRA_IDS, raise mean_noise_span_length (ByT5 uses 20), or shorten the inputs"
        )
        if objective == "ul2":
            remedy = f"set EXTRA_IDS to at least {needed}, or shorten the inputs"
        raise UserError(
            f"{objective.replace('_', ' ')} needs {needed} sentinels at these lengths, but the "
            f"vocabulary has {vocabulary.sentinel_count}",
            vocabulary.name,
            remedy,
            kind=TOO_BIG,
            value=needed,
        )


def make_sentinel_piece(number: int) -> bytes:
    """Return the piece `<extra_id_N>`, to append to a serialised SentencePiece model.

    The text begins with the mark of a word, as in T5. Appending a serialised field to a protocol
    buffer adds the field to the message. ModelProto.pieces is field 1, and a piece is
    {piece = 1, score = 2, type = 3} (sentencepiece_model.proto).
    """
    text = f"\u2581<extra_id_{number}>".encode()
    # The first byte of a field is 8 * its number + its wire type: 0 varint, 2 length, 5 four bytes.
    piece_field = bytes([0x0A, len(text)]) + text
    score_field = b"\x15" + struct.pack("<f", 0.0)
    type_field = bytes([0x18, USER_DEFINED])
    piece = piece_field + score_field + type_field
    return bytes([0x0A, len(piece)]) + piece


def make_sentinel_pieces(count: int) -> bytes:
    """Return the pieces that add `count` sentinels to a serialised SentencePiece model.

    The last piece, with the highest id, is <extra_id_0>.
    """
    return b"".join(make_sentinel_piece(number) for number in reversed(range(count)))


@functools.lru_cache(maxsize=8)
def find_own_sentinels(path: str) -> dict[int, int]:
    """Return the id of each piece `<extra_id_N>` of a SentencePiece model by N, in ascending order.

    Only the text of a piece counts, not its type or its place in the model. If two pieces have the
    same N, the higher id is returned.
    """
    model = _load_model(path)
    sentinels: dict[int, int] = {}
    for index, piece in enumerate(model.IdToPiece(list(range(model.GetPieceSize())))):
        match = SENTINEL_PIECE.fullmatch(piece)
        if match:
            sentinels[int(match[1])] = index
    return dict(sorted(sentinels.items()))


def describe_sentinels(vocabulary: Vocabulary) -> str:
    """Return the sentinel ids as a text such as "32099 to 32000", beginning with <extra_id_0>."""
    ids = vocabulary.sentinel_ids
    if not ids:
        return "none"
    shares_byte_ids = vocabulary.name == "byte" and not vocabulary.extra_ids
    note = ", shared with bytes" if shares_byte_ids else ""
    if len(ids) == 1:
        return f"{ids[0]}{note}"
    step = ids[1] - ids[0]
    if abs(step) == 1 and ids == tuple(range(ids[0], ids[0] + step * len(ids), step)):
        return f"{ids[0]} to {ids[-1]}{note}"
    return f"{ids[0]}, {ids[1]}, ... {ids[-1]}"


def _match_fingerprint(vocabulary: Vocabulary, fingerprint: str) -> Vocabulary | None:
    """Return the vocabulary with the number of added sentinels that gives a fingerprint.

    Returns None if no number up to MAX_MATCHED_EXTRA_IDS does.
    """
    digest = hashlib.sha256(_read_identity(vocabulary.name))
    for count in range(MAX_MATCHED_EXTRA_IDS + 1):
        candidate = digest.copy()
        candidate.update(f"+{count}".encode())
        if candidate.hexdigest()[:16] == fingerprint:
            return dataclasses.replace(vocabulary, extra_ids=count)
    return None


def has_same_tokens(vocabulary: Vocabulary, fingerprint: str) -> bool:
    """Return whether a fingerprint is that of this vocabulary with any number of added sentinels.

    If it is, both vocabularies encode text to the same ids.
    """
    return _match_fingerprint(vocabulary, fingerprint) is not None


def _select_bytes(ids: Sequence[int]) -> bytes:
    """Return the bytes of ids of the byte vocabulary, without special ids and sentinels."""
    return bytes(
        number - BYTE_OFFSET for number in ids if BYTE_OFFSET <= number < BYTE_OFFSET + 256
    )


def _decode_bytes_and_sentinels(ids: Sequence[int]) -> str:
    """Return the text of byte ids, where the bytes from 255 down to 156 can also be sentinels.

    A byte that makes the text invalid UTF-8 is a sentinel: byte 255 is <extra_id_0>.
    """
    remaining = _select_bytes(ids)
    pieces: list[str] = [""]
    while remaining:
        try:
            pieces[-1] += remaining.decode()
            break
        except UnicodeDecodeError as error:
            pieces[-1] += remaining[: error.start].decode()
            number = 0xFF - remaining[error.start]
            if number < EXTRA_IDS:
                pieces += [f"<extra_id_{number}>", ""]
            else:
                pieces[-1] += "\ufffd"
            remaining = remaining[error.start + 1 :]
    return " ".join(piece for piece in pieces if piece)


_load_lock = threading.Lock()


def _load_model(path: str, extra_ids: int = 0) -> Any:
    """Return a SentencePiece model with added sentinels, which is loaded at the first call.

    The lock keeps two threads from loading the same model, which lru_cache alone does not.
    """
    with _load_lock:
        return _load_model_unlocked(path, extra_ids)


@functools.lru_cache(maxsize=8)
def _load_model_unlocked(path: str, extra_ids: int) -> Any:
    """Return a SentencePiece model; called by _load_model, which holds the lock.

    Raises:
        UserError: The sentencepiece package is missing, or the file cannot be read or is not a
            model.
    """
    try:
        import sentencepiece  # type: ignore[import-not-found]
    except ImportError:
        raise UserError(
            "the sentencepiece package is not installed",
            path,
            "use an environment for t5x, or the vocabulary `byte`",
            kind=MISSING,
            value="sentencepiece",
        ) from None
    content = read_content(path) + make_sentinel_pieces(extra_ids)
    if content:  # an empty model would be no error
        with contextlib.suppress(RuntimeError):
            return sentencepiece.SentencePieceProcessor(model_proto=content)
    raise UserError(
        "not a SentencePiece model file",
        path,
        "name the .model file, not the .vocab file",
        kind=INVALID,
    )


def _read_identity(name: str) -> bytes:
    """Return bytes that identify a vocabulary without its added sentinels: its name or its file."""
    if is_json_file(name):
        return tokenizer_json.read_identity(name)
    return read_content(name) if _is_model_file(name) else name.encode()


def is_json_file(name: str) -> bool:
    """Return whether the name of a vocabulary is the path of a tokenizer.json."""
    return name.endswith(".json") and _is_model_file(name)


def _is_model_file(name: str) -> bool:
    """Return whether the name of a vocabulary is the path of a file, not "byte" or "ids:SIZE"."""
    return name != "byte" and not name.startswith("ids:")


@functools.lru_cache(maxsize=8)
def read_content(path: str) -> bytes:
    """Return the bytes of a vocabulary file. Raises UserError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except PermissionError as error:
        raise UserError(
            f"the vocabulary file cannot be read ({error.strerror})",
            path,
            f"let this user read it: chmod a+r {path}",
            kind=DENIED,
        ) from None
