"""Objectives: make the inputs and targets of a model from windows of tokens.

Span corruption, prefix LM and LM make them from running text, here. MNLI, SQuAD and other tasks
have inputs and targets already, so here they only have lengths and rules about end tokens.

The objectives are those of Raffel et al., "Exploring the limits of transfer learning with a unified
text-to-text transformer" (JMLR 2020), sections 3.1.4 and 3.3. Every random choice is a function of
the row's key.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from rosetta.core.errors import INVALID, MISSING, UNKNOWN, UserError
from rosetta.data import Array, masking_tokens, shuffling, vocabularies
from rosetta.data.data_spec import (
    ANSWER_OBJECTIVES,
    CAUSAL_OBJECTIVES,
    ENCODER_OBJECTIVES,
    LABEL_OBJECTIVES,
    MASKED_OBJECTIVES,
    OBJECTIVES,
    PAIR_OBJECTIVES,
)
from rosetta.data.masked_rows import MaskedRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# Windows of a size that fewer rows of a batch have are corrupted together with those of other such
# sizes. The rows are the same, and dozens of calls for one row each are saved.
_ROWS_PER_SIZE = 16


@dataclasses.dataclass(frozen=True)
class Objective:
    """An objective at fixed lengths.

    Attributes:
        name: One of data_spec.OBJECTIVES.
        inputs: The length of the encoder's inputs in tokens, with the end token; 0 for lm.
        targets: The length of the decoder's targets in tokens, with the end token.
        mean_noise_span_length: The mean length of a masked span in tokens (3 for SentencePiece, 20
            for bytes).
        noise_density: The share of the tokens that is masked.
    """

    name: str
    inputs: int
    targets: int
    mean_noise_span_length: float = 3.0
    noise_density: float = 0.15

    @property
    def takes_pairs(self) -> bool:
        """Whether it takes records with inputs and targets, and not running text."""
        return self.name in PAIR_OBJECTIVES

    @property
    def adds_end_tokens(self) -> bool:
        """Whether an end token follows the inputs and the targets of a record."""
        return self.name not in (*ANSWER_OBJECTIVES, *LABEL_OBJECTIVES)

    @functools.cached_property
    def masked_rows(self) -> MaskedRows | None:
        """How rows of masked language modelling are made; None for another objective."""
        if self.name not in MASKED_OBJECTIVES:
            return None
        pairs = next((kind for kind in ("nsp", "sop") if self.name.endswith(kind)), "")
        return MaskedRows(self.inputs, "whole_word" in self.name, pairs, self.noise_density)

    @property
    def needs_other_windows(self) -> bool:
        """Whether a row is made of a window and of another one from elsewhere."""
        return self.masked_rows is not None and self.masked_rows.pairs == "nsp"

    @property
    def document_ends(self) -> bool:
        """Whether an end token follows each document inside a window."""
        return self.name == "lm"

    @property
    def window_length(self) -> int:
        """The number of tokens of running text from which a row is made."""
        if self.masked_rows:
            return self.masked_rows.window_length
        if self.name == "span_corruption":
            return find_window_length(self.inputs, self.noise_density, self.mean_noise_span_length)
        return self.inputs - 1 if self.name == "prefix_lm" else self.targets

    def check_fits(self, vocabulary: vocabularies.Vocabulary) -> None:
        """Check that the lengths and the vocabulary can serve the objective.

        Raises:
            UserError: The targets are too short, or the vocabulary has too few sentinels.
        """
        if self.name in ENCODER_OBJECTIVES:
            masking_tokens.find_masking_tokens(vocabulary)
            return
        if self.name not in CAUSAL_OBJECTIVES:
            vocabularies.check_not_masked(vocabulary, self.name)
        if self.name != "span_corruption":
            return
        noise, spans = _count_noise(
            self.window_length, self.noise_density, self.mean_noise_span_length
        )
        needed = noise + spans + 1
        if needed > self.targets:
            raise UserError(
                f"span corruption of {self.inputs} inputs makes {needed} targets, but the length "
                f"of targets is {self.targets}",
                "TASK_FEATURE_LENGTHS",
                f"set targets to at least {needed}, or shorten the inputs",
                kind=INVALID,
                value=self.targets,
            )
        vocabularies.check_sentinel_count(vocabulary, spans)

    def apply(
        self, windows: Sequence[Array] | Array, keys: Array, vocabulary: vocabularies.Vocabulary
    ) -> tuple[Array, Array]:
        """Make rows of inputs and targets from windows of tokens.

        Args:
            windows: n int32 arrays of at most `window_length` tokens, or int32 [n, length].
            keys: uint64 [n], on which the random choices of each row depend.
            vocabulary: The vocabulary, which has the sentinels.

        Returns:
            The inputs, int32 [n, inputs], and the targets, int32 [n, targets], filled up with
            `filler` of the vocabulary.
        """
        inputs: Array = np.full((len(windows), self.inputs), vocabulary.filler, np.int32)
        targets: Array = np.full((len(windows), self.targets), vocabulary.filler, np.int32)
        sizes = np.array([len(window) for window in windows])
        sentinels: Array = np.array(
            vocabulary.sentinel_ids if self.name == "span_corruption" else (), np.int32
        )
        unique_sizes, row_counts = np.unique(sizes, return_counts=True)
        if self.name == "span_corruption":
            is_rare = (row_counts < _ROWS_PER_SIZE) & (unique_sizes >= 2)
            rows = np.flatnonzero(np.isin(sizes, unique_sizes[is_rare]))
            if len(rows):
                short_windows = [windows[int(row)] for row in rows]
                span = self.mean_noise_span_length
                hidden = draw_ragged_masks(sizes[rows], keys[rows], self.noise_density, span)
                _write_ragged_rows(inputs, rows, short_windows, hidden, sentinels)
                _write_ragged_rows(targets, rows, short_windows, ~hidden, sentinels)
            unique_sizes = unique_sizes[~is_rare]
        for size in unique_sizes:
            rows = np.flatnonzero(sizes == size)
            tokens: Array = np.zeros((len(rows), 0), np.int32)
            if isinstance(windows, np.ndarray):
                tokens = windows
            elif size:
                tokens = np.stack([windows[int(row)] for row in rows])
            if self.name == "lm":
                targets[rows, : min(size, self.targets)] = tokens[:, : self.targets]
            elif self.name == "prefix_lm":
                _split_prefixes(tokens, keys[rows], inputs, targets, rows)
            else:
                shown, asked_for = corrupt_spans(
                    tokens, keys[rows], sentinels, self.noise_density, self.mean_noise_span_length
                )
                _write_tokens(inputs, rows, shown)
                _write_tokens(targets, rows, asked_for)
        return inputs, targets


def make_objective(
    name: str,
    lengths: Mapping[str, int],
    *,
    mean_noise_span_length: float = 3.0,
    noise_density: float = 0.15,
) -> Objective:
    """Return an objective at fixed lengths.

    Args:
        name: One of data_spec.OBJECTIVES.
        lengths: The lengths of "inputs" (not for lm) and "targets", in tokens.
        mean_noise_span_length: See Objective.
        noise_density: See Objective.

    Raises:
        UserError: The name is unknown, a length is missing, or a value is out of its range.
    """
    if name not in OBJECTIVES:
        raise UserError(
            f"{name!r} is not a valid objective",
            "objective",
            "use one of " + ", ".join(OBJECTIVES),
            kind=UNKNOWN,
            value=name,
        )
    if not 0 < noise_density < 1 or not 1 <= mean_noise_span_length < math.inf:
        raise UserError(
            f"a noise density of {noise_density} or a mean span length of "
            f"{mean_noise_span_length} is out of range",
            "objective",
            "give a density between 0 and 1, and a span length of at least 1",
            kind=INVALID,
        )
    if name in ENCODER_OBJECTIVES and "inputs" in lengths:
        lengths = {**lengths, "targets": 1 if name in LABEL_OBJECTIVES else lengths["inputs"]}
    needed = ("targets",) if name == "lm" else ("inputs", "targets")
    missing = [key for key in needed if key not in lengths]
    if missing:
        raise UserError(
            f"the length of {' and '.join(missing)} is missing",
            "TASK_FEATURE_LENGTHS",
            f"give {' and '.join(needed)}, which {name} needs",
            kind=MISSING,
        )
    return Objective(
        name,
        lengths["inputs"] if name != "lm" else 0,
        lengths["targets"],
        mean_noise_span_length,
        noise_density,
    )


@functools.lru_cache(maxsize=4096)
def _count_noise(length: int, density: float, span_length: float) -> tuple[int, int]:
    """Return the number of masked tokens and of masked spans.

    Both are at least 1, and at least one unmasked token is left for each span.
    """
    noise = min(max(round(length * density), 1), length - 1)
    spans = min(max(round(noise / span_length), 1), noise, length - noise)
    return noise, spans


@functools.lru_cache
def find_window_length(inputs: int, density: float, span_length: float) -> int:
    """Return the largest window whose corrupted inputs fit.

    Args:
        inputs: The room for inputs in tokens, with sentinels and the end token.
        density: The share of the tokens that is masked.
        span_length: The mean length of a masked span.

    Returns:
        The number of tokens.
    """

    def count_inputs(length: int) -> int:
        noise, spans = _count_noise(length, density, span_length)
        return length - noise + spans + 1

    # A longer window never needs less room, so the longest that fits can be found by bisection.
    too_long = 4
    while count_inputs(too_long) <= inputs:
        too_long *= 2
    return bisect.bisect_right(range(3, too_long), inputs, key=count_inputs) + 2


def _draw_segment_lengths(items: int, segments: int, keys: Array) -> Array:
    """Cut `items` into non-empty segments for each row; all ways to cut are equally likely.

    Returns:
        The lengths of the segments, [n, segments].
    """
    if segments == 1:
        return np.full((len(keys), 1), items)
    # The words of a row differ, so the smallest are cut places without ties.
    words = shuffling.draw_words(keys, items - 1)
    largest = np.partition(words, segments - 2, axis=1)[:, segments - 2, None]
    places: Array = np.flatnonzero(words <= largest) % (items - 1)
    cuts: Array = places.reshape(len(keys), segments - 1) + 1
    return np.diff(cuts, axis=1, prepend=0, append=items)


def draw_noise_mask(length: int, keys: Array, density: float, span_length: float) -> Array:
    """Choose the tokens to mask in each row. Unmasked and masked spans alternate.

    Args:
        length: The number of tokens of a row, at least 2.
        keys: uint64 [n].
        density: The share of the tokens that is masked.
        span_length: The mean length of a masked span.

    Returns:
        bool [n, length], True for masked tokens. The first span is not masked.
    """
    noise, spans = _count_noise(length, density, span_length)
    unmasked_keys = shuffling.mix_words(keys + np.uint64(1))
    masked_keys = shuffling.mix_words(keys + np.uint64(2))
    # Sums over the spans of a row: the unmasked and masked tokens up to the end of each span.
    unmasked = np.cumsum(_draw_segment_lengths(length - noise, spans, unmasked_keys), axis=1)
    masked = np.cumsum(_draw_segment_lengths(noise, spans, masked_keys), axis=1)
    masked_before = np.pad(masked, ((0, 0), (1, 0)))[:, :-1]
    changes: Array = np.zeros((len(keys), length + 1), np.int8)
    rows = np.arange(len(keys))[:, None]
    changes[rows, unmasked + masked_before] += 1  # A masked span begins.
    changes[rows, unmasked + masked] -= 1  # It ends.
    return np.cumsum(changes[:, :-1], axis=1, dtype=np.int8).astype(bool)


def _draw_ragged_ends(items: Array, segments: Array, keys: Array) -> Array:
    """Cut the items of each row into segments, as _draw_segment_lengths does for equal rows.

    Args:
        items: int64 [n], the number of items of each row.
        segments: int64 [n], the number of segments of each row.
        keys: uint64 [n].

    Returns:
        Where each segment ends, [n, most segments]. Of a row with fewer segments, the last ones
        repeat the number of its items.
    """
    cut_counts = segments - 1
    ends = np.repeat(items[:, None], segments.max(), axis=1)
    if cut_counts.any():
        width = int(items.max()) - 1
        words = shuffling.draw_words(keys, width)
        words[np.arange(width) >= items[:, None] - 1] = np.uint64(shuffling.WORD_MASK)
        sorted_words = np.sort(words, axis=1)
        largest = np.take_along_axis(sorted_words, np.maximum(cut_counts - 1, 0)[:, None], axis=1)
        is_cut = (words <= largest) & (cut_counts > 0)[:, None]
        ends[np.arange(ends.shape[1]) < cut_counts[:, None]] = np.flatnonzero(is_cut) % width + 1
    return ends


def draw_ragged_masks(sizes: Array, keys: Array, density: float, span_length: float) -> Array:
    """Choose the tokens to mask in rows of different lengths, as draw_noise_mask does for each.

    Args:
        sizes: int64 [n], the tokens of each row, at least 2.
        keys: uint64 [n].
        density: The share of the tokens that is masked.
        span_length: The mean length of a masked span.

    Returns:
        bool [n, longest row], True for masked tokens. What is behind the end of a row is not
        defined.
    """
    counts = [_count_noise(size, density, span_length) for size in sizes.tolist()]
    noise, spans = np.array(counts).T
    unmasked = _draw_ragged_ends(sizes - noise, spans, shuffling.mix_words(keys + np.uint64(1)))
    masked = _draw_ragged_ends(noise, spans, shuffling.mix_words(keys + np.uint64(2)))
    masked_before = np.pad(masked, ((0, 0), (1, 0)))[:, :-1]
    length = int(sizes.max())
    changes: Array = np.zeros((len(keys), length + 1), np.int8)
    rows = np.arange(len(keys))[:, None]
    changes[rows, unmasked + masked_before] += 1  # A masked span begins.
    changes[rows, unmasked + masked] -= 1  # It ends.
    return np.cumsum(changes[:, :-1], axis=1, dtype=np.int8).astype(bool)


def _write_ragged_rows(
    target: Array, rows: Array, windows: Sequence[Array], hidden: Array, sentinels: Array
) -> None:
    """Replace spans in windows of different lengths, and write them into rows with an end token.

    Args:
        target: int32 [batch, length], whose rows are changed.
        rows: int64 [n], the rows of `target`.
        windows: n int32 arrays.
        hidden: bool [n, longest window], the tokens that sentinels stand for.
        sentinels: int32, the ids of the sentinels.
    """
    sizes = np.array([len(window) for window in windows])
    is_token = np.arange(hidden.shape[1]) < sizes[:, None]
    tokens: Array = np.zeros(hidden.shape, np.int32)
    tokens[is_token] = np.concatenate(windows)
    marked, stays = _mark_spans(tokens, hidden, is_token, sentinels)
    last = target.shape[1] - 1
    stays &= np.cumsum(stays, axis=1, dtype=np.int32) <= last
    counts = stays.sum(axis=1)
    block = target[rows]
    block[np.arange(last + 1) < counts[:, None]] = marked[stays]
    block[np.arange(len(rows)), counts] = vocabularies.EOS
    target[rows] = block


def _mark_spans(
    tokens: Array, hidden: Array, is_token: Array | bool, sentinels: Array
) -> tuple[Array, Array]:
    """Write sentinels where runs of hidden tokens begin, in the order of the sentinels.

    Args:
        tokens: int32 [n, length], which is changed.
        hidden: bool [n, length].
        is_token: bool [n, length], or True if there is no padding.
        sentinels: int32, the ids of the sentinels.

    Returns:
        The tokens, and which of them stay: bool [n, length].
    """
    first = hidden & is_token
    first[:, 1:] &= ~hidden[:, :-1]
    counts = first.sum(axis=1)
    run = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    tokens[first] = sentinels[run]
    return tokens, (~hidden | first) & is_token


def _replace_spans(tokens: Array, hidden: Array, sentinels: Array) -> Array:
    """Replace each run of hidden tokens by a sentinel, in the order of the sentinels.

    Args:
        tokens: int32 [n, length].
        hidden: bool [n, length]. All rows hide equally many tokens in equally many runs.
        sentinels: int32, the ids of the sentinels.

    Returns:
        int32 [n, shorter length].
    """
    marked, stays = _mark_spans(tokens.copy(), hidden, True, sentinels)
    return marked[stays].reshape(len(tokens), -1)


def corrupt_spans(
    tokens: Array, keys: Array, sentinels: Array, density: float, span_length: float
) -> tuple[Array, Array]:
    """Return the inputs and targets of span corruption, without end tokens.

    Args:
        tokens: int32 [n, length].
        keys: uint64 [n].
        sentinels: int32, the ids of <extra_id_0>, <extra_id_1>, and so on: at least one for each
            masked span.
        density: The share of the tokens that is masked.
        span_length: The mean length of a masked span.

    Returns:
        The inputs, in which sentinels stand for masked spans, and the targets, in which sentinels
        stand for all other tokens: int32 [n, their length].
    """
    count, length = tokens.shape
    if length < 2:
        # Nothing can be masked: the inputs are the one token, and the targets its sentinel.
        return tokens, np.full((count, length), sentinels[0], np.int32)
    hidden = draw_noise_mask(length, keys, density, span_length)
    return _replace_spans(tokens, hidden, sentinels), _replace_spans(tokens, ~hidden, sentinels)


def _write_tokens(target: Array, rows: Array, tokens: Array) -> None:
    """Write tokens [n, length] and an end token into rows, and cut the tokens so that both fit."""
    count = min(tokens.shape[1], target.shape[1] - 1)
    target[rows, :count] = tokens[:, :count]
    target[rows, count] = vocabularies.EOS


def _split_prefixes(tokens: Array, keys: Array, inputs: Array, targets: Array, rows: Array) -> None:
    """Split each row of tokens [n, length] at a place uniform in [1, length - 1].

    The tokens before it go into the inputs, the others into the targets.
    """
    length = tokens.shape[1]
    cuts = np.minimum(1 + shuffling.draw_integers(keys, max(length - 1, 1)), length)
    for row, cut, line in zip(rows, cuts, tokens, strict=True):
        row_index = np.array([row])
        _write_tokens(inputs, row_index, line[:cut][None])
        _write_tokens(targets, row_index, line[cut:][None])
