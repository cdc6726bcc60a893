"""Features of T5X's models, with the names and meanings of SeqIO's feature converters.

`pipeline.Batches` makes them from rows. `causal_features` builds on those of decoders.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rosetta.data import Array, packing
from rosetta.data.rows import Rows, make_unpacked_rows

ENCODER_DECODER, DECODER, ENCODER = "encoder_decoder", "decoder", "encoder"


def make_encoder_decoder_features(rows: Rows, *, pack: bool) -> dict[str, Array]:
    """Return the features of an encoder-decoder, int32 [n, length].

    Args:
        rows: The rows.
        pack: Whether rows may have several examples. Then there are segments and positions, too.
    """
    features = {
        "encoder_input_tokens": rows.inputs,
        "decoder_target_tokens": rows.targets,
        "decoder_input_tokens": _make_decoder_inputs(rows.targets, rows.target_segments, pack=pack),
        "decoder_loss_weights": (rows.target_segments > 0).astype(np.int32),
    }
    if pack:
        features["encoder_segment_ids"] = rows.input_segments
        features["decoder_segment_ids"] = rows.target_segments
        features["encoder_positions"] = packing.compute_positions(rows.input_segments)
        features["decoder_positions"] = packing.compute_positions(rows.target_segments)
    return features


def make_encoder_features(rows: Rows) -> dict[str, Array]:
    """Return the features of an encoder, int32 [n, length].

    The names are those that T5X's loss reads. In rows of masked language modelling, whose targets
    are as long as the inputs, the first target is the label of a pair of texts, 0 for none. It
    becomes a feature of its own, `sentence_labels` [n, 1].

    Args:
        rows: The rows.
    """
    features = {"encoder_input_tokens": rows.inputs}
    targets = rows.targets
    if targets.shape[1] == rows.inputs.shape[1]:
        features["sentence_labels"] = targets[:, :1]
        targets = np.concatenate([np.zeros_like(targets[:, :1]), targets[:, 1:]], axis=1)
    weights = (targets != 0).astype(np.int32)
    return {**features, "decoder_target_tokens": targets, "decoder_loss_weights": weights}


def _make_decoder_inputs(tokens: Array, segments: Array, *, pack: bool) -> Array:
    """Return what the decoder reads to predict the tokens.

    Without packing, it also reads the end token, at a place without a target, as SeqIO has it.
    """
    return packing.shift_right(tokens, segments if pack else np.ones_like(segments))


class _JoinedRows(NamedTuple):
    """Inputs and targets in one sequence, int32 [n, inputs + targets].

    Attributes:
        tokens: The tokens.
        segments: 1, 2, … for the examples that are packed into a row, 0 for padding.
        causal_attention: 1 where a token attends to both sides.
        weights: 1 where the loss counts.
    """

    tokens: Array
    segments: Array
    causal_attention: Array
    weights: Array


def make_decoder_features(rows: Rows, *, pack: bool) -> dict[str, Array]:
    """Return the features of a decoder-only model, int32 [n, inputs + targets].

    Inputs and targets are joined, and the loss counts targets alone. With inputs, the feature
    decoder_causal_attention tells where tokens attend to both sides. Rows of lm do not have it.

    Args:
        rows: The rows.
        pack: Whether rows may have several examples. Then there are segments and positions, too.
    """
    has_inputs = rows.inputs.shape[1] > 0
    if has_inputs:
        joined = _join_sides(rows)
        tokens, segments, weights = joined.tokens, joined.segments, joined.weights
    else:
        tokens, segments = rows.targets, rows.target_segments
        weights = (rows.target_segments > 0).astype(np.int32)
    features = {
        "decoder_target_tokens": tokens,
        "decoder_input_tokens": _make_decoder_inputs(tokens, segments, pack=pack),
        "decoder_loss_weights": weights,
    }
    if has_inputs:
        features["decoder_causal_attention"] = joined.causal_attention
    if pack:
        features["decoder_segment_ids"] = segments
        features["decoder_positions"] = packing.compute_positions(segments)
    return features


def _join_sides(rows: Rows) -> _JoinedRows:
    """Join inputs and targets, so that the inputs of each segment come before its targets."""
    shape = (len(rows.inputs), rows.inputs.shape[1] + rows.targets.shape[1])
    joined = _JoinedRows(*(np.zeros(shape, np.int32) for _ in range(4)))
    for row in range(shape[0]):
        input_segments, target_segments = rows.input_segments[row], rows.target_segments[row]
        segment_count = max(input_segments.max(initial=0), target_segments.max(initial=0))
        start = 0
        for segment in range(1, int(segment_count) + 1):
            inputs = rows.inputs[row][input_segments == segment]
            targets = rows.targets[row][target_segments == segment]
            middle = start + len(inputs)
            end = middle + len(targets)
            joined.tokens[row, start:middle] = inputs
            joined.tokens[row, middle:end] = targets
            joined.segments[row, start:end] = segment
            # One place more than the inputs: there the last input is read, and the first target is
            # predicted.
            joined.causal_attention[row, start : min(middle + 1, end)] = 1
            joined.weights[row, middle:end] = 1
            start = end
    return joined


def compute_feature_lengths(kind: str, *, inputs: int, targets: int, pack: bool) -> dict[str, int]:
    """Return the length of each feature of a kind of model, without reading any data.

    Args:
        kind: ENCODER_DECODER, DECODER or ENCODER.
        inputs: The length of inputs in tokens; 0 for lm.
        targets: The length of targets in tokens.
        pack: Whether rows may have several examples.
    """
    empty = make_unpacked_rows(np.zeros((1, inputs), np.int32), np.zeros((1, targets), np.int32))
    if kind == ENCODER_DECODER:
        features = make_encoder_decoder_features(empty, pack=pack)
    elif kind == ENCODER:
        features = make_encoder_features(empty)
    else:
        features = make_decoder_features(empty, pack=pack)
    return {name: array.shape[1] for name, array in features.items()}
