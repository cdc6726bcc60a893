"""Records with a label: texts that an encoder classifies, or to which it gives a number.

A record has one text, or two, such as a premise and a hypothesis. A label is one token of the
targets. A class is its number in LABELS, counted from 1, because 0 is padding. A number is the bits
of its float32; zero is stored as -0.0, whose bits are not 0.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.core.errors import INVALID, MISSING, UserError
from rosetta.data import Array, masking_tokens
from rosetta.data.bad_records import RecordFault
from rosetta.data.pair_rows import EncodedRecords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.data.masking_tokens import MaskingTokens
    from rosetta.data.pair_rows import Pair
    from rosetta.data.vocabularies import Vocabulary

NO_LABEL = "-1"  # the label of a record without one, of Hugging Face and TensorFlow Datasets
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")
_WHOLE_NUMBER = re.compile(r"(-?[0-9]{1,9})(?:\.0*)?")
_LARGEST = float(np.finfo(np.float32).max)
_MAX_QUOTED = 60  # characters of a label in a message


def split_labels(text: str | None) -> tuple[str, ...]:
    """Return the names of the classes in LABELS, in their order.

    Raises:
        UserError: There are fewer than two names, or one comes twice.
    """
    if not text:
        return ()
    labels = tuple(name.strip() for name in text.split(","))
    if len(labels) < 2 or len(set(labels)) < len(labels) or not all(labels):
        raise UserError(
            "not a list of at least two different names",
            f"LABELS={text}",
            "write the classes with commas, as in LABELS=negative,positive",
            kind=INVALID,
            value=text,
        )
    return labels


def encode_label(text: str, labels: Sequence[str], objective: str) -> int | None:
    """Return the token of a label; None if the label says that the record has none.

    Args:
        text: The label, as the record has it: the name of a class or, as in GLUE, its number,
            counted from 0. The number may have decimals that are 0, as in tables. If a class has a
            number as its name, all numbers are names. "" and, for classes, -1 stand for no label.
        labels: The names of the classes.
        objective: "classification" or "regression".

    Raises:
        RecordFault: The label is not a class, or not a number.
        UserError: The classes are not set.
    """
    if objective == "regression":
        return _encode_number(text) if text else None
    if not labels:
        raise UserError(
            "the classes are not set",
            "LABELS",
            "name them in their order, as in LABELS=negative,positive",
            kind=MISSING,
        )
    whole_number = _WHOLE_NUMBER.fullmatch(text)
    for name in (text, whole_number[1] if whole_number else text):
        if name in labels:
            return labels.index(name) + 1
        if name in ("", NO_LABEL):
            return None
    remedy = "name all classes in LABELS"
    if not any(map(_NUMBER.fullmatch, labels)):
        if whole_number and 0 <= int(whole_number[1]) < len(labels):
            return int(whole_number[1]) + 1
        remedy += f"; their numbers are 0 to {len(labels) - 1}"
    raise RecordFault(
        f"the label {_quote(text)} is not one of {', '.join(labels)}",
        remedy,
        "the label is not a class",
    )


def _encode_number(text: str) -> int:
    """Return the token of a number, see encode_label."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not abs(number) <= _LARGEST:
        raise RecordFault(
            f"the label {_quote(text)} is not a number",
            "give a number, or set FT_TASK=classification",
            "the label is not a number",
        )
    return int((np.float32(number) or np.float32(-0.0)).view(np.int32))


def may_be_hidden(text: str) -> bool:
    """Return whether a label of regression is -1, which data sets write for a hidden label."""
    whole_number = _WHOLE_NUMBER.fullmatch(text)
    return whole_number is not None and whole_number[1] == NO_LABEL


def _quote(text: str) -> str:
    """Return a label in quotes, shortened for a message."""
    return repr(text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}\u2026")


def check_length(length: int, text_count: int) -> None:
    """Check that a row has room for each text of a record.

    Args:
        length: The most tokens of a row, those around the texts included.
        text_count: The number of texts of a record.

    Raises:
        UserError: The length leaves no token for a text.
    """
    shortest = 1 + 2 * text_count
    if length < shortest:
        raise UserError(
            f"a row of {length} tokens has no room for {text_count} text(s) and the tokens "
            "around them",
            "TASK_FEATURE_LENGTHS",
            f"set inputs (ENC_SL) to at least {shortest}",
            kind=INVALID,
            value=length,
        )


def check_finite(outputs: Any) -> None:
    """Check that what a model returned for rows are finite numbers.

    Raises:
        UserError: A probability or a predicted number is not finite.
    """
    if not np.isfinite(np.asarray(outputs, np.float64)).all():
        raise UserError(
            "the model returns values that are not finite numbers",
            "its weights",
            "use an earlier checkpoint, from before the loss was not a number",
            kind=INVALID,
        )


def encode_texts(texts: Sequence[str], vocabulary: Vocabulary, length: int) -> Array:
    """Return the tokens of one text or of two texts, int32, with the tokens around them.

    Of two texts that are too long together, the longer one is cut until both have equal lengths,
    as Hugging Face's tokenizers do ("longest_first").

    Args:
        texts: The texts.
        vocabulary: The vocabulary.
        length: The most tokens, those around the texts included.
    """
    special = masking_tokens.find_masking_tokens(vocabulary)
    return _join_texts(vocabulary.encode(list(texts)), special, length)


def _join_texts(texts: Sequence[Array], special: MaskingTokens, length: int) -> Array:
    """Return the tokens of one text or of two texts with those around them, see encode_texts.

    Args:
        texts: The ids of each text.
        special: The tokens around them.
        length: The most tokens.
    """
    first, *rest = texts
    room = length - 1 - len(texts)
    for second in rest:
        half = (room + (len(second) >= len(first))) // 2
        kept = min(len(second), max(room - len(first), half))
        first, rest[0] = first[: room - kept], second[:kept]
    parts = [[special.start], first[:room], [special.separator]]
    for second in rest:
        parts += [second, [special.separator]]
    tokens: Array = np.concatenate(parts).astype(np.int32)
    return tokens


class EncodedLabels(EncodedRecords):
    """Texts and labels as pairs of ids. Each text is encoded when it is asked for.

    Attributes:
        texts: The one text or the two texts of each record.
        tokens: The tokens of the labels.
        vocabulary: The vocabulary.
        length: The most tokens of a row, those around the texts included.
    """

    def __init__(
        self,
        texts: list[tuple[str, ...]],
        tokens: list[int],
        vocabulary: Vocabulary,
        length: int,
    ) -> None:
        self.texts = texts
        self.tokens = tokens
        self.vocabulary = vocabulary
        self.length = length

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.texts)

    def encode_records(self, numbers: Sequence[int]) -> list[Pair]:
        """Return the ids of the texts of records, int32, and their labels, int32 [1].

        See EncodedRecords.
        """
        records = [self.texts[number] for number in numbers]
        ids = iter(self.vocabulary.encode(list(itertools.chain.from_iterable(records))))
        special = masking_tokens.find_masking_tokens(self.vocabulary)
        pairs = []
        for number, texts in zip(numbers, records, strict=True):
            parts = list(itertools.islice(ids, len(texts)))
            label = np.array([self.tokens[number]], np.int32)
            pairs.append((_join_texts(parts, special, self.length), label))
        return pairs
