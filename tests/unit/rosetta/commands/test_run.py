from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rosetta.core.run_description import Run
from tests.support import fake_launchers, old_pythons

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]
CONTAINER = ("--image=i", "--mount=/d:/e")
DRY = {
    "local": ("run",),
    "docker": ("run", "--on=docker", *CONTAINER),
    "slurm": ("submit", "--on=slurm"),
    **{
        where: ("submit", f"--on={where}", *CONTAINER) for where in ("pyxis", "apptainer", "jobset")
    },
}


@pytest.fixture
def place(tmp_path: Path) -> fake_launchers.Place:
    return fake_launchers.place(tmp_path)


def shown(place: fake_launchers.Place, *words: str, **variables: str) -> dict[str, Any]:
    done = place.rosetta(*words, "--dry-run", "--json", **variables)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["result"]
    return found


@pytest.mark.parametrize("where", DRY)
def test_the_same_preset_everywhere(place: fake_launchers.Place, where: str) -> None:
    found = shown(
        place,
        *DRY[where],
        "t5x-small",
        "DATA=text:/a b",
        "MODEL_DIR=/e/m",
        "xla_gpu_enable_triton_gemm=true",
        "--accelerator=h100",
        "--nodes=1",
        "--gpus-per-node=1",
    )
    env = found["env"]
    if where == "jobset":
        env = {
            each["name"]: each["value"]
            for each in found["document"]["spec"]["replicatedJobs"][0]["template"]["spec"][
                "template"
            ]["spec"]["containers"][0]["env"]
        }
    assert (
        env["T5_SIZE"],
        env["DATA"],
        env["NUM_GPUS"],
        env["ROSETTA_PRESET"],
        env["CUDA_DEVICE_MAX_CONNECTIONS"],
    ) == ("small", "text:/a b", "1", "given", "1")
    assert "--xla_gpu_enable_triton_gemm=true" in env["XLA_FLAGS"].split()
    if where == "local":
        assert found["argv"] == ["rosetta", "t5x", "pretrain"]


def test_on_this_machine_a_process_a_gpu_or_a_node(place: fake_launchers.Place) -> None:
    assert shown(place, "run", "gpt-126m", "--nodes=1")["argv"] == [
        "rosetta",
        "spawn",
        "--per-node=8",
        "--",
        "rosetta",
        "pax",
        "train",
    ]
    mixed = shown(
        place,
        "run",
        "gpt-126m",
        "--nodes",
        "1",
        "PERCORE_BATCH_SIZE=2",
        "--processes",
        "node",
        "MAX_STEPS=7",
    )
    assert (mixed["env"]["PERCORE_BATCH_SIZE"], mixed["env"]["MAX_STEPS"]) == ("2", "7"), (
        "options may stand anywhere"
    )
    several = shown(
        place,
        "run",
        "gpt-126m",
        "--nodes=2",
        "--node=1",
        "--coordinator=n0:29400",
        "--processes=node",
    )["argv"]
    assert several[:-3] == [
        "rosetta",
        "spawn",
        "--per-node=1",
        "--nodes=2",
        "--node=1",
        "--coordinator=n0:29400",
        "--",
    ]
    assert shown(place, "run", "gpt-126m", "--nodes=1", "--processes=node")["argv"][:2] == [
        "rosetta",
        "pax",
    ]


def test_the_image_may_be_the_variable_that_the_scripts_read(place: fake_launchers.Place) -> None:
    assert (
        "an/image"
        in shown(
            place,
            "run",
            "--on=docker",
            "t5x-small",
            "MODEL_DIR=gs://bucket/m",
            CONTAINER="an/image",
        )["argv"]
    )
    assert shown(place, "run", "t5x-small", "--gpus-per-node=1", CONTAINER="an/image")["argv"] == [
        "rosetta",
        "t5x",
        "pretrain",
    ], "which stays set where there is none"


