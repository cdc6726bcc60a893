"""From rows to the arrays that paxml's language models read: names, types and meanings of its
LanguageModelFeatures.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from rosetta.data import Array, pipeline, seqio_features

if TYPE_CHECKING:
    from rosetta.data.rows import Rows


def number_documents(tokens: Array, eos: int) -> Array:
    """Return int32 [n, length]: 1, 2, … for the documents in a row of running text, each with its
    end token, 0 for padding.
    """
    filled = _mask_padding(tokens)
    ends = ((tokens == eos) & filled).astype(np.int32)
    return ((1 + np.cumsum(ends, axis=1, dtype=np.int32) - ends) * filled).astype(np.int32)


def _mask_padding(tokens: Array) -> Array:
    """Return bool [n, length], False for the zeros at the end: an unknown token, which may be 0 as
    well, is no padding.
    """
    return np.flip(np.cumsum(np.flip(tokens != 0, axis=1), axis=1), axis=1) > 0


def make_causal_features(made: Rows, *, pack: bool, bos: int, eos: int) -> dict[str, Array]:
    """Return the arrays [n, inputs + targets] of rows.

    Args:
      made: rows of running text (inputs of length 0) or of prompts and answers.
      pack: whether documents of running text are segments of their own, which see nothing of each
        other.
      bos: the id that is read where a segment begins.
      eos: the end token's.

    Returns:
      ids, labels, segment_ids, segment_pos: int32; paddings, weights: float32. Of prompts also
        inputs_indicator (int32): there the
      weights are 1 on the answer alone.
    """
    prompts = made.inputs.shape[1] > 0
    if not prompts:
        whole: Array = (
            number_documents(made.targets, eos)
            if pack
            else _mask_padding(made.targets).astype(np.int32)
        )
        made = dataclasses.replace(made, target_segments=whole)
    found = seqio_features.make_decoder_features(made, pack=pack)
    weights: Array = found["decoder_loss_weights"]
    indicator: Array = found["decoder_causal_attention"] if prompts else weights
    segments: Array = (
        found["decoder_segment_ids"] if pack else ((weights > 0) | (indicator > 0)).astype(np.int32)
    )
    positions: Array = (
        found["decoder_positions"]
        if pack
        else segments * np.arange(segments.shape[1], dtype=np.int32)
    )
    begins: Array = (positions == 0) & (segments > 0)
    begins[:, 0] = True  # of a row without any token, too
    arrays = {
        "ids": np.where(begins, np.int32(bos), found["decoder_input_tokens"]),
        "labels": found["decoder_target_tokens"],
        "paddings": (segments == 0).astype(np.float32),
        "weights": weights.astype(np.float32),
        "segment_ids": segments,
        "segment_pos": positions,
    }
    return {**arrays, "inputs_indicator": indicator} if prompts else arrays


class CausalBatches(pipeline.Batches):
    """Batches of a causal language model.

    Attributes:
      bos: the id that is read where a row, or with pack a document, begins.
    """

    def __init__(
        self, recipe: pipeline.Recipe, batch: int, *, shard: int = 0, shards: int = 1, bos: int = 0
    ) -> None:
        super().__init__(recipe, batch, shard=shard, shards=shards, kind="causal")
        self.bos = bos

    def make_arrays(self, made: Rows) -> dict[str, Array]:
        return make_causal_features(
            made, pack=self.recipe.pack, bos=self.bos, eos=self.recipe.vocabulary.eos
        )
