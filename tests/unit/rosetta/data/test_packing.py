from __future__ import annotations

import numpy as np

from rosetta.data import packing, rows, seqio_features


def test_bundles_hold_everything_once_and_overflow_nowhere() -> None:
    sizes = np.random.default_rng(0).integers(1, 30, (500, 2))
    found = packing.pack_examples(sizes, np.arange(500), (64, 40))
    assert sorted(number for bundle in found for number in bundle) == list(range(500))
    filled = np.array([sizes[bundle].sum(axis=0) for bundle in found])
    assert (filled <= (64, 40)).all()
    # The tighter side decides how many rows there must be at least.
    assert len(found) < 1.15 * max(sizes[:, 0].sum() / 64, sizes[:, 1].sum() / 40)


def test_positions_and_shifts_begin_anew_with_each_segment() -> None:
    segments = np.array([[1, 1, 1, 2, 2, 0], [1, 2, 3, 3, 3, 3]], np.int32)
    tokens = np.array([[5, 6, 1, 7, 1, 0], [1, 1, 8, 9, 7, 1]], np.int32)
    assert packing.compute_positions(segments).tolist() == [[0, 1, 2, 0, 1, 0], [0, 0, 0, 1, 2, 3]]
    assert packing.shift_right(tokens, segments).tolist() == [
        [0, 5, 6, 0, 7, 0],
        [0, 0, 0, 8, 9, 7],
    ]


def test_features_of_a_packed_row() -> None:
    made = rows.Rows(
        inputs=np.array([[7, 8, 5, 1, 8, 4, 9, 3, 1, 0]], np.int32),
        targets=np.array([[3, 9, 1, 4, 1, 0, 0]], np.int32),
        input_segments=np.array([[1, 1, 1, 1, 2, 2, 2, 2, 2, 0]], np.int32),
        target_segments=np.array([[1, 1, 1, 2, 2, 0, 0]], np.int32),
    )
    found = {
        name: array[0].tolist()
        for name, array in seqio_features.make_encoder_decoder_features(made, pack=True).items()
    }
    assert found["decoder_input_tokens"] == [0, 3, 9, 0, 4, 0, 0]
    assert found["decoder_loss_weights"] == [1, 1, 1, 1, 1, 0, 0]
    assert found["encoder_positions"] == [0, 1, 2, 3, 0, 1, 2, 3, 4, 0]
    joined = {
        name: array[0].tolist()
        for name, array in seqio_features.make_decoder_features(made, pack=True).items()
    }
    assert joined["decoder_target_tokens"] == [7, 8, 5, 1, 3, 9, 1, 8, 4, 9, 3, 1, 4, 1, 0, 0, 0]
    assert joined["decoder_causal_attention"] == [1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert joined["decoder_loss_weights"] == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0]
    assert joined["decoder_segment_ids"] == [1] * 7 + [2] * 7 + [0] * 3


def test_the_names_are_known_without_data() -> None:
    assert seqio_features.compute_feature_lengths(
        seqio_features.ENCODER_DECODER, inputs=9, targets=4, pack=False
    ) == {
        "encoder_input_tokens": 9,
        "decoder_target_tokens": 4,
        "decoder_input_tokens": 4,
        "decoder_loss_weights": 4,
    }
    assert (
        seqio_features.compute_feature_lengths(
            seqio_features.DECODER, inputs=9, targets=4, pack=True
        )["decoder_segment_ids"]
        == 13
    )
    assert "decoder_causal_attention" not in seqio_features.compute_feature_lengths(
        seqio_features.DECODER, inputs=0, targets=4, pack=False
    )
