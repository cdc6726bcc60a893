from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rosetta.tune import trial
from rosetta.tune.search import OK, Choice
from tests.support import process_state, required_modules

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> trial.Trials:
    """Trials whose program is what the variable PROGRAM holds."""
    for name, value in {"JAX_PLATFORMS": "cpu", "ROSETTA_SITE": "", "SLURM_PROCID": "3"}.items():
        monkeypatch.setenv(name, value)
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\nexec sh -c "$PROGRAM"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return trial.Trials(
        "t5x-tiny", None, 1, {"HF_TOKEN": "pa55w0rd"}, steps=20, seconds=20, logs=tmp_path / "logs"
    )


@pytest.mark.parametrize(
    ("program", "kind", "reason"),
    [
        (
            "echo jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9; exit 1",
            "out-of-memory",
            "the run does not fit",
        ),
        ("kill -KILL $$", "out-of-memory", "the run does not fit"),
        (
            "echo 'rosetta: BSIZE_PER_GPU=3: it does not divide; give 4'; exit 2",
            "refused",
            "BSIZE_PER_GPU=3: it does not divide; give 4",
        ),
        (
            "echo 'rosetta t5x: no variable BSZ; did you mean BSIZE?'; echo something else; exit 2",
            "refused",
            "rosetta t5x: no variable BSZ; did you mean BSIZE?",
        ),
        ("echo first; echo Segmentation fault; exit 139", "failed", "Segmentation fault"),
        ("exit 7", "failed", "status 7"),
        ("exit 0", "failed", "the trial ended without a rate"),
    ],
)
def test_how_a_trial_ends_is_an_outcome(
    make: trial.Trials, monkeypatch: pytest.MonkeyPatch, program: str, kind: str, reason: str
) -> None:
    monkeypatch.setenv("PROGRAM", program)
    found = make(Choice(), 0)
    assert (found.kind, found.rate) == (kind, 0.0)
    assert found.reason.startswith(reason)
    assert Path(found.more["log"]).is_file()


@pytest.mark.usefixtures("make")
def test_a_trial_that_takes_too_long_is_ended_with_its_children(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PROGRAM", f"sleep 600 & echo $! > {tmp_path}/child; wait")
    make = trial.Trials("t5x-tiny", None, 1, {}, steps=20, seconds=0.5, logs=tmp_path / "logs")
    assert make(Choice(), 0).kind == "too long"
    assert process_state.wait_until_ended(int((tmp_path / "child").read_text()))


def test_the_rate_is_the_last_and_the_run_has_the_choice(
    make: trial.Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = [
        json.dumps({"tokens_per_second": rate, "steps_per_second": 1.5, "mfu": 0.4})
        for rate in (10.0, 250.5)
    ]
    lines = "\\n".join(reports).replace('"', '\\"')
    monkeypatch.setenv(
        "PROGRAM", f'mkdir -p $MODEL_DIR; printf "{lines}\\n" > $MODEL_DIR/progress.jsonl; env'
    )
    found = make(Choice(32, ("command-buffers",)), 0)
    assert (found.kind, found.rate, found.more["mfu"]) == (OK, 250.5, 0.4)
    env = dict(
        line.split("=", 1)
        for line in Path(found.more["log"]).read_text().splitlines()
        if "=" in line
    )
    assert (env["BSIZE_PER_GPU"], env["TRAIN_STEPS"], env["BENCHMARK_MODE"], env["NUM_GPUS"]) == (
        "32",
        "20",
        "1",
        "1",
    )
    assert "--xla_gpu_enable_command_buffer=FUSION" in env["XLA_FLAGS"]
    assert "SLURM_PROCID" not in env
    assert (env["HF_TOKEN"], "pa55w0rd" in json.dumps(found.more)) == ("pa55w0rd", False)
    assert not Path(env["MODEL_DIR"]).exists(), "nothing of it stays"


def test_pax_is_tried_on_synthetic_data() -> None:
    run = trial.Trials(
        "gpt-5b", "h100", 8, {}, steps=20, seconds=1, logs=Path("/nowhere")
    ).describe(Choice(4), "/tmp/x")
    assert (run.entry, run.env["CONFIG"], run.env["PERCORE_BATCH_SIZE"], run.env["MAX_STEPS"]) == (
        ("rosetta", "pax", "train"),
        "Synthetic5B",
        "4",
        "20",
    )
    assert "--enable_checkpoint_saving=False" in run.env["ADDITIONAL_ARGS"]


def test_a_tiny_model_is_tuned_for_real(tmp_path: Path) -> None:
    """Two trials at least, by T5X on the CPU; a minute where nothing else runs."""
    required_modules.need_modules("t5x")
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        "JAX_PLATFORMS": "cpu",
        "ROSETTA_SITE": "",
        "ROSETTA_HOME": str(tmp_path / "home"),
        "ROSETTA_DOCTOR": "0",
    }
    words = [
        "t5x-tiny",
        "ENC_SL=16",
        "DEC_SL=8",
        "VOCAB=ids:256",
        "precision=fp32",
        "batch.per_gpu=2",
        "--steps",
        "6",
        "--repeats",
        "1",
        "--try",
        "no-command-buffers",
        "--output",
        "out.yaml",
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rosetta", "tune", *words],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [each["outcome"]["kind"] for each in lines[1:]] in (["ok"] * 2, ["ok"] * 3)
    assert all(each["outcome"]["rate"] > 0 for each in lines[1:])
    assert "extends: t5x-tiny" in (tmp_path / "out.yaml").read_text()
