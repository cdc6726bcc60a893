from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from builder import cli
from tests.builder.bump.bumpkit import Story
from tests.builder.patchkit import text

ROOT = Path(__file__).resolve().parents[3]


def _blocked(story: Story) -> str:
    """A pin that can go one commit far; the tip breaks the patch. Returns the tip."""
    story.mine(l20="ours\n")
    story.pin()
    up = story.bench.upstream
    up.commit({"pkg/a.py": text(l1="a\nb\n")}, "elsewhere")
    return up.commit({"pkg/a.py": text(l1="a\nb\n", l20="theirs\n")}, "rework")


def _mend(story: Story) -> None:
    """As a person does: the patch made anew against the tip, by hand, not as git writes it."""
    diff = story.bench.upstream.diff({"pkg/a.py": text(l1="a\nb\n", l20="ours and theirs\n")}, context=3)
    file = story.bench.patches / "mine.patch"
    file.write_bytes(file.read_bytes().partition(b"---\n")[0] + b"---\n" + diff)


def test_a_forecast_changes_nothing(story: Story) -> None:
    tip = _blocked(story)
    before = story.ours()
    status, document = story.json("--forecast")
    assert (status, story.ours()) == (1, before)
    up = document["result"]["sources"]["up"]
    assert (up["tip"], up["pin"] == up["applies_up_to"], document["result"]["forecast"]) == (tip, True, True)
    assert not (story.bench.root / "cache/bump").exists() or not list((story.bench.root / "cache/bump").iterdir())
    (story.bench.patches / "series").write_text("")
    (story.bench.patches / "mine.patch").unlink()
    assert story.run("--forecast")[0] == 0


def test_tip_only_leaves_the_pin(story: Story) -> None:
    _blocked(story)
    before = story.ours()
    status, out = story.run("--tip-only")
    assert (status, story.ours()) == (1, before)
    assert "up: not moved" in out
    assert f"the stack applies up to {story.up('--forecast')['applies_up_to']}" in out


def test_mended_and_continued(story: Story) -> None:
    tip = _blocked(story)
    status, out = story.run()
    assert (status, story.pinned == tip) == (1, False)
    assert "build.py bump --continue" in out
    status, out = story.run("--continue")
    assert (status, "rework" in out) == (1, True)
    _mend(story)
    later = story.bench.upstream.commit({"README": b"later\n"}, "comes too late")
    status, out = story.run("--continue")
    assert (status, story.pinned) == (0, tip)
    assert story.run("refresh", "--dry-run", verb="patches")[0] == 0
    assert story.run("--continue")[0] == 2
    assert story.run()[0] == 0
    assert story.pinned == later


def test_a_plain_run_after_mending_goes_to_the_newest(story: Story) -> None:
    _blocked(story)
    story.run()
    _mend(story)
    later = story.bench.upstream.commit({"README": b"later\n"}, "later")
    assert story.run()[0] == 0
    assert story.pinned == later


def test_aborted_everything_is_as_it_was(story: Story) -> None:
    bench = story.bench
    bench.lay("more.txt", b"more\n", "new").chmod(0o755)
    _blocked(story)
    before = story.ours()
    story.run()
    assert story.ours() != before
    _mend(story)
    bench.lay("other.txt", b"other\n", "new")
    bench.add("new", bench.upstream.diff({"pkg/b.py": b"x = 2\n"}))
    (bench.overlay / "more.txt").unlink()
    status, out = story.run("--abort")
    assert (status, story.ours()) == (0, before)
    assert (bench.overlay / "more.txt").stat().st_mode & 0o777 == 0o755
    assert "patches/up/mine.patch" in out
    status, out = story.run("--abort")
    assert (status, "there is nothing to put back" in out) == (2, True)


def test_abort_does_not_undo_a_pin_that_a_person_set(story: Story) -> None:
    _blocked(story)
    first = story.bench.upstream.git.text("rev-parse", f"{story.bench.upstream.head}~3")
    story.run()
    story.manifest.write_text(story.manifest.read_text().replace(str(story.pinned), first))
    before = story.ours()
    status, out = story.run("--abort")
    assert (status, story.ours()) == (2, before)
    assert "the pin of up was edited since" in out


def test_a_source_that_cannot_move_holds_back_nobody(story: Story) -> None:
    _blocked(story)
    other = story.bench.root / "patches/other"
    other.mkdir()
    (other / "series").write_text("")
    pin = story.bench.upstream.git.text("rev-parse", "main~2")
    text_ = story.manifest.read_text().replace("lines:", f"  zz: {{git: https://example.org/up.git, track: main, commit: {pin}, patches: patches/other}}\nlines:")
    story.manifest.write_text(text_)
    status, document = story.json()
    assert (status, document["result"]["summary"]) == (1, {"up": "part-way", "zz": "moved"})
    before = story.ours()
    status, document = story.json("--continue")
    assert (list(document["result"]["sources"]), story.ours()) == (["up"], before)
    # What had moved is put back too: it was the same bump.
    story.run("--abort")
    assert story.manifest.read_text() == text_


