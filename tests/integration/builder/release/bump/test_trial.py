from __future__ import annotations

import pytest

from tests.support.bump_history import OTHER, Story
from tests.support.patch_series import make_text

pytestmark = pytest.mark.slow


def test_what_applies_as_it_is_stays_as_it_is(story: Story) -> None:
    story.mine(l20="ours\n")
    story.pin()
    before = story.ours()
    tip = story.bench.upstream.commit({"README": b"x\n"}, "words")
    found = story.up()
    assert (found["patches"][0]["outcome"], found["pin"], found["ok"], found["mechanical"]) == (
        "applies",
        tip,
        True,
        {"refreshed": []},
    )
    changed = {path for path, data in story.ours().items() if data != before[path]}
    assert changed == {"manifest.yaml"}


def test_lines_that_moved_are_refreshed(story: Story) -> None:
    file = story.mine(l20="ours\n")
    story.pin()
    story.bench.upstream.commit({"pkg/a.py": make_text(l1="a\nb\nc\n")}, "elsewhere")
    found = story.up()
    assert (
        found["patches"][0]["outcome"],
        found["patches"][0]["proposal"],
        found["mechanical"],
    ) == ("refreshed", None, {"refreshed": ["mine"]})
    assert b"@@ -21,3 +21,3 @@" in file.read_bytes()
    assert story.run("refresh", "--dry-run", verb="patches")[0] == 0
    assert story.up()["patches"][0]["outcome"] == "applies"


def test_a_file_that_was_renamed(story: Story) -> None:
    story.mine(l20="ours\n")
    good = story.pin()
    culprit = story.bench.upstream.commit({"pkg/a.py": None, "lib/a.py": make_text()}, "move it")
    found = story.up()
    (mine,) = found["patches"]
    assert (mine["outcome"], mine["culprit"]["by"]["commit"], found["pin"]) == (
        "renamed",
        culprit,
        good,
    )
    assert "pkg/a.py is now lib/a.py" in mine["detail"]


def test_a_file_that_was_deleted(story: Story) -> None:
    story.mine(l20="ours\n")
    story.pin()
    up = story.bench.upstream
    good = up.commit({"pkg/a.py": make_text(l1="x\n")}, "elsewhere")
    culprit = up.commit({"pkg/a.py": None}, "away with it")
    found = story.up()
    (mine,) = found["patches"]
    assert (
        mine["outcome"],
        mine["culprit"]["by"]["commit"],
        mine["culprit"]["by"]["subject"],
        found["pin"],
    ) == ("gone", culprit, "away with it", good)
    assert "pkg/a.py was deleted by" in mine["detail"]


def test_a_rule_that_is_broken_on_a_commit_holds_the_pin_there(story: Story) -> None:
    story.bench.add("other", story.bench.upstream.diff({"pkg/b.py": b"x = 1\ny = 2\nz = 4\n"}))
    good = story.pin()
    up = story.bench.upstream
    up.commit({"pkg/b.py": b"a.py"}, "a link", modes={"pkg/b.py": "120000"})
    found = story.up()
    assert (found["pin"], found["ok"], found["patches"]) == (good, False, [])
    assert "writes through the link pkg/b.py" in found["problem"]
    assert "writes through the link pkg/b.py" in story.run()[1]


def test_an_overlaid_file_that_upstream_made_its_own_does_not_hold_the_pin(story: Story) -> None:
    bench, up = story.bench, story.bench.upstream
    bench.lay("pkg/b.py", b"ours\n", up.git.text("rev-parse", f"{up.head}:pkg/b.py"))
    story.pin()
    tip = up.commit({"pkg/b.py": b"ours\n"}, "take ours")
    found = story.up()
    assert (found["overlay"][0]["outcome"], found["pin"]) == ("upstream", tip)
    assert "drop it from the overlay" in story.run()[1]


def test_an_overlaid_file_that_is_gone(story: Story) -> None:
    bench, up = story.bench, story.bench.upstream
    bench.lay("pkg/b.py", OTHER + b"ours\n", up.git.text("rev-parse", f"{up.head}:pkg/b.py"))
    story.pin()
    culprit = up.commit({"pkg/b.py": None}, "away")
    (laid,) = story.up()["overlay"]
    assert (laid["outcome"], laid["cause"]["commit"]) == ("gone", culprit)
