"""A bisect that is killed at any point goes on where it was: no answer is lost, and none is asked for twice."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys

import pytest

from tests.support import small_distribution
from tests.support.bisect_history import Story, get_only_culprit
from tests.support.small_distribution import ROOT

pytestmark = pytest.mark.slow

BAD = "'bad' in text('bad.py')"


def _killed(story: Story, *argv: str, program: str = small_distribution._MAIN, **extra: str) -> int:
    command = [sys.executable, "-I", "-c", program, str(ROOT), *argv]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=story.chain.environment() | extra,
        cwd=story.folder,
        start_new_session=True,
    )
    if done.returncode == 0 and extra:
        return int(done.stderr.split()[-1])
    return done.returncode


def test_killed_in_each_build(story: Story) -> None:
    """By the command itself, so that each build in turn is the one without an answer."""
    story.end("good")
    commits = story.many(12, bad=8)
    story.end("bad")
    expression = f"os.killpg(0, 9) if os.path.getsize({str(story.log)!r}) % 2 else {BAD}"
    argv = story.argv(expression, "--work", str(story.folder / "work"))
    assert _killed(story, *argv) == -signal.SIGKILL
    rounds = 1
    while (status := _killed(story, *argv)) == -signal.SIGKILL:
        rounds += 1
    assert status == 0
    result = story.main(*argv)[1]["result"]
    assert get_only_culprit(result)["commit"] == commits[8]
    answered = result["builds"] + 2
    assert (rounds, story.calls()) == (answered, 2 * answered), (
        "each build was killed once, then answered once"
    )


def test_killed_at_any_step_of_ours(story: Story) -> None:
    story.end("good")
    commits = story.many(6, bad=3)
    story.end("bad")
    argv = story.argv(BAD, "--work", str(story.folder / "work"))
    total = _killed(story, *argv, program=small_distribution.KILLED, KILL_AT="0")
    answered = story.calls()
    assert total > 20
    for point in sorted({1 + total * part // 10 for part in range(10)}):
        for folder in (story.chain.cache, story.folder / "work"):
            shutil.rmtree(folder, ignore_errors=True)
        story.log.unlink(missing_ok=True)
        assert (
            _killed(story, *argv, program=small_distribution.KILLED, KILL_AT=str(point))
            == -signal.SIGKILL
        ), point
        status, document = story.main(*argv)
        assert (status, get_only_culprit(document["result"])["commit"]) == (0, commits[3]), point
        assert story.calls() <= answered + 1, point
