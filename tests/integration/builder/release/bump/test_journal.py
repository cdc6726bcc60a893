from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from builder import cli
from tests.support.bump_history import Story
from tests.support.patch_series import make_text

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[5]


def test_aborted_everything_is_as_it_was(story: Story) -> None:
    bench = story.bench
    bench.lay("more.txt", b"more\n", "new").chmod(0o755)
    story.blocked()
    before = story.ours()
    story.run()
    assert story.ours() != before
    story.mend()
    bench.lay("other.txt", b"other\n", "new")
    bench.add("new", bench.upstream.diff({"pkg/b.py": b"x = 2\n"}))
    (bench.overlay / "more.txt").unlink()
    status, out = story.run("--abort")
    assert (status, story.ours()) == (0, before)
    assert (bench.overlay / "more.txt").stat().st_mode & 0o777 == 0o755
    assert "patches/up/mine.patch" in out
    status, out = story.run("--abort")
    assert (status, "there is nothing to restore" in out) == (2, True)


def test_abort_does_not_undo_a_pin_that_a_person_set(story: Story) -> None:
    story.blocked()
    first = story.bench.upstream.git.text("rev-parse", f"{story.bench.upstream.head}~3")
    story.run()
    story.manifest.write_text(story.manifest.read_text().replace(str(story.pinned), first))
    before = story.ours()
    status, out = story.run("--abort")
    assert (status, story.ours()) == (2, before)
    assert "the pin of up was edited" in out


_KILL = """
import os, sys
count = int(sys.argv.pop(1))
real = os.replace
def replace(*args):
    global count
    if any(word in os.fsdecode(args[1]) for word in ("manifest.yaml", "patches/", "/bump/")):
        if count == 0:
            os.kill(os.getpid(), 9)
        count -= 1
    return real(*args)
os.replace = replace
from builder import cli
sys.exit(cli.main(sys.argv[1:]))
"""


def _killed(story: Story, at: int, *argv: str) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", _KILL, str(at), *story.argv(*argv)],
        cwd=ROOT,
        capture_output=True,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode in (0, 1, -signal.SIGKILL), done.stderr.decode()
    return done.returncode == -signal.SIGKILL


def _scene(story: Story) -> None:
    bench = story.bench
    story.mine(l20="ours\n")
    bench.add("other", bench.upstream.diff({"pkg/b.py": b"x = 1\ny = 2\nz = 4\n"}))
    story.pin()
    bench.upstream.commit(
        {"pkg/a.py": make_text(l1="a\nb\n"), "pkg/b.py": b"w = 0\nx = 1\ny = 2\nz = 3\n"},
        "elsewhere",
    )


@pytest.mark.parametrize("then", ["rerun", "abort"])
def test_killed_at_any_write_a_rerun_finishes_and_abort_undoes(story: Story, then: str) -> None:
    _scene(story)
    before = story.ours()
    at = 0
    while _killed(story, at):
        if then == "rerun":
            assert story.run()[0] == 0
            assert story.pinned == story.bench.upstream.head
            assert [one["outcome"] for one in story.up("--forecast")["patches"]] == [
                "applies",
                "applies",
            ]
        else:
            status, out = story.run("--abort")
            assert status in ((0, 2) if at == 0 else (0,)), out
            assert story.ours() == before
        for path, data in before.items():
            (story.bench.root / path).write_bytes(data)
        at += 1
    assert at >= 5


def test_a_file_edited_after_a_kill_is_not_overwritten(story: Story) -> None:
    _scene(story)
    journal = story.bench.root / "cache/bump"
    assert any(
        _killed(story, n)
        and any(b'"writing": {' in one.read_bytes() for one in journal.glob("[0-9a-f]*.json"))
        for n in range(9)
    )
    file = story.bench.patches / "other.patch"
    file.write_bytes(
        file.read_bytes().replace(b"Subject: [PATCH] up: other", b"Subject: [PATCH] up: edited")
    )
    before = story.ours()
    status, out = story.run()
    assert (status, story.ours()) == (2, before)
    assert "was edited before a bump that was killed has finished" in out


def test_a_journal_that_is_damaged(story: Story) -> None:
    story.blocked()
    story.run()
    (file,) = (story.bench.root / "cache/bump").glob("*.json")
    file.write_text(json.dumps({"schema": 1}))
    status, out = story.run()
    assert (status, "not a valid journal of a bump" in out) == (2, True)


def test_one_manifest_knows_nothing_of_another(story: Story) -> None:
    story.blocked()
    story.run()
    other = story.bench.root / "other.yaml"
    other.write_text(story.manifest.read_text())
    assert cli.main(["bump", "--abort", "--manifest", str(other)]) == 2
