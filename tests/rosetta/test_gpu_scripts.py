"""The single-node scripts and what else the overlay replaces; see gpukit."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rosetta.gpukit import OVERLAY, SCRIPTS, Place, bindings, checkpoints, place_, snapshot

__all__ = ["place_"]  # a fixture
NO_GPU = not list(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists()
PRETRAIN = ("small", "bfloat16", "8", "256", "logs")


def test_singlenode_pretraining(place: Place) -> None:
    ran = place.run("singlenode_pretrain_pile.sh", *PRETRAIN, XLA_FLAGS="--mine=1")
    assert ran.rc == 0, ran.err
    assert ran.argv[:4] == ["-u", "-P", "-m", "t5x.train"]
    assert f"--gin_file={place.tree}/t5x/contrib/gpu/t5/t5_1_1/examples/small_pile_pretrain.gin" in ran.argv
    assert f"--tfds_data_dir={place.work}/data" in ran.argv
    assert bindings(ran) == {
        "MODEL_DIR": f'"{place.work}/model_dir"',
        "network.T5Config.dtype": '"bfloat16"',
        "trainer.Trainer.num_microbatches": "1",
        "train/utils.DatasetConfig.batch_size": "2048",
        "train_eval/utils.DatasetConfig.batch_size": "2048",
        "infer_eval/utils.DatasetConfig.batch_size": "2048",
        "train/utils.DatasetConfig.pack": "False",
        "train_eval/utils.DatasetConfig.pack": "False",
    }
    # What the caller gives comes last, where it wins.
    assert ran.env["XLA_FLAGS"] == "--xla_gpu_all_reduce_combine_threshold_bytes=136314880 --mine=1"
    assert ran.env["PYTHONPATH"] == str(place.tree)
    log = (place.work / "logs" / "small_gpu_8_bfloat16_gbs_2048.log").read_text()
    assert "the trainer's words" in log


def test_a_log_is_gone_on_with_and_the_trainers_status_is_ours(place: Place) -> None:
    assert place.run("singlenode_pretrain_pile.sh", *PRETRAIN, RC="7").rc == 7
    assert place.run("singlenode_pretrain_pile.sh", *PRETRAIN, RC="0").rc == 0
    log = (place.work / "logs" / "small_gpu_8_bfloat16_gbs_2048.log").read_text()
    assert log.count("the trainer's words") == 2


def test_all_positionals(place: Place) -> None:
    ran = place.run("singlenode_pretrain_pile.sh", *PRETRAIN, "/m/dir", "4", "0", "0", "0", "1")
    found = bindings(ran)
    assert found["MODEL_DIR"] == '"/m/dir"'
    assert found["trainer.Trainer.num_microbatches"] == "4"
    assert found["train/utils.DatasetConfig.pack"] == "True"


@pytest.mark.parametrize("folder", ['a "b" c', "back\\slash", "$(touch pwned)", "-dash", "semi;colon"])
def test_a_folders_name_is_never_code(place: Place, folder: str) -> None:
    ran = place.run("singlenode_pretrain_pile.sh", *PRETRAIN, folder)
    assert ran.rc == 0, ran.err
    escaped = folder.replace("\\", "\\\\").replace('"', '\\"')
    assert bindings(ran)["MODEL_DIR"] == f'"{place.work}/{escaped}"'
    assert not (place.work / "pwned").exists()


def test_an_object_store_stays_an_address(place: Place) -> None:
    assert bindings(place.run("singlenode_pretrain_pile.sh", *PRETRAIN, "gs://b/m"))["MODEL_DIR"] == '"gs://b/m"'


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("small",), "got 1 arguments"),
        (("base", *PRETRAIN[1:]), "there is no model size 'base' for pile_pretrain; choose one of: large small xl xxl"),
        (("../small", *PRETRAIN[1:]), "there is no model size"),
        (("small", "fp8", *PRETRAIN[2:]), "the precision is 'fp8'"),
        (("small", "bfloat16", "0", "1", "l"), "NUM_GPUS is '0'"),
        (("small", "bfloat16", "8", "x[$(touch pwned)]", "l"), "BSIZE_PER_GPU is"),
        ((*PRETRAIN, "m", "1", "1"), "ENABLE_FP8=1 is not available in this release"),
        ((*PRETRAIN, "m", "1", "0", "1"), "TRANSPOSE_BS=1 is not available"),
        ((*PRETRAIN, "m", "1", "0", "0", "true"), "FUSE_QKV=true is not available"),
        ((*PRETRAIN, "m", "1", "0", "0", "0", "maybe"), "PACK is 'maybe'; give 0 or 1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(place: Place, words: tuple[str, ...], complaint: str) -> None:
    ran = place.run("singlenode_pretrain_pile.sh", *words)
    assert (ran.rc, ran.argv) == (2, [])
    assert len(ran.err.splitlines()) == 1
    assert complaint in ran.err
    assert not (place.work / "pwned").exists()


def test_paths_are_checked_before_the_trainer_starts(place: Place) -> None:
    ran = place.run("singlenode_pretrain_pile.sh", *PRETRAIN, TFDS_DATA_DIR="/nowhere")
    assert (ran.rc, ran.argv) == (2, [])
    assert "TFDS_DATA_DIR=/nowhere is no folder" in ran.err
    ran = place.run("singlenode_pretrain_pile.sh", *PRETRAIN, T5X_DIR="/nowhere")
    assert (ran.rc, ran.argv) == (2, [])
    (place.work / "data" / "the_pile").rmdir()
    ran = place.run("singlenode_pretrain_pile.sh", *PRETRAIN)
    assert (ran.rc, ran.argv) == (2, [])
    assert "offline since October 2023" in ran.err
    (place.work / "mine.gin").touch()
    ran = place.run("singlenode_pretrain_pile.sh", *PRETRAIN, ROSETTA_GIN="mine.gin")
    assert ran.rc == 0
    assert ran.argv.index("--gin_file=mine.gin") > 4


@pytest.mark.skipif(not NO_GPU, reason="this machine has a GPU")
def test_never_on_the_cpu_unasked(place: Place) -> None:
    ran = place.run("singlenode_pretrain_pile.sh", *PRETRAIN, JAX_PLATFORMS="")
    assert (ran.rc, ran.argv) == (2, [])
    assert "no NVIDIA GPU is visible" in ran.err


def test_a_tree_of_ones_own(place: Place) -> None:
    mine = place.work / "mine"
    shutil.copytree(place.tree, mine)
    ran = place.run("singlenode_pretrain_pile.sh", *PRETRAIN, T5X_DIR=str(mine), PYTHONPATH="/other")
    assert ran.env["PYTHONPATH"] == f"{mine}:/other"
    assert f"--gin_search_paths={mine},." in ran.argv


FINETUNE = ("mnli2", "large", "bfloat16", "8", "32", "logs", "pre")


def test_finetuning_goes_on_beside_the_pretrained_checkpoint(place: Place) -> None:
    before = snapshot(checkpoints(place, "900000", "1000000"))
    ran = place.run("singlenode_ft_frompile.sh", *FINETUNE)
    assert ran.rc == 0, ran.err
    assert bindings(ran)["MODEL_DIR"] == f'"{place.work}/pre"'
    assert "INITIAL_CHECKPOINT_PATH" not in bindings(ran)
    assert any(word.endswith("large_mnli2_finetune_adam.gin") for word in ran.argv)
    assert snapshot(place.work / "pre") == before


def test_finetuning_in_a_folder_of_its_own(place: Place) -> None:
    before = snapshot(checkpoints(place, "900000", "1000000", "9.orbax-checkpoint-tmp-1"))
    ran = place.run("singlenode_ft_frompile.sh", *FINETUNE, "1", "true", SLURM_JOB_ID="42")
    found = bindings(ran)
    assert found["MODEL_DIR"] == f'"{place.work}/ft_pre_42"'
    assert found["INITIAL_CHECKPOINT_PATH"] == f'"{place.work}/pre/checkpoint_1000000"'
    # Without it T5X takes the path for a folder of checkpoints, finds none there and starts from nothing.
    assert found["utils.RestoreCheckpointConfig.mode"] == "'specific'"
    assert snapshot(place.work / "pre") == before


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("cola", *FINETUNE[1:]), "FT_TASK is 'cola'"),
        (FINETUNE, "holds no checkpoint_N"),
        (("mnli2", "xxl", *FINETUNE[2:]), "there is no model size 'xxl' for mnli2_finetune_adam"),
        ((*FINETUNE, "1", "sometimes"), "MAKE_FT_DIR is 'sometimes'"),
        ((*FINETUNE, "1", "false", "1"), "ENABLE_FP8=1 is not available"),
    ],
)
def test_finetuning_refused(place: Place, words: tuple[str, ...], complaint: str) -> None:
    ran = place.run("singlenode_ft_frompile.sh", *words)
    assert (ran.rc, ran.argv) == (2, [])
    assert complaint in ran.err
    assert len(ran.err.splitlines()) == 1


def test_the_pile_is_gone(place: Place) -> None:
    script = place.tree / SCRIPTS / "download_the_pile.py"
    env = {**os.environ, "TFDS_DATA_DIR": str(place.work / "data")}
    argv = [sys.executable, str(script)]
    assert subprocess.run(argv, env=env, capture_output=True, check=False).returncode == 0
    (place.work / "data" / "the_pile").rmdir()
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "offline since October 2023" in done.stderr


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
