from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rosetta import cli, doctor
from rosetta.core.gpu_query import DetectedGpu
from rosetta.doctor import machine as machines
from tests.support import old_pythons
from tests.support.fake_machine import A100, make_machine

ROOT = Path(__file__).resolve().parents[4]


def run(
    *words: str, python: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        **environment,
    }
    return subprocess.run(
        [python, *words], env=env, capture_output=True, text=True, check=False, cwd="/"
    )


def test_this_machine() -> None:
    done = run("-m", "rosetta", "doctor", "--json")
    answer = json.loads(done.stdout)
    result = answer["result"]
    assert answer["ok"] == result["ok"] == (done.returncode == 0)
    assert result["ok"] == all(each["level"] != "blocker" for each in result["findings"])
    assert result["machine"]["driver"] == (machines.inspect_machine(os.environ).driver or None)
    assert ("no-driver" in [each["id"] for each in result["findings"]]) == (
        result["machine"]["driver"] is None
    )
    assert all(each["do"] for each in result["findings"])


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Put a machine in place of this one."""

    def put(**changes: Any) -> None:
        def here(*_: object, quick: bool = False, gpus: object = None) -> machines.Machine:
            return make_machine(tmp_path, quick=quick, given_gpus=gpus, **changes)

        monkeypatch.setattr(machines, "inspect_machine", here)

    return put


def test_statuses_and_lines(on: Any, capsys: pytest.CaptureFixture[str]) -> None:
    on(environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    assert cli.main(["doctor"]) == 0
    assert (
        capsys.readouterr().out
        == "driver 580.82.07, cards 8 x NVIDIA H100 80GB HBM3, distribution t5x, cuda 13, jax 0.10.2, jaxlib 0.10.2\nnothing found\n"
    )
    on(gpus=[A100] * 8, environment={"ENABLE_FP8": "1", "JAX_DEBUG_NANS": "1"})
    assert cli.main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["driver", "blocker", "->", "warning", "->", "1"]
    assert lines[1].startswith("blocker  ENABLE_FP8: NVIDIA A100")
    assert lines[-1] == "1 blocker, 1 warning"


@pytest.mark.parametrize(
    "words",
    [
        ["--hosts", "n[1-"],
        ["--hosts", ""],
        ["--hosts", "n1", "--quick"],
        ["--nccl", "--quick"],
        ["--nccl", "--folder", "/"],
        ["--nccl", "--mib", "0"],
        ["more"],
    ],
)
def test_a_wrong_command_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_quick_checks_run_no_command(on: Any) -> None:
    on(
        gpus=[A100] * 8,
        environment={"ENABLE_FP8": "1"},
        run_command=lambda *_: pytest.fail("a command was run"),
        resolve_host=lambda *_: pytest.fail("a name was resolved"),
    )
    found = doctor.quick({}, [DetectedGpu("NVIDIA A100", (8, 0))])
    assert [str(each) for each in found] == [
        "ENABLE_FP8: NVIDIA A100 (compute capability 8.0) has no FP8; set ENABLE_FP8=0; FP8 needs an Ada, Hopper or newer GPU"
    ]


def test_quick_checks_import_no_framework_and_use_no_network() -> None:
    code = """if True:
        import os, socket, subprocess, sys
        from rosetta import doctor
        subprocess.run = socket.getaddrinfo = None
        doctor.quick(dict(os.environ, SLURM_JOB_NODELIST="n[1-4]", XLA_FLAGS="--xla_gpu_graph_level=0"))
        print(sorted({"jax", "numpy", "yaml", "concurrent.futures", "socket", "urllib.request"} & {*sys.modules} - {"socket"}))
    """
    done = run("-c", code)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_secrets_and_escapes_are_never_printed(tmp_path: Path) -> None:
    secret, nasty = "pa55w0rd", "\x1b[2Jx\nblocker  fake: line"
    environment = {
        "WANDB_API_KEY": secret,
        "HF_TOKEN": secret,
        "http_proxy": f"http://me:{secret}@proxy:1",
        "XLA_FLAGS": f"--xla_dump_to={secret} --set_xla_x={secret}",
        "BASE_XLA_FLAGS": f"'{secret}",
        "NCCL_SOCKET_IFNAME": secret,
        "CUDA_VISIBLE_DEVICES": secret,
        "XLA_PYTHON_CLIENT_MEM_FRACTION": secret,
        "SLURM_JOB_NODELIST": secret + nasty,
        "MODEL_DIR": f"s3://me:{secret}@host/x",
        "TFDS_DATA_DIR": f"/nowhere{nasty}",
        "LOG_DIR": f"/nowhere/{nasty}",
        "LD_LIBRARY_PATH": f"/{nasty}",
        "ENABLE_FP8": nasty,
        "JAX_PLATFORMS": nasty,
        "SLURM_STEP_TASKS_PER_NODE": nasty,
        "NVIDIA_VISIBLE_DEVICES": nasty,
    }
    for words in (["doctor"], ["doctor", "--json"], ["doctor", "--quick"]):
        done = run("-m", "rosetta", *words, **environment)
        assert done.returncode in (0, 1), done.stderr
        assert secret not in done.stdout + done.stderr
        assert "\x1b" not in done.stdout + done.stderr
        assert not any(line.startswith("blocker  fake") for line in done.stdout.splitlines())
    everything = {
        each.id for each in doctor.examine_machine(make_machine(tmp_path, environment=environment))
    }
    assert {
        "xla-flags-quote",
        "gpus-hidden",
        "memory-fraction",
        "node-list-unread",
        "folder-missing",
    } <= everything
    assert secret not in " ".join(
        str(each)
        for each in doctor.examine_machine(make_machine(tmp_path, environment=environment))
    )


def test_no_newer_syntax_than_that_of_python_39() -> None:
    names = run(
        "-S",
        "-c",
        "import sys; from rosetta import cli, doctor; print(*(m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] == 'rosetta'))",
    ).stdout.split()
    assert len(names) > 20
    for name in names:
        ast.parse(Path(name).read_text(encoding="utf-8"), feature_version=(3, 9))


@pytest.mark.parametrize("python", [sys.executable, *old_pythons.find_executables()])
def test_without_packages_and_on_an_old_python(python: str) -> None:
    done = run("-S", "-B", "-m", "rosetta.doctor", "--json", python=python)
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)["command"] == "doctor"
    assert "no-jax" in [each["id"] for each in json.loads(done.stdout)["result"]["findings"]]
