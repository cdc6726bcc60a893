"""Records with a label: texts that an encoder classifies, or to which it gives a number.

A record has one text, or two, such as a premise and a hypothesis. A label is one token of the
targets. A class is its number in LABELS, counted from 1, because 0 is padding. A number is the bits
of its float32; zero is stored as -0.0, whose bits are not 0.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING

import numpy as np

from rosetta.core.errors import INVALID, MISSING, UNKNOWN, UserError
from rosetta.data import Array, masking_tokens
from rosetta.data.pair_rows import EncodedRecords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.data.masking_tokens import MaskingTokens
    from rosetta.data.pair_rows import Pair
    from rosetta.data.vocabularies import Vocabulary


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


def encode_label(text: str, labels: Sequence[str], objective: str, where: str) -> int:
    """Return the token of a label.

    Args:
        text: The label, as the record has it: the name of a class or, as in GLUE, its number,
            counted from 0.
        labels: The names of the classes.
        objective: "classification" or "regression".
        where: The source of the record, for the error.

    Raises:
        UserError: The label is not a class, or not a number.
    """
    if objective == "regression":
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(np.float32(number)):
            raise UserError(
                f"the label {text!r} is not a number",
                where,
                "give a number, or set FT_TASK=classification",
                kind=INVALID,
                value=text,
            )
        return int((np.float32(number) or np.float32(-0.0)).view(np.int32))
    if not labels:
        raise UserError(
            "the classes are not set",
            "LABELS",
            "name them in their order, as in LABELS=negative,positive",
            kind=MISSING,
        )
    if text in labels:
        return labels.index(text) + 1
    if re.fullmatch("[0-9]+", text) and int(text) < len(labels):
        return int(text) + 1
    raise UserError(
        f"the label {text!r} is not one of {', '.join(labels)}",
        where,
        f"name all classes in LABELS; their numbers are 0 to {len(labels) - 1}",
        kind=UNKNOWN,
        value=text,
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
