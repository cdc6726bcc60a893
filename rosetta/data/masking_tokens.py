"""The tokens that masked language modelling adds to a text, and where words begin.

A tokenizer.json of BERT has [CLS], [SEP] and [MASK]. Other vocabularies lend two sentinels:
<extra_id_0> masks a token, and <extra_id_1> begins a row. Their end token ends a part of a row.
"""

from __future__ import annotations

import dataclasses
import functools
import string
from typing import TYPE_CHECKING

import numpy as np

from rosetta.core.errors import MISSING, UserError
from rosetta.data import Array, tokenizer_json, vocabularies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.data.vocabularies import Vocabulary

_WORD_MARKS = ("\u2581", "\u0120")  # begin a word: of SentencePiece and of byte-level BPE
_WORDPIECE_MARK = "##"  # continues a word
_WORD_BYTES = frozenset((string.ascii_letters + string.digits).encode()) | frozenset(
    range(0x80, 0x100)
)


@dataclasses.dataclass(frozen=True)
class MaskingTokens:
    """The tokens of masked language modelling in a vocabulary.

    Attributes:
        start: The id that begins each row.
        separator: The id that ends each part of a row.
        mask: The id that hides a token.
        random_ids: The ids of text, int32, from which random tokens are drawn.
        continues: bool [size], whether an id continues the word of the token before it.
        needs_word_before: Whether an id that continues a word begins one where the token before it
            does not, as bytes do after a space.
    """

    start: int
    separator: int
    mask: int
    random_ids: Array
    continues: Array
    needs_word_before: bool

    def find_word_starts(self, tokens: Array, is_text: Array) -> Array:
        """Return where words begin, bool [n, length].

        Args:
            tokens: int32 [n, length].
            is_text: bool [n, length], False for padding and for the tokens of this class.
        """
        continues = self.continues[tokens]
        follows = is_text & (continues if self.needs_word_before else True)
        continues[:, 1:] &= follows[:, :-1]
        continues[:, 0] = False
        starts: Array = is_text & ~continues
        return starts


@functools.lru_cache(maxsize=8)
def find_masking_tokens(vocabulary: Vocabulary) -> MaskingTokens:
    """Return the tokens of masked language modelling in a vocabulary.

    Raises:
        UserError: The vocabulary has neither a mask token nor two sentinels.
    """
    special: list[int]
    own_mask = None
    if vocabularies.is_json_file(vocabulary.name):
        own_mask = tokenizer_json.load_tokenizer(vocabulary.name).mask
    if own_mask is not None:
        loaded = tokenizer_json.load_tokenizer(vocabulary.name)
        start, separator, mask = loaded.start, loaded.separator, own_mask
        special = loaded.special_ids
    elif vocabulary.name.startswith("ids:"):
        start, separator, mask = vocabulary.size - 2, vocabularies.EOS, vocabulary.size - 1
        special = [start, mask]
    else:
        sentinels = vocabulary.sentinel_ids
        if len(sentinels) < 2:
            raise UserError(
                "masked language modelling needs a mask token, or two sentinels in its place",
                vocabulary.name,
                "name a tokenizer with [MASK], or set EXTRA_IDS to at least 2",
                kind=MISSING,
                value=len(sentinels),
            )
        start, separator, mask = sentinels[1], vocabularies.EOS, sentinels[0]
        special = list(sentinels[:2] if vocabulary.name == "byte" else sentinels)
    special = [*special, vocabularies.PAD, start, separator, mask]
    if own_mask is None:
        special.append(vocabularies.UNK)
    is_text: Array = np.ones(vocabulary.size, bool)
    is_text[special] = False
    return MaskingTokens(
        start,
        separator,
        mask,
        np.flatnonzero(is_text).astype(np.int32),
        _find_continuations(vocabulary),
        vocabulary.name == "byte",
    )


def _find_continuations(vocabulary: Vocabulary) -> Array:
    """Return bool [size], whether an id continues the word of the token before it."""
    continues: Array = np.zeros(vocabulary.size, bool)
    if vocabulary.name.startswith("ids:"):
        return continues
    if vocabulary.name == "byte":
        for byte in _WORD_BYTES:
            continues[vocabularies.BYTE_OFFSET + byte] = True
        return continues
    pieces = vocabularies.list_pieces(vocabulary)
    continues[: len(pieces)] = _mark_continuations(pieces)
    return continues


def _mark_continuations(pieces: Sequence[str]) -> list[bool]:
    """Return whether each piece continues a word, by the marks that the pieces have."""
    if any(piece.startswith(_WORDPIECE_MARK) for piece in pieces):
        has_marks = any(piece.startswith(_WORD_MARKS) for piece in pieces)
        if not has_marks:
            return [piece.startswith(_WORDPIECE_MARK) for piece in pieces]
    return [not piece.startswith(_WORD_MARKS) for piece in pieces]
