"""`rosetta plan --search`, with a shell script in the place of the Python that compiles."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import rosetta
from rosetta import cli
from rosetta.plan import pax_step, t5x_step
from rosetta.presets import preset_run
from tests.support import errors
from tests.support.required_modules import need_modules

DARK = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "ROSETTA_SITE": ""}
# The memory and the time grow with the batch: a GB and 10 ms for each sequence, and 30 ms.
PROGRAM = """#!/bin/sh
echo "$@" >> calls
rows=$(echo "$*" | sed -n 's/.*--batch-per-gpu \\([0-9]*\\).*/\\1/p')
case "$*" in
  *num_encoder_layers=1*) layers=1;;
  *num_encoder_layers=2*) layers=2;;
  *) layers=24;;
esac
peak=$(( rows * 40 * layers ))
time=$(( (30 + rows * 10) * layers ))
cat <<END
{"ok": true, "result": {
  "memory": {"peak": ${peak}e6}, "kernels": ${layers}, "bytes": ${layers}, "gemm_flops": ${layers},
  "time": {"seconds": {"likely": ${time}e-3, "fastest": ${time}e-3, "slowest": ${time}e-3},
           "parts": {"products": ${time}e-3}},
  "compile": {"seconds": 30.0, "rss": 2e9}}}
END
"""


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file with the words of each compilation."""
    for name, value in DARK.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "python").write_text(PROGRAM)
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(t5x_step, "require_compiler", lambda _: None)
    monkeypatch.setattr(pax_step, "require_pax", lambda: None)
    return tmp_path / "calls"


WORDS = ["plan", "t5x", "--size", "large", "--card", "l40s", "--gpus", "1", "--search"]


def test_the_answer_is_a_preset_with_evidence_and_a_picture(
    compiler: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need_modules("PIL")
    assert cli.main([*WORDS, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    answer = result["answer"]
    assert answer["verdict"] == "fits"
    assert answer["whole"]
    # 40.4 GB are usable, and a sequence takes 0.96 GB of 24 layers.
    assert 24 <= answer["batch_per_gpu"] / answer["microbatches"] <= 42
    run = preset_run.describe_run(
        "./t5x-large-1xl40s.yaml", accelerator="l40s", settings={}, environment={}
    )
    assert run.batch["per_gpu"] == answer["batch_per_gpu"]
    assert (run.nodes, run.gpus_per_node) == (1, 1)
    assert Path("t5x-large-1xl40s.png").read_bytes().startswith(b"\x89PNG")
    calls = compiler.read_text().splitlines()
    assert len(Path("t5x-large-1xl40s.jsonl").read_text().splitlines()) == 1 + len(calls)
    assert result["published_rank"]


def test_a_second_start_compiles_nothing(
    compiler: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(WORDS) == 0
    calls, text = compiler.read_text(), Path("t5x-large-1xl40s.yaml").read_text()
    first = capsys.readouterr().out
    assert cli.main(WORDS) == 0
    assert (compiler.read_text(), Path("t5x-large-1xl40s.yaml").read_text()) == (calls, text)
    again = capsys.readouterr().out
    assert [line for line in first.splitlines() if "compiled, " not in line] == [
        line for line in again.splitlines() if "compiled, " not in line
    ]


def test_figures_of_another_rosetta_are_refused(
    compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(WORDS) == 0
    copy = shutil.copytree(Path(*rosetta.__path__), Path("copy", "rosetta"))
    monkeypatch.setattr(rosetta, "__path__", [str(copy)])
    calls = compiler.read_text()
    assert cli.main(WORDS) == 0, "the same files in another folder"
    with (copy / "plan" / "roofline.py").open("a") as file:
        file.write("# changed\n")
    with errors.expect_reported_error(errors.DIFFERS, where=".jsonl", names="rosetta"):
        assert cli.main(WORDS) == 2
    assert compiler.read_text() == calls


def test_set_options_are_not_searched(compiler: Path) -> None:
    words = ["--batch-per-gpu", "8", "--microbatches", "2", "--with", "remat=full"]
    assert cli.main([*WORDS, *words]) == 0
    for call in compiler.read_text().splitlines():
        assert "--batch-per-gpu 8 --microbatches 2" in call
        assert "remat=full" in call


def test_what_does_not_fit_gets_the_smallest_change_that_does(compiler: Path) -> None:
    words = ["plan", "t5x", "--size", "xxl", "--card", "h100", "--gpus", "1", "--search"]
    with errors.expect_reported_error(errors.TOO_BIG, where="--gpus 1", remedy="--gpus 4"):
        assert cli.main(words) == 2
    assert not compiler.exists(), "the state alone is too big"


@pytest.mark.parametrize(
    ("words", "kind", "facts"),
    [
        (["--gpus", "0"], errors.INVALID, {"where": "rosetta plan t5x --gpus", "value": "0"}),
        (["--gpus", "9"], errors.INVALID, {"where": "--gpus 9", "value": 9}),
        (["--card", "h1000"], errors.UNKNOWN, {"where": "--card", "value": "h1000"}),
        (["--size", "huge"], errors.UNKNOWN, {"where": "--size", "value": "huge"}),
        (["--gpus", "8", "--tp", "3"], errors.INVALID, {"where": "--tp 3", "value": 3}),
        (["--gpus", "8", "--size", "small", "--tp", "4"], errors.INVALID, {"where": "--tp 4"}),
        (
            ["--gpus", "8", "--tp", "1", "--global-batch", "12"],
            errors.INVALID,
            {"where": "--global-batch 12", "value": 12, "remedy": "8"},
        ),
        (["--global-batch", "0"], errors.INVALID, {"where": "rosetta plan t5x --global-batch"}),
        (["--batch-per-gpu", "3", "--microbatches", "2"], errors.INVALID, {"where": "--search"}),
        (["--trials", "none"], errors.INVALID, {"where": "rosetta plan t5x --trials"}),
        (["--dropout", "0.1"], errors.UNSUPPORTED, {"where": "--dropout 0.1"}),
        (["--family", "mt5"], errors.UNSUPPORTED, {"where": "--family mt5", "value": "mt5"}),
        (["--with", "num_heads=8"], errors.UNSUPPORTED, {"where": "--with num_heads"}),
        (["--with", "fp8=te"], errors.UNSUPPORTED, {"where": "--with fp8"}),
        (["--hlo", "step.hlo"], errors.CONFLICT, {"where": "--hlo"}),
        (["--output", "/"], errors.INVALID, {"where": "--output /"}),
        (["--output", "/proc/x.yaml"], errors.DENIED, {"where": "/proc", "value": "/proc"}),
        (["--output", "x.png"], errors.CONFLICT, {"where": "--output"}),
    ],
)
def test_an_error_is_one_line_and_compiles_nothing(
    compiler: Path,
    words: list[str],
    kind: str,
    facts: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with errors.expect_reported_error(kind, **facts):
        assert cli.main([*WORDS, *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not compiler.exists()
    assert [path.name for path in Path().iterdir()] == ["python"]


@pytest.mark.parametrize(
    ("words", "kind", "facts"),
    [
        (["Nothing"], errors.UNKNOWN, {"value": "Nothing"}),
        (["my.Model"], errors.UNSUPPORTED, {"where": "my.Model"}),
        (["Synthetic5B", "--with", "NO_SUCH"], errors.INVALID, {"value": "NO_SUCH"}),
        (
            ["Synthetic5B", "--with", "ICI_MESH_SHAPE=[1,8,1]"],
            errors.CONFLICT,
            {"where": "ICI_MESH_SHAPE"},
        ),
        (
            ["Synthetic126M", "--gpus", "8", "--global-batch", "3"],
            errors.INVALID,
            {"where": "--global-batch 3", "value": 3},
        ),
        (["Synthetic5B", "--with", "NUM_MICROBATCHES=0"], errors.INVALID, {"value": 0}),
        (["Synthetic5B", "--with", "PERCORE_BATCH_SIZE=two"], errors.INVALID, {"value": "two"}),
        (["Synthetic5B", "--with", "PERCORE_BATCH_SIZE=0"], errors.INVALID, {"value": 0}),
        (["Synthetic5B", "--with", "MAX_SEQ_LEN=long"], errors.INVALID, {"value": "long"}),
        (["Synthetic5B", "--with", "NUM_LAYERS=two"], errors.INVALID, {"value": "two"}),
    ],
)
def test_an_error_of_pax_is_one_line_and_compiles_nothing(
    compiler: Path,
    words: list[str],
    kind: str,
    facts: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with errors.expect_reported_error(kind, **facts):
        assert cli.main(["plan", "pax", *words, "--search"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not compiler.exists()


@pytest.mark.parametrize("option", ["--global-batch", "--trials", "--seconds", "--output"])
def test_options_of_a_search_need_it(compiler: Path, option: str) -> None:
    with errors.expect_reported_error(errors.CONFLICT, where=option):
        assert cli.main([*WORDS[:-1], option, "8"]) == 2
    assert not compiler.exists()


@pytest.mark.parametrize("name", ["XLA_FLAGS", "BASE_XLA_FLAGS"])
def test_flags_of_the_environment_are_refused(
    compiler: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "--xla_gpu_enable_triton_gemm=true")
    with errors.expect_reported_error(errors.CONFLICT, where=name):
        assert cli.main(WORDS) == 2
    assert not compiler.exists()


def test_an_environment_without_a_compiler_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    with errors.expect_reported_error(errors.UNSUPPORTED, where="jax-cuda13-plugin"):
        assert cli.main(WORDS) == 2
    assert not list(tmp_path.iterdir())
