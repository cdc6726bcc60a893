"""`rosetta run` and `submit` with gin files in place of a preset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rosetta import cli
from rosetta.t5x.run import gin_text
from tests.support import errors

SHIPPED = "rosetta/t5x/gin/t5_1_1/small.gin"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a gin file, as the working folder, and no request for the CPU."""
    (tmp_path / "mine.gin").write_text("TRAIN_STEPS = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    return tmp_path


def render(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Return the result of a dry run."""
    assert cli.main([*words, "--dry-run", "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)["result"]
    return result


def test_files_and_bindings_reach_the_trainer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = render(
        capsys,
        "run",
        *("--gin", SHIPPED, "--gin", "mine.gin"),
        *("MODEL_DIR=/runs/a b", "BATCH_SIZE=64", "VOCAB='byte'", "DTYPE=%OTHER"),
        "trainer.Trainer.num_microbatches=None",
    )
    argv = result["argv"]
    assert argv[:4] == ["python", "-m", "rosetta.t5x.train", "train"]
    assert argv[4:] == [
        f"--gin_file={SHIPPED}",
        f"--gin_file={folder}/mine.gin",
        '--gin.MODEL_DIR="/runs/a b"',
        "--gin.BATCH_SIZE=64",
        "--gin.VOCAB='byte'",
        "--gin.DTYPE=%OTHER",
        "--gin.trainer.Trainer.num_microbatches=None",
    ]


@pytest.mark.parametrize("text", ["text:/data/*.txt", "a'b\"c", "{not closed", "3 steps", ""])
def test_a_text_arrives_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = render(capsys, "run", "--gin", "mine.gin", f"DATA={text}")["argv"]
    (binding,) = (word for word in argv if word.startswith("--gin.DATA="))
    literal = binding.removeprefix("--gin.DATA=")
    assert literal == gin_text.format_literal(text)


def test_a_job_has_a_process_for_each_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("submit", "--on", "slurm", "--gin", "mine.gin", "--nodes", "2")
    argv = render(capsys, *words, "--gpus-per-node", "4")["argv"]
    assert {"--nodes=2", "--ntasks=8", "--job-name=t5x-mine"} <= set(argv)
    assert argv[-1] == "--multiprocess_gpu"
    single = render(capsys, "submit", "--on", "slurm", "--gin", "mine.gin", "--gpus-per-node", "1")
    assert "--multiprocess_gpu" not in single["argv"]


def test_a_container_reads_files_by_their_paths_inside(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("submit", "--on", "pyxis", "--image", "ghcr.io/me/t5x:1")
    argv = render(capsys, *words, "--gin", "/runs/a.gin", "--mount", "/runs:/runs")["argv"]
    assert "--gin_file=/runs/a.gin" in argv
    assert not any(word.startswith("--container-env") for word in argv)


@pytest.mark.parametrize(
    ("words", "kind", "facts"),
    [
        (["--gin", "nowhere.gin"], errors.MISSING, {"where": "nowhere.gin"}),
        (["--gin", "mine.gin", "t5x-small"], errors.INVALID, {"value": "t5x-small"}),
        (["--gin", "mine.gin", "--a=b"], errors.UNKNOWN, {}),
        (["--gin", "mine.gin", "3=4"], errors.INVALID, {"value": "3=4"}),
        (
            ["--gin", "mine.gin", "--accelerator", "h100"],
            errors.CONFLICT,
            {"where": "--accelerator", "remedy": "--gin"},
        ),
        (["--gin", "mine.gin", "--description", "a.json"], errors.CONFLICT, {"remedy": "--gin"}),
        (
            ["--on", "docker", "--image", "a:b", "--gin", "mine.gin"],
            errors.INVALID,
            {"value": "mine.gin", "remedy": "--mount"},
        ),
    ],
)
def test_what_cannot_be_run_is_one_line(
    words: list[str], kind: str, facts: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with errors.collect_errors() as reported:
        assert cli.main(["run", *words, "--dry-run"]) == 2
    (error,) = reported
    errors.check_error(error, kind, **facts)
    assert len(capsys.readouterr().err.splitlines()) == 1
