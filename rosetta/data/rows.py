"""Sources of rows: each gives any of its examples, by running number, as inputs and targets of
fixed length.

Running number e means the e-th example drawn from this source since the run began: epoch e //
count, and within the epoch a place in a keyed permutation. So a row depends on (seed, source, e)
alone.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rosetta.core.errors import INVALID, MISSING, UserError
from rosetta.data import Array, packing, shuffling, vocabularies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.data.objectives import Objective
    from rosetta.data.text_corpora import Corpus
    from rosetta.data.token_cache import TokenCache

STRETCH_MARGIN = (
    1.1  # stretches are this much longer than a mean window, so that nearly all fill one
)
MAX_SAMPLES, MIN_SAMPLE_SIZE = 64, 4096


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of tokens, padded with 0.

    Attributes:
      inputs: int32 [n, inputs length] (length 0 for lm).
      targets: int32 [n, targets length].
      input_segments, target_segments: int32 of the same shapes: 1, 2, … for the examples packed
        into a row, 0 for padding.
    """

    inputs: Array
    targets: Array
    input_segments: Array
    target_segments: Array


def make_unpacked_rows(inputs: Array, targets: Array) -> Rows:
    """Return rows of one example each."""
    return Rows(inputs, targets, (inputs != 0).astype(np.int32), (targets != 0).astype(np.int32))


class Source(Protocol):
    """What gives rows."""

    def read_rows(self, examples: Array) -> Rows:
        """Return the rows of running example numbers int64 [n]."""
        ...

    def describe(self) -> str:
        """Return what this source reads: another text means other rows."""
        ...


@dataclasses.dataclass
class Synthetic:
    """Random ids, every position filled, the last one an end token."""

    objective: Objective
    vocab: vocabularies.Vocabulary
    seed: int

    def read_rows(self, examples: Array) -> Rows:
        highest = self.vocab.text_size
        made = []
        for number, length in enumerate((self.objective.inputs, self.objective.targets)):
            draws: Array = shuffling.draw_words(
                shuffling.derive_keys(shuffling.derive_key(self.seed, 3, number), examples),
                (length + 1) // 2,
            ).view(np.uint32)[:, :length]
            ids = (3 + (draws.astype(np.uint64) * np.uint64(highest - 3) >> np.uint64(32))).astype(
                np.int32
            )
            ids[:, -1:] = vocabularies.EOS
            made.append(ids)
        return make_unpacked_rows(*made)

    def describe(self) -> str:
        return f"synthetic {self.vocab.size}"


def _derive_row_keys(seed: int, epoch: Array, index: Array) -> Array:
    found: Array = np.empty(len(index), np.uint64)
    for turn in np.unique(epoch):
        here = epoch == turn
        found[here] = shuffling.derive_keys(shuffling.derive_key(seed, 2, int(turn)), index[here])
    return found


def encode_window(
    texts: Sequence[str], objective: Objective, vocab: vocabularies.Vocabulary
) -> Array:
    """Return the ids of documents in a row, at most a window of them."""
    found: list[Array] = []
    count = 0
    for text in texts:
        if count >= objective.window_length:
            break
        ids = vocab.encode([text])[0]
        if objective.document_ends:
            ids = np.append(ids, np.int32(vocab.eos))
        found.append(ids)
        count += len(ids)
    return np.concatenate([*found, np.zeros(0, np.int32)])[: objective.window_length].astype(
        np.int32
    )


