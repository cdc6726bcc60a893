from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rosetta.core.gpu_query import DetectedGpu
from rosetta.doctor import launch_checks
from rosetta.doctor import machine as machines
from tests.support import errors
from tests.support.fake_machine import INSTALLED, PROPRIETARY, make_machine
from tests.support.t5x_scripts import SCRIPTS, Place, place_

__all__ = ["place_"]  # a fixture
CARDS = [DetectedGpu("NVIDIA H100 80GB HBM3", (9, 0))] * 8


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Check a launch on another machine."""

    def checked(
        environment: dict[str, str], platforms: str = "cuda,cpu", gpus: Any = CARDS, **changes: Any
    ) -> tuple[str, ...]:
        def here(
            given: dict[str, str], *, quick: bool = False, gpus: Any = None
        ) -> machines.Machine:
            return make_machine(
                tmp_path, quick=quick, given_gpus=gpus, environment=given, **changes
            )

        monkeypatch.setattr(machines, "inspect_machine", here)
        return launch_checks.check_before_launch(environment, gpus, platforms)

    return checked


def test_a_healthy_machine_has_no_messages(check: Any) -> None:
    assert check({}) == ()


@pytest.mark.parametrize(
    ("changes", "kind", "facts"),
    [
        (
            {
                "driver": "535.129.03",
                "version": PROPRIETARY,
                "query_driver_cuda_version": lambda: 12020,
            },
            errors.UNSUPPORTED,
            {
                "where": "NVIDIA driver 535.129.03",
                "value": "driver-too-old",
                "names": ("CUDA", "13", "580"),
            },
        ),
        (
            {"installed": {**INSTALLED, "jax-cuda13-plugin": ["0.9.0"]}},
            errors.UNSUPPORTED,
            {"where": "packages", "value": "plugin-version", "names": "0.10.2"},
        ),
        (
            {"installed": {"jax": ["0.10.2"], "jaxlib": ["0.10.2"]}},
            errors.UNSUPPORTED,
            {"where": "packages", "value": "no-plugin", "names": "CPU"},
        ),
        (
            {"gpus": CARDS[:2], "environment": {"SLURM_STEP_TASKS_PER_NODE": "8"}},
            errors.UNSUPPORTED,
            {"where": "Slurm step", "value": "gpus-for-processes", "names": "8"},
        ),
    ],
)
def test_a_fatal_finding_stops_the_launch_unless_disabled(
    check: Any, changes: dict[str, Any], kind: str, facts: dict[str, Any]
) -> None:
    environment = changes.pop("environment", {})
    gpus = changes.pop("gpus", CARDS)
    with errors.expect_user_error(kind, **facts) as refused:
        check(environment, gpus=gpus, **changes)
    assert str(refused.value).count("ROSETTA_DOCTOR=0 ")
    assert check({**environment, "ROSETTA_DOCTOR": "0"}, gpus=gpus, **changes) == ()
    assert check(environment, "cpu", gpus=gpus, **changes) in ((), (CPU,)), (
        "none of it matters to a run on the CPU"
    )


CPU = "JAX_PLATFORMS=cpu: this machine has 8 GPU(s), but the run would use the CPU; unset it to train on the GPUs"


def test_other_findings_are_printed_by_the_first_process(check: Any) -> None:
    (said,) = check({}, shm=64 << 20)
    assert said.startswith("/dev/shm: only 64 MiB")
    assert check({"SLURM_PROCID": "3"}, shm=64 << 20) == ()
    assert check({"SLURM_PROCID": "0"}, shm=64 << 20) == (said,)


def test_packages_are_not_checked_for_another_python(check: Any) -> None:
    assert (
        check({"PYTHON": "/opt/own/python"}, installed={"jax": ["0.10.2"], "jaxlib": ["0.10.2"]})
        == ()
    )
    assert check({"PYTHON": "/opt/own/python"}, shm=64 << 20) != ()


def test_findings_that_launchers_check_are_left_out(check: Any) -> None:
    a100 = [DetectedGpu("NVIDIA A100-SXM4-80GB", (8, 0))] * 8
    assert (
        check(
            {
                "ENABLE_FP8": "1",
                "ENABLE_TE": "1",
                "XLA_FLAGS": "--xla_gpu_graph_level=0",
                "MODEL_DIR": "/proc/no",
                "TFDS_DATA_DIR": "/nowhere",
            },
            gpus=a100,
        )
        == ()
    )


def test_every_script_checks_the_machine_before_it_starts(place: Place) -> None:
    """With fewer open files than a run wants, and in a step of more processes than GPUs."""
    words = ["singlenode_pretrain_pile.sh", "tiny", "float32", "1", "8", "", "model"]
    said = place.start(
        "bash",
        "-c",
        'ulimit -n 1000; exec bash "$@"',
        "bash",
        str(place.tree / SCRIPTS / words[0]),
        *words[1:],
        ROSETTA_DOCTOR="1",
    )
    assert (said.rc, [line for line in said.said if "ulimit" in line]) == (
        0,
        [
            "rosetta: ulimit -n: only 1000 files may be open, but checkpoints and the connections of NCCL need thousands; ulimit -n 65536; docker: --ulimit nofile=65536:65536"
        ],
    )
    slurm = {
        "SLURM_NTASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_PROCID": "1",
        "ROSETTA_DOCTOR": "1",
    }
    stopped = place.run(
        "multiprocess_pretrain_pile.sh",
        T5_SIZE="tiny",
        BSIZE_PER_GPU="8",
        MODEL_DIR="model",
        **slurm,
        **place.cards("NVIDIA H100 80GB HBM3, 9.0"),
    )
    assert (stopped.rc, stopped.argv) == (2, [])
    errors.check_error(
        stopped.error,
        errors.UNSUPPORTED,
        where="Slurm step",
        value="gpus-for-processes",
        names=("2", "1 GPU(s)"),
    )
