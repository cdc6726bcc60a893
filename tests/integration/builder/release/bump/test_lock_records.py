from __future__ import annotations

import json

import pytest

from tests.support.bump_history import Story
from tests.support.patch_series import make_text

pytestmark = pytest.mark.slow

SETUP = b"from setuptools import setup\nsetup(name='up', install_requires=[%s])\n"


def _shipped(story: Story, asks: bytes = b"'numpy'") -> None:
    """The source belongs to a distribution and declares what it asks for."""
    story.bench.upstream.commit({"setup.py": SETUP % asks}, "setup")
    story.mine(l20="ours\n")
    story.pin()
    (story.bench.root / "locks").mkdir()
    (story.bench.root / "locks/common.in").write_text("")
    line = 'lines:\n  now: {python: "3.11", pythons: ["3.11"], common: locks/common.in}\n'
    each = "distributions:\n  up: {line: now, sources: [up], accelerators: [cpu], architectures: [amd64]}\n"
    story.manifest.write_text(
        story.manifest.read_text().replace("lines: {}\n", line).replace("distributions: {}\n", each)
    )


def test_both_records_follow_the_pin_and_say_what_changed(story: Story) -> None:
    _shipped(story)
    up = story.bench.upstream
    pin = up.head
    up.commit({"README": b"x\n"}, "words")
    assert story.run()[0] == 0
    before = json.loads((story.bench.root / "locks/sources.json").read_text())["sources"]["up"]
    old = up.head
    tip = up.commit({"setup.py": SETUP % b"'numpy', 'scipy>=1'"}, "needs more")
    status, document = story.json()
    locks = document["result"]["locks"]
    after = json.loads((story.bench.root / "locks/sources.json").read_text())["sources"]["up"]
    assert (status, before["commit"], after["commit"], pin != old) == (0, old, tip, True)
    assert locks["files"]["locks/declared.json"] == ["+up: scipy>=1"]
    assert locks["files"]["locks/sources.json"] == [
        f"-up: commit {old}",
        f"+up: commit {tip}",
        f"-up: patched_commit {before['patched_commit']}",
        f"+up: patched_commit {after['patched_commit']}",
    ]
    assert (locks["lines"], locks["problem"]) == (["now"], "")


def test_packages_are_to_be_resolved_only_where_upstream_asks_for_others(story: Story) -> None:
    _shipped(story)
    story.bench.upstream.commit({"README": b"x\n"}, "words")
    assert "run build.py lock now" in story.run()[1]
    story.bench.upstream.commit({"README": b"y\n"}, "words")
    assert "run build.py lock" not in story.run()[1]


def test_they_are_what_lock_would_write(story: Story) -> None:
    _shipped(story)
    story.bench.upstream.commit({"README": b"x\n"}, "words")
    story.run()
    ours = {
        name: (story.bench.root / name).read_bytes()
        for name in ("locks/sources.json", "locks/declared.json")
    }
    status, out = story.run("--check", verb="lock")
    assert status == 1  # there are no locks of packages here
    assert [name for name in ours if f"{name}:" in out] == []


def test_what_cannot_be_read_from_the_new_pin_is_said_and_the_pin_stays_moved(story: Story) -> None:
    _shipped(story)
    tip = story.bench.upstream.commit({"setup.py": None}, "no setup any more")
    status, out = story.run()
    assert (status, story.pinned) == (0, tip)
    assert "locks: not updated: " in out


def test_a_damaged_lock_of_sources_is_said_and_the_pin_stays_moved(story: Story) -> None:
    _shipped(story)
    tip = story.bench.upstream.commit({"README": b"x\n"}, "words")
    (story.bench.root / "locks/sources.json").write_text("{")
    status, out = story.run()
    assert (status, story.pinned) == (0, tip)
    assert "not updated: " in out
    assert "is not a lock of sources" in out


def test_abort_brings_them_back(story: Story) -> None:
    _shipped(story)
    up = story.bench.upstream
    up.commit({"README": b"x\n"}, "words")
    assert story.run()[0] == 0
    before = story.ours()
    up.commit({"README": b"y\n"}, "words")
    up.commit({"pkg/a.py": make_text(l20="theirs\n")}, "rework")
    assert story.run()[0] == 1
    assert {path for path, data in story.ours().items() if before[path] != data} == {
        "manifest.yaml",
        "locks/sources.json",
        "locks/declared.json",
    }
    assert story.run("--abort")[0] == 0
    assert story.ours() == before
