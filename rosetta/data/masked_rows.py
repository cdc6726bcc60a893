"""Rows of masked language modelling, as BERT is trained: hidden tokens and pairs of texts.

Of each row's text tokens, 15% are chosen. Of the chosen tokens, 80% become the mask token, 10% a
random token, and 10% stay. The model predicts the chosen tokens (Devlin et al., "BERT", 2019,
section 3.1). With whole words, all tokens of a word are chosen together.

A row has one text, or two. In next sentence prediction (NSP), the second text is the continuation
of the first or a text from elsewhere. In sentence order prediction (SOP; Lan et al., "ALBERT",
2020), the two parts of a text are in their order or swapped.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from rosetta.data import Array, masking_tokens, shuffling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.data.masking_tokens import MaskingTokens
    from rosetta.data.vocabularies import Vocabulary

IN_ORDER, NOT_IN_ORDER = 1, 2  # the label of a pair of texts; 0 is no label
_MASKED_SHARE, _RANDOM_SHARE = 8, 9  # of ten chosen tokens: masked, and masked or random
# What is added to a row's key for each use.
_WORDS, _REPLACEMENT, _RANDOM_TOKEN, _CUT, _LABEL = (np.uint64(number) for number in range(3, 8))


@dataclasses.dataclass(frozen=True)
class MaskedRows:
    """How rows are made.

    Attributes:
        length: The tokens of a row.
        whole_words: Whether words are chosen, not tokens.
        pairs: "" for one text, "nsp" or "sop" for two.
        density: The share of the text tokens that is chosen.
    """

    length: int
    whole_words: bool
    pairs: str
    density: float

    @property
    def window_length(self) -> int:
        """The text tokens of a row."""
        return self.length - (3 if self.pairs else 2)

    def apply(
        self, windows: Sequence[Array] | Array, keys: Array, vocabulary: Vocabulary, others: object
    ) -> tuple[Array, Array]:
        """Make rows of windows of tokens.

        Args:
            windows: n int32 arrays of at most `window_length` tokens.
            keys: uint64 [n], on which the random choices of each row depend.
            vocabulary: The vocabulary.
            others: n windows from elsewhere, for nsp; else not used.

        Returns:
            The rows with hidden tokens, int32 [n, length], and what the model predicts, int32
            [n, length]: the chosen tokens, and 0 at all other places. The first place has the label
            of a pair.
        """
        tokens = masking_tokens.find_masking_tokens(vocabulary)
        rows: Array = np.zeros((len(windows), self.length), np.int32)
        is_text: Array = np.zeros(rows.shape, bool)
        labels: Array = np.zeros(len(windows), np.int32)
        cut_shares = shuffling.draw_integers(shuffling.mix_words(keys + _CUT), 1 << 16)
        is_changed = shuffling.draw_integers(shuffling.mix_words(keys + _LABEL), 2) > 0
        for row, window in enumerate(windows):
            parts = [np.asarray(window, np.int32)]
            if self.pairs and len(window) >= 2:
                # The cut is in the middle half, so that both texts have some length.
                cut = len(window) // 4 + int(cut_shares[row]) * (len(window) // 2) // (1 << 16)
                parts = _split_window(parts[0], max(cut, 1))
                labels[row] = NOT_IN_ORDER if is_changed[row] else IN_ORDER
                if is_changed[row] and self.pairs == "sop":
                    parts.reverse()
                elif is_changed[row]:
                    other = np.asarray(others[row], np.int32)  # type: ignore[index]
                    parts[1] = other[: len(parts[1])]
            _place_parts(rows[row], is_text[row], parts, tokens)
        is_text &= ~np.isin(rows, [tokens.start, tokens.separator, tokens.mask, 0])
        chosen = self._choose(rows, is_text, keys, tokens)
        targets = np.where(chosen, rows, 0).astype(np.int32)
        targets[:, 0] = labels
        return _hide_tokens(rows, chosen, keys, tokens), targets

    def _choose(self, rows: Array, is_text: Array, keys: Array, tokens: MaskingTokens) -> Array:
        """Return the tokens that the model predicts, bool [n, length].

        Words are taken in random order, without those that do not fit into the rest of the row's
        share. If no word fits, the beginning of the first is taken.
        """
        starts = is_text
        if self.whole_words:
            starts = tokens.find_word_starts(rows, is_text)
        words = np.maximum(np.cumsum(starts, axis=1) - 1, 0)
        length = rows.shape[1]
        sizes = _count_tokens(words, is_text)
        random_words = shuffling.draw_words(shuffling.mix_words(keys + _WORDS), length)
        random_words[sizes == 0] = np.uint64(shuffling.WORD_MASK)
        order = np.argsort(random_words, axis=1, kind="stable")
        ordered_sizes = np.take_along_axis(sizes, order, axis=1)
        text_tokens = is_text.sum(axis=1, keepdims=True)
        budget = np.maximum(np.round(text_tokens * self.density), np.minimum(text_tokens, 1))
        fits = _find_fitting(ordered_sizes, budget[:, 0])
        fits[:, 0] |= ~fits.any(axis=1)
        is_chosen: Array = np.zeros(rows.shape, bool)
        np.put_along_axis(is_chosen, order, fits, axis=1)
        first_places = np.maximum.accumulate(np.where(starts, np.arange(length), 0), axis=1)
        is_within = np.arange(length) - first_places < budget
        chosen: Array = np.take_along_axis(is_chosen, words, axis=1) & is_text & is_within
        return chosen


def _find_fitting(sizes: Array, budgets: Array) -> Array:
    """Return which words fit, bool [n, words], each after the words before it that fit.

    Args:
        sizes: The tokens of the words, [n, words].
        budgets: The tokens that may be chosen, [n].
    """
    fits: Array = np.zeros(sizes.shape, bool)
    rest = budgets.copy()
    for place in range(sizes.shape[1]):
        if not rest.any():
            break
        fits[:, place] = (sizes[:, place] > 0) & (sizes[:, place] <= rest)
        rest -= np.where(fits[:, place], sizes[:, place], 0)
    return fits


def _count_tokens(words: Array, is_text: Array) -> Array:
    """Return the number of text tokens of each word, int64 [n, length].

    Args:
        words: The number of each token's word in its row, [n, length].
        is_text: bool [n, length].
    """
    count, length = words.shape
    flat = (words + np.arange(count)[:, None] * length)[is_text]
    sizes: Array = np.bincount(flat, minlength=count * length).reshape(count, length)
    return sizes


def _split_window(window: Array, cut: int) -> list[Array]:
    """Return the two parts of a window."""
    return [window[:cut], window[cut:]]


def _place_parts(row: Array, is_text: Array, parts: list[Array], tokens: MaskingTokens) -> None:
    """Write the parts of a row, with the tokens around them, and mark the text."""
    row[0] = tokens.start
    place = 1
    for part in parts:
        end = place + len(part)
        row[place:end] = part
        is_text[place:end] = True
        row[end] = tokens.separator
        place = end + 1


def _hide_tokens(rows: Array, chosen: Array, keys: Array, tokens: MaskingTokens) -> Array:
    """Return rows whose chosen tokens are masked, replaced or left, int32 [n, length]."""
    length = rows.shape[1]
    draws = shuffling.draw_words(shuffling.mix_words(keys + _REPLACEMENT), length)
    tenths = (draws >> np.uint64(32)) * np.uint64(10) >> np.uint64(32)
    words = shuffling.draw_words(shuffling.mix_words(keys + _RANDOM_TOKEN), length)
    places = (words >> np.uint64(32)) * np.uint64(len(tokens.random_ids)) >> np.uint64(32)
    random_tokens = tokens.random_ids[places.astype(np.int64)]
    hidden = np.where(tenths < _MASKED_SHARE, np.int32(tokens.mask), random_tokens)
    hidden = np.where(tenths < _RANDOM_SHARE, hidden, rows)
    result: Array = np.where(chosen, hidden, rows).astype(np.int32)
    return result