def test_a_description_says_it_all(place: fake_launchers.Place) -> None:
    run = Run(
        "t5x", ("rosetta", "t5x", "pretrain"), "small", gpus_per_node=1, env={"T5_SIZE": "small"}
    )
    (place.folder / "run.json").write_text(json.dumps(run.as_json()))
    assert shown(place, "run", "--description=run.json") == {
        "argv": ["rosetta", "t5x", "pretrain"],
        "env": {"T5_SIZE": "small"},
    }


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (
            ["run"],
            "rosetta run: no preset is named; name one, as in t5x-large, or give a --description",
        ),
        (["run", "t5x-small", "large"], "'large' is no setting; write NAME=VALUE"),
        (["run", "no-such-preset"], "no-such-preset"),
        (
            ["run", "t5x-small", "--nodes=2"],
            "--coordinator: 2 nodes have to meet somewhere; name the first node",
        ),
        (
            ["run", "t5x-small", "nodes=2"],
            "--coordinator: 2 nodes have to meet somewhere; name the first node",
        ),
        (
            ["run", "t5x-large"],
            "--coordinator: 8 nodes, which the preset brings (presets/t5x.yaml:40), have to meet somewhere; give --nodes 1 for this machine alone; or",
        ),
        (
            ["run", "t5x-small", "JAX_PLATFORMS=cpu", "--accelerator=h100"],
            "JAX_PLATFORMS=cpu: it is a run on the CPU, and --accelerator h100 is a card; leave one of them out",
        ),
        (["run", "t5x-small", "--node", "1", "--accel", "h100"], "unrecognized arguments: --accel"),
        (["run", "t5x-small", "--nodes=0"], "give a whole number, at least 1"),
        (["run", "t5x-small", "--node=-1"], "give a whole number from 0 on"),
        (
            [
                "run",
                "t5x-small",
                "--nodes=2",
                "--gpus-per-node=8",
                "--processes=node",
                "--on=docker",
                "--image=i",
            ],
            "--processes node: T5X takes one process a GPU where there are several nodes",
        ),
        (
            ["run", "t5x-small", "--on=docker", "--image=i", "--mount=/a"],
            "--mount=/a: it is no mount; write OUTSIDE:INSIDE",
        ),
        (
            ["run", "t5x-small", "--mount=/a:/b"],
            "--on local: it has no use for --mount; leave it out, or choose of --on docker",
        ),
        (
            ["run", "t5x-small", "--image=i"],
            "--on local: it has no use for --image; leave it out, or choose of --on docker",
        ),
        (["run", "t5x-small", "--name=n"], "--on local: it has no use for --name"),
        (
            ["run", "t5x-small", "--on=docker", "--image=i", "--node=0"],
            "--on docker: it has no use for --node; leave it out, or choose of --on local",
        ),
        (
            ["submit", "t5x-small", "--on=slurm", "--mount=/a:/b"],
            "--on slurm: it has no use for --mount; leave it out, or choose of --on pyxis, apptainer, jobset",
        ),
        (
            ["submit", "t5x-small", "--on=slurm", "--image=i"],
            "--on slurm: it has no use for --image; leave it out, or choose of --on pyxis, apptainer, jobset",
        ),
        (
            ["submit", "t5x-small", "--on=slurm", "--secret=s"],
            "--on slurm: it has no use for --secret; leave it out, or choose of --on jobset",
        ),
        (
            ["submit", "t5x-small", "--on=jobset", "--image=i", "--time=1:00"],
            "--on jobset: it has no use for --time; leave it out, or choose of --on slurm, pyxis, apptainer",
        ),
        (
            ["run", "t5x-small", "--json"],
            "--json: the run's own output is on stdout; add --dry-run",
        ),
        (
            ["run", "t5x-small", "--description=x"],
            "it says everything but where; leave out preset, settings",
        ),
        (["run", "--description=missing"], "missing: No such file or directory"),
        (["run", "--description=dump.py"], "dump.py: it is no JSON"),
        (["submit", "t5x-small"], "--on"),
        (
            ["submit", "t5x-small", "--on=slurm", "--sbatch=--qos=high", "--sbatch=x"],
            "--sbatch=x: it is no option; write it whole",
        ),
        (["submit", "t5x-small", "--on=pyxis"], "it takes an image"),
        (["spawn"], "there is nothing to start; write the command after --"),
    ],
)
def test_refused_in_a_line(place: fake_launchers.Place, words: list[str], what: str) -> None:
    done = place.rosetta(*words)
    assert done.returncode == 2
    assert what in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(place.folder.glob("bin/*.argv"))