def test_a_bump_of_one_source_forgets_nothing_of_another(story: Story) -> None:
    _blocked(story)
    other = story.bench.root / "patches/other"
    other.mkdir()
    (other / "series").write_text("")
    pin = story.bench.upstream.git.text("rev-parse", "main~2")
    story.manifest.write_text(story.manifest.read_text().replace("lines:", f"  zz: {{git: https://example.org/up.git, track: main, commit: {pin}, patches: patches/other}}\nlines:"))
    before = story.ours()
    assert story.run("up")[0] == 1
    assert story.run("zz")[0] == 0
    assert story.run("--abort")[0] == 0
    assert story.ours() == before


def test_a_path_that_is_never_exported_and_is_gone_holds_the_pin(story: Story) -> None:
    good = story.pin()
    story.manifest.write_text(story.manifest.read_text().replace("patches: patches/up", "patches: patches/up, absent: [README]"))
    story.bench.upstream.commit({"README": None}, "away")
    status, out = story.run()
    assert (status, story.pinned) == (1, good)
    assert "absent names 'README', which the pin does not have" in out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("nosuch",), "no source 'nosuch'"),
        (("wheel",), "wheel is a release wheel"),
        (("--continue",), "no bump of this manifest waits"),
        (("--abort",), "no bump of this manifest waits"),
        (("--abort", "up"), "puts all sources back, not some"),
        (("--forecast", "--abort"), "not allowed with"),
        (("--log", "-1"), "--log"),
        (("--log", "x"), "is no number of commits"),
    ],
)
def test_wrong_use_is_one_line(story: Story, argv: tuple[str, ...], says: str) -> None:
    story.pin()
    story.manifest.write_text(story.manifest.read_text().replace("lines:", f"  wheel: {{wheel: w==1.0, sha256: {'ab' * 32}, patches: patches/up}}\nlines:"))
    status, out = story.run(*argv)
    assert (status, len(out.splitlines())) == (2, 1), out
    assert says in out


def test_wheels_are_left_alone(story: Story) -> None:
    story.pin()
    story.manifest.write_text(story.manifest.read_text().replace("lines:", f"  wheel: {{wheel: w==1.0, sha256: {'ab' * 32}, patches: patches/up}}\nlines:"))
    assert list(story.json()[1]["result"]["sources"]) == ["up"]


def test_the_log_is_bounded(story: Story) -> None:
    story.pin()
    for n in range(5):
        story.bench.upstream.commit({"README": f"{n}\n".encode()}, f"number {n}\x1b[31m")
    out = story.run("--forecast", "--log", "2")[1]
    assert [line for line in out.splitlines() if "number" in line][-1].endswith("number 3 [31m")
    assert "and 3 more (--log 5 shows them)" in out
    up = story.up("--log", "2", "--forecast")
    assert (len(up["log"]), up["commits"], up["days"]) == (2, 5, 5)


def test_a_patch_file_that_breaks_a_rule_is_told_before_anything_moves(story: Story) -> None:
    story.bench.add("mine", b"nonsense\n")
    story.pin()
    story.bench.upstream.commit({"README": b"x\n"}, "later")
    before = story.ours()
    status, out = story.run()
    assert (status, story.ours()) == (2, before)
    assert "patches/up/mine.patch:10" in out


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
    done = subprocess.run([sys.executable, "-c", _KILL, str(at), *story.argv(*argv)], cwd=ROOT, capture_output=True, check=False, env=dict(os.environ))
    assert done.returncode in (0, 1, -signal.SIGKILL), done.stderr.decode()
    return done.returncode == -signal.SIGKILL


def _scene(story: Story) -> None:
    bench = story.bench
    story.mine(l20="ours\n")
    bench.add("other", bench.upstream.diff({"pkg/b.py": b"x = 1\ny = 2\nz = 4\n"}))
    story.pin()
    bench.upstream.commit({"pkg/a.py": text(l1="a\nb\n"), "pkg/b.py": b"w = 0\nx = 1\ny = 2\nz = 3\n"}, "elsewhere")


@pytest.mark.parametrize("then", ["rerun", "abort"])
def test_killed_at_any_write_a_rerun_finishes_and_abort_undoes(story: Story, then: str) -> None:
    _scene(story)
    before = story.ours()
    at = 0
    while _killed(story, at):
        if then == "rerun":
            assert story.run()[0] == 0
            assert story.pinned == story.bench.upstream.head
            assert [one["outcome"] for one in story.up("--forecast")["patches"]] == ["applies", "applies"]
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
    assert any(_killed(story, n) and any(b'"writing": {' in one.read_bytes() for one in journal.glob("[0-9a-f]*.json")) for n in range(9))
    file = story.bench.patches / "other.patch"
    file.write_bytes(file.read_bytes().replace(b"Subject: [PATCH] up: other", b"Subject: [PATCH] up: edited"))
    before = story.ours()
    status, out = story.run()
    assert (status, story.ours()) == (2, before)
    assert "was edited while a bump that was killed is not finished" in out


def test_a_journal_that_is_damaged(story: Story) -> None:
    _blocked(story)
    story.run()
    (file,) = (story.bench.root / "cache/bump").glob("*.json")
    file.write_text(json.dumps({"schema": 1}))
    status, out = story.run()
    assert (status, "is no journal of a bump" in out) == (2, True)


def test_one_manifest_knows_nothing_of_another(story: Story) -> None:
    _blocked(story)
    story.run()
    other = story.bench.root / "other.yaml"
    other.write_text(story.manifest.read_text())
    assert cli.main(["bump", "--abort", "--manifest", str(other)]) == 2
