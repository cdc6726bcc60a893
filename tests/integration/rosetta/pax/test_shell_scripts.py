"""The scripts themselves, started by bash; see tests/support/pax_scripts.py."""

from __future__ import annotations

import os
import shlex

import pytest

from tests.support.pax_scripts import BASE, H100, OURS, SCRIPTS, SLURM, TEXT, Place, place_

pytestmark = pytest.mark.shell

__all__ = ["place_"]  # a fixture
JOB = {
    "SLURM_JOB_NUM_NODES": "8",
    "SLURM_JOB_ID": "42",
    "CONTAINER": "ghcr.io/o/pax:latest",
    "BASE_WORKSPACE_DIR": "ws",
    "OUTPUT_DIR": "out",
    "LOG_DIR_LOCAL": "logs",
}
KINDS = {
    "example_slurm_pile": "run_pile_multinode.sh",
    "example_slurm_llama": "run_llama_boolq.sh",
    "launch_base_script": BASE,
    "launch_base_config": BASE,
}


def test_pile_on_one_node(place: Place) -> None:
    ran = place.run_shell(
        "run_pile_singlenode.sh", str(place.work), "byte", "bfloat16", "8", "4", "log_dir", **TEXT
    )
    assert ran.rc == 0, ran.err
    assert ran.argv[:5] == [
        "-u",
        "-P",
        "-m",
        "rosetta.pax.train",
        "--fdl_config=rosetta.pax.configs.Pile126M",
    ]
    assert f"--tfds_data_dir={place.work}" in ran.argv
    assert f"--job_log_dir={place.work}/log_dir" in ran.argv
    assert "--mode=train" in ran.argv
    assert "--multiprocess_gpu" not in ran.argv
    assert ran.hyper == {
        "FPROP_DTYPE": '"bfloat16"',
        "ICI_MESH_SHAPE": "[8,1,1]",
        "DCN_MESH_SHAPE": "[1,1,1]",
        "PERCORE_BATCH_SIZE": "4",
    }
    assert (
        ran.env["XLA_FLAGS"] == OURS.format(33554432) + " --xla_force_host_platform_device_count=8"
    )
    assert (ran.env["VOCAB_PATH"], ran.env["ENABLE_TE"], ran.env["ENABLE_FP8"]) == (
        "byte",
        "0",
        "0",
    )
    assert ran.said == [
        f"rosetta: Pile126M on 8 device(s); checkpoints and logs in {place.work}/log_dir",
        "rosetta: the CPU stands in for 8 devices",
    ]
    assert "the trainer's words" in (place.work / "log_dir" / "pile_output.log").read_text()


def test_the_status_is_paxmls(place: Place) -> None:
    assert place.run_shell("run_pile_singlenode.sh", "", "byte", RC="7", **TEXT).rc == 7


def test_the_shell_passes_words_as_they_are(place: Place) -> None:
    folder = 'a "b"  $(touch pwned); \\c\' *'
    ran = place.run_shell("run_pile_singlenode.sh", "", "byte", "", "", "", folder, **TEXT)
    assert ran.rc == 0, ran.err
    assert f"--job_log_dir={place.work}/{folder}" in ran.argv
    assert not (place.work / "pwned").exists()


