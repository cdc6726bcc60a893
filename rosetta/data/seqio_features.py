"""From rows to the arrays a model reads: the names and meanings of SeqIO's feature converters,
which T5X's models expect.
"""

from __future__ import annotations

import numpy as np

from rosetta.data import Array, packing
from rosetta.data.rows import Rows, make_unpacked_rows

ENCODER_DECODER, DECODER = "encoder_decoder", "decoder"


def make_encoder_decoder_features(rows: Rows, *, pack: bool) -> dict[str, Array]:
    """Return int32 arrays [n, length] for an encoder-decoder; with `pack` also segments and
    positions.
    """
    found = {
        "encoder_input_tokens": rows.inputs,
        "decoder_target_tokens": rows.targets,
        "decoder_input_tokens": _make_decoder_inputs(rows.targets, rows.target_segments, pack=pack),
        "decoder_loss_weights": (rows.target_segments > 0).astype(np.int32),
    }
    if pack:
        found["encoder_segment_ids"] = rows.input_segments
        found["decoder_segment_ids"] = rows.target_segments
        found["encoder_positions"] = packing.compute_positions(rows.input_segments)
        found["decoder_positions"] = packing.compute_positions(rows.target_segments)
    return found


def _make_decoder_inputs(tokens: Array, segments: Array, *, pack: bool) -> Array:
    """Return the decoder's input.

    Unpacked, the end token is read as well, at a place without a target: as SeqIO has it.
    """
    return packing.shift_right(tokens, segments if pack else np.ones_like(segments))


def make_decoder_features(rows: Rows, *, pack: bool) -> dict[str, Array]:
    """Return int32 arrays for a decoder: inputs and targets joined, loss on the targets alone,
    inputs seen from both sides.

    Rows without inputs (lm) have no decoder_causal_attention.
    """
    if not rows.inputs.shape[1]:
        tokens, segments, attended, weights = (
            rows.targets,
            rows.target_segments,
            None,
            (rows.target_segments > 0).astype(np.int32),
        )
    else:
        tokens, segments, attended, weights = _join_sides(rows)
    found = {
        "decoder_target_tokens": tokens,
        "decoder_input_tokens": _make_decoder_inputs(tokens, segments, pack=pack),
        "decoder_loss_weights": weights,
    }
    if attended is not None:
        found["decoder_causal_attention"] = attended
    if pack:
        found["decoder_segment_ids"] = segments
        found["decoder_positions"] = packing.compute_positions(segments)
    return found


def _join_sides(rows: Rows) -> tuple[Array, Array, Array, Array]:
    """Return tokens, segments, attention and loss weights [n, inputs + targets], each segment's
    inputs before its targets.
    """
    shape = (len(rows.inputs), rows.inputs.shape[1] + rows.targets.shape[1])
    tokens, segments, attended, weights = (np.zeros(shape, np.int32) for _ in range(4))
    for row in range(shape[0]):
        place = 0
        for segment in range(
            1,
            int(
                max(
                    rows.input_segments[row].max(initial=0),
                    rows.target_segments[row].max(initial=0),
                )
            )
            + 1,
        ):
            first = rows.inputs[row][rows.input_segments[row] == segment]
            second = rows.targets[row][rows.target_segments[row] == segment]
            middle, end = place + len(first), place + len(first) + len(second)
            tokens[row, place:middle], tokens[row, middle:end] = first, second
            segments[row, place:end] = segment
            # One place more than the inputs: there the last of them is read and the first target
            # predicted.
            attended[row, place : min(middle + 1, end)] = 1
            weights[row, middle:end] = 1
            place = end
    return tokens, segments, attended, weights


def compute_feature_lengths(kind: str, *, inputs: int, targets: int, pack: bool) -> dict[str, int]:
    """Return feature -> length for a kind of model, without reading any data."""
    rows = make_unpacked_rows(np.zeros((1, inputs), np.int32), np.zeros((1, targets), np.int32))
    made = (
        make_encoder_decoder_features(rows, pack=pack)
        if kind == ENCODER_DECODER
        else make_decoder_features(rows, pack=pack)
    )
    return {name: array.shape[1] for name, array in made.items()}
