"""Objectives: make the inputs and targets of a model from windows of tokens.

Span corruption, prefix LM, LM and UL2 make them from running text, here. MNLI, SQuAD and other
tasks have inputs and targets already, so here they only have lengths and rules about end tokens.

The objectives are those of Raffel et al., "Exploring the limits of transfer learning with a unified
text-to-text transformer" (JMLR 2020), sections 3.1.4 and 3.3. UL2 is the mixture of denoisers of
Tay et al., "UL2: Unifying language learning paradigms" (2022, arXiv 2205.05131), table 1. Every
random choice is a function of the row's key.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from rosetta.core.errors import INVALID, MISSING, UNKNOWN, UNSUPPORTED, UserError
from rosetta.data import Array, masking_tokens, shuffling, vocabularies
from rosetta.data.data_spec import (
    ANSWER_OBJECTIVES,
    CAUSAL_OBJECTIVES,
    ENCODER_OBJECTIVES,
    LABEL_OBJECTIVES,
    MASKED_OBJECTIVES,
    MODE_TOKENS,
    MODES,
    OBJECTIVES,
    PAIR_OBJECTIVES,
)
from rosetta.data.masked_rows import MaskedRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# Windows of a size that fewer rows of a batch have are corrupted together with those of other such
# sizes. The rows are the same, and dozens of calls for one row each are saved.
_ROWS_PER_SIZE = 16
# The denoisers of UL2, which come equally often: the mode, the mean length of a span in tokens, and
# the share of masked tokens. R is regular, X extreme, and S sequential: its one span ends the
# window, and its length is uniform with a mean of a quarter of the window. The order spreads the
# modes, so that any part of it has about the right mixture.
_UL2_DENOISERS = (
    ("X", 3.0, 0.5),
    ("R", 3.0, 0.15),
    ("X", 8.0, 0.5),
    ("S", 0.0, 0.0),
    ("X", 64.0, 0.15),
    ("R", 8.0, 0.15),
    ("X", 64.0, 0.5),
)
_MIN_DENOISED = 4  # tokens of the shortest window of ul2
_SEQUENTIAL_SHARE = 0.5  # the longest span of S, of the window: twice the mean


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
        longest_share: The largest share of a window that prefix_lm moves into the targets.
        is_denoiser: Whether it is a denoiser of ul2, whose targets are not longer than its inputs.
        mode_ids: The tokens at the beginning of the inputs, which name the mode of a denoiser.
        denoisers: The objectives that ul2 takes in turn, from window to window.
        lacks_modes: Whether ul2 needs mode tokens that the vocabulary cannot encode.
    """

    name: str
    inputs: int
    targets: int
    mean_noise_span_length: float = 3.0
    noise_density: float = 0.15
    longest_share: float = 1.0
    is_denoiser: bool = False
    mode_ids: tuple[int, ...] = ()
    denoisers: tuple[Objective, ...] = ()
    lacks_modes: bool = False

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
        """The number of tokens of running text from which a row is made; of ul2, the largest."""
        if self.masked_rows:
            return self.masked_rows.window_length
        if self.denoisers:
            return max(self.window_lengths)
        room = self.inputs - len(self.mode_ids)
        if self.name == "span_corruption":
            density, span_length = self.noise_density, self.mean_noise_span_length
            length = find_window_length(room, density, span_length)
            # T5 shortens a window of which half is masked, so that both sides have equal lengths.
            too_long = self.is_denoiser and sum(_count_noise(length, density, span_length)) >= room
            return length - too_long
        return room - 1 if self.name == "prefix_lm" else self.targets

    @functools.cached_property
    def window_lengths(self) -> tuple[int, ...]:
        """The lengths of windows that follow each other, in tokens: one for each denoiser."""
        return tuple(denoiser.window_length for denoiser in self.denoisers or (self,))

    def check_fits(self, vocabulary: vocabularies.Vocabulary) -> None:
        """Check that the lengths and the vocabulary can serve the objective.

        Raises:
            UserError: The inputs or targets are too short, the vocabulary has too few sentinels,
                or it cannot encode the mode tokens.
        """
        if self.name in ENCODER_OBJECTIVES:
            masking_tokens.find_masking_tokens(vocabulary)
            return
        if self.name not in CAUSAL_OBJECTIVES:
            vocabularies.check_not_masked(vocabulary, self.name)
        if self.lacks_modes:
            raise UserError(
                "ul2 begins its inputs with mode tokens, which are text, and this vocabulary has "
                "none",
                f"VOCAB={vocabulary.name}",
                "name the file of the vocabulary, or set MODE_TOKENS = '' in gin",
                kind=UNSUPPORTED,
            )
        if not self.denoisers:
            if self.name == "span_corruption":
                _check_targets_fit(self, self.name)
                vocabularies.check_sentinel_count(vocabulary, _count_spans(self))
            return
        for denoiser in self.denoisers:
            if denoiser.window_length < _MIN_DENOISED:
                raise UserError(
                    f"the mode token has {len(denoiser.mode_ids)} tokens, which leaves no room "
                    "for text",
                    "TASK_FEATURE_LENGTHS",
                    f"set inputs to at least {len(denoiser.mode_ids) + 2 * _MIN_DENOISED}",
                    kind=INVALID,
                    value=self.inputs,
                )
        # Of all denoisers, the one that needs most is checked.
        _check_targets_fit(max(self.denoisers, key=_count_targets), self.name)
        spans = max(map(_count_spans, self.denoisers))
        vocabularies.check_sentinel_count(vocabulary, spans, self.name)

    def apply(
        self,
        windows: Sequence[Array] | Array,
        keys: Array,
        vocabulary: vocabularies.Vocabulary,
        turns: Array | None = None,
    ) -> tuple[Array, Array]:
        """Make rows of inputs and targets from windows of tokens.

        Args:
            windows: n int32 arrays of at most `window_length` tokens, or int32 [n, length].
            keys: uint64 [n], on which the random choices of each row depend.
            vocabulary: The vocabulary, which has the sentinels.
            turns: int64 [n], for ul2 the number of the denoiser of each row.

        Returns:
            The inputs, int32 [n, inputs], and the targets, int32 [n, targets], filled up with
            `filler` of the vocabulary.
        """
        inputs: Array = np.full((len(windows), self.inputs), vocabulary.filler, np.int32)
        targets: Array = np.full((len(windows), self.targets), vocabulary.filler, np.int32)
        if self.denoisers:
            assert turns is not None  # noqa: S101 (each source of rows gives them)
            for number, denoiser in enumerate(self.denoisers):
                rows = np.flatnonzero(turns == number)
                if len(rows):
                    parts = [windows[int(row)] for row in rows]
                    inputs[rows], targets[rows] = denoiser.apply(parts, keys[rows], vocabulary)
            return inputs, targets
        mode_length = len(self.mode_ids)
        inputs[:, :mode_length] = self.mode_ids
        self._write_rows(windows, keys, vocabulary, (inputs[:, mode_length:], targets))
        return inputs, targets

    def _write_rows(
        self,
        windows: Sequence[Array] | Array,
        keys: Array,
        vocabulary: vocabularies.Vocabulary,
        sides: tuple[Array, Array],
    ) -> None:
        """Write what `apply` makes into the inputs, behind the mode token, and the targets."""
        inputs, targets = sides
        sizes = np.array([len(window) for window in windows])
        sentinels: Array = np.zeros(0, np.int32)
        if self.name == "span_corruption":
            sentinels = _list_sentinels(vocabulary)
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
                cuts = _draw_prefix_lengths(int(size), keys[rows], self.longest_share)
                _split_prefixes(tokens, cuts, inputs, targets, rows)
            else:
                shown, asked_for = corrupt_spans(
                    tokens, keys[rows], sentinels, self.noise_density, self.mean_noise_span_length
                )
                _write_tokens(inputs, rows, shown)
                _write_tokens(targets, rows, asked_for)


