"""What the single-node script of pretraining runs and refuses; see tests/support/t5x_scripts.py."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

import pytest

from tests.support import errors
from tests.support.t5x_scripts import (
    SMALL,
    Place,
    make_checkpoint_folder,
    place_,
    read_gin_bindings,
    read_text_files,
)

__all__ = ["place_"]  # a fixture
PRETRAIN = ("small", "bfloat16", "8", "256", "logs")


def test_a_run_without_arguments(place: Place) -> None:
    ran = place.run(
        "singlenode_pretrain_pile.sh", **place.cards(*["NVIDIA H100 80GB HBM3, 9.0"] * 2)
    )
    assert ran.rc == 0, ran.err
    found = read_gin_bindings(ran)
    assert any(word.endswith("large_pile_pretrain.gin") for word in ran.argv)
    assert (found["BATCH_SIZE"], found["MODEL_DIR"], found["network.T5Config.dtype"]) == (
        "64",
        f'"{place.work}/model_dir"',
        '"bfloat16"',
    )
    assert ran.out == "", "the output goes to the log of the run"
    assert "the trainer's words" in (place.work / "model_dir/logs/train.log").read_text()
    on_terminal = place.run(
        "singlenode_pretrain_pile.sh", **place.cards("NVIDIA H100 80GB HBM3, 9.0"), LOGDIR="-"
    )
    assert on_terminal.out == "the trainer's words\n"
    make_checkpoint_folder(place, "1000", name="model_dir")
    ran = place.run("singlenode_ft_frompile.sh", DATA=f"jsonl:{place.work}/mnli.jsonl")
    assert ran.rc == 0, ran.err
    assert "rosetta: finetuning on mnli2, global batch 32 on 1 device(s)" in ran.said[0]
    assert read_gin_bindings(ran)["MODEL_DIR"] == f'"{place.work}/ft_mnli2_model_dir"'


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"ROSETTA_HOME": "/r"}, "/r/compiled"),
        ({"JAX_COMPILATION_CACHE_DIR": "/mine"}, "/mine"),
        ({"JAX_ENABLE_COMPILATION_CACHE": "0"}, None),
        ({"HOME": "/"}, None),
    ],
)
def test_what_was_compiled_is_kept_where_one_may_write(
    place: Place, settings: dict[str, str], kept: str | None
) -> None:
    ran = place.run("singlenode_pretrain_pile.sh", *SMALL, **settings)
    assert ran.rc == 0, ran.err
    assert ran.env.get("JAX_COMPILATION_CACHE_DIR") == kept
    assert not (place.work / ".rosetta").exists()


@pytest.mark.parametrize("place_of_it", range(len(SMALL) + 1))
def test_a_dry_run_runs_nothing_wherever_it_stands(place: Place, place_of_it: int) -> None:
    before = read_text_files(place.work)
    words = [*SMALL[:place_of_it], "--dry-run", *SMALL[place_of_it:]]
    ran = place.run("singlenode_pretrain_pile.sh", *words)
    assert (ran.rc, ran.argv, ran.err) == (0, [], "")
    assert json.loads(ran.out)["log"] == "logs/small_gpu_1_float32_gbs_8.log"
    assert read_text_files(place.work) == before


def test_pretraining_from_other_weights(place: Place) -> None:
    make_checkpoint_folder(place, "5")
    found = read_gin_bindings(
        place.run("singlenode_pretrain_pile.sh", *SMALL, INITIAL_CHECKPOINT_PATH="pre")
    )
    assert found["INITIAL_CHECKPOINT_PATH"] == f'"{place.work}/pre"'
    assert (
        read_gin_bindings(
            place.run("singlenode_pretrain_pile.sh", *SMALL, INITIAL_CHECKPOINT_PATH="gs://b/mt5")
        )["INITIAL_CHECKPOINT_PATH"]
        == '"gs://b/mt5"'
    )


def test_positionals_win_over_variables_and_empty_ones_are_not_given(place: Place) -> None:
    found = read_gin_bindings(
        place.run(
            "singlenode_pretrain_pile.sh",
            *SMALL,
            "",
            "2",
            MODEL_DIR="m",
            NUM_MICROBATCHES="4",
            T5_SIZE="xl",
        )
    )
    assert (found["MODEL_DIR"], found["trainer.Trainer.num_microbatches"]) == (
        f'"{place.work}/m"',
        "2",
    )
    assert (
        read_gin_bindings(place.run("singlenode_pretrain_pile.sh", *SMALL, NUM_MICROBATCHES="4"))[
            "trainer.Trainer.num_microbatches"
        ]
        == "4"
    )


def test_one_process_by_its_name_is_one_inside_a_slurm_job_too(place: Place) -> None:
    ran = place.run("singlenode_pretrain_pile.sh", *SMALL, SLURM_NTASKS="8", SLURM_JOB_ID="42")
    assert ran.rc == 0, ran.err
    assert "--multiprocess_gpu" not in ran.argv


@pytest.mark.parametrize(
    "folder",
    ['a "b" c', "back\\slash", "$(touch pwned)", "-dash", "semi;colon", "%MACRO", "@function()"],
)
def test_a_folders_name_is_never_code(place: Place, folder: str) -> None:
    ran = place.run("singlenode_pretrain_pile.sh", *SMALL, folder)
    assert ran.rc == 0, ran.err
    escaped = folder.replace("\\", "\\\\").replace('"', '\\"')
    assert read_gin_bindings(ran)["MODEL_DIR"] == f'"{place.work}/{escaped}"'
    assert not (place.work / "pwned").exists()


def test_an_object_store_stays_an_address(place: Place) -> None:
    assert (
        read_gin_bindings(place.run("singlenode_pretrain_pile.sh", *SMALL, "gs://b/m"))["MODEL_DIR"]
        == '"gs://b/m"'
    )
    ran = place.run("singlenode_pretrain_pile.sh", *SMALL, "s3://b/m")
    errors.check_error(ran.error, errors.UNSUPPORTED, where="s3://b/m", remedy="gs://")


@pytest.mark.parametrize(
    ("words", "settings", "kind", "facts"),
    [
        (
            (*SMALL, *"12345678"),
            {},
            errors.INVALID,
            {"where": "singlenode_pretrain_pile.sh", "value": 13},
        ),
        (
            (*SMALL, "--dryrun"),
            {},
            errors.UNKNOWN,
            {"where": "singlenode_pretrain_pile.sh", "value": "--dryrun", "remedy": "--dry-run"},
        ),
        (
            SMALL,
            {"INITIAL_CHECKPOINT_PATH": "nowhere"},
            errors.MISSING,
            {"where": "nowhere"},
        ),
        (
            ("enormous", *SMALL[1:]),
            {},
            errors.UNKNOWN,
            {"where": "T5_SIZE", "value": "enormous", "names": "pile_pretrain"},
        ),
        (("../small", *SMALL[1:]), {}, errors.UNKNOWN, {"where": "T5_SIZE", "value": "../small"}),
        (
            ("small", "fp8", *SMALL[2:]),
            {},
            errors.INVALID,
            {"where": "PREC", "value": "fp8", "remedy": ("bfloat16", "float32", "float16")},
        ),
        (
            ("small", "bfloat16", "0", "1", "l"),
            {},
            errors.INVALID,
            {"where": "NUM_GPUS", "value": "0"},
        ),
        (
            ("small", "bfloat16", "8", "x[$(touch pwned)]", "l"),
            {},
            errors.INVALID,
            {"where": "BSIZE_PER_GPU", "value": "x[$(touch pwned)]"},
        ),
        (
            (*SMALL, "m", "3"),
            {},
            errors.INVALID,
            {
                "where": "NUM_MICROBATCHES=3",
                "value": 3,
                "names": ("8", "1", "GPU"),
                "remedy": ("8", "1", "2", "4"),
            },
        ),
        (
            (*SMALL, "m", "1", "0", "0", "maybe"),
            {},
            errors.INVALID,
            {"where": "FUSE_QKV", "value": "maybe", "remedy": ("0", "1")},
        ),
        (
            (*SMALL, "m", "1", "0", "0", "0", "maybe"),
            {},
            errors.INVALID,
            {"where": "PACK", "value": "maybe", "remedy": ("0", "1")},
        ),
        (
            PRETRAIN,
            {"TP_SIZE": "3"},
            errors.INVALID,
            {
                "where": "TP_SIZE=3",
                "value": 3,
                "names": ("8", "GPUs"),
                "remedy": ("1", "2", "4", "8"),
            },
        ),
        (
            PRETRAIN,
            {"TP_SIZE": "4"},
            errors.INVALID,
            {"where": "TP_SIZE=4", "value": 4, "names": "6", "remedy": ("1", "2")},
        ),
        (
            PRETRAIN,
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
            errors.CONFLICT,
            {"where": "NUM_GPUS=8", "value": 4, "names": ("XLA_FLAGS", "CPU")},
        ),
        (
            SMALL,
            {"REMAT": "some"},
            errors.INVALID,
            {"where": "REMAT", "value": "some", "remedy": "minimal"},
        ),
        (
            SMALL,
            {"ATTENTION": "flash"},
            errors.INVALID,
            {"where": "ATTENTION", "value": "flash", "remedy": "cudnn"},
        ),
        (
            SMALL,
            {"ATTENTION": "cudnn"},
            errors.UNSUPPORTED,
            {"where": "ATTENTION=cudnn", "names": "CPU"},
        ),
        (
            SMALL,
            {"GRADIENT_DTYPE": "int8"},
            errors.INVALID,
            {"where": "GRADIENT_DTYPE", "value": "int8"},
        ),
        (SMALL, {"SCAN_LAYERS": "2"}, errors.INVALID, {"where": "SCAN_LAYERS", "value": "2"}),
        (SMALL, {"ENC_SL": "0"}, errors.INVALID, {"where": "ENC_SL", "value": "0"}),
        (
            SMALL,
            {"VOCAB": "/nowhere/sp.model"},
            errors.MISSING,
            {"where": "/nowhere/sp.model"},
        ),
        (
            SMALL,
            {"VOCAB": "ids:40000", "DATA": "synthetic"},
            errors.TOO_BIG,
            {"where": "ids:40000", "value": 40000},
        ),
        (
            SMALL,
            {"VOCAB": ""},
            errors.UNSUPPORTED,
            {"where": "VOCAB=gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model"},
        ),
        (SMALL, {"DATA": "text:/nowhere/*.txt"}, errors.MISSING, {"where": "/nowhere/*.txt"}),
        (SMALL, {"DATA": "odt:x"}, errors.UNKNOWN, {"where": "DATA=odt:x", "value": "odt"}),
        (SMALL, {"DATA": ""}, errors.MISSING, {"where": "data", "names": "2023"}),
        (
            SMALL,
            {"T5X_DIR": "/nowhere"},
            errors.MISSING,
            {"where": "T5X_DIR=/nowhere", "names": "t5x/train.py"},
        ),
        (
            SMALL,
            {"ROSETTA_GIN": "nowhere.gin"},
            errors.MISSING,
            {"where": "ROSETTA_GIN=nowhere.gin"},
        ),
        ((*SMALL, "corpus.txt"), {}, errors.INVALID, {"where": "corpus.txt"}),
        ((*SMALL, "corpus.txt/m"), {}, errors.INVALID, {"where": "corpus.txt/m"}),
        (
            ("small", "float32", "1", "8", "corpus.txt/logs"),
            {},
            errors.INVALID,
            {"where": "corpus.txt/logs"},
        ),
    ],
)
def test_wrong_settings_are_reported_in_one_line(
    place: Place, words: tuple[str, ...], settings: dict[str, str], kind: str, facts: dict[str, Any]
) -> None:
    before = read_text_files(place.work)
    ran = place.run("singlenode_pretrain_pile.sh", *words, **settings)
    assert (ran.rc, ran.argv, ran.out) == (2, [], "")
    assert len(ran.err.splitlines()) == 1
    assert ran.err.startswith("singlenode_pretrain_pile.sh: ")
    errors.check_error(ran.error, kind, **facts)
    assert read_text_files(place.work) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="NOT CHECKED: root may write anywhere")
def test_a_folder_without_permission_is_refused(place: Place) -> None:
    (place.work / "closed").mkdir(mode=0o500)
    ran = place.run("singlenode_pretrain_pile.sh", *SMALL, "closed/m")
    assert (ran.rc, ran.argv) == (2, [])
    errors.check_error(ran.error, errors.DENIED, where="closed/m")


def test_the_pile_where_there_is_a_copy(place: Place) -> None:
    (place.work / "data" / "the_pile" / "1.0.0").mkdir(parents=True)
    ran = place.run("singlenode_pretrain_pile.sh", *SMALL, DATA="")
    assert (ran.rc, ran.argv) == (2, [])
    errors.check_error(ran.error, errors.MISSING, names="dataset_info.json")


def test_a_gin_file_of_ones_own_comes_last_and_is_checked_with_the_rest(place: Place) -> None:
    mine = place.work / "mine.gin"
    mine.write_text(
        f"DATA = 'text:{place.work}/corpus.txt'\nVOCAB = 'byte'\nTASK_FEATURE_LENGTHS = {{'inputs': 96, 'targets': 48}}\n"
    )
    ran = place.run(
        "singlenode_pretrain_pile.sh",
        *SMALL,
        ROSETTA_GIN="mine.gin",
        DATA="",
        VOCAB="",
        DEC_SL="32",
    )
    assert ran.rc == 0, ran.err
    files = [word for word in ran.argv if word.startswith("--gin_file=")]
    assert files[1:] == [f"--gin_file={mine}"]
    assert read_gin_bindings(ran)["TASK_FEATURE_LENGTHS"] == '{"inputs": 96, "targets": 32}'
    mine.write_text("DATA = 'text:/nowhere'\nVOCAB = 'byte'\n")
    assert (
        place.run(
            "singlenode_pretrain_pile.sh", *SMALL, ROSETTA_GIN="mine.gin", DATA="", VOCAB=""
        ).rc
        == 2
    )
    mine.write_text("MIXTURE_OR_TASK_NAME = 'a_task_of_mine'\n")
    assert (
        place.run(
            "singlenode_pretrain_pile.sh", *SMALL, ROSETTA_GIN="mine.gin", DATA="", VOCAB=""
        ).rc
        == 0
    )


def test_a_tree_of_ones_own(place: Place) -> None:
    mine = place.work / "mine"
    shutil.copytree(place.tree, mine)
    ran = place.run("singlenode_pretrain_pile.sh", *SMALL, T5X_DIR=str(mine))
    assert ran.env["PYTHONPATH"].split(os.pathsep)[0] == str(mine)
    assert f"--gin_search_paths={mine}" in ran.argv
    (mine / "t5x/contrib/gpu/t5/t5_1_1/examples/small_pile_pretrain.gin").write_text(
        "# upstream's, say\n"
    )
    ran = place.run("singlenode_pretrain_pile.sh", *SMALL, T5X_DIR=str(mine))
    assert ran.rc == 2
    errors.check_error(ran.error, errors.DIFFERS, where="T5X_DIR")
