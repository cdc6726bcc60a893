"""How the scripts choose precision, attention and GPUs; see tests/support/t5x_scripts.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import errors
from tests.support.t5x_scripts import (
    MNLI,
    SLURM,
    SMALL,
    Place,
    make_checkpoint_folder,
    place_,
    read_gin_bindings,
)

__all__ = ["place_"]  # a fixture
NO_GPU = not list(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists()


@pytest.mark.parametrize(
    ("settings", "expected"), [({}, '"bfloat16"'), ({"LOGITS_DTYPE": "float32"}, '"float32"')]
)
def test_pretraining_on_a_gpu_has_bfloat16_logits(
    place: Place, settings: dict[str, str], expected: str
) -> None:
    gpu = place.cards("NVIDIA H100 80GB HBM3, 9.0")
    words = ("small", "bfloat16", "1", "8", "logs")
    ran = place.run("singlenode_pretrain_pile.sh", *words, **gpu, **settings)
    assert ran.rc == 0, ran.err
    assert read_gin_bindings(ran)["network.T5Config.logits_dtype"] == expected
    assert ("LOGITS_DTYPE" in ran.err) != bool(settings)


def test_another_type_of_logits_is_refused(place: Place) -> None:
    ran = place.run("singlenode_pretrain_pile.sh", *SMALL, LOGITS_DTYPE="half")
    assert (ran.rc, ran.argv) == (2, [])
    errors.check_error(ran.error, errors.INVALID, where="LOGITS_DTYPE", value="half")


@pytest.mark.skipif(not NO_GPU, reason="this machine has a GPU")
def test_the_cpu_is_used_only_on_request(place: Place) -> None:
    ran = place.run("singlenode_pretrain_pile.sh", *SMALL, JAX_PLATFORMS="")
    assert (ran.rc, ran.argv) == (2, [])
    assert "no NVIDIA GPU is visible" in ran.err
    dry = place.run("singlenode_pretrain_pile.sh", "--dry-run", *SMALL, JAX_PLATFORMS="")
    assert dry.rc == 0, "a dry run may be for another machine"
    assert any("no NVIDIA GPU is visible" in line for line in json.loads(dry.out)["messages"])


@pytest.mark.parametrize(
    ("card", "words", "settings", "expected", "note"),
    [
        ("NVIDIA H100 80GB HBM3, 9.0", "bfloat16", {}, ("xla", "cudnn", "bfloat16"), ""),
        ("NVIDIA L40S, 8.9", "bfloat16", {}, ("xla", "cudnn", "bfloat16"), ""),
        (
            "NVIDIA A100-SXM4-80GB, 8.0",
            "bfloat16",
            {"FUSE_QKV": "1", "TRANSPOSE_BS": "1"},
            ("off", "cudnn", "bfloat16"),
            "FP8 is off: NVIDIA A100-SXM4-80GB has no FP8",
        ),
        (
            "Tesla T4, 7.5",
            "float16",
            {},
            ("off", "xla", "float16"),
            "FP8 is off: Tesla T4 has no FP8",
        ),
        (
            "NVIDIA H100 80GB HBM3, 9.0",
            "float32",
            {},
            ("off", "xla", "float32"),
            "FP8 is off: PREC=float32 is set",
        ),
        (
            "NVIDIA H100 80GB HBM3, 9.0",
            "float32",
            {"ENABLE_FP8": "1"},
            ("xla", "cudnn", "bfloat16"),
            "with FP8, everything else is in bfloat16, not in float32",
        ),
        (
            "NVIDIA H100 80GB HBM3, 9.0",
            "bfloat16",
            {"ENABLE_FP8": "0", "ATTENTION": "xla"},
            ("off", "xla", "bfloat16"),
            "",
        ),
    ],
)
def test_defaults_depend_on_the_gpu(
    place: Place,
    card: str,
    words: str,
    settings: dict[str, str],
    expected: tuple[str, str, str],
    note: str,
) -> None:
    ran = place.run(
        "singlenode_pretrain_pile.sh",
        "small",
        words,
        "1",
        "8",
        "logs",
        **place.cards(card),
        LOGITS_DTYPE="float32",
        **settings,
    )
    assert ran.rc == 0, ran.err
    found = read_gin_bindings(ran)
    assert (
        tuple(
            found[f"network.T5Config.{name}"].strip('"') for name in ("fp8", "attention", "dtype")
        )
        == expected
    )
    assert ("--xla_gpu_enable_triton_gemm=false" in ran.env["XLA_FLAGS"]) == (expected[0] == "xla")
    assert [line.removeprefix("rosetta: ")[: len(note)] for line in ran.said[1:]] == (
        [note] if note else []
    )


@pytest.mark.parametrize(
    ("cards", "settings", "kind", "facts"),
    [
        (
            ["NVIDIA A100-SXM4-80GB, 8.0"],
            {"ENABLE_FP8": "1"},
            errors.UNSUPPORTED,
            {"where": "ENABLE_FP8=1", "value": "NVIDIA A100-SXM4-80GB", "remedy": "ENABLE_FP8=0"},
        ),
        (
            ["Tesla T4, 7.5"],
            {"ATTENTION": "cudnn"},
            errors.UNSUPPORTED,
            {"where": "ATTENTION=cudnn", "names": "T4"},
        ),
        (
            ["NVIDIA H100 80GB HBM3, 9.0"] * 2,
            {"CUDA_VISIBLE_DEVICES": "1", "NUM_GPUS": "2"},
            errors.CONFLICT,
            {"where": "NUM_GPUS=2", "value": 1},
        ),
        (
            ["NVIDIA H100 80GB HBM3, 9.0"],
            {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": ""},
            errors.MISSING,
            {"where": "CUDA_VISIBLE_DEVICES=-1", "names": "GPUs"},
        ),
    ],
)
def test_settings_that_the_gpus_do_not_support_are_refused(
    place: Place, cards: list[str], settings: dict[str, str], kind: str, facts: dict[str, Any]
) -> None:
    ran = place.run(
        "singlenode_pretrain_pile.sh",
        "small",
        "bfloat16",
        settings.pop("NUM_GPUS", "1"),
        "8",
        "logs",
        **{**place.cards(*cards), **settings},
    )
    assert (ran.rc, ran.argv) == (2, [])
    errors.check_error(ran.error, kind, **facts)
    assert len(ran.err.splitlines()) == 1


def test_as_many_gpus_are_used_as_requested(place: Place) -> None:
    cards = place.cards(*["NVIDIA H100 80GB HBM3, 9.0"] * 4)
    ran = place.run("singlenode_pretrain_pile.sh", "small", "bfloat16", "2", "8", "logs", **cards)
    assert ran.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "rosetta: 2 of 4 GPUs are used (CUDA_VISIBLE_DEVICES=0,1)" in ran.said
    ran = place.run(
        "singlenode_pretrain_pile.sh",
        "small",
        "bfloat16",
        "1",
        "8",
        "logs",
        **cards,
        CUDA_VISIBLE_DEVICES="3,2",
    )
    assert ran.env["CUDA_VISIBLE_DEVICES"] == "3"


def test_each_gpu_has_a_process(place: Place) -> None:
    ran = place.run(
        "multiprocess_pretrain_pile.sh",
        NUM_GPUS="8",
        **SLURM,
        **place.cards("NVIDIA H100 80GB HBM3, 9.0"),
    )
    assert (ran.rc, ran.argv) == (2, [])
    assert "NUM_GPUS=8: Slurm started 64 processes" in ran.err


def test_fp8_is_multiplied_in_evaluation_by_what_can(place: Place) -> None:
    make_checkpoint_folder(place, "100")
    ran = place.rosetta(
        "t5x",
        "eval",
        "CHECKPOINT_PATH=pre",
        "OUTPUT_DIR=out",
        **MNLI,
        **place.cards("NVIDIA H100 80GB HBM3, 9.0"),
        XLA_FLAGS="--xla_dump_max_hlo_modules=7",
    )
    assert ran.rc == 0, ran.err
    assert read_gin_bindings(ran)["network.T5Config.fp8"] == '"xla"'
    flags = ran.env["XLA_FLAGS"].split()
    assert "--xla_gpu_enable_triton_gemm=false" in flags
    assert flags[-1] == "--xla_dump_max_hlo_modules=7", "the user's come last, and win"
