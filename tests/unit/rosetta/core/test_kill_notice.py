"""Lines on processes that were killed."""

from __future__ import annotations

import pytest

from rosetta.core import kill_notice


@pytest.mark.parametrize(
    ("status", "kills_before", "kills_after", "words"),
    [
        (137, 3, 4, "the kernel ended a process because memory ran out"),
        (137, 3, 3, "because it reached a memory limit"),
        (137, None, None, "because it reached a memory limit"),
        (1, 3, 4, None),
        (0, 3, 4, None),
        (143, 3, 4, None),
    ],
)
def test_the_kernels_count_shows_whether_memory_ran_out(
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    kills_before: int | None,
    kills_after: int | None,
    words: str | None,
) -> None:
    monkeypatch.setattr(kill_notice, "count_oom_kills", lambda: kills_after)
    line = kill_notice.describe_kill("process 3", status, kills_before)
    if words is None:
        assert line is None
    else:
        assert line is not None
        assert line.startswith("process 3 was killed (status 137): ")
        assert words in line


def test_the_kernel_reports_its_count() -> None:
    assert kill_notice.count_oom_kills() is not None
