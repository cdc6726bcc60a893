"""Settings under upstream's names reach our classes."""

from __future__ import annotations

import pytest

gin = pytest.importorskip("gin", reason="NOT CHECKED: needs the packages of a baked environment")

from rosetta.t5x import names


def test_classes_methods_and_scopes_are_carried_over() -> None:
    config: dict[tuple[str, str], dict[str, object]] = {
        ("", "t5x.partitioning.PjitPartitioner"): {"num_partitions": 2},
        ("train", "t5x.trainer.Trainer"): {"num_microbatches": 4},
        ("", "t5x.models.EncoderDecoderModel.predict_batch_with_aux"): {"num_decodes": 8},
        ("", "t5x.examples.decoder_only.network.TransformerConfig"): {
            "num_layers": 3,
            "emb_dim": 16,
        },
        ("", "t5x.contrib.gpu.t5.network.T5Config"): {"dtype": "float32"},
        ("", "rosetta.t5x.trainer.Trainer"): {"num_microbatches": 1},
    }
    assert names.translate_bindings(config) == {
        "rosetta.t5x.partitioning.PjitPartitioner.num_partitions": 2,
        "train/rosetta.t5x.trainer.Trainer.num_microbatches": 4,
        "rosetta.t5x.model.EncoderDecoderModel.predict_batch_with_aux.num_decodes": 8,
        "rosetta.t5x.network.T5Config.num_decoder_layers": 3,
        "rosetta.t5x.network.T5Config.emb_dim": 16,
        "rosetta.t5x.network.T5Config.dtype": "float32",
    }


def test_a_name_that_only_begins_alike_is_not_upstreams() -> None:
    assert (
        names.translate_bindings(
            {
                ("", "t5x.trainer.TrainerOfMine"): {"x": 1},
                ("", "t5x.utils.DatasetConfig"): {"pack": True},
            }
        )
        == {}
    )


def test_a_run_of_upstreams_alone_stays_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        names._apply_upstream_bindings({("", "t5x.trainer.Trainer"): {"num_microbatches": 4}}) == {}
    )
    assert not capsys.readouterr().err