def estimate_stretch(corpus: Corpus, objective: Objective, vocab: vocabularies.Vocabulary) -> int:
    """Return how much of a corpus makes a window, from samples spread over it: the same for the
    same corpus and vocabulary.

    Raises:
      UserError: the samples hold no text.
    """
    # Whole windows at least, so that the tail of each sample weighs little.
    length = max(MIN_SAMPLE_SIZE, 4 * objective.window_length)
    count = max(1, min(MAX_SAMPLES, corpus.size // length))
    places: Array = (
        shuffling.permute_indices(np.arange(count), max(1, corpus.size // length), 0) * length
    )
    tokens = read = 0
    for place in places:
        stop = min(int(place) + length, corpus.size)
        tokens += sum(
            len(ids) + objective.document_ends
            for ids in vocab.encode(corpus.read_texts(int(place), stop))
        )
        read += stop - int(place)
    place = 0
    while (
        not tokens and place < corpus.size
    ):  # the samples hit nothing but what is empty or skipped
        stop = min(place + length, corpus.size)
        tokens += sum(
            len(ids) + objective.document_ends
            for ids in vocab.encode(corpus.read_texts(place, stop))
        )
        read, place = stop, stop
    if not tokens:
        raise UserError(
            "there is no text in the data",
            corpus.describe()[:80],
            "name files with text in them",
            kind=MISSING,
        )
    return max(1, round(STRETCH_MARGIN * objective.window_length * read / tokens))


class Windows:
    """Windows of a corpus of text, tokenised when asked for.

    The grid moves with the epoch, so no word is always left out.
    """

    def __init__(
        self,
        corpus: Corpus,
        objective: Objective,
        vocab: vocabularies.Vocabulary,
        seed: int,
        *,
        shuffle: bool = True,
    ) -> None:
        self.corpus, self.objective, self.vocab, self.seed, self.shuffle = (
            corpus,
            objective,
            vocab,
            seed,
            shuffle,
        )
        self.stretch = min(estimate_stretch(corpus, objective, vocab), corpus.size)
        self.count = max(1, corpus.size // self.stretch)

    def read_rows(self, examples: Array) -> Rows:
        epoch, index = shuffling.locate_examples(
            examples, self.count, self.seed, shuffle=self.shuffle
        )
        windows = []
        for turn, place in zip(epoch.tolist(), index.tolist(), strict=True):
            start = place * self.stretch + (
                shuffling.derive_key(self.seed, 4, turn) % self.stretch if self.shuffle else 0
            )
            stop = start + self.stretch
            size = self.corpus.size
            texts = self.corpus.read_texts(min(start, size), min(stop, size))
            if stop > size and self.shuffle:
                texts += self.corpus.read_texts(max(start - size, 0), stop - size)
            windows.append(encode_window(texts, self.objective, self.vocab))
        return make_unpacked_rows(
            *self.objective.apply(windows, _derive_row_keys(self.seed, epoch, index), self.vocab)
        )

    def describe(self) -> str:
        return f"{self.corpus.describe()} by {self.stretch}"


class CachedWindows:
    """Windows of a token cache: exactly full, at a grid that moves with the epoch."""

    def __init__(
        self,
        cache: TokenCache,
        objective: Objective,
        vocab: vocabularies.Vocabulary,
        seed: int,
        *,
        shuffle: bool = True,
    ) -> None:
        self.cache, self.objective, self.vocab, self.seed, self.shuffle = (
            cache,
            objective,
            vocab,
            seed,
            shuffle,
        )
        self.count = max(1, cache.size // objective.window_length)
        self.length = min(objective.window_length, cache.size)

    def read_rows(self, examples: Array) -> Rows:
        epoch, index = shuffling.locate_examples(
            examples, self.count, self.seed, shuffle=self.shuffle
        )
        windows = []
        for turn, place in zip(epoch.tolist(), index.tolist(), strict=True):
            start = place * self.length + (
                shuffling.derive_key(self.seed, 4, turn) % self.length if self.shuffle else 0
            )
            windows.append(self.cache.read_tokens(start, start + self.length))
        return make_unpacked_rows(
            *self.objective.apply(windows, _derive_row_keys(self.seed, epoch, index), self.vocab)
        )

    def describe(self) -> str:
        return f"cache {self.cache.recipe.source} {self.cache.size}"


class Pairs:
    """Inputs and targets of records, tokenised when asked for; packed into fixed bundles where
    asked.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[Array, Array]],
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
        self.objective, self.seed, self.shuffle, self.name, self.pairs = (
            objective,
            seed,
            shuffle,
            name,
            pairs,
        )
        if pack:
            drawn = (
                shuffling.permute_indices(
                    np.arange(len(pairs)), len(pairs), shuffling.derive_key(seed, 5)
                )
                if shuffle
                else np.arange(len(pairs))
            )
            self.pairs = list(pairs)  # all are needed now, to know how long they are
            sizes = np.minimum(
                [[len(first) + 1, len(second) + 1] for first, second in self.pairs],
                (objective.inputs, objective.targets),
            )
            self.bundles = packing.pack_examples(
                sizes, drawn, (objective.inputs, objective.targets)
            )
        else:
            self.bundles = [[number] for number in range(len(pairs))]
        self.count = len(self.bundles)

    def read_rows(self, examples: Array) -> Rows:
        _, index = shuffling.locate_examples(examples, self.count, self.seed, shuffle=self.shuffle)
        lengths = (self.objective.inputs, self.objective.targets)
        tokens: list[Array] = [np.zeros((len(index), length), np.int32) for length in lengths]
        segments: list[Array] = [np.zeros((len(index), length), np.int32) for length in lengths]
        for row, bundle in enumerate(index.tolist()):
            places = [0, 0]
            for segment, number in enumerate(self.bundles[bundle], 1):
                for side, ids in enumerate(self.pairs[number]):
                    cut = (
                        _truncate_with_end(ids, lengths[side])
                        if self.objective.adds_end_tokens
                        else _truncate(ids, lengths[side], last=side == 0)
                    )
                    here = slice(places[side], places[side] + len(cut))
                    tokens[side][row, here], segments[side][row, here] = cut, segment
                    places[side] += len(cut)
        return Rows(tokens[0], tokens[1], segments[0], segments[1])

    def describe(self) -> str:
        return f"{self.name} {len(self.pairs)} in {self.count}"


def _truncate_with_end(ids: Array, length: int) -> Array:
    """Return the ids with an end token, at most `length` of them."""
    return np.append(ids[: length - 1], np.int32(vocabularies.EOS)).astype(np.int32)


def _truncate(ids: Array, length: int, *, last: bool) -> Array:
    """Return at most `length` of the ids as they are: the last of them of a prompt, whose question
    stands at its end, else the first.
    """
    return ids[max(len(ids) - length, 0) :] if last else ids[:length]


class Mixture:
    """Several sources drawn at fixed rates: of every BLOCK examples each gives its share, in an
    order keyed by the block.
    """

    BLOCK = 4096

    def __init__(
        self, sources: Sequence[Source], rates: Sequence[float], names: Sequence[str], seed: int
    ) -> None:
        self.sources, self.names, self.seed = list(sources), list(names), seed
        exact = np.array(rates) / sum(rates) * self.BLOCK
        counts = np.floor(exact).astype(int)
        # What rounding left goes to the largest remainders.
        counts[np.argsort(-(exact - counts), kind="stable")[: self.BLOCK - counts.sum()]] += 1
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
        """Return, for running numbers [n], which source each is drawn from and its running number
        there.
        """
        block, place = np.divmod(np.asarray(examples, np.int64), self.BLOCK)
        rank = np.empty_like(place)
        for turn in np.unique(block):
            here = block == turn
            rank[here] = shuffling.permute_indices(
                place[here], self.BLOCK, shuffling.derive_key(self.seed, 6, int(turn))
            )
        which: Array = np.searchsorted(self.bounds, rank, side="right")
        return which, block * self.counts[which] + rank - (self.bounds - self.counts)[which]

    def read_rows(self, examples: Array) -> Rows:
        which, number = self.locate_draws(examples)
        made: dict[str, Array] = {}
        for source in np.unique(which):
            here = np.flatnonzero(which == source)
            rows = self.sources[source].read_rows(number[here])
            for field in dataclasses.fields(Rows):
                part = getattr(rows, field.name)
                made.setdefault(field.name, np.zeros((len(examples), part.shape[1]), np.int32))[
                    here
                ] = part
        return Rows(**made)

    def describe(self) -> str:
        return "; ".join(
            f"{count}x {name} {source.describe()}"
            for count, name, source in zip(self.counts, self.names, self.sources, strict=True)
        )


def get_grid(source: Source) -> list[Any]:
    """Return how each corpus inside a source is cut into windows: [stretch, count], [] of other
    sources.
    """
    if isinstance(source, Mixture):
        return [get_grid(inner) for inner in source.sources]
    return [source.stretch, source.count] if isinstance(source, Windows) else []


def set_grid(source: Source, kept: Sequence[Any]) -> bool:
    """Cut each corpus inside a source as `get_grid` said; return whether all are cut so.

    A corpus of which a few bytes were changed keeps its windows and their order in this way.
    """
    if isinstance(source, Mixture):
        if len(kept) != len(source.sources):
            return False
        cut = [set_grid(inner, grid) for inner, grid in zip(source.sources, kept, strict=True)]
        return all(cut)
    if not isinstance(source, Windows) or len(kept) != 2:
        return False
    stretch, count = kept
    fits = bool((count - 1) * stretch < source.corpus.size < (count + 2) * stretch)
    if fits:
        source.stretch, source.count = stretch, count
    return fits


def get_stream_marks(source: Source, example: int) -> list[Any]:
    """Return the marks of the streams inside a source, for whoever goes on at this running example
    number.
    """
    if isinstance(source, Mixture):
        found = []
        for number, inner in enumerate(source.sources):
            # The block's first draw is early enough, whatever the order inside the block.
            found.append(
                get_stream_marks(inner, example // source.BLOCK * int(source.counts[number]))
            )
        return found
    mark = getattr(source, "mark", None)
    return [mark(example)] if mark else []


def restore_stream_marks(source: Source, kept: Sequence[Any]) -> None:
    """Give the streams inside a source their marks back."""
    if isinstance(source, Mixture):
        for inner, marks in zip(source.sources, kept, strict=True):
            restore_stream_marks(inner, marks)
    elif kept and hasattr(source, "resume"):
        source.resume(kept[0])
