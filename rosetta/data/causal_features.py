"""Features of causal language models, with the names, types and meanings of LanguageModelFeatures
in paxml.

`rosetta.pax.inputs` gives them to Pax.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from rosetta.data import Array, data_recipe, pipeline, seqio_features

if TYPE_CHECKING:
    from rosetta.data.rows import Rows


def number_documents(tokens: Array, segments: Array, eos: int) -> Array:
    """Return the number of each token's document in its row of running text.

    Args:
        tokens: int32 [n, length], padded with 0.
        segments: int32 [n, length], see Rows.
        eos: The id of the end token, which belongs to the document that it ends.

    Returns:
        int32 [n, length]: 1, 2, … for the documents of a row, and 0 for padding.
    """
    is_token = _mask_padding(segments)
    ends = ((tokens == eos) & is_token).astype(np.int32)
    return ((1 + np.cumsum(ends, axis=1, dtype=np.int32) - ends) * is_token).astype(np.int32)


def _mask_padding(segments: Array) -> Array:
    """Return bool [n, length]: False for the zeros at the end of each row of segments.

    A zero before another token is the unknown token of some vocabularies, and not padding.
    """
    return np.flip(np.cumsum(np.flip(segments != 0, axis=1), axis=1), axis=1) > 0


def make_causal_features(rows: Rows, *, pack: bool, bos: int, eos: int) -> dict[str, Array]:
    """Return the features of rows, arrays [n, inputs + targets].

    Args:
        rows: Rows of running text (inputs of length 0), or of prompts and answers.
        pack: Whether each document of running text is a segment of its own, whose tokens do not
            attend to other documents.
        bos: The id that the model reads at the beginning of each segment.
        eos: The id of the end token.

    Returns:
        ids, labels, segment_ids and segment_pos (int32); paddings and weights (float32). Rows of
        prompts also have inputs_indicator (int32), and weights of 1 only at the answer.
    """
    has_prompts = rows.inputs.shape[1] > 0
    if not has_prompts:
        if pack:
            document_numbers = number_documents(rows.targets, rows.target_segments, eos)
        else:
            document_numbers = _mask_padding(rows.target_segments).astype(np.int32)
        rows = dataclasses.replace(rows, target_segments=document_numbers)
    decoder = seqio_features.make_decoder_features(rows, pack=pack)
    weights: Array = decoder["decoder_loss_weights"]
    indicator: Array = decoder["decoder_causal_attention"] if has_prompts else weights
    segments: Array
    positions: Array
    if pack:
        segments = decoder["decoder_segment_ids"]
        positions = decoder["decoder_positions"]
    else:
        segments = ((weights > 0) | (indicator > 0)).astype(np.int32)
        positions = segments * np.arange(segments.shape[1], dtype=np.int32)
    begins: Array = (positions == 0) & (segments > 0)
    begins[:, 0] = True  # Also in a row without any token.
    features = {
        "ids": np.where(begins, np.int32(bos), decoder["decoder_input_tokens"]),
        "labels": decoder["decoder_target_tokens"],
        "paddings": (segments == 0).astype(np.float32),
        "weights": weights.astype(np.float32),
        "segment_ids": segments,
        "segment_pos": positions,
    }
    if has_prompts:
        features["inputs_indicator"] = indicator
    return features


class CausalBatches(pipeline.Batches):
    """Batches of a causal language model.

    Attributes:
        bos: The id that the model reads at the beginning of each row, or with packing of each
            document.
    """

    def __init__(
        self,
        recipe: data_recipe.Recipe,
        batch: int,
        *,
        shard: int = 0,
        shards: int = 1,
        bos: int = 0,
    ) -> None:
        super().__init__(recipe, batch, shard=shard, shards=shards, kind="causal")
        self.bos = bos

    def make_features(self, rows: Rows) -> dict[str, Array]:
        """Return the features of rows, see make_causal_features."""
        return make_causal_features(
            rows, pack=self.recipe.pack, bos=self.bos, eos=self.recipe.vocabulary.eos
        )