@functools.lru_cache(maxsize=8)
def _list_sentinels(vocabulary: vocabularies.Vocabulary) -> Array:
    """Return the ids of the sentinels of a vocabulary, int32."""
    return np.array(vocabulary.sentinel_ids, np.int32)


def _count_targets(objective: Objective) -> int:
    """Return the tokens of the longest targets of an objective, end token included."""
    length = objective.window_length
    if objective.name == "prefix_lm":
        return _find_longest_target(length, objective.longest_share) + 1
    noise, spans = _count_noise(length, objective.noise_density, objective.mean_noise_span_length)
    return noise + spans + 1


def _count_spans(objective: Objective) -> int:
    """Return the number of sentinels that a row of span corruption or of a denoiser needs."""
    if objective.name != "span_corruption":
        return 0
    density, span_length = objective.noise_density, objective.mean_noise_span_length
    return _count_noise(objective.window_length, density, span_length)[1]


def _check_targets_fit(objective: Objective, name: str) -> None:
    """Check that the targets of an objective have the room that its inputs ask for.

    Args:
        objective: Span corruption, or the denoiser of ul2 with the longest targets.
        name: The name of the run's objective, for the message.

    Raises:
        UserError: The targets are too short.
    """
    needed = _count_targets(objective)
    if needed > objective.targets:
        raise UserError(
            f"{name.replace('_', ' ')} of {objective.inputs} inputs makes {needed} targets, but "
            f"the length of targets is {objective.targets}",
            "TASK_FEATURE_LENGTHS",
            f"set targets to at least {needed}, or shorten the inputs",
            kind=INVALID,
            value=objective.targets,
        )


