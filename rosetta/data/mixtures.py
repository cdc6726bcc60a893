"""Mixtures of sources at fixed rates, and what checkpoints store of sources and of mixtures.

`pipeline.Batches` reads from a mixture as from a single source.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.core.errors import INVALID, UserError
from rosetta.data import Array, shuffling
from rosetta.data.rows import Grid, MarkedSource, Rows, Source, Windows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MIXTURE_KEY = 6  # the first word of the keys that are derived from a seed, see rows


class Mixture:
    """Several sources that are drawn at fixed rates.

    Of every BLOCK examples, each source gives its share, in an order keyed by the block.

    Attributes:
        sources: The sources.
        names: Their specs, without the queries of web addresses.
        seed: The seed of the order.
        counts: The number of examples of each source in a block.
        bounds: The cumulative sum of `counts`.

    Raises:
        UserError: A rate is too low for one example in a block.
    """

    BLOCK = 4096

    def __init__(
        self, sources: Sequence[Source], rates: Sequence[float], names: Sequence[str], seed: int
    ) -> None:
        self.sources = list(sources)
        self.names = list(names)
        self.seed = seed
        exact = np.array(rates) / sum(rates) * self.BLOCK
        counts = np.floor(exact).astype(int)
        # The examples that rounding left go to the sources with the largest remainders.
        by_remainder = np.argsort(-(exact - counts), kind="stable")
        counts[by_remainder[: self.BLOCK - counts.sum()]] += 1
        if not counts.all():
            raise UserError(
                f"the rate of {names[int(np.argmin(counts))]} is below 1 in {self.BLOCK}",
                "DATA",
                "raise it or leave the source out",
                kind=INVALID,
            )
        self.counts = counts
        self.bounds = np.cumsum(counts)

    def locate_draws(self, examples: Array) -> tuple[Array, Array]:
        """Return from which source examples are drawn, and their running numbers there.

        Args:
            examples: The running numbers in the mixture, int64 [n].

        Returns:
            The numbers of the sources and the running numbers in them, int64 [n].
        """
        blocks, places = np.divmod(np.asarray(examples, np.int64), self.BLOCK)
        ranks = np.empty_like(places)
        for block in np.unique(blocks):
            in_block = blocks == block
            block_key = shuffling.derive_key(self.seed, _MIXTURE_KEY, int(block))
            ranks[in_block] = shuffling.permute_indices(places[in_block], self.BLOCK, block_key)
        source_numbers: Array = np.searchsorted(self.bounds, ranks, side="right")
        first_ranks = (self.bounds - self.counts)[source_numbers]
        numbers = blocks * self.counts[source_numbers] + ranks - first_ranks
        return source_numbers, numbers

    def read_rows(self, examples: Array) -> Rows:
        """Return the rows of running numbers, int64 [n]."""
        source_numbers, numbers = self.locate_draws(examples)
        arrays: dict[str, Array] = {}
        for source_number in np.unique(source_numbers):
            positions = np.flatnonzero(source_numbers == source_number)
            rows = self.sources[source_number].read_rows(numbers[positions])
            for field in dataclasses.fields(Rows):
                part = getattr(rows, field.name)
                if field.name not in arrays:
                    arrays[field.name] = np.zeros((len(examples), part.shape[1]), np.int32)
                arrays[field.name][positions] = part
        return Rows(**arrays)

    def list_draws_once(self, row_counts: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield every row of every source once: the number of the source, and of the row in it.

        The sources are drawn at their rates, each in its order, until a source has no further row.

        Args:
            row_counts: The number of rows of each source.
        """
        next_rows = [0] * len(row_counts)
        unfinished = {number for number, count in enumerate(row_counts) if count}
        first = 0
        while len(unfinished) > 1:
            source_numbers, _ = self.locate_draws(np.arange(first, first + self.BLOCK))
            first += self.BLOCK
            for source_number in source_numbers.tolist():
                if source_number in unfinished:
                    yield source_number, next_rows[source_number]
                    next_rows[source_number] += 1
                    if next_rows[source_number] == row_counts[source_number]:
                        unfinished.remove(source_number)
        for source_number in unfinished:
            for row in range(next_rows[source_number], row_counts[source_number]):
                yield source_number, row

    def describe(self, names: Sequence[str] | None = None) -> str:
        """Return the share, the name and the description of each source.

        Args:
            names: Other names than those of the mixture.
        """
        return "; ".join(
            f"{count}x {name} {source.describe()}"
            for count, name, source in zip(
                self.counts, names or self.names, self.sources, strict=True
            )
        )


def get_grid(source: Source) -> list[Any]:
    """Return how each corpus of a source is cut into windows, as JSON.

    Returns:
        [stretch, count] of a corpus, [] of another source, and a list of these of a mixture.
    """
    if isinstance(source, Mixture):
        return [get_grid(inner) for inner in source.sources]
    return [source.stretch, source.count] if isinstance(source, Windows) else []


def set_grid(source: Source, grid: Sequence[Any]) -> bool:
    """Cut each corpus of a source into the windows that `get_grid` returned before.

    So a corpus in which a few bytes were changed keeps its windows and their order.

    Returns:
        Whether all corpora could be cut so.
    """
    if isinstance(source, Mixture):
        if len(grid) != len(source.sources):
            return False
        fits = [
            set_grid(inner, inner_grid)
            for inner, inner_grid in zip(source.sources, grid, strict=True)
        ]
        return all(fits)
    if not isinstance(source, Windows) or len(grid) != 2:
        return False
    stretch, count = grid
    rounds = count // Grid.make(source.objective, stretch).kinds
    if not (rounds - 1) * stretch < source.corpus.size < (rounds + 2) * stretch:
        return False
    source.stretch = stretch
    source.count = count
    return True


def get_stream_marks(source: Source, example: int) -> list[Any]:
    """Return the marks from which the streams of a source continue, as JSON.

    Args:
        source: The source.
        example: The running number of the example to continue with.
    """
    if isinstance(source, Mixture):
        # The order inside a block is not known here, so each stream continues with its first
        # example of the block.
        block = example // source.BLOCK
        return [
            get_stream_marks(inner, block * int(count))
            for inner, count in zip(source.sources, source.counts, strict=True)
        ]
    return [source.find_mark(example)] if isinstance(source, MarkedSource) else []


def restore_stream_marks(source: Source, marks: Sequence[Any]) -> None:
    """Let the streams of a source continue from the marks that `get_stream_marks` returned."""
    if isinstance(source, Mixture):
        for inner, inner_marks in zip(source.sources, marks, strict=True):
            restore_stream_marks(inner, inner_marks)
    elif marks and isinstance(source, MarkedSource):
        source.resume(marks[0])