def test_a_process_a_gpu(place: Place) -> None:
    ran = place.run_shell(
        "run_pile_multinode.sh",
        "",
        "byte",
        "bfloat16",
        "8",
        "4",
        "l",
        **TEXT,
        **SLURM,
        **place.cards(*[H100] * 8),
    )
    assert ran.rc == 0, ran.err
    assert (ran.hyper["ICI_MESH_SHAPE"], ran.hyper["DCN_MESH_SHAPE"]) == ("[8,1,1]", "[2,1,1]")
    assert "--multiprocess_gpu" in ran.argv
    assert not any(
        word.startswith(("--server_addr", "--num_hosts", "--host_idx")) for word in ran.argv
    ), "JAX reads Slurm's variables itself"
    assert "JAX_LOCAL_DEVICE_IDS" not in ran.env
    assert ran.env["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.85"
    assert "on 16 device(s) in 16 processes on 2 node(s)" in ran.said[0]
    assert ran.out == "the trainer's words\n", "srun keeps each process's output"


def test_all_words_of_a_base_config(place: Place) -> None:
    more = "--fdl.DCN_MESH_SHAPE=[1, 16, 1] --fdl.ICI_MESH_SHAPE=[1,8,1] --eval_on_test --fdl.NUM_LAYERS=2"
    ran = place.run_shell(
        "run_base_config_multinode.sh",
        "GPT5B",
        "float32",
        "128",
        "l",
        str(place.work),
        "byte",
        more,
    )
    assert ran.rc == 0, ran.err
    assert ran.hyper == {
        "FPROP_DTYPE": '"float32"',
        "DCN_MESH_SHAPE": "[1,16,1]",
        "ICI_MESH_SHAPE": "[1,8,1]",
        "NUM_LAYERS": "2",
    }
    assert ran.argv[-1] == "--eval_on_test"
    assert (
        place.run("run_base_config_multinode.sh", "Synthetic5B", "", "", "l", "None", "None").rc
        == 0
    ), "as upstream writes what is not given"


def test_lambada_evaluates_the_newest_checkpoint_and_ends(place: Place) -> None:
    place.checkpoint("run", 0, 100, 250)
    (place.work / "run" / "checkpoints" / "checkpoint_00000300.orbax-checkpoint-tmp").mkdir()
    words = ("", "byte", "bfloat16", "1", "4", "run")
    ran = place.run_shell("run_lambada_singlenode.sh", *words, **TEXT)
    assert ran.rc == 0, ran.err
    assert "--mode=eval" in ran.argv
    assert "--fdl_config=rosetta.pax.configs.Lambada126M" in ran.argv
    assert ran.hyper["MAX_STEPS"] == "250", "Paxml would wait for a later checkpoint"
    assert (place.work / "run" / "lambada_output.log").exists()


class TestSlurm:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_job(self, place: Place, kind: str) -> None:
        settings = {
            **JOB,
            "BASE_TFDS_DATA_DIR": "/d",
            "BASE_VOCAB_PATH": "/v/c4.model",
            "BASE_CHECKPOINT_RESTORE_PATH": "/w",
            "GPUS_PER_NODE": "4",
            "CONFIG": "LLaMA7B",
            "VOCAB_PATH": "",
        }
        ran = place.run_shell(f"{kind}.sub", **settings)
        assert ran.rc == 0, ran.err
        assert ran.argv[:4] == [
            "--nodes=8",
            "--ntasks=32",
            "--ntasks-per-node=4",
            "--kill-on-bad-exit=0",
        ]
        assert "--container-image=ghcr.io#o/pax:latest" in ran.argv
        assert (
            f"--container-mounts={place.work}/ws:/opt/paxml/workspace,/d:/opt/paxml/datasets,/v/c4.model:/opt/paxml/vocab,/w:/opt/paxml/restore"
            in ran.argv
        )
        assert ran.argv[-2:] == ["bash", KINDS[kind]]
        names = (
            "TFDS_DATA_DIR",
            "VOCAB_PATH",
            "CHECKPOINT_RESTORE_PATH",
            "LOG_DIR",
            "NUM_GPUS",
            "USE_MULTIPROCESS",
            "CONFIG",
        )
        assert [ran.env[name] for name in names] == [
            "/opt/paxml/datasets",
            "/opt/paxml/vocab",
            "/opt/paxml/restore",
            "/opt/paxml/workspace/logs",
            "4",
            "1",
            "LLaMA7B",
        ]
        assert (place.work / "ws" / "out").is_dir()

    def test_synthetic_without_a_container(self, place: Place) -> None:
        place.program(BASE, "#!/bin/sh\n")
        settings = {
            "SLURM_JOB_NUM_NODES": "32",
            "SLURM_JOB_ID": "1",
            "BASE_WORKSPACE_DIR": "ws",
            "CONFIG": "Synthetic5B",
            "OUTPUT_DIR": "o",
            "LOG_DIR_LOCAL": "l",
            "VOCAB_PATH": "",
        }
        ran = place.run_shell("launch_base_config.sub", **settings)
        assert ran.rc == 0, ran.err
        assert not any("container" in word for word in ran.argv)
        assert ran.env["LOG_DIR"] == f"{place.work}/ws/l"
        assert ran.argv[-1] == str(place.work / "bin" / BASE), (
            "its path: bash would take one of the current folder first"
        )
        assert "VOCAB_PATH" not in ran.env

    @pytest.mark.parametrize(
        ("lacking", "complaint"),
        [
            ("SLURM_JOB_NUM_NODES", "this is not a Slurm job"),
            ("CONTAINER", "CONTAINER is not set, and run_base_config_multinode.sh is not on PATH"),
            ("CONFIG", "CONFIG is not set"),
        ],
    )
    def test_what_is_lacking_is_said(self, place: Place, lacking: str, complaint: str) -> None:
        ran = place.run_shell(
            "launch_base_script.sub", **{**JOB, "CONFIG": "Synthetic5B", lacking: ""}
        )
        assert (ran.rc, ran.argv) == (2, [])
        assert complaint in ran.err

    def test_srun_failing_fails_the_job(self, place: Place) -> None:
        assert place.run_shell("example_slurm_pile.sub", **JOB, RC="9").rc == 9


def test_every_script_is_a_door() -> None:
    for path in SCRIPTS.glob("*.s*"):
        assert os.access(path, os.X_OK), path
        if path.suffix == ".sh":
            assert shlex.split(path.read_text().splitlines()[-1])[-2:] == [path.stem, "$@"]