def make_objective(
    name: str,
    lengths: Mapping[str, int],
    *,
    mean_noise_span_length: float = 3.0,
    noise_density: float = 0.15,
    mode_tokens: str = MODE_TOKENS,
    vocabulary: vocabularies.Vocabulary | None = None,
) -> Objective:
    """Return an objective at fixed lengths.

    Args:
        name: One of data_spec.OBJECTIVES.
        lengths: The lengths of "inputs" (not for lm) and "targets", in tokens.
        mean_noise_span_length: See Objective. The denoisers of ul2 have lengths of their own.
        noise_density: See Objective. The denoisers of ul2 have densities of their own.
        mode_tokens: The mode tokens of ul2, see split_mode_tokens.
        vocabulary: The vocabulary, which ul2 needs for its mode tokens.

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
    inputs = lengths["inputs"] if name != "lm" else 0
    targets = lengths["targets"]
    if name != "ul2":
        return Objective(name, inputs, targets, mean_noise_span_length, noise_density)
    modes = split_mode_tokens(mode_tokens)
    lacks_modes = bool(modes) and (vocabulary is None or not vocabulary.has_text)
    mode_ids: dict[str, tuple[int, ...]] = {}
    if vocabulary is not None and not lacks_modes:
        mode_ids = {mode: vocabulary.encode_first_word(text) for mode, text in modes.items()}
    return Objective(
        name,
        inputs,
        targets,
        denoisers=_make_denoisers((inputs, targets), mode_ids),
        lacks_modes=lacks_modes,
    )


def split_mode_tokens(text: str) -> dict[str, str]:
    """Return the mode token of each of data_spec.MODES; {} for none.

    Args:
        text: The mode tokens of R, X and S, separated by blanks, or "".

    Raises:
        UserError: There are not as many different words as modes.
    """
    words = text.split()
    if words and len(set(words)) != len(MODES):
        raise UserError(
            f"{text!r} does not name {len(MODES)} different mode tokens",
            "MODE_TOKENS",
            f"give one for each of {', '.join(MODES)}, as in {MODE_TOKENS!r}, or '' for none",
            kind=INVALID,
            value=text,
        )
    return dict(zip(MODES, words, strict=True)) if words else {}


def _make_denoisers(
    lengths: tuple[int, int], mode_ids: Mapping[str, tuple[int, ...]]
) -> tuple[Objective, ...]:
    """Return the denoisers of ul2.

    Args:
        lengths: The lengths of inputs and targets in tokens.
        mode_ids: The ids of the mode token of each mode; {} for none.
    """
    denoisers = []
    for mode, span_length, density in _UL2_DENOISERS:
        ids = mode_ids.get(mode, ())
        if mode == "S":
            share = _SEQUENTIAL_SHARE
            denoiser = Objective("prefix_lm", *lengths, longest_share=share)
        else:
            denoiser = Objective("span_corruption", *lengths, span_length, density)
        denoisers.append(dataclasses.replace(denoiser, is_denoiser=True, mode_ids=ids))
    return tuple(denoisers)


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


def _find_longest_target(length: int, longest_share: float) -> int:
    """Return the largest number of tokens that prefix_lm moves into the targets of a window.

    At least one token stays in the inputs.
    """
    return max(int(length * longest_share) - 1, 1)


def _draw_prefix_lengths(length: int, keys: Array, longest_share: float) -> Array:
    """Return how many tokens of windows of `length` tokens stay in the inputs, int64 [n].

    The number of the others is uniform from 1 to _find_longest_target.
    """
    longest = _find_longest_target(length, longest_share)
    shortest_prefix = max(length - longest, 1)
    return np.minimum(shortest_prefix + shuffling.draw_integers(keys, longest), length)


def _split_prefixes(tokens: Array, cuts: Array, inputs: Array, targets: Array, rows: Array) -> None:
    """Write each row of tokens [n, length] up to its cut into the inputs, the rest into targets."""
    for row, cut, line in zip(rows, cuts, tokens, strict=True):
        row_index = np.array([row])
        _write_tokens(inputs, row_index, line[:cut][None])
        _write_tokens(targets, row_index, line[cut:][None])
