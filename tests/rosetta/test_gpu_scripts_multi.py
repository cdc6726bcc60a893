"""The multi-process and Slurm scripts; see gpukit."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.rosetta.gpukit import Place, bindings, checkpoints, place_, snapshot

__all__ = ["place_"]  # a fixture
SLURM = {"SLURM_NTASKS": "64", "SLURM_PROCID": "3", "SLURM_JOB_ID": "42"}


def test_one_process_of_many(place: Place) -> None:
    settings = {
        "BSIZE_PER_GPU": "36",
        "T5_SIZE": "xxl",
        "TP_SIZE": "8",
        "NUM_MICROBATCHES": "2",
        "TRAIN_STEPS": "1000",
        "ENC_SL": "256",
    }
    ran = place.run("multiprocess_pretrain_pile.sh", MODEL_DIR="m", **settings, **SLURM)
    assert ran.rc == 0, ran.err
    found = bindings(ran)
    assert found["train/utils.DatasetConfig.batch_size"] == "288"
    assert found["partitioning.PjitPartitioner.num_partitions"] == "8"
    assert found["trainer.Trainer.num_microbatches"] == "2"
    assert found["TRAIN_STEPS"] == "1000"
    assert found["TASK_FEATURE_LENGTHS"] == "{'inputs': 256, 'targets': 128}"
    assert found["MODEL_DIR"] == f'"{place.work}/m"'
    assert "--multiprocess_gpu" in ran.argv
    # JAX reads Slurm's variables itself; an address of ours was what sent people to the wrong host.
    assert not any("coordinator" in word for word in ran.argv)


def test_the_only_process(place: Place) -> None:
    ran = place.run("multiprocess_pretrain_pile.sh", CUDA_VISIBLE_DEVICES="0,1", T5X_WORKSPACE_DIR="/w")
    assert ran.rc == 0, ran.err
    found = bindings(ran)
    assert found["train/utils.DatasetConfig.batch_size"] == "64"
    assert found["network.T5Config.dtype"] == '"bfloat16"'
    assert found["MODEL_DIR"] == '"/w/model_dir_large"'
    assert "TRAIN_STEPS" not in found
    assert "TASK_FEATURE_LENGTHS" not in found
    assert "--multiprocess_gpu" not in ran.argv


def test_benchmarks_start_from_nothing_and_delete_nothing(place: Place) -> None:
    ran = place.run("multiprocess_pretrain_pile.sh", BENCHMARK_MODE="True", CHECKPOINT_DISABLE="1", MODEL_DIR="pre")
    found = bindings(ran)
    assert (found["TRAIN_STEPS"], found["train.stats_period"], found["utils.CheckpointConfig.save"]) == (
        "500",
        "100",
        "None",
    )
    before = snapshot(checkpoints(place, "10"))
    ran = place.run("multiprocess_pretrain_pile.sh", BENCHMARK_MODE="1", MODEL_DIR="pre")
    assert (ran.rc, ran.argv) == (2, [])
    assert snapshot(place.work / "pre") == before


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"ENABLE_FP8": "1"}, "ENABLE_FP8=1 is not available"),
        ({"TP_SIZE": "3"}, "does not divide by TP_SIZE=3"),
        ({"TRAIN_STEPS": "-1"}, "TRAIN_STEPS is '-1'"),
        ({"PREC": "int4"}, "the precision is 'int4'"),
        ({"ENABLE_TE": "1"}, "ENABLE_TE=1 is not wired to this script"),
        ({"ENABLE_TE": "2"}, "ENABLE_TE is '2'"),
        ({"WITH_NSYS": "x"}, "WITH_NSYS is 'x'"),
    ],
)
def test_multiprocess_refused(place: Place, settings: dict[str, str], complaint: str) -> None:
    ran = place.run("multiprocess_pretrain_pile.sh", **settings)
    assert ran.rc == 2
    assert "t5x.train" not in ran.argv
    assert complaint in ran.err


def test_te_is_asked_for_where_it_is_known(place: Place) -> None:
    """Whether it is there is what `rosetta te` says: its refusal is the script's."""
    ran = place.run("multiprocess_pretrain_pile.sh", ENABLE_TE="1", RC="2")
    assert (ran.rc, ran.argv) == (2, ["-I", "-m", "rosetta", "te"])
    assert "not wired" not in ran.err


