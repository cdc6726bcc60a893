from __future__ import annotations

import ast
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rosetta import cli
from rosetta.core.run_description import Run
from tests.support import errors, fake_launchers, old_pythons
from tests.support.run_in_process import run_in_process

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
    return fake_launchers.make_launchers(tmp_path)


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


def test_one_process_for_each_gpu_or_node_on_this_machine(place: fake_launchers.Place) -> None:
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


def test_a_run_description_replaces_the_preset(place: fake_launchers.Place) -> None:
    run = Run(
        "t5x", ("rosetta", "t5x", "pretrain"), "small", gpus_per_node=1, env={"T5_SIZE": "small"}
    )
    (place.folder / "run.json").write_text(json.dumps(run.as_json()))
    assert shown(place, "run", "--description=run.json") == {
        "argv": ["rosetta", "t5x", "pretrain"],
        "env": {"T5_SIZE": "small"},
    }


def test_an_unknown_flag_of_xla_is_named_before_the_run(
    place: fake_launchers.Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A Python whose XLA has no flag at all. XLA names the flags that it does not know.
    python = place.folder / "python"
    python.write_text('#!/bin/sh\necho "Unknown flags in XLA_FLAGS: $XLA_FLAGS" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    for words, status in (
        (["run", "t5x-small", "--nodes=1", "--dry-run"], 2),
        (["submit", "t5x-small", "--on=slurm", "--dry-run"], 0),
    ):
        for flag, expected in (("xla_gpu_nonsense=1", status), ("MODEL_DIR=/m", 0)):
            argv = [*words, flag]
            ended = run_in_process(
                functools.partial(cli.main, argv), place.folder, place.environment()
            )
            assert ended.status == expected, ended.err
            assert ("xla_gpu_nonsense" in ended.err) == flag.startswith("xla_")


@pytest.mark.parametrize(
    ("words", "kind", "facts"),
    [
        (
            ["run"],
            errors.MISSING,
            {"where": "rosetta run", "remedy": ("t5x-large", "--description")},
        ),
        (
            ["run", "t5x-small", "large"],
            errors.INVALID,
            {"where": "rosetta run", "value": "large", "remedy": "NAME=VALUE"},
        ),
        (["run", "no-such-preset"], errors.UNKNOWN, {"where": "preset", "value": "no-such-preset"}),
        (
            ["run", "t5x-small", "--nodes=2"],
            errors.MISSING,
            {"where": "--coordinator", "names": "2"},
        ),
        (
            ["run", "t5x-small", "nodes=2"],
            errors.MISSING,
            {"where": "--coordinator", "names": "2"},
        ),
        (
            ["run", "t5x-large"],
            errors.MISSING,
            {
                "where": "--coordinator",
                "names": ("8", "presets/t5x.yaml:"),
                "remedy": ("--nodes", "1"),
            },
        ),
        (
            ["run", "t5x-small", "JAX_PLATFORMS=cpu", "--accelerator=h100"],
            errors.CONFLICT,
            {"where": "JAX_PLATFORMS=cpu", "value": "h100", "names": ("CPU", "--accelerator")},
        ),
        (
            ["run", "t5x-small", "--node", "1", "--accel", "h100"],
            errors.UNKNOWN,
            {"where": "rosetta run", "value": "--accel"},
        ),
        (
            ["run", "t5x-small", "--nodes=0"],
            errors.INVALID,
            {"where": "rosetta run --nodes", "value": "0"},
        ),
        (
            ["run", "t5x-small", "--node=-1"],
            errors.INVALID,
            {"where": "rosetta run --node", "value": "-1"},
        ),
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
            errors.UNSUPPORTED,
            {"where": "--processes node", "names": ("T5X", "GPU")},
        ),
        (
            ["run", "t5x-small", "--on=docker", "--image=i", "--mount=/a"],
            errors.INVALID,
            {"where": "--mount=/a", "value": "/a", "remedy": "OUTSIDE:INSIDE"},
        ),
        (
            ["run", "t5x-small", "--mount=/a:/b"],
            errors.CONFLICT,
            {"where": "--on local", "value": "mount", "remedy": "docker"},
        ),
        (
            ["run", "t5x-small", "--image=i"],
            errors.CONFLICT,
            {"where": "--on local", "value": "image", "remedy": "docker"},
        ),
        (
            ["run", "t5x-small", "--name=n"],
            errors.CONFLICT,
            {"where": "--on local", "value": "name"},
        ),
        (
            ["run", "t5x-small", "--on=docker", "--image=i", "--node=0"],
            errors.CONFLICT,
            {"where": "--on docker", "value": "node", "remedy": "--on local"},
        ),
        (
            ["submit", "t5x-small", "--on=slurm", "--mount=/a:/b"],
            errors.CONFLICT,
            {"where": "--on slurm", "value": "mount", "remedy": "pyxis, apptainer, jobset"},
        ),
        (
            ["submit", "t5x-small", "--on=slurm", "--image=i"],
            errors.CONFLICT,
            {"where": "--on slurm", "value": "image", "remedy": "pyxis, apptainer, jobset"},
        ),
        (
            ["submit", "t5x-small", "--on=slurm", "--secret=s"],
            errors.CONFLICT,
            {"where": "--on slurm", "value": "secret", "remedy": "--on jobset"},
        ),
        (
            ["submit", "t5x-small", "--on=jobset", "--image=i", "--time=1:00"],
            errors.CONFLICT,
            {"where": "--on jobset", "value": "time", "remedy": "slurm, pyxis, apptainer"},
        ),
        (
            ["run", "t5x-small", "--json"],
            errors.CONFLICT,
            {"where": "--json", "remedy": "--dry-run"},
        ),
        (
            ["run", "t5x-small", "--description=x"],
            errors.CONFLICT,
            {"where": "--description x"},
        ),
        (["run", "--description=missing"], errors.MISSING, {"where": "missing"}),
        (["run", "--description=dump.py"], errors.INVALID, {"where": "dump.py", "names": "JSON"}),
        (["submit", "t5x-small"], errors.INVALID, {"where": "rosetta submit", "names": "--on"}),
        (
            ["submit", "t5x-small", "--on=slurm", "--sbatch=--qos=high", "--sbatch=x"],
            errors.INVALID,
            {"where": "--sbatch=x", "value": "x", "remedy": "--sbatch=--qos=high"},
        ),
        (["submit", "t5x-small", "--on=pyxis"], errors.MISSING, {"where": "--on pyxis"}),
        (["spawn"], errors.MISSING, {"where": "rosetta spawn", "remedy": "--"}),
    ],
)
def test_errors_are_one_line(
    place: fake_launchers.Place, words: list[str], kind: str, facts: dict[str, Any]
) -> None:
    ended = run_in_process(lambda: cli.main(words), place.folder, place.environment())
    assert ended.status == 2
    (error,) = ended.errors
    errors.check_error(error, kind, **facts)
    assert ended.err.count("\n") == 1
    assert not list(place.folder.glob("bin/*.argv"))


