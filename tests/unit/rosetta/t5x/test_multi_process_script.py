"""What the multi-process script of pretraining runs and refuses; see tests/support/t5x_scripts.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import errors
from tests.support.t5x_scripts import (
    SLURM,
    Place,
    make_checkpoint_folder,
    place_,
    read_gin_bindings,
    read_text_files,
)

__all__ = ["place_"]  # a fixture


def test_the_only_process(place: Place) -> None:
    cards = place.cards(*["NVIDIA H100 80GB HBM3, 9.0"] * 4)
    ran = place.run(
        "multiprocess_pretrain_pile.sh", CUDA_VISIBLE_DEVICES="0,1", T5X_WORKSPACE_DIR="/w", **cards
    )
    assert ran.rc == 0, ran.err
    found = read_gin_bindings(ran)
    assert found["BATCH_SIZE"] == "64"
    assert found["network.T5Config.dtype"] == '"bfloat16"'
    assert found["network.T5Config.fp8"] == '"xla"'
    assert found["MODEL_DIR"] == '"/w/model_dir_large"'
    assert "TRAIN_STEPS" not in found
    assert "TASK_FEATURE_LENGTHS" not in found
    assert "--multiprocess_gpu" not in ran.argv


def test_the_rate_and_when_it_saves_are_variables(place: Place) -> None:
    ran = place.run(
        "multiprocess_pretrain_pile.sh",
        T5_SIZE="tiny",
        TRAIN_STEPS="200",
        WARMUP_STEPS="20",
        LEARNING_RATE="1e-2",
        SAVE_PERIOD="50",
    )
    assert ran.rc == 0, ran.err
    assert {
        name: read_gin_bindings(ran)[name]
        for name in ("WARMUP_STEPS", "LEARNING_RATE", "SAVE_PERIOD")
    } == {"WARMUP_STEPS": "20", "LEARNING_RATE": "0.01", "SAVE_PERIOD": "50"}
    assert "still rises" not in ran.err
    usual = place.run("multiprocess_pretrain_pile.sh", T5_SIZE="tiny", TRAIN_STEPS="200")
    assert not {"WARMUP_STEPS", "LEARNING_RATE", "SAVE_PERIOD"} & set(read_gin_bindings(usual))
    assert "10 of 200 steps: WARMUP_STEPS\n" in usual.err
    assert "learning rate" not in place.run("multiprocess_pretrain_pile.sh", T5_SIZE="tiny").err, (
        "of a million steps it is T5X's own"
    )
    make_checkpoint_folder(place, "100", name="begun")  # by a release that did not record it
    begun = place.run(
        "multiprocess_pretrain_pile.sh", T5_SIZE="tiny", TRAIN_STEPS="200", MODEL_DIR="begun"
    )
    assert "still rises" in begun.err
    assert "200 steps: WARMUP_STEPS is 10,000\n" in begun.err
    (place.work / "mine.gin").write_text("include 'rosetta/t5x/gin/runs/rsqrt_decay.gin'\n")
    assert (
        "still rises"
        not in place.run(
            "multiprocess_pretrain_pile.sh",
            T5_SIZE="tiny",
            TRAIN_STEPS="200",
            ROSETTA_GIN="mine.gin",
        ).err
    ), "it is constant up to there"


def test_a_tree_without_the_macro_is_said(place: Place) -> None:
    run = next(place.tree.rglob("tiny_pile_pretrain.gin"))
    run.write_text("network.T5Config.num_heads = 4\n")
    ran = place.run("multiprocess_pretrain_pile.sh", T5_SIZE="tiny", WARMUP_STEPS="20")
    assert (ran.rc, ran.argv) == (2, [])
    errors.check_error(
        ran.error, errors.UNKNOWN, where="WARMUP_STEPS=20", remedy="ROSETTA_GIN=FILE"
    )


def test_a_folder_that_began_with_other_lengths_is_refused(place: Place) -> None:
    make_checkpoint_folder(place, "100")
    told = {"objective": "span_corruption", "inputs": 64, "targets": 32}
    (place.work / "pre" / "rosetta").mkdir()
    (place.work / "pre" / "rosetta" / "checkpoint_100.json").write_text(
        json.dumps({"schema": 1, "step": 100, "scale_attn_logits": True, "data": {"told": told}})
    )
    words = {"T5_SIZE": "tiny", "MODEL_DIR": "pre", "ENC_SL": "64"}
    assert place.run("multiprocess_pretrain_pile.sh", **words, DEC_SL="32").rc == 0
    ran = place.run("multiprocess_pretrain_pile.sh", **words)
    assert (ran.rc, ran.argv) == (2, [])
    errors.check_error(ran.error, errors.DIFFERS, where="DATA=", names=("targets 32", "128"))
    assert len(ran.err.splitlines()) == 1


def test_the_cpus_devices_are_counted_where_flags_make_some(place: Place) -> None:
    ran = place.run(
        "multiprocess_pretrain_pile.sh",
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
        TP_SIZE="2",
        T5_SIZE="small",
    )
    assert ran.rc == 0, ran.err
    assert read_gin_bindings(ran)["BATCH_SIZE"] == "64"
    assert ran.env["XLA_FLAGS"].count("device_count") == 1


def test_benchmarks_start_anew_on_synthetic_data_and_delete_nothing(place: Place) -> None:
    ran = place.run(
        "multiprocess_pretrain_pile.sh",
        BENCHMARK_MODE="True",
        CHECKPOINT_DISABLE="1",
        MODEL_DIR="pre",
        DATA="",
        VOCAB="",
    )
    assert ran.rc == 0, ran.err
    found = read_gin_bindings(ran)
    assert {
        name: found[name]
        for name in ("TRAIN_STEPS", "STATS_PERIOD", "DATA", "VOCAB", "utils.CheckpointConfig.save")
    } == {
        "TRAIN_STEPS": "500",
        "STATS_PERIOD": "100",
        "DATA": '"synthetic"',
        "VOCAB": '"ids:32128"',
        "utils.CheckpointConfig.save": "None",
    }
    assert (
        read_gin_bindings(place.run("multiprocess_pretrain_pile.sh", BENCHMARK_MODE="1"))["DATA"]
        == f'"text:{place.work}/corpus.txt"'
    ), "where it is given"
    before = read_text_files(make_checkpoint_folder(place, "10"))
    ran = place.run("multiprocess_pretrain_pile.sh", BENCHMARK_MODE="1", MODEL_DIR="pre")
    assert (ran.rc, ran.argv) == (2, [])
    assert read_text_files(place.work / "pre") == before


@pytest.mark.parametrize(
    ("settings", "kind", "facts"),
    [
        (
            {"TP_SIZE": "3"},
            errors.INVALID,
            {"where": "TP_SIZE=3", "value": 3, "names": ("1", "GPUs"), "remedy": "1"},
        ),
        (
            {"NUM_GPUS": "64", "TP_SIZE": "32", **SLURM},
            errors.INVALID,
            {"where": "TP_SIZE=32", "value": 32, "names": ("16", "1"), "remedy": ("4", "8", "16")},
        ),
        (
            {"NUM_MICROBATCHES": "5"},
            errors.INVALID,
            {
                "where": "NUM_MICROBATCHES=5",
                "value": 5,
                "names": ("32", "1", "GPU", "2"),
                "remedy": ("32", "1", "4", "8", "16"),
            },
        ),
        ({"TRAIN_STEPS": "-1"}, errors.INVALID, {"where": "TRAIN_STEPS", "value": "-1"}),
        ({"PREC": "int4"}, errors.INVALID, {"where": "PREC", "value": "int4"}),
        ({"ENABLE_TE": "1"}, errors.MISSING, {"where": "Transformer Engine"}),
        ({"ATTENTION": "te"}, errors.MISSING, {"where": "Transformer Engine"}),
        ({"ENABLE_TE": "2"}, errors.INVALID, {"where": "ENABLE_TE", "value": "2"}),
        ({"WITH_NSYS": "x"}, errors.INVALID, {"where": "WITH_NSYS", "value": "x"}),
        (
            {"WITH_NSYS": "1", "NSYS": "/nowhere"},
            errors.MISSING,
            {"where": "NSYS", "value": "/nowhere"},
        ),
        ({"BENCHMARK_MODE": "x"}, errors.INVALID, {"where": "BENCHMARK_MODE", "value": "x"}),
        ({"SLURM_NTASKS": "many"}, errors.INVALID, {"where": "SLURM_NTASKS", "value": "many"}),
    ],
)
def test_multiprocess_refused(
    place: Place, settings: dict[str, str], kind: str, facts: dict[str, Any]
) -> None:
    ran = place.run("multiprocess_pretrain_pile.sh", **settings)
    assert (ran.rc, ran.argv) == (2, [])
    errors.check_error(ran.error, kind, **facts)
    assert len(ran.err.splitlines()) == 1
    assert not (place.work / "model_dir_large").exists()


def test_nsys_wraps_the_trainer(place: Place) -> None:
    ran = place.run("multiprocess_pretrain_pile.sh", WITH_NSYS="1", T5X_WORKSPACE_DIR="/w", **SLURM)
    assert ran.rc == 0, ran.err
    assert ran.argv[:3] == ["profile", "-o", "/w/nsys_42_3"]
    assert ran.argv[3] == str(place.work / "bin" / "recorder")
    assert "rosetta.t5x.train" in ran.argv
