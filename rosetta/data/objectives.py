"""What the model is asked to do with text: span corruption, prefix LM and LM over windows of
tokens, MNLI and SQuAD over records.

The objectives are those of Raffel et al., "Exploring the limits of transfer learning with a unified
text-to-text transformer" (JMLR 2020), sections 3.1.4 and 3.3; every random choice is a function of
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
from rosetta.data import Array, shuffling, vocabularies
from rosetta.data.data_spec import ANSWER_OBJECTIVES, OBJECTIVES, PAIR_OBJECTIVES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Objective:
    """An objective at fixed lengths.

    Attributes:
      name: one of data_spec.OBJECTIVES.
      inputs: length of the encoder's side in tokens, its end token included; 0 for lm.
      targets: length of the decoder's side, its end token included.
      mean_noise_span_length: tokens a masked span has on average (3 for SentencePiece, 20 for
        bytes).
      noise_density: share of the tokens that is masked.
    """

    name: str
    inputs: int
    targets: int
    mean_noise_span_length: float = 3.0
    noise_density: float = 0.15

    @property
    def takes_pairs(self) -> bool:
        """Whether it takes records with inputs and targets, not running text."""
        return self.name in PAIR_OBJECTIVES

    @property
    def adds_end_tokens(self) -> bool:
        """Whether an end token follows a record's inputs and its targets."""
        return self.name not in ANSWER_OBJECTIVES

    @property
    def document_ends(self) -> bool:
        """Whether an end token follows each document inside a window."""
        return self.name == "lm"

    @property
    def window_length(self) -> int:
        """Tokens of running text a row is made of."""
        if self.name == "span_corruption":
            return find_window_length(self.inputs, self.noise_density, self.mean_noise_span_length)
        return self.inputs - 1 if self.name == "prefix_lm" else self.targets

    def check_fits(self, vocab: vocabularies.Vocabulary) -> None:
        """Raise UserError where these lengths or this vocabulary cannot serve the objective."""
        if self.name != "span_corruption":
            return
        noise, spans = _count_noise(
            self.window_length, self.noise_density, self.mean_noise_span_length
        )
        if noise + spans + 1 > self.targets:
            raise UserError(
                (
                    f"span corruption of {self.inputs} inputs makes {noise + spans + 1} targets, "
                    f"{self.targets} are allowed"
                ),
                "TASK_FEATURE_LENGTHS",
                f"set targets to at least {noise + spans + 1}, or shorten the inputs",
                kind=INVALID,
                value=self.targets,
            )
        vocabularies.check_sentinel_count(vocab, spans)

    def apply(
        self, windows: Sequence[Array], keys: Array, vocab: vocabularies.Vocabulary
    ) -> tuple[Array, Array]:
        """Return inputs [n, inputs] and targets [n, targets], int32 and padded with 0, of windows
        of tokens.

        Args:
          windows: n int32 arrays of at most `window` tokens.
          keys: uint64 [n], what each row's random choices depend on.
          vocab: where sentinels come from.
        """
        inputs: Array = np.zeros((len(windows), self.inputs), np.int32)
        targets: Array = np.zeros((len(windows), self.targets), np.int32)
        sizes = np.array([len(window) for window in windows])
        sentinels: Array = np.array(
            vocab.sentinel_ids if self.name == "span_corruption" else (), np.int32
        )
        for size in np.unique(sizes):
            rows = np.flatnonzero(sizes == size)
            tokens = (
                np.stack([windows[int(row)] for row in rows])
                if size
                else np.zeros((len(rows), 0), np.int32)
            )
            if self.name == "lm":
                targets[rows, : min(size, self.targets)] = tokens[:, : self.targets]
            elif self.name == "prefix_lm":
                _split_prefixes(tokens, keys[rows], inputs, targets, rows)
            else:
                made = corrupt_spans(
                    tokens, keys[rows], sentinels, self.noise_density, self.mean_noise_span_length
                )
                for into, part in zip((inputs, targets), made, strict=True):
                    _write_tokens(into, rows, part)
        return inputs, targets


def make_objective(
    name: str,
    lengths: Mapping[str, int],
    *,
    mean_noise_span_length: float = 3.0,
    noise_density: float = 0.15,
) -> Objective:
    """Return the objective of that name; UserError for an unknown one or for lengths that are
    missing.
    """
    if name not in OBJECTIVES:
        raise UserError(
            f"no objective is called {name!r}",
            "objective",
            "use one of " + ", ".join(OBJECTIVES),
            kind=UNKNOWN,
            value=name,
        )
    if not 0 < noise_density < 1 or not 1 <= mean_noise_span_length < math.inf:
        raise UserError(
            f"noise density {noise_density}, mean span {mean_noise_span_length}",
            "objective",
            "the density lies between 0 and 1, a span has at least one token",
            kind=INVALID,
        )
    needed = ("targets",) if name == "lm" else ("inputs", "targets")
    missing = [key for key in needed if key not in lengths]
    if missing:
        raise UserError(
            f"no length for {' and '.join(missing)}",
            "TASK_FEATURE_LENGTHS",
            f"{name} needs {' and '.join(needed)}",
            kind=MISSING,
        )
    return Objective(
        name,
        lengths["inputs"] if name != "lm" else 0,
        lengths["targets"],
        mean_noise_span_length,
        noise_density,
    )


