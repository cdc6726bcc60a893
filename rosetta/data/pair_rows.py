"""Rows of records with inputs and targets: one record a row, or several that are packed into it.

`task_records` and `labelled_records` encode the records, and `row_sources` opens them.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from rosetta.core.errors import MISSING, UserError
from rosetta.data import Array, packing, shuffling, vocabularies
from rosetta.data.rows import Rows

if TYPE_CHECKING:
    from rosetta.data.objectives import Objective

Pair = tuple[Array, Array]  # the ids of the inputs and of the targets of a record

_PACKING_KEY = 5  # the first word of the key that is derived from a seed, see rows


class EncodedRecords(Sequence[Pair]):
    """Records as pairs of ids, which are made when they are asked for.

    So a run starts without encoding all of them.
    """

    @abc.abstractmethod
    def encode_records(self, numbers: Sequence[int]) -> list[Pair]:
        """Return the ids of some records, int32, without end tokens.

        One call for many records takes less time than one call for each.
        """

    @overload
    def __getitem__(self, number: int) -> Pair: ...
    @overload
    def __getitem__(self, number: slice) -> list[Pair]: ...
    def __getitem__(self, number: int | slice) -> Pair | list[Pair]:
        """Return the ids of one record, or of a slice of the records."""
        if isinstance(number, slice):
            return self.encode_records(range(*number.indices(len(self))))
        return self.encode_records([number])[0]


class Pairs:
    """Inputs and targets of records, tokenised when they are asked for, or packed into rows.

    Attributes:
        pairs: The ids of the inputs and of the targets of each record.
        objective: The objective.
        seed: The seed of the order.
        shuffle: Whether the order is random.
        name: The source's name, for fingerprints and messages.
        bundles: The numbers of the records of each row.
        count: The number of rows in an epoch.

    Raises:
        UserError: There is no record.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        objective: Objective,
        seed: int,
        *,
        pack: bool,
        shuffle: bool = True,
        name: str = "",
    ) -> None:
        if not pairs:
            raise UserError(
                "there is no example in the data",
                name,
                "name files with records in them",
                kind=MISSING,
            )
        # Packing needs the length of every record, so all are tokenised now.
        self.pairs = pairs[:] if pack else pairs
        self.objective = objective
        self.seed = seed
        self.shuffle = shuffle
        self.name = name
        if pack:
            self.bundles = self._pack()
        else:
            self.bundles = [[number] for number in range(len(pairs))]
        self.count = len(self.bundles)

    def _pack(self) -> list[list[int]]:
        """Return the numbers of the records that share each row."""
        count = len(self.pairs)
        order = np.arange(count)
        if self.shuffle:
            packing_key = shuffling.derive_key(self.seed, _PACKING_KEY)
            order = shuffling.permute_indices(order, count, packing_key)
        limits = (self.objective.inputs, self.objective.targets)
        sizes = np.minimum(
            [[len(inputs) + 1, len(targets) + 1] for inputs, targets in self.pairs], limits
        )
        return packing.pack_examples(sizes, order, limits)

    def read_rows(self, examples: Array) -> Rows:
        """Return the rows of running numbers, int64 [n]."""
        _, indices = shuffling.locate_examples(
            examples, self.count, self.seed, shuffle=self.shuffle
        )
        lengths = (self.objective.inputs, self.objective.targets)
        tokens: list[Array] = [np.zeros((len(indices), length), np.int32) for length in lengths]
        segments: list[Array] = [np.zeros((len(indices), length), np.int32) for length in lengths]
        bundles = [self.bundles[number] for number in indices.tolist()]
        pairs = iter(self._read_pairs(list(itertools.chain.from_iterable(bundles))))
        ends = self.objective.adds_end_tokens
        for row, bundle in enumerate(bundles):
            filled = [0, 0]  # the tokens of inputs and of targets in the row so far
            for segment in range(1, len(bundle) + 1):
                for side, ids in enumerate(next(pairs)):
                    kept = self._truncate(ids, lengths[side], is_prompt=side == 0)
                    start, end = filled[side], filled[side] + len(kept)
                    tokens[side][row, start:end] = kept
                    if ends:
                        tokens[side][row, end] = vocabularies.EOS
                    filled[side] = end + ends
                    segments[side][row, start : filled[side]] = segment
        return Rows(tokens[0], tokens[1], segments[0], segments[1])

    def _read_pairs(self, numbers: Sequence[int]) -> list[Pair]:
        """Return the ids of records."""
        if isinstance(self.pairs, EncodedRecords):
            return self.pairs.encode_records(numbers)
        return [self.pairs[number] for number in numbers]

    def _truncate(self, ids: Array, length: int, *, is_prompt: bool) -> Array:
        """Return the ids of one side of a record that stay in a row, for an end token to follow."""
        if self.objective.adds_end_tokens:
            return ids[: length - 1]
        # The end of a prompt is kept, because it has the question.
        return ids[max(len(ids) - length, 0) :] if is_prompt else ids[:length]

    def describe(self) -> str:
        """Return the name of the source and the numbers of records and rows."""
        return f"{self.name} {len(self.pairs)} in {self.count}"
