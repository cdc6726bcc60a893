from __future__ import annotations

import numpy as np

from rosetta.data import packing, rows, seqio_features


def test_packed_rows_have_each_example_once_and_do_not_overflow() -> None:
    sizes = np.random.default_rng(0).integers(1, 30, (500, 2))
    bundles = packing.pack_examples(sizes, np.arange(500), (64, 40))
    assert sorted(number for bundle in bundles for number in bundle) == list(range(500))
    filled = np.array([sizes[bundle].sum(axis=0) for bundle in bundles])
    assert (filled <= (64, 40)).all()
    # The tighter side decides how many rows there must be at least.
    assert len(bundles) < 1.15 * max(sizes[:, 0].sum() / 64, sizes[:, 1].sum() / 40)


def test_positions_and_shifts_begin_anew_with_each_segment() -> None:
    segments = np.array([[1, 1, 1, 2, 2, 0], [1, 2, 3, 3, 3, 3]], np.int32)
    tokens = np.array([[5, 6, 1, 7, 1, 0], [1, 1, 8, 9, 7, 1]], np.int32)
    assert packing.compute_positions(segments).tolist() == [[0, 1, 2, 0, 1, 0], [0, 0, 0, 1, 2, 3]]
    assert packing.shift_right(tokens, segments).tolist() == [
        [0, 5, 6, 0, 7, 0],
        [0, 0, 0, 8, 9, 7],
    ]


def test_features_of_a_packed_row() -> None:
    packed_rows = rows.Rows(
        inputs=np.array([[7, 8, 5, 1, 8, 4, 9, 3, 1, 0]], np.int32),
        targets=np.array([[3, 9, 1, 4, 1, 0, 0]], np.int32),
        input_segments=np.array([[1, 1, 1, 1, 2, 2, 2, 2, 2, 0]], np.int32),
        target_segments=np.array([[1, 1, 1, 2, 2, 0, 0]], np.int32),
    )
    features = {
        name: array[0].tolist()
        for name, array in seqio_features.make_encoder_decoder_features(
            packed_rows, pack=True
        ).items()
    }
    assert features["decoder_input_tokens"] == [0, 3, 9, 0, 4, 0, 0]
    assert features["decoder_loss_weights"] == [1, 1, 1, 1, 1, 0, 0]
    assert features["encoder_positions"] == [0, 1, 2, 3, 0, 1, 2, 3, 4, 0]
    joined = {
        name: array[0].tolist()
        for name, array in seqio_features.make_decoder_features(packed_rows, pack=True).items()
    }
    assert joined["decoder_target_tokens"] == [7, 8, 5, 1, 3, 9, 1, 8, 4, 9, 3, 1, 4, 1, 0, 0, 0]
    assert joined["decoder_causal_attention"] == [1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert joined["decoder_loss_weights"] == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0]
    assert joined["decoder_segment_ids"] == [1] * 7 + [2] * 7 + [0] * 3


def test_feature_lengths_are_computed_without_data() -> None:
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