def _count_noise(length: int, density: float, span: float) -> tuple[int, int]:
    """Return how many tokens are masked and in how many spans; both at least 1, and the rest at
    least one token a span.
    """
    noise = min(max(round(length * density), 1), length - 1)
    return noise, min(max(round(noise / span), 1), noise, length - noise)


@functools.lru_cache
def find_window_length(inputs: int, density: float, span: float) -> int:
    """Return the most tokens whose corrupted inputs, sentinels and end token included, are no
    longer than `inputs`.
    """

    def needed(length: int) -> int:
        noise, spans = _count_noise(length, density, span)
        return length - noise + spans + 1

    # What a longer window needs is never less, so that the longest that fits can be bisected.
    beyond = 4
    while needed(beyond) <= inputs:
        beyond *= 2
    return bisect.bisect_right(range(3, beyond), inputs, key=needed) + 2


def _draw_segment_lengths(items: int, segments: int, keys: Array) -> Array:
    """Return [n, segments]: each row a way to cut `items` into that many non-empty pieces, all
    equally likely.
    """
    if segments == 1:
        return np.full((len(keys), 1), items)
    draws = shuffling.draw_words(keys, items - 1)
    cuts = np.sort(np.argpartition(draws, segments - 2, axis=1)[:, : segments - 1], axis=1) + 1
    edges = np.concatenate(
        [np.zeros((len(keys), 1), cuts.dtype), cuts, np.full((len(keys), 1), items)], axis=1
    )
    return np.diff(edges, axis=1)


def draw_noise_mask(length: int, keys: Array, density: float, span: float) -> Array:
    """Return bool [n, length], True where a token is masked: spans alternate and the first one is
    kept. length >= 2.
    """
    noise, spans = _count_noise(length, density, span)
    kept = np.cumsum(
        _draw_segment_lengths(length - noise, spans, shuffling.mix_words(keys + np.uint64(1))),
        axis=1,
    )
    masked = np.cumsum(
        _draw_segment_lengths(noise, spans, shuffling.mix_words(keys + np.uint64(2))), axis=1
    )
    starts, ends = kept + np.pad(masked, ((0, 0), (1, 0)))[:, :-1], kept + masked
    steps: Array = np.zeros((len(keys), length + 1), np.int8)
    rows = np.arange(len(keys))[:, None]
    steps[rows, starts] += 1
    steps[rows, ends] -= 1
    return np.cumsum(steps[:, :-1], axis=1, dtype=np.int8).astype(bool)


def _replace_spans(tokens: Array, hidden: Array, sentinels: Array) -> Array:
    """Return the tokens [n, L] with each run of hidden ones replaced by one sentinel, in their
    order. All rows end equally long.
    """
    first = hidden.copy()
    first[:, 1:] &= ~hidden[:, :-1]
    run = np.maximum(np.cumsum(first, axis=1, dtype=np.int32) - 1, 0)
    marked = np.where(first, sentinels[run], tokens)
    return marked[~hidden | first].reshape(len(tokens), -1)


def corrupt_spans(
    tokens: Array, keys: Array, sentinels: Array, density: float, span: float
) -> tuple[Array, Array]:
    """Return span corruption's inputs and targets of tokens [n, L], int32, without end tokens.

    Args:
      tokens: rows of equally many ids.
      keys: uint64 [n].
      sentinels: int32, the ids of <extra_id_0>, <extra_id_1>, and so on; at least one for each
        masked span.
      density: share of the tokens that is masked.
      span: mean length of a masked span.
    """
    count, length = tokens.shape
    if length < 2:  # nothing can be masked: the one token is shown, and only its sentinel asked for
        return tokens, np.full((count, length), sentinels[0], np.int32)
    hidden = draw_noise_mask(length, keys, density, span)
    return _replace_spans(tokens, hidden, sentinels), _replace_spans(tokens, ~hidden, sentinels)


def _write_tokens(into: Array, rows: Array, tokens: Array) -> None:
    """Write tokens [n, L] and an end token into the rows, cut so that both fit."""
    kept = min(tokens.shape[1], into.shape[1] - 1)
    into[rows, :kept] = tokens[:, :kept]
    into[rows, kept] = vocabularies.EOS


def _split_prefixes(tokens: Array, keys: Array, inputs: Array, targets: Array, rows: Array) -> None:
    """Cut each row of tokens [n, L] at a place uniform in [1, L - 1]: what is before is the input,
    what follows the target.
    """
    length = tokens.shape[1]
    cuts = np.minimum(1 + shuffling.draw_integers(keys, max(length - 1, 1)), length)
    for row, cut, line in zip(rows, cuts, tokens, strict=True):
        for into, part in ((inputs, line[:cut]), (targets, line[cut:])):
            _write_tokens(into, np.array([row]), part[None])
