"""A check of a feature passes only if the feature was used, and says why it did not run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import rosetta
from rosetta.core import gpu_query, transformer_engine
from rosetta.core.gpu_query import DetectedGpu
from rosetta.selftest import child_process, feature_checks
from rosetta.selftest.child_process import Context
from rosetta.selftest.feature_checks import FP8, TE, FeatureCheck
from tests.support import required_modules
from tests.support.fake_workload import FakeWorkload

H100 = DetectedGpu("NVIDIA H100 80GB HBM3", (9, 0))
A100 = DetectedGpu("NVIDIA A100-SXM4-80GB", (8, 0))
V100 = DetectedGpu("Tesla V100-SXM2-32GB", (7, 0))
UNKNOWN = DetectedGpu("a GPU", gpu_query.UNKNOWN_CAPABILITY)


@pytest.fixture
def with_te(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment with Transformer Engine, and one H100."""
    monkeypatch.setattr(transformer_engine, "explain_absence", lambda: None)
    monkeypatch.setattr(gpu_query, "detect_gpus", lambda _: [H100])
    monkeypatch.setenv(child_process.PLATFORM_VARIABLE, "cuda")


def train(tmp_path: Path, name: str, fault: str = "none", problem: str = "") -> FeatureCheck:
    context = Context(tmp_path / "cache", lambda _: None)
    workload = FakeWorkload(fault, fp8_problem=problem)
    return feature_checks.train_in_fp8(context, workload, tmp_path / "run", name)


def test_fp8_passes_on_the_cpu(tmp_path: Path) -> None:
    check = train(tmp_path, FP8)
    assert check.problems == ()
    document = check.as_json()
    assert document.pop("wall_s") > 0
    assert document == {
        "name": "fp8",
        "outcome": "passed",
        "lacks": None,
        "reason": None,
        "platform": "cpu",
        "devices": 1,
        "losses": {"5": 5.5, "10": 5.0, "15": 4.5},
    }


@pytest.mark.usefixtures("with_te")
def test_transformer_engine_passes_on_a_gpu(tmp_path: Path) -> None:
    check = train(tmp_path, TE)
    assert (check.outcome, check.platform, check.problems) == ("passed", "cuda", ())


@pytest.mark.usefixtures("with_te")
@pytest.mark.parametrize(
    ("name", "fault", "shown"),
    [
        (FP8, "crash", "out of paper"),
        (FP8, "nan", "nan"),
        (FP8, "flat", "5.0000"),
        (FP8, "no-checkpoint", "15"),
        (FP8, "no-fp8", "FP8"),
        (TE, "no-te", "instead of Transformer Engine"),
        (TE, "no-fp8", "FP8"),
    ],
)
def test_a_run_that_does_not_show_the_feature_fails(
    tmp_path: Path, name: str, fault: str, shown: str
) -> None:
    check = train(tmp_path, name, fault)
    assert check.outcome == "failed"
    assert any(shown in problem for problem in check.problems), check.problems


@pytest.mark.usefixtures("with_te")
def test_fp8_by_xla_may_say_that_it_is_by_xla(tmp_path: Path) -> None:
    assert train(tmp_path, FP8, "no-te").outcome == "passed"


@pytest.mark.usefixtures("with_te")
@pytest.mark.parametrize(
    ("name", "gpu", "lacks"),
    [
        (FP8, H100, None),
        (FP8, UNKNOWN, None),
        (FP8, A100, "machine"),
        (TE, H100, None),
        (TE, A100, "machine"),
        (TE, V100, "machine"),
    ],
)
def test_a_gpu_without_the_feature_is_named(
    name: str, gpu: DetectedGpu, lacks: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_query, "detect_gpus", lambda _: [gpu])
    check = feature_checks.find_obstacle(name, FakeWorkload("none"))
    assert (check and check.lacks) == lacks
    assert check is None or gpu.name in str(check.reason)


def test_what_the_environment_lacks_is_told_apart_from_what_the_machine_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (FP8, TE):
        check = train(tmp_path, name, problem="JAX 0.4.26 is older")
        assert (check.outcome, check.lacks, check.devices) == ("not run", "environment", 0)
        assert check.reason == "JAX 0.4.26 is older"
    monkeypatch.setattr(transformer_engine, "explain_absence", lambda: "left out")
    check = train(tmp_path, TE)
    assert (check.outcome, check.lacks) == ("not run", "environment")
    assert str(check.reason).endswith("left out")
    monkeypatch.setattr(transformer_engine, "explain_absence", lambda: None)
    check = train(tmp_path, TE)
    assert (check.outcome, check.lacks) == ("not run", "machine")
    assert child_process.PLATFORM_VARIABLE in str(check.reason)
    assert not (tmp_path / "run").exists()


def _answer_with(
    document: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> dict[str, object]:
    """Let the child process of the collective write a document, or fail; return its options."""
    options: dict[str, object] = {}

    def run_process(_context: object, _argv: list[str], log: Path, **given: object) -> int:
        options.update(given)
        log.write_text("no NCCL\n")
        if document is None:
            return 1
        (tmp_path / "collective.json").write_text(document)
        return 0

    monkeypatch.setattr(child_process, "run_process", run_process)
    return options


@pytest.mark.parametrize(
    ("document", "outcome", "lacks", "devices"),
    [
        ('{"devices": 8, "kind": "H100", "wrong": [0, 0, 0, 0, 0, 0, 0, 0]}', "passed", None, 8),
        ('{"devices": 2, "kind": "H100", "wrong": [0, 7]}', "failed", None, 2),
        ('{"devices": 1, "kind": "H100", "wrong": []}', "not run", "machine", 0),
        (None, "failed", None, 0),
    ],
)
def test_the_collective(
    tmp_path: Path,
    document: str | None,
    outcome: str,
    lacks: str | None,
    devices: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = _answer_with(document, monkeypatch, tmp_path)
    context = Context(tmp_path / "cache", lambda _: None)
    check = feature_checks.sum_over_all_devices(context, tmp_path, 1)
    assert (check.outcome, check.lacks, check.devices) == (outcome, lacks, devices)
    assert options["all_gpus"] is True
    assert options["env"] == {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    if outcome == "failed":
        assert len(check.problems) == 1
        assert ("no NCCL" if document is None else "7") in check.problems[0]
    if lacks:
        assert "H100" in str(check.reason)


@pytest.mark.slow
def test_a_collective_over_virtual_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    required_modules.need_modules("jax")
    # The child process does not look for modules in the current folder.
    monkeypatch.setenv("PYTHONPATH", str(Path(rosetta.__file__).parents[1]))
    context = Context(tmp_path / "cache", lambda _: None)
    check = feature_checks.sum_over_all_devices(context, tmp_path, 8)
    assert dataclasses.replace(check, wall_s=0.0) == FeatureCheck(
        feature_checks.COLLECTIVE, feature_checks.PASSED, platform="cpu", devices=8
    )
