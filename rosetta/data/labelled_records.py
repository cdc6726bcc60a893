"""Records with a label: texts that an encoder classifies, or to which it gives a number.

A label is one token of the targets. A class is its number in LABELS, counted from 1, because 0 is
padding. A number is the bits of its float32; zero is stored as -0.0, whose bits are not 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from rosetta.core.errors import INVALID, MISSING, UNKNOWN, UserError
from rosetta.data import Array, masking_tokens

if TYPE_CHECKING:
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
        text: The label, as the record has it.
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
    if text not in labels:
        raise UserError(
            f"the label {text!r} is not one of {', '.join(labels)}",
            where,
            "name all classes in LABELS",
            kind=UNKNOWN,
            value=text,
        )
    return labels.index(text) + 1


class EncodedLabels(Sequence[tuple[Array, Array]]):
    """Texts and labels as pairs of ids. Each text is encoded when it is asked for.

    Attributes:
        texts: The texts.
        tokens: The tokens of the labels.
        vocabulary: The vocabulary.
        length: The most tokens of a text, with the tokens around it.
    """

    def __init__(
        self, texts: list[str], tokens: list[int], vocabulary: Vocabulary, length: int
    ) -> None:
        self.texts = texts
        self.tokens = tokens
        self.vocabulary = vocabulary
        self.length = length

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.texts)

    @overload
    def __getitem__(self, number: int) -> tuple[Array, Array]: ...
    @overload
    def __getitem__(self, number: slice) -> list[tuple[Array, Array]]: ...
    def __getitem__(self, number: int | slice) -> tuple[Array, Array] | list[tuple[Array, Array]]:
        """Return the ids of a text, int32, and its label, int32 [1]."""
        if isinstance(number, slice):
            return [self[index] for index in range(*number.indices(len(self)))]
        special = masking_tokens.find_masking_tokens(self.vocabulary)
        ids = self.vocabulary.encode([self.texts[number]])[0][: self.length - 2]
        inputs = np.concatenate([[special.start], ids, [special.separator]]).astype(np.int32)
        return inputs, np.array([self.tokens[number]], np.int32)
