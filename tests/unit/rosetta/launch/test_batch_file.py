"""Jobs as files for sbatch, run by bash with an srun that writes down what it gets."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from rosetta import cli
from rosetta.launch import slurm
from rosetta.launch.rendering import Rendering
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path

ODD = 'it\'s $(touch pwned) `x` "y"\nz'


def make_rendering(**variables: str) -> Rendering:
    words = ["sbatch", "--job-name=a b#c", str(slurm.SCRIPT), "--nodes=2", "python", ODD]
    return Rendering(words, {"REQUEUE": "0", **variables})


def run_file(folder: Path, text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "srun").write_text('#!/bin/bash\nprintf "%s\\0" "$NOTE" "$@" > words\n')
    (folder / "srun").chmod(0o755)
    (folder / "job.sub").write_text(text)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "4", **variables}
    return subprocess.run(
        ["bash", "job.sub"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_srun_gets_the_arguments_and_the_variables(tmp_path: Path) -> None:
    text = slurm.format_batch_file(make_rendering(NOTE=ODD))
    assert "#SBATCH '--job-name=a b#c'\n" in text
    assert run_file(tmp_path, text).returncode == 0
    words = (tmp_path / "words").read_text().split("\0")[:-1]
    assert words == [ODD, "--nodes=2", "python", ODD]
    assert not (tmp_path / "pwned").exists()


def test_a_secret_is_not_in_the_file_and_has_to_be_set(tmp_path: Path) -> None:
    key = "very-secret-0123456789"
    text = slurm.format_batch_file(make_rendering(WANDB_API_KEY=key))
    assert key not in text
    without = run_file(tmp_path, text)
    assert without.returncode != 0
    assert "WANDB_API_KEY" in without.stderr
    assert run_file(tmp_path, text, WANDB_API_KEY=key, NOTE="").returncode == 0


def test_an_option_of_two_lines_is_refused() -> None:
    rendered = Rendering(["sbatch", "--comment=a\nb", str(slurm.SCRIPT), "x"], {})
    with errors.expect_user_error(errors.INVALID, where="--comment"):
        slurm.format_batch_file(rendered)


def test_the_file_of_any_gin_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.gin").write_text("A = 1\n")
    words = ["submit", "--gin", "own.gin", "MODEL_DIR=/runs/a", "--on", "slurm", "--nodes", "2"]
    words += ["--gpus-per-node", "8", "--write", "own.sub"]
    assert cli.main(words) == 0
    text = (tmp_path / "own.sub").read_text()
    assert f"--gin_file={tmp_path}/own.gin" in text
    assert "#SBATCH --nodes=2\n" in text
    assert "own.sub" in capsys.readouterr().out
    assert cli.main(words) == 2
    assert (tmp_path / "own.sub").read_text() == text
