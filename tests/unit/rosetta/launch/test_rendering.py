"""What each place to run at is given, word for word. The files under golden/ are what --dry-run prints; a change of theirs is a change for users."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rosetta.core.run_description import Run
from rosetta.launch import docker, jobset, rendering, slurm
from rosetta.launch.rendering import Options, Rendering
from tests.support import errors

GOLDEN = Path(__file__).with_name("golden")
RUN = Run(
    "pax",
    ("rosetta", "pax", "train"),
    "Synthetic5B",
    mesh={"ici": [1, 8, 1], "dcn": [4, 1, 1]},
    nodes=4,
    gpus_per_node=8,
    xla_flags={
        "xla_gpu_enable_latency_hiding_scheduler": True,
        "xla_gpu_enable_command_buffer": "",
    },
    env={
        "CONFIG": "Synthetic5B",
        "NUM_GPUS": "8",
        "LOG_DIR": "/opt/paxml/workspace/my run",
        "WANDB_API_KEY": "secret",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    },
    mounts=(("/data/workspace", "/opt/paxml/workspace"),),
)
ONE = replace(RUN, nodes=1, processes_per_node="node")
JOB = Options(
    image="ghcr.io/owner/pax:latest", account="ml", partition="h100", time="04:00:00", requeue=True
)


def of(name: str) -> Rendering:
    if name == "docker":
        return docker.render_docker(ONE, Options(image=JOB.image), {})
    if name == "docker-gpus":
        return docker.render_docker(
            replace(ONE, processes_per_node="gpu", gpus_per_node=2),
            Options(image=JOB.image, name="mine"),
            {"CUDA_VISIBLE_DEVICES": "4,5,6"},
        )
    render = {
        "slurm": slurm.render_slurm,
        "pyxis": slurm.render_pyxis,
        "apptainer": slurm.render_apptainer,
        "jobset": jobset.render_jobset,
    }[name]
    return render(RUN, JOB)


@pytest.mark.parametrize("name", ["docker", "docker-gpus", "slurm", "pyxis", "apptainer", "jobset"])
def test_golden(name: str) -> None:
    text = (
        of(name)
        .format_command()
        .replace(str(slurm.SCRIPT), "job.sh")
        .replace(f"--user={os.getuid()}:{os.getgid()}", "--user=UID:GID")
    )
    assert text + "\n" == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_the_text_is_what_a_shell_would_be_told() -> None:
    found = docker.render_docker(ONE, Options(image="x"), {})
    words = shlex.split(found.format_command().replace("\\\n", ""))
    assert words == [
        *(
            f"{name}={'...' if name == 'WANDB_API_KEY' else value}"
            for name, value in found.env.items()
        ),
        *found.argv,
    ]


def test_json_has_the_document() -> None:
    found = of("jobset").as_json()
    assert json.loads(json.dumps(found["document"])) == jobset.make_jobset(RUN, JOB)
    assert found["argv"][:2] == ["kubectl", "create"]
    assert found["env"] == {}  # kubectl is none of the run's processes


def test_a_secret_in_a_document_is_hidden_too() -> None:
    found = jobset.render_jobset(replace(RUN, entry=("rosetta", "--x=secret")), JOB)
    assert "x=secret" in found.stdin
    assert "x=secret" not in found.format_command() + json.dumps(found.as_json())


def test_on_the_cpu_no_gpu_is_asked_for() -> None:
    run = replace(RUN, env={"JAX_PLATFORMS": "cpu"})
    texts = [
        docker.render_docker(replace(run, nodes=1), JOB, {}).format_command(),
        *(
            render(run, JOB).format_command()
            for render in (slurm.render_slurm, slurm.render_apptainer, jobset.render_jobset)
        ),
    ]
    assert not [
        text
        for text in texts
        if "--gpus" in text or "--gres" in text or "--nv" in text or "nvidia.com" in text
    ]


def test_part_of_a_node() -> None:
    argv = slurm.render_slurm(replace(RUN, gpus_per_node=4), Options(shared=True)).argv
    assert "--gres=gpu:4" in argv
    assert "--exclusive" not in argv
    assert "--ntasks=16" in argv
    with errors.expect_user_error(
        errors.CONFLICT, where="CUDA_VISIBLE_DEVICES", value=2, names=("8", "GPUs")
    ):
        docker.render_docker(ONE, JOB, {"CUDA_VISIBLE_DEVICES": "0,1"})


@pytest.mark.parametrize(
    ("name", "run", "options", "kind", "facts"),
    [
        (
            "docker",
            RUN,
            {},
            errors.UNSUPPORTED,
            {"where": "--on docker", "value": 4, "remedy": ("--nodes", "1")},
        ),
        (
            "docker",
            ONE,
            {"image": ""},
            errors.MISSING,
            {"where": "--on docker", "remedy": ("--image", "IMAGE", "CONTAINER=IMAGE")},
        ),
        ("pyxis", RUN, {"image": ""}, errors.MISSING, {"where": "--on pyxis"}),
        ("apptainer", RUN, {"image": "--x"}, errors.INVALID, {"where": "--image=--x"}),
        ("jobset", RUN, {"image": ""}, errors.MISSING, {"where": "--on jobset"}),
        (
            "jobset",
            RUN,
            {"name": "My_Run"},
            errors.INVALID,
            {"where": "--job-name=My_Run", "value": "My_Run"},
        ),
        (
            "jobset",
            replace(RUN, mounts=(("data", "/data"),)),
            {},
            errors.UNSUPPORTED,
            {"where": "mount data:/data", "value": "data"},
        ),
        (
            "docker",
            replace(ONE, mounts=(("data", "/data"),)),
            {},
            errors.INVALID,
            {"where": "mount data:/data"},
        ),
        (
            "slurm",
            replace(RUN, entry=("-x",)),
            {},
            errors.INVALID,
            {"where": "entry -x", "value": "-x"},
        ),
    ],
)
def test_refused(
    name: str, run: Run, options: dict[str, Any], kind: str, facts: dict[str, Any]
) -> None:
    given = replace(JOB, **options)
    with errors.expect_user_error(kind, **facts):
        {
            "docker": lambda: docker.render_docker(run, given, {}),
            "slurm": lambda: slurm.render_slurm(run, given),
            "pyxis": lambda: slurm.render_pyxis(run, given),
            "apptainer": lambda: slurm.render_apptainer(run, given),
            "jobset": lambda: jobset.render_jobset(run, given),
        }[name]()


def test_names_of_jobs() -> None:
    assert rendering.choose_job_name(RUN, Options()) == "pax-synthetic5b"
    assert (
        rendering.choose_job_name(replace(RUN, model="my/Model_2"), Options()) == "pax-my-model-2"
    )
    assert rendering.choose_job_name(RUN, Options(name="x y")) == "x y"