@pytest.mark.parametrize(
    ("where", "program"),
    [("docker", "docker"), ("slurm", "sbatch"), ("jobset", "kubectl"), ("local", "rosetta")],
)
def test_a_missing_program_or_package_is_reported(
    place: fake_launchers.Place, where: str, program: str
) -> None:
    for path in (place.folder / "bin").iterdir():
        path.unlink()
    words = (
        *DRY[where],
        "t5x-small",
        "MODEL_DIR=/e/m",
        "--accelerator=h100",
        "--gpus-per-node=1",
    )
    environment = place.environment(PATH=str(place.folder / "bin"))
    ended = run_in_process(lambda: cli.main(words), place.folder, environment)
    assert ended.status == 2
    (error,) = ended.errors
    errors.check_error(error, errors.MISSING, where=program, value=program)


def test_the_output_of_the_scheduler_is_printed(place: fake_launchers.Place) -> None:
    sbatch = place.folder / "bin" / "sbatch"
    sbatch.write_text("#!/bin/sh\necho Submitted batch job 7\n")
    assert place.rosetta(*DRY["slurm"], "t5x-small").stdout == "Submitted batch job 7\n"
    assert json.loads(place.rosetta(*DRY["slurm"], "t5x-small", "--json").stdout)["result"] == {
        "output": "Submitted batch job 7",
        "run": 2,
    }
    sbatch.write_text("#!/bin/sh\necho 'error: invalid partition' >&2\nexit 1\n")
    done = place.rosetta(*DRY["slurm"], "t5x-small", "--accelerator=h100")
    assert done.returncode == 2
    its, ours = done.stderr.splitlines()
    assert its == "error: invalid partition"
    assert ours.startswith("rosetta: sbatch: ")
    assert "status 1" in ours


def test_the_exit_status_of_a_container_is_kept(place: fake_launchers.Place) -> None:
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


@pytest.mark.parametrize("python", [sys.executable, *old_pythons.find_executables()])
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
    assert "PyYAML" in done.stderr
    assert "pip install pyyaml" in done.stderr


def test_no_newer_syntax_than_that_of_python_39() -> None:
    code = "import sys; from rosetta.launch import docker, jobset, slurm; from rosetta.commands import run; from rosetta.launch import node_processes, execution; from rosetta.presets import preset_run; print(*(m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] == 'rosetta'))"
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
