"""Sources of rows: each gives any of its examples as inputs and targets of fixed lengths.

An example is asked for by its running number: the number of examples of this source that the run
drew before it. Running number e lies in epoch e // count, and within the epoch at a place that a
keyed permutation gives. So a row depends only on the seed, the source and its running number.

Running text is cut into windows here: a window is the tokens of one row, and a stretch is the part
of a corpus that one window is made from. Rows of task records are made in `pair_rows`, of mixtures
in `mixtures`, and of streams in `streaming`. `pipeline.Batches` reads batches from a source.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from rosetta.core.errors import MISSING, UserError
from rosetta.data import Array, shuffling, vocabularies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.data.objectives import Objective
    from rosetta.data.text_corpora import Corpus

# Stretches are this much longer than the mean window needs, so that nearly all fill a window.
STRETCH_MARGIN = 1.1
MAX_SAMPLES = 64  # the parts of a corpus that are tokenised to estimate the stretch
MIN_SAMPLE_SIZE = 4096  # in units of the corpus

# The first words of the keys that are derived from a seed, one for each use. (1 is in shuffling, 5
# in pair_rows, 6 in mixtures, and 7 and 8 are in streaming.)
_OTHER_WINDOW = 2  # is added to a row's key
_ROW_KEY, _SYNTHETIC_KEY, _OFFSET_KEY = 2, 3, 4


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of tokens, padded with 0. The segments say which zeros are tokens.

    Attributes:
        inputs: int32 [n, length of inputs]; the length is 0 for lm.
        targets: int32 [n, length of targets].
        input_segments: int32 of the shape of `inputs`: 1, 2, … for the examples that are packed
            into a row, and 0 for padding.
        target_segments: The same for `targets`.
    """

    inputs: Array
    targets: Array
    input_segments: Array
    target_segments: Array


def make_unpacked_rows(inputs: Array, targets: Array, filler: int = vocabularies.PAD) -> Rows:
    """Return rows of one example each.

    Args:
        inputs: int32 [n, length of inputs], filled up with `filler`.
        targets: int32 [n, length of targets], filled up with `filler`.
        filler: What is no token: `filler` of the vocabulary.
    """
    masks = [tokens != filler for tokens in (inputs, targets)]
    inputs, targets = (
        np.where(mask, tokens, np.int32(vocabularies.PAD))
        for mask, tokens in zip(masks, (inputs, targets), strict=True)
    )
    return Rows(inputs, targets, *(mask.astype(np.int32) for mask in masks))


def make_rows_from_windows(
    windows: Sequence[Array] | Array,
    keys: Array,
    objective: Objective,
    vocabulary: vocabularies.Vocabulary,
    other_windows: Sequence[Array] | Array | None = None,
    turns: Array | None = None,
) -> Rows:
    """Return the rows that an objective makes from windows of tokens.

    Args:
        windows: n int32 arrays, or int32 [n, length].
        keys: uint64 [n], on which the random choices of each row depend.
        objective: The objective.
        vocabulary: The vocabulary.
        other_windows: n windows from elsewhere, if the objective needs them.
        turns: The turns of the windows, see Grid; None if the objective has one kind of window.
    """
    if objective.masked_rows:
        sides = objective.masked_rows.apply(windows, keys, vocabulary, other_windows)
    else:
        sides = objective.apply(windows, keys, vocabulary, turns)
    return make_unpacked_rows(*sides, vocabulary.filler)


class Source(Protocol):
    """A source of rows."""

    def read_rows(self, examples: Array) -> Rows:
        """Return the rows of running numbers, int64 [n]."""
        ...

    def describe(self) -> str:
        """Return what this source reads, for fingerprints: other rows have another text."""
        ...


@runtime_checkable
class MarkedSource(Protocol):
    """A source that can only be read from its beginning, or from a mark in it."""

    def find_mark(self, example: int) -> dict[str, Any]:
        """Return the last mark at or before a running number, as JSON."""
        ...

    def resume(self, stored_mark: dict[str, Any]) -> None:
        """Continue from a mark."""
        ...


