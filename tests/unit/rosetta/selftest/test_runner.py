"""The self-test cleans up after errors, and starts only processes that the container allows."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from rosetta.core.errors import INVALID, UserError
from rosetta.selftest import child_process, feature_checks, report, runner, shipped_modules
from rosetta.selftest.child_process import Context
from tests.support import errors
from tests.support.fake_workload import FakeWorkload

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, and a framework that trains nothing."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(runner, "load_workload", lambda _: FakeWorkload("none"))
    monkeypatch.setattr(shipped_modules, "read_known_failures", lambda *_: {})
    return folder


def _run(**options: Any) -> dict[str, Any]:
    return runner.run_selftest(runner.Options("fake", devices=(1,), with_imports=False, **options))


def test_all_parts_are_in_the_result(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = feature_checks.FeatureCheck("collective", "passed", devices=2, wall_s=1.0)
    monkeypatch.setattr(feature_checks, "sum_over_all_devices", lambda *_: passed)
    result = _run()
    assert result["ok"], result["problems"]
    outcomes = {check["name"]: check["outcome"] for check in result["checks"]}
    assert outcomes == {"fp8": "passed", "te": "not run", "collective": "passed"}
    text = report.format_result(result).splitlines()
    assert [line for line in text if line.startswith("te: not run: ")]
    assert list(temporary.iterdir()) == []


def test_a_failed_check_fails_the_selftest(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = feature_checks.FeatureCheck("collective", "failed", devices=2, problems=("7 wrong",))
    monkeypatch.setattr(feature_checks, "sum_over_all_devices", lambda *_: failed)
    result = _run()
    assert (result["ok"], result["problems"]) == (False, ["collective: 7 wrong"])
    assert len(list(temporary.iterdir())) == 1, "the logs are kept"


@pytest.mark.usefixtures("temporary")
def test_without_training_each_check_says_why_it_was_not_run() -> None:
    result = _run(with_training=False)
    assert [(check["name"], check["outcome"], check["lacks"]) for check in result["checks"]] == [
        (name, "not run", "option") for name in feature_checks.NAMES
    ]
    assert all("--imports-only" in check["reason"] for check in result["checks"])


@pytest.mark.parametrize("keep", [False, True])
def test_the_temporary_folder_goes_after_an_error(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UserError("is not valid", "here", "repair the file", kind=INVALID)

    monkeypatch.setattr(child_process, "run_process", refuse)
    with errors.expect_user_error(INVALID, where="here"):
        _run(keep=keep)
    assert len(list(temporary.iterdir())) == int(keep)


def _count_jobs(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of processes on a machine with 16 cores, 64 GiB and these files."""
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GIB // 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    return runner.choose_job_count(lambda path: files.get(path, ""))


@pytest.mark.parametrize(
    ("files", "jobs"),
    [
        ({}, 3),
        ({"/sys/fs/cgroup/memory.max": "max"}, 3),
        ({"/sys/fs/cgroup/memory.max": str(7 * GIB)}, 2),
        ({"/sys/fs/cgroup/memory.max": str(2 * GIB)}, 1),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": str(4 * GIB)}, 1),
        ({"/sys/fs/cgroup/cpu.max": "200000 100000"}, 2),
        ({"/sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        (
            {
                "/proc/self/cgroup": "0::/docker/1",
                "/sys/fs/cgroup/docker/memory.max": str(6 * GIB),
                "/sys/fs/cgroup/docker/1/memory.max": "max",
            },
            2,
        ),
    ],
)
def test_the_container_limits_the_number_of_processes(
    files: dict[str, str], jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _count_jobs(files, monkeypatch) == jobs


def test_a_stopped_context_ends_the_checks(temporary: Path) -> None:
    context = Context(temporary, lambda _: None)
    context.stop.set()
    with pytest.raises(child_process.Stopped):
        feature_checks.sum_over_all_devices(context, temporary, 2)