def test_nsys_is_found_by_rosetta(place: Place) -> None:
    ran = place.run("multiprocess_pretrain_pile.sh", WITH_NSYS="1", T5X_WORKSPACE_DIR="/w", **SLURM)
    assert ran.argv[:7] == ["-I", "-m", "rosetta", "profile", "-o", "/w/nsys_42_3", "--"]
    assert ran.argv[7] == str(place.work / "bin" / "recorder")
    assert "t5x.train" in ran.argv


def test_multiprocess_finetuning(place: Place) -> None:
    checkpoints(place, "1000000")
    ran = place.run(
        "multiprocess_ft_frompile.sh", FT_TASK="squad1", T5_SIZE="xl", MODEL_DIR="pre", DEC_SL="32", **SLURM
    )
    assert ran.rc == 0, ran.err
    assert bindings(ran)["TASK_FEATURE_LENGTHS"] == "{'inputs': 956, 'targets': 32}"
    assert any(word.endswith("xl_squad1_finetune_adam.gin") for word in ran.argv)


@pytest.mark.parametrize("kind", ["pretrain_pile", "ft_frompile"])
def test_slurm_job(place: Place, kind: str) -> None:
    settings = {
        "SLURM_JOB_NUM_NODES": "8",
        "SLURM_JOB_ID": "42",
        "CONTAINER": "ghcr.io/o/t5x:latest",
        "BASE_TFDS_DATA_DIR": "/d",
    }
    ran = place.run(f"example_slurm_{kind}.sub", "4", **settings, BASE_CHECKPOINTS_DIR="/c", T5_SIZE="large")
    assert ran.rc == 0, ran.err
    assert "--ntasks=32" in ran.argv
    assert "--ntasks-per-node=4" in ran.argv
    assert "--container-image=ghcr.io/o/t5x:latest" in ran.argv
    mounts = f"/d:/t5x_home/datasets,{place.work}/workspace:/t5x_home/workspace,/c:/t5x_home/checkpoints"
    assert f"--container-mounts={mounts}" in ran.argv
    assert ran.argv[-4:-2] == ["bash", "-c"]
    assert ran.argv[-1] == f"multiprocess_{kind}.sh"
    assert (ran.env["NUM_GPUS"], ran.env["T5_SIZE"], ran.env["T5X_WORKSPACE_DIR"]) == (
        "32",
        "large",
        "/t5x_home/workspace",
    )
    # What runs in the container is quoted right: it finds the tree and becomes the script.
    (place.work / "bin" / "python3").write_text(f"#!/bin/sh\necho '{place.tree}'\n")
    (place.work / "bin" / "python3").chmod(0o755)
    inside = ran.argv[-2]
    env = {"PATH": f"{place.work}/bin:{os.environ['PATH']}", "T5_SIZE": "enormous", "FT_TASK": "mnli2"}
    done = subprocess.run(["bash", "-c", inside, ran.argv[-1]], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no model size 'enormous'" in done.stderr


@pytest.mark.parametrize("missing", ["SLURM_JOB_NUM_NODES", "CONTAINER", "BASE_TFDS_DATA_DIR"])
def test_slurm_job_lacks_something(place: Place, missing: str) -> None:
    settings = {"SLURM_JOB_NUM_NODES": "8", "SLURM_JOB_ID": "42", "CONTAINER": "image", "BASE_TFDS_DATA_DIR": "/d"}
    settings.pop(missing)
    ran = place.run("example_slurm_pretrain_pile.sub", **settings)
    assert (ran.rc, ran.argv) == (2, [])


def test_srun_failing_fails_the_job(place: Place) -> None:
    settings = {"SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_ID": "42", "CONTAINER": "image", "DATASET_MAP": "/d:/e"}
    ran = place.run("example_slurm_pretrain_pile.sub", **settings, RC="9")
    assert ran.rc == 9
    assert any(word.startswith("--container-mounts=/d:/e,") for word in ran.argv)