@dataclasses.dataclass
class Synthetic:
    """Random ids at every position, with an end token at the last one."""

    objective: Objective
    vocabulary: vocabularies.Vocabulary
    seed: int

    def read_rows(self, examples: Array) -> Rows:
        """Return the rows of running numbers, int64 [n]."""
        sides = []
        for number, length in enumerate((self.objective.inputs, self.objective.targets)):
            keys = shuffling.derive_keys(
                shuffling.derive_key(self.seed, _SYNTHETIC_KEY, number), examples
            )
            words = shuffling.draw_words(keys, (length + 1) // 2)
            sides.append(self._make_ids(words.view(np.uint32)[:, :length]))
        return make_unpacked_rows(*sides)

    def _make_ids(self, words: Array) -> Array:
        """Return ids of text, int32 [n, length], from random words, uint32 [n, length]."""
        count = np.uint64(self.vocabulary.text_size - 3)  # without padding, end and unknown
        ids = (3 + (words.astype(np.uint64) * count >> np.uint64(32))).astype(np.int32)
        ids[:, -1:] = vocabularies.EOS
        return ids

    def describe(self) -> str:
        """Return the size of the vocabulary."""
        return f"synthetic {self.vocabulary.size}"


def _derive_row_keys(seed: int, epochs: Array, indices: Array) -> Array:
    """Return the keys of the rows at indices of epochs, uint64 [n]."""
    keys: Array = np.empty(len(indices), np.uint64)
    for epoch in np.unique(epochs):
        in_epoch = epochs == epoch
        epoch_key = shuffling.derive_key(seed, _ROW_KEY, int(epoch))
        keys[in_epoch] = shuffling.derive_keys(epoch_key, indices[in_epoch])
    return keys


@dataclasses.dataclass(frozen=True)
class Grid:
    """How a sequence is cut into windows, in units of the sequence.

    An objective with several kinds of windows takes them in turn: its denoisers. One window of each
    kind is a round.

    Attributes:
        bounds: Where each window of a round begins, and where the round ends, int64 [kinds + 1].
    """

    bounds: Array

    @classmethod
    def make(cls, objective: Objective, stretch: int) -> Grid:
        """Return the grid whose rounds are `stretch` long."""
        ends = np.cumsum(objective.window_lengths, dtype=np.int64)
        return cls(np.concatenate([[0], ends * stretch // ends[-1]]))

    @property
    def kinds(self) -> int:
        """The number of windows of a round."""
        return len(self.bounds) - 1

    def count_windows(self, size: int) -> int:
        """Return how many windows a sequence of `size` units has, at least 1."""
        rounds, rest = divmod(size, int(self.bounds[-1]))
        return max(1, rounds * self.kinds + int((self.bounds[1:] <= rest).sum()))

    def locate_windows(self, indices: Array) -> tuple[Array, Array, Array]:
        """Return where windows begin, how long they are, and their turns in the round.

        Args:
            indices: The numbers of the windows, int64 [n].

        Returns:
            int64 [n] each.
        """
        rounds, turns = np.divmod(indices, self.kinds)
        starts = rounds * self.bounds[-1] + self.bounds[turns]
        return starts, np.diff(self.bounds)[turns], turns


def encode_windows(
    texts: Sequence[Sequence[str]],
    objective: Objective,
    vocabulary: vocabularies.Vocabulary,
    turns: Array,
) -> list[Array]:
    """Return the ids of the documents of each window, at most a window of them, int32.

    Args:
        texts: The documents of each window.
        objective: The objective.
        vocabulary: The vocabulary.
        turns: The turns of the windows, see Grid.
    """
    # One call for all documents costs less than one for each.
    documents = vocabulary.encode(list(itertools.chain.from_iterable(texts)))
    if objective.document_ends:
        end = np.array([vocabulary.eos], np.int32)
        documents = [np.concatenate([ids, end]) for ids in documents]
    tokens = np.concatenate([np.zeros(0, np.int32), *documents])
    document_ends = np.cumsum([0, *map(len, documents)])
    window_ends = document_ends[np.cumsum([0, *map(len, texts)])].tolist()
    lengths = [objective.window_lengths[turn] for turn in turns.tolist()]
    return [
        tokens[start : min(start + length, stop)]
        for (start, stop), length in zip(itertools.pairwise(window_ends), lengths, strict=True)
    ]


def estimate_stretch(
    corpus: Corpus, objective: Objective, vocabulary: vocabularies.Vocabulary
) -> int:
    """Return how much of a corpus makes a round of windows, estimated from samples spread over it.

    A round is one window, unless the objective has several kinds of them.

    The result is the same for the same corpus and vocabulary.

    Returns:
        The stretch in units of the corpus, at least 1.

    Raises:
        UserError: The corpus has no text.
    """

    def count_tokens(start: int, stop: int) -> int:
        texts = vocabulary.encode(corpus.read_texts(start, stop))
        return sum(len(ids) + objective.document_ends for ids in texts)

    length = sum(objective.window_lengths)
    # A sample has several windows, so that its incomplete last one has little weight.
    sample_size = max(MIN_SAMPLE_SIZE, 4 * length)
    places = max(1, corpus.size // sample_size)
    sample_count = max(1, min(MAX_SAMPLES, places))
    starts: Array = shuffling.permute_indices(np.arange(sample_count), places, 0) * sample_size
    tokens = size_read = 0
    for start in starts.tolist():
        stop = min(start + sample_size, corpus.size)
        tokens += count_tokens(start, stop)
        size_read += stop - start
    start = 0
    # If all samples are empty or skipped, the corpus is read until there is a token.
    while not tokens and start < corpus.size:
        stop = min(start + sample_size, corpus.size)
        tokens += count_tokens(start, stop)
        size_read = stop
        start = stop
    if not tokens:
        raise UserError(
            "there is no text in the data",
            corpus.describe()[:80],
            "name files with text in them",
            kind=MISSING,
        )
    return max(1, round(STRETCH_MARGIN * length * size_read / tokens))


class Windows:
    """Windows of a corpus of text, tokenised when they are asked for.

    In each epoch the windows begin at other places, so no word is always left out.

    Attributes:
        corpus: The corpus.
        objective: The objective.
        vocabulary: The vocabulary.
        seed: The seed of the order and of the objective.
        shuffle: Whether the order is random and the windows move with the epoch.
        stretch: The part of the corpus that makes a round of windows, in units of the corpus.
        count: The number of windows in an epoch.
    """

    def __init__(
        self,
        corpus: Corpus,
        objective: Objective,
        vocabulary: vocabularies.Vocabulary,
        seed: int,
        *,
        shuffle: bool = True,
    ) -> None:
        self.corpus = corpus
        self.objective = objective
        self.vocabulary = vocabulary
        self.seed = seed
        self.shuffle = shuffle
        self.stretch = min(estimate_stretch(corpus, objective, vocabulary), corpus.size)
        self.count = self.grid.count_windows(corpus.size)

    def read_rows(self, examples: Array) -> Rows:
        """Return the rows of running numbers, int64 [n]."""
        epochs, indices = shuffling.locate_examples(
            examples, self.count, self.seed, shuffle=self.shuffle
        )
        return _make_rows(self, epochs, indices)

    def read_windows(self, epochs: Array, indices: Array) -> list[Array]:
        """Return the windows at indices of epochs, n int32 arrays."""
        starts, sizes, turns = self.grid.locate_windows(indices)
        starts = starts + _draw_offsets(self, self.stretch, epochs)
        texts = [
            self._read_texts(start, start + size)
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
        ]
        return encode_windows(texts, self.objective, self.vocabulary, turns)

    @property
    def grid(self) -> Grid:
        """How the corpus is cut into windows."""
        return Grid.make(self.objective, self.stretch)

    def _read_texts(self, start: int, stop: int) -> list[str]:
        """Return the texts of a stretch. If it extends past the end, the corpus begins again."""
        size = self.corpus.size
        texts = self.corpus.read_texts(min(start, size), min(stop, size))
        if stop > size and self.shuffle:
            texts += self.corpus.read_texts(max(start - size, 0), stop - size)
        return texts

    def describe(self) -> str:
        """Return the corpus and its stretch."""
        return f"{self.corpus.describe()} by {self.stretch}"


def _make_rows(source: Windows | TokenWindows, epochs: Array, indices: Array) -> Rows:
    """Return the rows at indices of epochs."""
    keys = _derive_row_keys(source.seed, epochs, indices)
    windows = source.read_windows(epochs, indices)
    others = None
    if source.objective.needs_other_windows:
        # Any window of the epoch but the row's own and the one after it, if there are so many.
        distances = shuffling.draw_integers(
            shuffling.mix_words(keys + np.uint64(_OTHER_WINDOW)), max(source.count - 2, 1)
        )
        others = source.read_windows(epochs, (indices + 2 + distances) % source.count)
    return make_rows_from_windows(
        windows, keys, source.objective, source.vocabulary, others, indices % source.grid.kinds
    )


def _draw_offsets(source: Windows | TokenWindows, length: int, epochs: Array) -> Array:
    """Return how far the windows of epochs are moved, below `length`, int64 [n].

    With shuffling, all windows of an epoch are moved by an offset that is drawn for the epoch.
    """
    offsets: Array = np.zeros(len(epochs), np.int64)
    if source.shuffle:
        for epoch in np.unique(epochs).tolist():
            offset = shuffling.derive_key(source.seed, _OFFSET_KEY, epoch) % length
            offsets[epochs == epoch] = offset
    return offsets


class TokenSource(Protocol):
    """Tokens that are stored as such, in one endless sequence."""

    @property
    def size(self) -> int:
        """The number of tokens, after which the first one comes again."""
        ...

    def read_windows(self, starts: Array, length: int) -> Array:
        """Return the windows of `length` tokens that begin at `starts`, int32 [n, length]."""
        ...

    def describe(self) -> str:
        """Return a text that changes if the tokens do."""
        ...


class TokenWindows:
    """Windows of stored tokens, which are always full.

    In each epoch the windows begin at other places.

    Attributes:
        tokens: The tokens.
        objective: The objective.
        vocabulary: The vocabulary.
        seed: The seed of the order and of the objective.
        shuffle: Whether the order is random and the windows move with the epoch.
        count: The number of windows in an epoch.
        length: The number of tokens of a round of windows.
        grid: How the tokens are cut into windows.
    """

    def __init__(
        self,
        tokens: TokenSource,
        objective: Objective,
        vocabulary: vocabularies.Vocabulary,
        seed: int,
        *,
        shuffle: bool = True,
    ) -> None:
        self.tokens = tokens
        self.objective = objective
        self.vocabulary = vocabulary
        self.seed = seed
        self.shuffle = shuffle
        self.length = min(sum(objective.window_lengths), tokens.size)
        self.grid = Grid.make(objective, self.length)
        self.count = self.grid.count_windows(tokens.size)

    def read_rows(self, examples: Array) -> Rows:
        """Return the rows of running numbers, int64 [n]."""
        epochs, indices = shuffling.locate_examples(
            examples, self.count, self.seed, shuffle=self.shuffle
        )
        return _make_rows(self, epochs, indices)

    def read_windows(self, epochs: Array, indices: Array) -> list[Array] | Array:
        """Return the windows at indices of epochs, int32 [n, length] if all have one length."""
        starts, sizes, _ = self.grid.locate_windows(indices)
        starts = starts + _draw_offsets(self, self.length, epochs)
        if self.grid.kinds == 1:
            return self.tokens.read_windows(starts, self.length)
        windows: list[Array] = [np.zeros(0, np.int32)] * len(starts)
        for size in np.unique(sizes).tolist():
            of_size = np.flatnonzero(sizes == size)
            for number, window in zip(
                of_size.tolist(), self.tokens.read_windows(starts[of_size], size), strict=True
            ):
                windows[number] = window
        return windows

    def describe(self) -> str:
        """Return what the tokens say of themselves."""
        return self.tokens.describe()
