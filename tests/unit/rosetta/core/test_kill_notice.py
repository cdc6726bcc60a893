"""What is said of processes that were killed."""

from __future__ import annotations

import pytest

from rosetta.core import kill_notice


@pytest.mark.parametrize(
    ("code", "before", "after", "words"),
    [
        (137, 3, 4, "the kernel ended a process since memory ran out"),
        (137, 3, 3, "by somebody, or by a memory limit that was reached"),
        (137, None, None, "by somebody, or by a memory limit that was reached"),
        (1, 3, 4, None),
        (0, 3, 4, None),
        (143, 3, 4, None),
    ],
)
def test_the_kernels_count_tells_who_killed_it(
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    before: int | None,
    after: int | None,
    words: str | None,
) -> None:
    monkeypatch.setattr(kill_notice, "count_oom_kills", lambda: after)
    line = kill_notice.describe_kill("process 3", code, before)
    if words is None:
        assert line is None
    else:
        assert line is not None
        assert line.startswith("process 3 was killed (status 137): ")
        assert words in line


def test_the_kernel_tells_its_count() -> None:
    assert kill_notice.count_oom_kills() is not None