@pytest.mark.parametrize(
    ("where", "program"),
    [("docker", "docker"), ("slurm", "sbatch"), ("jobset", "kubectl"), ("local", "rosetta")],
)
def test_what_it_needs_is_not_there(place: fake_launchers.Place, where: str, program: str) -> None:
    for path in (place.folder / "bin").iterdir():
        path.unlink()
    done = place.rosetta(
        *DRY[where],
        "t5x-small",
        "MODEL_DIR=/e/m",
        "--accelerator=h100",
        "--gpus-per-node=1",
        PATH=str(place.folder / "bin"),
    )
    assert done.returncode == 2
    assert f"{program}: there is no such program on PATH" in done.stderr


def test_what_the_scheduler_says_comes_through(place: fake_launchers.Place) -> None:
    sbatch = place.folder / "bin" / "sbatch"
    sbatch.write_text("#!/bin/sh\necho Submitted batch job 7\n")
    assert place.rosetta(*DRY["slurm"], "t5x-small").stdout == "Submitted batch job 7\n"
    assert json.loads(place.rosetta(*DRY["slurm"], "t5x-small", "--json").stdout)["result"] == {
        "said": "Submitted batch job 7"
    }
    sbatch.write_text("#!/bin/sh\necho 'error: invalid partition' >&2\nexit 1\n")
    done = place.rosetta(*DRY["slurm"], "t5x-small", "--accelerator=h100")
    assert (done.returncode, done.stderr) == (
        2,
        "error: invalid partition\nrosetta: sbatch: it ended with status 1; see what it said\n",
    )


def test_a_containers_status_is_ours(place: fake_launchers.Place) -> None:
    run = Run("pax", ("sh", "-c", "exit 7"), "x", gpus_per_node=1, env={})
    assert (
        place.rosetta(
            "run", "--on=docker", "--image=i", "--description=-", stdin=json.dumps(run.as_json())
        ).returncode
        == 7
    )
    assert place.rosetta("run", "--description=-", stdin=json.dumps(run.as_json())).returncode == 7


def plain_yaml(folder: Path) -> Path:
    """PyYAML as a folder, without what is compiled: for whatever Python."""
    shutil.copytree(
        Path(yaml.__file__).parent,
        folder / "lib" / "yaml",
        ignore=shutil.ignore_patterns("__pycache__", "*.so"),
    )
    return folder / "lib"


@pytest.mark.parametrize("python", [sys.executable, *old_pythons.executables()])
def test_on_a_login_node(place: fake_launchers.Place, python: str) -> None:
    """An old Python, PyYAML and the package: nothing else."""
    environment = {
        "PATH": f"{place.folder}/bin:/usr/bin:/bin",
        "PYTHONPATH": f"{ROOT}:{plain_yaml(place.folder)}",
        "HOME": str(place.folder),
    }
    for words in DRY.values():
        done = subprocess.run(
            [
                python,
                "-S",
                "-B",
                "-m",
                "rosetta.launch",
                *words,
                "gpt-126m",
                "LOG_DIR=/e/l",
                "--nodes=1",
                "--dry-run",
            ],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Pile126M" in done.stdout
    bare = {**environment, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, "-S", "-B", "-m", "rosetta.launch", "run", "gpt-126m"],
        env=bare,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "presets are read by PyYAML, and there is no yaml; install it" in done.stderr


def test_no_newer_syntax_than_that_of_python_39() -> None:
    code = "import sys; from rosetta.launch import docker, jobset, slurm; from rosetta.commands import run; from rosetta.launch import node_processes, execution; from rosetta.presets import describe; print(*(m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] == 'rosetta'))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    names = done.stdout.split()
    assert len(names) > 20
    for name in names:
        ast.parse(Path(name).read_text(encoding="utf-8"), feature_version=(3, 9))


def test_jax_is_not_imported(place: fake_launchers.Place) -> None:
    code = "import sys; from rosetta import cli; status = cli.main(['run', 't5x-small', '--dry-run']); print(status, [name for name in ('jax', 'numpy', 'tensorflow') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(place.folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr
