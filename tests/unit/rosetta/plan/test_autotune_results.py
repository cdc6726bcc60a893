"""Results of autotuning that a plan loads: which files are refused, and what XLA gets.

The files have the form that jaxlib 0.10.2 took for an H100 that is not there.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from rosetta import cli
from rosetta.core import gpus
from rosetta.plan import autotune_results, t5x_step, xla_target
from rosetta.plan.t5x_step import CompiledStep
from tests.support import errors
from tests.support.hlo_module import TEXT

H100 = gpus.GPUS["h100"]


def format_results(capability: str = "9.0", cores: int = 132, dnn: str = "9.28.1") -> str:
    return f"""version: 3
results {{
  device: "CUDA: {capability}, Cores: {cores}, GPU clock: 1.98 GHz, Memory bandwidth: 3352 GB/s, \
L2 cache: 50 MB, DNN version: {dnn}"
  hlo: "{{\\n  tmp_0 = bf16[4096,1024]{{1,0}} parameter(0)\\n}}"
  version: 45
  result {{
    triton {{ block_m: 32 block_n: 32 block_k: 32 num_stages: 2 num_warps: 2 num_ctas: 1 }}
  }}
}}
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    file = tmp_path / "results.txt"
    file.write_text(format_results())
    return file


def test_merged_results_have_each_result_once(tmp_path: Path) -> None:
    texts = (
        format_results(),
        format_results().replace("block_m: 32", "block_m: 64"),  # of the same instruction
        format_results().replace("tmp_0", "tmp_1"),
    )
    files = []
    for number, text in enumerate(texts):
        files.append(tmp_path / f"{number}.txt")
        files[-1].write_text(text)
    merged = tmp_path / "merged.txt"
    autotune_results.merge_results_files(files, merged)
    text = merged.read_text()
    assert (text.count("version: 3"), text.count("results {"), text.count("tmp_1")) == (1, 2, 1)
    assert "block_m: 64" not in text
    assert autotune_results.read_dnn_version(str(merged), H100) == (9, 28, 1)
    autotune_results.merge_results_files([merged, *files], merged)
    assert merged.read_text() == text


def test_the_version_of_cudnn_is_read_and_described_to_xla(results: Path) -> None:
    version = autotune_results.read_dnn_version(str(results), H100)
    assert version == (9, 28, 1)
    described = xla_target.describe_target(H100, version)
    assert "dnn_version_info { major: 9 minor: 28 patch: 1 }" in described
    results.write_text(format_results("8.0", 108, "9.1.0") + format_results())
    assert autotune_results.read_dnn_version(str(results), H100) == (9, 28, 1)


@pytest.mark.parametrize(
    ("name", "text", "kind", "facts"),
    [
        ("missing.txt", None, errors.MISSING, {}),
        ("results.pb", format_results(), errors.INVALID, {"remedy": ".txt"}),
        ("two words.txt", format_results(), errors.INVALID, {}),
        ("empty.txt", "", errors.INVALID, {}),
        ("nonsense.txt", "nonsense\n", errors.INVALID, {}),
        (
            "a100.txt",
            format_results("8.0", 108),
            errors.DIFFERS,
            {"names": ("8.0", "108", "9.0", "132"), "value": "108"},
        ),
        ("pcie.txt", format_results(cores=114), errors.DIFFERS, {"value": "114"}),
    ],
)
def test_a_missing_or_wrong_file_is_refused(
    tmp_path: Path, name: str, text: str | None, kind: str, facts: dict[str, Any]
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    with errors.expect_user_error(kind, where=("--autotune-results", name), **facts):
        autotune_results.read_dnn_version(str(file), H100)


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.txt").write_bytes(b"\x08\x03\xff\xfe")
    with errors.expect_user_error(errors.INVALID, where="binary.txt"):
        autotune_results.read_dnn_version(str(tmp_path / "binary.txt"), H100)


class Lowered:
    """A step whose compilation fails as XLA's does."""

    def __init__(self, message: str) -> None:
        self.message = message

    def compile(self) -> None:
        raise RuntimeError(self.message)


@pytest.mark.parametrize(
    ("message", "kind", "names"),
    [
        (
            "NOT_FOUND: No cached config found for HLO instr: %gemm_fusion_dot.1 = bf16[4] fusion(",
            errors.DIFFERS,
            "%gemm_fusion_dot.1",
        ),
        ("INVALID_ARGUMENT: Failed to parse autotune results string.", errors.INVALID, ""),
    ],
)
def test_what_xla_refuses_is_an_error_of_the_file(
    results: Path, monkeypatch: pytest.MonkeyPatch, message: str, kind: str, names: str
) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--{autotune_results.FLAG}={results}")
    with errors.expect_user_error(kind, where="results.txt", names=names):
        t5x_step.compile_step(Lowered(message), time.monotonic())


def test_other_errors_of_xla_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        t5x_step.compile_step(Lowered("RESOURCE_EXHAUSTED: Out of memory"), time.monotonic())


def test_xla_gets_the_file_and_must_use_it(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t5x_step, "require_compiler", lambda _: None)
    for name in ("JAX_PLATFORMS", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"):
        monkeypatch.setenv(name, "")
    flag = f"--{autotune_results.FLAG}={results}"
    monkeypatch.setenv("XLA_FLAGS", flag)
    t5x_step.prepare_compilation({}, "h100")
    flags = os.environ["XLA_FLAGS"].split()
    assert {flag, autotune_results.REQUIRE_ALL_FLAG, t5x_step.NO_AUTOTUNING_FLAG} <= set(flags)
    with errors.expect_user_error(errors.DIFFERS, where="results.txt"):
        t5x_step.prepare_compilation({}, "a100")
    monkeypatch.setenv("XLA_FLAGS", "")
    t5x_step.prepare_compilation({}, "a100")
    assert autotune_results.REQUIRE_ALL_FLAG not in os.environ["XLA_FLAGS"]


def test_the_option_names_the_file(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compile_step(*_: Any, **__: Any) -> CompiledStep:
        tuned = autotune_results.find_results_file(os.environ["XLA_FLAGS"].split())
        return CompiledStep(TEXT, 1, 1, 0, 1, 1.0, 1, tuned == str(results))

    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/somewhere")
    monkeypatch.setattr(t5x_step, "prepare_t5x_compilation", lambda *_: None)
    monkeypatch.setattr(t5x_step, "compile_t5x_step", compile_step)
    words = ["plan", "t5x", "--gpus", "8", "--autotune-results", str(results)]
    assert cli.main(words) == 0
    assert f", {autotune_results.TUNED};" in capsys.readouterr().out
    with errors.expect_reported_error(errors.MISSING, where="gone.txt"):
        assert cli.main([*words[:-1], str(results.with_name("gone.txt"))]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    monkeypatch.delenv("XLA_FLAGS")
    with errors.expect_reported_error(errors.CONFLICT, where="--autotune-results"):
        assert cli.main([*words, "--search"]) == 2
