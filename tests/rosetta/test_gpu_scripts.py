"""The single-node scripts and what else the overlay replaces; see tests/support/t5x_scripts.py."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.t5x_scripts import (
    OVERLAY,
    SCRIPTS,
    Place,
    bindings,
    checkpoints,
    place_,
    snapshot,
)

__all__ = ["place_"]  # a fixture
NO_GPU = not list(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists()
PRETRAIN = ("small", "bfloat16", "8", "256", "logs")
SMALL = ("small", "float32", "1", "8", "logs")


def test_singlenode_pretraining(place: Place) -> None:
    ran = place.run("singlenode_pretrain_pile.sh", *PRETRAIN, XLA_FLAGS="--mine=1")
    assert ran.rc == 0, ran.err
    assert ran.argv[:5] == ["-u", "-P", "-m", "rosetta.t5x.train", "train"]
    assert (
        f"--gin_file={place.tree}/t5x/contrib/gpu/t5/t5_1_1/examples/small_pile_pretrain.gin"
        in ran.argv
    )
    assert f"--tfds_data_dir={place.work}/data" in ran.argv
    assert bindings(ran) == {
        "MODEL_DIR": f'"{place.work}/model_dir"',
        "DATA": f'"text:{place.work}/corpus.txt"',
        "VOCAB": '"byte"',
        "BATCH_SIZE": "2048",
        "EVAL_BATCH_SIZE": "2048",
        "NUM_PARTITIONS": "1",
        "PACK": "False",
        "trainer.Trainer.num_microbatches": "1",
        "partitioning.PjitPartitioner.fsdp": "False",
        "network.T5Config.dtype": '"bfloat16"',
        "network.T5Config.fp8": '"off"',
        "network.T5Config.fuse_qkv": "True",
        "network.T5Config.transpose_batch_sequence": "True",
        "network.T5Config.attention": '"xla"',
        "network.T5Config.remat": '"none"',
        "network.T5Config.scan_layers": "False",
    }
    # What the caller gives comes last, where it wins.
    assert (
        ran.env["XLA_FLAGS"]
        == "--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_all_reduce_combine_threshold_bytes=136314880 --mine=1 --xla_force_host_platform_device_count=8"
    )
    assert ran.env["JAX_COMPILATION_CACHE_DIR"] == f"{place.work}/.rosetta/compiled"
    assert ran.env["PYTHONPATH"].split(os.pathsep)[0] == str(place.tree)
    assert ran.env["TFDS_DATA_DIR"] == str(place.work / "data")
    assert ran.said == [
        f"rosetta: global batch 2048 on 8 device(s), 1-way tensor parallel, 1 microbatch(es); checkpoints in {place.work}/model_dir, log in logs/small_gpu_8_bfloat16_gbs_2048.log",
        "rosetta: FP8 is off: the CPU computes it slowly (ENABLE_FP8=1 turns it on)",
        "rosetta: the CPU stands in for 8 devices",
    ]
    log = (place.work / "logs" / "small_gpu_8_bfloat16_gbs_2048.log").read_text()
    assert "the trainer's words" in log


def test_no_word_at_all(place: Place) -> None:
    ran = place.run(
        "singlenode_pretrain_pile.sh", **place.cards(*["NVIDIA H100 80GB HBM3, 9.0"] * 2)
    )
    assert ran.rc == 0, ran.err
    found = bindings(ran)
    assert any(word.endswith("large_pile_pretrain.gin") for word in ran.argv)
    assert (found["BATCH_SIZE"], found["MODEL_DIR"], found["network.T5Config.dtype"]) == (
        "64",
        f'"{place.work}/model_dir"',
        '"bfloat16"',
    )
    assert ran.out == "the trainer's words\n", "without LOGDIR all is said on the terminal"
    checkpoints(place, "1000", name="model_dir")
    ran = place.run("singlenode_ft_frompile.sh", DATA=f"jsonl:{place.work}/mnli.jsonl")
    assert ran.rc == 0, ran.err
    assert "rosetta: finetuning on mnli2, global batch 32 on 1 device(s)" in ran.said[0]
    assert bindings(ran)["MODEL_DIR"] == f'"{place.work}/ft_mnli2_model_dir"'


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
    before = snapshot(place.work)
    words = [*SMALL[:place_of_it], "--dry-run", *SMALL[place_of_it:]]
    ran = place.run("singlenode_pretrain_pile.sh", *words)
    assert (ran.rc, ran.argv, ran.err) == (0, [], "")
    assert json.loads(ran.out)["log"] == "logs/small_gpu_1_float32_gbs_8.log"
    assert snapshot(place.work) == before


def test_what_is_written_has_to_arrive(place: Place) -> None:
    script = place.tree / SCRIPTS / "singlenode_pretrain_pile.sh"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            ["bash", script, "--dry-run", *SMALL],
            cwd=place.work,
            env=place.env(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        2,
        "singlenode_pretrain_pile.sh: stdout: No space left on device; write it to where there is room, and read it to its end\n",
    )


def test_pretraining_from_other_weights(place: Place) -> None:
    checkpoints(place, "5")
    found = bindings(
        place.run("singlenode_pretrain_pile.sh", *SMALL, INITIAL_CHECKPOINT_PATH="pre")
    )
    assert found["INITIAL_CHECKPOINT_PATH"] == f'"{place.work}/pre"'
    assert (
        bindings(
            place.run("singlenode_pretrain_pile.sh", *SMALL, INITIAL_CHECKPOINT_PATH="gs://b/mt5")
        )["INITIAL_CHECKPOINT_PATH"]
        == '"gs://b/mt5"'
    )


def test_a_log_is_gone_on_with_and_the_trainers_status_is_ours(place: Place) -> None:
    assert place.run("singlenode_pretrain_pile.sh", *SMALL, RC="7").rc == 7
    assert place.run("singlenode_pretrain_pile.sh", *SMALL, RC="0").rc == 0
    log = (place.work / "logs" / "small_gpu_1_float32_gbs_8.log").read_text()
    assert log.count("the trainer's words") == 2


def test_all_positionals(place: Place) -> None:
    ran = place.run("singlenode_pretrain_pile.sh", *PRETRAIN, "/m/dir", "4", "1", "0", "0", "1")
    found = bindings(ran)
    assert found["MODEL_DIR"] == '"/m/dir"'
    assert found["trainer.Trainer.num_microbatches"] == "4"
    assert (
        found["network.T5Config.fp8"],
        found["network.T5Config.transpose_batch_sequence"],
        found["network.T5Config.fuse_qkv"],
        found["PACK"],
    ) == ('"xla"', "False", "False", "True")
    assert "--xla_gpu_enable_triton_gemm=false" in ran.env["XLA_FLAGS"]


def test_positionals_win_over_variables_and_empty_ones_are_not_given(place: Place) -> None:
    found = bindings(
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
        bindings(place.run("singlenode_pretrain_pile.sh", *SMALL, NUM_MICROBATCHES="4"))[
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
    assert bindings(ran)["MODEL_DIR"] == f'"{place.work}/{escaped}"'
    assert not (place.work / "pwned").exists()


def test_an_object_store_stays_an_address(place: Place) -> None:
    assert (
        bindings(place.run("singlenode_pretrain_pile.sh", *SMALL, "gs://b/m"))["MODEL_DIR"]
        == '"gs://b/m"'
    )
    assert "mount the bucket" in place.run("singlenode_pretrain_pile.sh", *SMALL, "s3://b/m").err


@pytest.mark.parametrize(
    ("words", "settings", "complaint"),
    [
        ((*SMALL, *"12345678"), {}, "got 13 arguments"),
        ((*SMALL, "--dryrun"), {}, "there is no --dryrun; its one option is --dry-run"),
        (
            SMALL,
            {"INITIAL_CHECKPOINT_PATH": "nowhere"},
            "nowhere: it is no checkpoint_N and holds none",
        ),
        (
            ("enormous", *SMALL[1:]),
            {},
            "there is no model size 'enormous' for pile_pretrain; choose one of: base large small tiny xl xxl",
        ),
        (("../small", *SMALL[1:]), {}, "there is no model size"),
        (
            ("small", "fp8", *SMALL[2:]),
            {},
            "PREC: it is 'fp8'; choose one of: bfloat16, float32, float16",
        ),
        (("small", "bfloat16", "0", "1", "l"), {}, "NUM_GPUS: it is '0'"),
        (("small", "bfloat16", "8", "x[$(touch pwned)]", "l"), {}, "BSIZE_PER_GPU: it is"),
        (
            (*SMALL, "m", "3"),
            {},
            "NUM_MICROBATCHES=3: a global batch of 8, 8 for each group of 1 GPU(s), does not divide by it; choose one of: 1, 2, 4, 8",
        ),
        ((*SMALL, "m", "1", "0", "0", "maybe"), {}, "FUSE_QKV: it is 'maybe'; give 0 or 1"),
        ((*SMALL, "m", "1", "0", "0", "0", "maybe"), {}, "PACK: it is 'maybe'; give 0 or 1"),
        (
            PRETRAIN,
            {"TP_SIZE": "3"},
            "TP_SIZE=3: 8 GPUs do not divide into groups of 3; choose one of: 1, 2, 4, 8",
        ),
        (
            PRETRAIN,
            {"TP_SIZE": "4"},
            "TP_SIZE=4: a small model's heads of 6 do not divide by it; choose one of: 1, 2",
        ),
        (
            PRETRAIN,
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
            "NUM_GPUS=8: XLA_FLAGS makes 4 CPU device(s)",
        ),
        (SMALL, {"REMAT": "some"}, "REMAT: it is 'some'; choose one of: none, minimal, full"),
        (SMALL, {"ATTENTION": "flash"}, "ATTENTION: it is 'flash'; choose one of: xla, cudnn, te"),
        (SMALL, {"ATTENTION": "cudnn"}, "the CPU has none"),
        (SMALL, {"GRADIENT_DTYPE": "int8"}, "GRADIENT_DTYPE: it is 'int8'"),
        (SMALL, {"SCAN_LAYERS": "2"}, "SCAN_LAYERS: it is '2'"),
        (SMALL, {"ENC_SL": "0"}, "ENC_SL: it is '0'"),
        (
            SMALL,
            {"VOCAB": "/nowhere/sp.model"},
            "/nowhere/sp.model: there is no such vocabulary file",
        ),
        (SMALL, {"VOCAB": "ids:40000", "DATA": "synthetic"}, "40000"),
        (
            SMALL,
            {"VOCAB": ""},
            "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model: data and vocabularies are read from files",
        ),
        (SMALL, {"DATA": "text:/nowhere/*.txt"}, "/nowhere/*.txt"),
        (SMALL, {"DATA": "csv:x"}, "no kind of data is called 'csv'"),
        (SMALL, {"DATA": ""}, "offline since October 2023"),
        (SMALL, {"T5X_DIR": "/nowhere"}, "T5X_DIR=/nowhere: it holds no t5x/train.py"),
        (SMALL, {"ROSETTA_GIN": "nowhere.gin"}, "ROSETTA_GIN=nowhere.gin: it is no file"),
        ((*SMALL, "corpus.txt"), {}, "is a file"),
        ((*SMALL, "corpus.txt/m"), {}, "corpus.txt is a file"),
        (("small", "float32", "1", "8", "corpus.txt/logs"), {}, "corpus.txt is a file"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    place: Place, words: tuple[str, ...], settings: dict[str, str], complaint: str
) -> None:
    before = snapshot(place.work)
    ran = place.run("singlenode_pretrain_pile.sh", *words, **settings)
    assert (ran.rc, ran.argv, ran.out) == (2, [], "")
    assert len(ran.err.splitlines()) == 1
    assert ran.err.startswith("singlenode_pretrain_pile.sh: ")
    assert complaint in ran.err
    assert snapshot(place.work) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="NOT CHECKED: root may write anywhere")
def test_a_folder_without_permission_is_refused(place: Place) -> None:
    (place.work / "closed").mkdir(mode=0o500)
    ran = place.run("singlenode_pretrain_pile.sh", *SMALL, "closed/m")
    assert (ran.rc, ran.argv) == (2, [])
    assert "cannot be written to" in ran.err


def test_the_pile_where_there_is_a_copy(place: Place) -> None:
    (place.work / "data" / "the_pile" / "1.0.0").mkdir(parents=True)
    ran = place.run("singlenode_pretrain_pile.sh", *SMALL, DATA="")
    assert (ran.rc, ran.argv) == (2, [])
    assert "dataset_info.json is missing" in ran.err


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
    assert bindings(ran)["TASK_FEATURE_LENGTHS"] == '{"inputs": 96, "targets": 32}'
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


@pytest.mark.skipif(not NO_GPU, reason="this machine has a GPU")
def test_never_on_the_cpu_unasked(place: Place) -> None:
    ran = place.run("singlenode_pretrain_pile.sh", *SMALL, JAX_PLATFORMS="")
    assert (ran.rc, ran.argv) == (2, [])
    assert "no NVIDIA GPU is visible" in ran.err
    dry = place.run("singlenode_pretrain_pile.sh", "--dry-run", *SMALL, JAX_PLATFORMS="")
    assert dry.rc == 0, "a dry run may be for another machine"
    assert any("no NVIDIA GPU is visible" in line for line in json.loads(dry.out)["said"])


@pytest.mark.parametrize(
    ("card", "words", "settings", "expected", "note"),
    [
        ("NVIDIA H100 80GB HBM3, 9.0", "bfloat16", {}, ("xla", "cudnn", "bfloat16"), ""),
        ("NVIDIA L40S, 8.9", "bfloat16", {}, ("xla", "cudnn", "bfloat16"), ""),
        (
            "NVIDIA A100-SXM4-80GB, 8.0",
            "bfloat16",
            {},
            ("off", "cudnn", "bfloat16"),
            "FP8 is off: NVIDIA A100-SXM4-80GB has none",
        ),
        (
            "Tesla T4, 7.5",
            "float16",
            {},
            ("off", "xla", "float16"),
            "FP8 is off: Tesla T4 has none",
        ),
        (
            "NVIDIA H100 80GB HBM3, 9.0",
            "float32",
            {},
            ("off", "xla", "float32"),
            "FP8 is off: PREC=float32 was asked for",
        ),
        (
            "NVIDIA H100 80GB HBM3, 9.0",
            "float32",
            {"ENABLE_FP8": "1"},
            ("xla", "cudnn", "bfloat16"),
            "with FP8 all else is in bfloat16, not in float32",
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
def test_defaults_are_what_the_card_can_do(
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
        **settings,
    )
    assert ran.rc == 0, ran.err
    found = bindings(ran)
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
    ("cards", "settings", "complaint"),
    [
        (
            ["NVIDIA A100-SXM4-80GB, 8.0"],
            {"ENABLE_FP8": "1"},
            "ENABLE_FP8=1: NVIDIA A100-SXM4-80GB has no FP8; set ENABLE_FP8=0",
        ),
        (["Tesla T4, 7.5"], {"ATTENTION": "cudnn"}, "Tesla T4 has none"),
        (
            ["NVIDIA H100 80GB HBM3, 9.0"] * 2,
            {"CUDA_VISIBLE_DEVICES": "1", "NUM_GPUS": "2"},
            "NUM_GPUS=2: 1 GPU(s) are visible; give at most 1",
        ),
        (
            ["NVIDIA H100 80GB HBM3, 9.0"],
            {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": ""},
            "CUDA_VISIBLE_DEVICES=-1: it hides all GPUs",
        ),
    ],
)
def test_what_the_cards_cannot_do_is_refused(
    place: Place, cards: list[str], settings: dict[str, str], complaint: str
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
    assert complaint in ran.err
    assert len(ran.err.splitlines()) == 1


def test_as_many_cards_are_used_as_were_asked_for(place: Place) -> None:
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
    assert "its gin files are not those of these scripts" in ran.err


FINETUNE = ("mnli2", "large", "bfloat16", "8", "32", "logs", "pre")


def finetune(place: Place, *more: str, **settings: str) -> tuple[dict[str, str], str]:
    data = f"jsonl:{place.work}/mnli.jsonl"
    ran = place.run(
        "singlenode_ft_frompile.sh",
        *FINETUNE,
        *more,
        **{"DATA": data, "EVAL_DATA": data, **settings},
    )
    assert ran.rc == 0, ran.err
    assert any(word.endswith("large_mnli2_finetune_adam.gin") for word in ran.argv)
    return bindings(ran), ran.err


def test_finetuning_reads_one_folder_and_writes_another(place: Place) -> None:
    before = snapshot(checkpoints(place, "900000", "1000000", "9.orbax-checkpoint-tmp-1"))
    found, _ = finetune(place, FT_STEPS="100")
    assert found["MODEL_DIR"] == f'"{place.work}/ft_mnli2_pre"'
    assert found["INITIAL_CHECKPOINT_PATH"] == f'"{place.work}/pre/checkpoint_1000000"'
    assert found["FT_STEPS"] == "100"
    assert "TRAIN_STEPS" not in found
    assert snapshot(place.work / "pre") == before


def test_finetuning_started_again_starts_from_the_same_checkpoint(place: Place) -> None:
    checkpoints(place, "900000")
    finetune(place)
    checkpoints(place, "900100", name="ft_mnli2_pre")
    checkpoints(place, "1000000")
    assert finetune(place)[0]["INITIAL_CHECKPOINT_PATH"].endswith('/pre/checkpoint_900000"')
    # Where nothing was saved yet, there is nothing to go on with.
    shutil.rmtree(place.work / "ft_mnli2_pre" / "checkpoint_900100")
    assert finetune(place)[0]["INITIAL_CHECKPOINT_PATH"].endswith('/pre/checkpoint_1000000"')


def test_finetuning_beside_the_pretrained_checkpoint_where_that_is_typed(place: Place) -> None:
    before = snapshot(checkpoints(place, "1000000"))
    found, _ = finetune(place, "1", "false")
    assert found["MODEL_DIR"] == f'"{place.work}/pre"'
    checkpoints(place, "1005000")
    assert finetune(place, "1", "false")[0]["INITIAL_CHECKPOINT_PATH"].endswith(
        '/pre/checkpoint_1000000"'
    )
    after = snapshot(place.work / "pre")
    assert {name: after[name] for name in before} == before


def test_finetuning_in_a_folder_for_each_run(place: Place) -> None:
    checkpoints(place, "1000000")
    assert (
        finetune(place, "1", "true", SLURM_JOB_ID="42")[0]["MODEL_DIR"]
        == f'"{place.work}/ft_mnli2_pre_42"'
    )
    assert finetune(place, FT_DIR="mine")[0]["MODEL_DIR"] == f'"{place.work}/mine"'


def test_finetunings_length(place: Place) -> None:
    checkpoints(place, "1000000")
    assert "FT_STEPS" not in finetune(place)[0], "the gin file's"
    assert finetune(place, TRAIN_STEPS="1006001")[0]["FT_STEPS"] == "6001"


def test_finetuning_on_ones_own_data_is_not_evaluated_on_another(place: Place) -> None:
    checkpoints(place, "1000000")
    found, said = finetune(place, EVAL_DATA="")
    assert (
        found["EVAL_DATA"],
        found["train.train_eval_dataset_cfg"],
        found["train.infer_eval_dataset_cfg"],
    ) == ("None", "None", "None")
    assert "no evaluation: DATA is set and EVAL_DATA is not" in said
    found, said = finetune(place)
    assert "train.infer_eval_dataset_cfg" not in found
    assert "no evaluation" not in said


def test_finetuning_from_an_object_store_needs_a_folder_to_write_to(place: Place) -> None:
    words = [*FINETUNE[:6], "gs://bucket/pre"]
    data = f"jsonl:{place.work}/mnli.jsonl"
    found = bindings(place.run("singlenode_ft_frompile.sh", *words, DATA=data))
    assert (found["MODEL_DIR"], found["INITIAL_CHECKPOINT_PATH"]) == (
        '"gs://bucket/ft_mnli2_pre"',
        '"gs://bucket/pre"',
    )
    ran = place.run("singlenode_ft_frompile.sh", *words[:6], "gs://bucket", DATA=data)
    assert "FT_DIR=gs://BUCKET/FOLDER" in ran.err


@pytest.mark.parametrize(
    ("words", "settings", "complaint"),
    [
        (("cola", *FINETUNE[1:]), {}, "FT_TASK: it is 'cola'; choose one of: mnli2, squad1"),
        ((*FINETUNE[:6], "empty"), {}, "holds no checkpoint_N"),
        (
            ("mnli2", "enormous", *FINETUNE[2:]),
            {},
            "there is no model size 'enormous' for mnli2_finetune_adam",
        ),
        ((*FINETUNE, "1", "sometimes"), {}, "MAKE_FT_DIR: it is 'sometimes'"),
        (FINETUNE, {"TRAIN_STEPS": "6001"}, "give the number of steps to add: FT_STEPS=N"),
        (FINETUNE, {"FT_STEPS": "none"}, "FT_STEPS: it is 'none'"),
        (
            FINETUNE,
            {"INITIAL_CHECKPOINT_PATH": "corpus.txt"},
            "corpus.txt: it is no checkpoint_N and holds none",
        ),
        (FINETUNE, {"DATA": ""}, "no prepared data set glue/mnli"),
        (FINETUNE, {"DATA": "text:corpus.txt"}, "mnli needs records"),
        (FINETUNE, {"FT_DIR": "other"}, "the finetuning in it started from"),
    ],
)
def test_finetuning_refused(
    place: Place, words: tuple[str, ...], settings: dict[str, str], complaint: str
) -> None:
    checkpoints(place, "1000000")
    checkpoints(place, "1000100", name="other")
    (place.work / "other" / "rosetta").mkdir()
    (place.work / "other" / "rosetta" / "start").write_text("/another/model/checkpoint_5")
    before = snapshot(place.work)
    ran = place.run(
        "singlenode_ft_frompile.sh",
        *words,
        **{"DATA": f"jsonl:{place.work}/mnli.jsonl", **settings},
    )
    assert (ran.rc, ran.argv) == (2, [])
    assert complaint in ran.err
    assert len(ran.err.splitlines()) == 1
    assert snapshot(place.work) == before


def test_the_pile_is_gone(place: Place) -> None:
    script = place.tree / SCRIPTS / "download_the_pile.py"
    ran = place.start(sys.executable, str(script))
    assert ran.rc == 2
    assert "offline since October 2023" in ran.err
    assert "Traceback" not in ran.err
    (place.work / "data" / "the_pile" / "1.0.0").mkdir(parents=True)
    ran = place.start(sys.executable, str(script))
    assert ran.rc == 2
    assert "dataset_info.json is missing" in ran.err
    assert (
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys; sys.path.insert(0, sys.argv[1]); import download_the_pile",
                str(script.parent),
            ],
            check=True,
            capture_output=True,
        ).stderr
        == b""
    )


def test_replaces_lists_every_file_and_modes_are_right() -> None:
    listed = dict(line.split() for line in (OVERLAY / "REPLACES").read_text().splitlines())
    files = {
        str(path.relative_to(OVERLAY))
        for path in (OVERLAY / "t5x").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert set(listed) == files
    assert list(listed) == sorted(listed)
    for name in files:
        executable = bool((OVERLAY / name).stat().st_mode & stat.S_IXUSR)
        assert executable == name.endswith((".sh", ".sub")), name
