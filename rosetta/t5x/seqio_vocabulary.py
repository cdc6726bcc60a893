"""A vocabulary of tokenizer.json for SeqIO, which has no class for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import seqio
import tensorflow as tf

from rosetta.data import vocabularies

if TYPE_CHECKING:
    from collections.abc import Sequence


class TokenizerJsonVocabulary(seqio.Vocabulary):
    """SeqIO's view of a tokenizer.json with T5's special ids.

    Attributes:
      vocabulary: what rosetta.data reads with it. Its sentinels are tokens of the file.
    """

    def __init__(self, vocabulary: vocabularies.Vocabulary) -> None:
        """Describe a vocabulary that was loaded and checked."""
        super().__init__()
        self.vocabulary = vocabulary

    @property
    def eos_id(self) -> int:
        """The id of the end token."""
        return vocabularies.EOS

    @property
    def unk_id(self) -> int:
        """The id of unknown text."""
        return vocabularies.UNK

    @property
    def _base_vocab_size(self) -> int:
        return self.vocabulary.size

    def _encode(self, s: str) -> Sequence[int]:
        ids: list[int] = self.vocabulary.encode([s])[0].tolist()
        return ids

    def _decode(self, ids: Sequence[int]) -> str:
        return self.vocabulary.decode(ids)

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        def encode(text: Any) -> Any:
            return self.vocabulary.encode([np.asarray(text).item().decode()])[0]

        ids = tf.numpy_function(encode, [s], tf.int32)
        ids.set_shape([None])
        return ids

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        def decode(tokens: Any) -> Any:
            rows = np.atleast_2d(tokens).tolist()
            texts = [self.vocabulary.decode(row).encode() for row in rows]
            return np.array(texts, object).reshape(tokens.shape[:-1])

        texts = tf.numpy_function(decode, [ids], tf.string)
        texts.set_shape(ids.shape[:-1])
        return texts

    def __eq__(self, other: object) -> bool:
        """Return whether another vocabulary is of the same file."""
        if not isinstance(other, TokenizerJsonVocabulary):
            return False
        return self.vocabulary == other.vocabulary

    __hash__ = None  # type: ignore[assignment]  # as SeqIO's vocabularies
