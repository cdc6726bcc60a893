from __future__ import annotations

import pytest

from tests.support.bump_history import Story
from tests.support.patch_series import make_text

pytestmark = pytest.mark.slow


def test_taken_exactly(story: Story) -> None:
    file = story.mine(l20="ours\n")
    story.pin()
    up = story.bench.upstream
    up.commit({"README": b"x\n"}, "words")
    culprit = up.commit({"pkg/a.py": make_text(l20="ours\n")}, "Mine (#12)")
    tip = up.commit({"pkg/a.py": make_text(l20="ours\n", l1="top\n")}, "later")
    found = story.up()
    (mine,) = found["patches"]
    assert (mine["outcome"], mine["builds"], mine["proposal"], mine["culprit"]["by"]["commit"]) == (
        "taken",
        True,
        "drop",
        culprit,
    )
    signals = mine["signals"]
    assert (
        signals["merged_empty"],
        signals["reverse"],
        signals["patch_id"]["commit"],
        signals["subject"]["commit"],
    ) == (True, True, culprit, culprit)
    # The build goes on without it, so that the pin moves; to drop it is a person's to decide.
    assert (found["pin"], found["ok"], found["mechanical"], file.exists()) == (
        tip,
        True,
        {"refreshed": []},
        True,
    )
    assert "drop mine (a build already leaves it out)" in story.run("--forecast")[1]


def test_taken_exactly_and_dropped(story: Story) -> None:
    file = story.mine(l20="ours\n")
    story.bench.add("other", story.bench.upstream.diff({"pkg/b.py": b"x = 1\ny = 2\nz = 4\n"}))
    series = story.bench.patches / "series"
    series.write_text(f"# why this order\n{series.read_text()}# the end\n")
    story.pin()
    story.bench.upstream.commit({"pkg/a.py": make_text(l20="ours\n")}, "take it")
    found = story.up("--accept")
    assert (found["ok"], found["dropped"], file.exists()) == (True, ["mine"], False)
    assert series.read_text() == "# why this order\nother\n# the end\n"
    assert story.up("--accept")["dropped"] == []


def test_taken_together_with_more_right_beside_it(story: Story) -> None:
    file = story.mine(l20="ours\nours too\n")
    story.pin()
    up = story.bench.upstream
    good = up.commit({"README": b"x\n"}, "words")
    culprit = up.commit(
        {
            "pkg/a.py": make_text(
                l19="and more\n", l20="ours\nbetween\nours too\n", l21="and more\n"
            )
        },
        "a larger change",
    )
    found = story.up()
    (mine,) = found["patches"]
    assert (mine["outcome"], mine["builds"], mine["proposal"], mine["culprit"]["by"]["commit"]) == (
        "taken",
        False,
        "drop",
        culprit,
    )
    signals = mine["signals"]
    assert (
        signals["merged_empty"],
        signals["reverse"],
        signals["patch_id"],
        signals["lines"],
        signals["of"],
    ) == (False, False, None, 3, 3)
    # A build cannot tell that it may leave it out: the pin waits until a person decided.
    assert (found["pin"], found["ok"], file.exists()) == (good, False, True)
    assert "drop mine (upstream has it in another form)" in story.run("--forecast")[1]
    found = story.up("--accept")
    assert (found["ok"], found["dropped"], found["pin"], file.exists()) == (
        True,
        ["mine"],
        up.head,
        False,
    )


def test_taken_then_edited(story: Story) -> None:
    story.mine(l10="one\n", l20="ours\n")
    story.pin()
    up = story.bench.upstream
    culprit = up.commit({"pkg/a.py": make_text(l10="one\n", l20="ours\n")}, "take it")
    up.commit({"pkg/a.py": make_text(l10="one\n", l20="ours, edited\n")}, "edit it")
    mine = story.patch()
    assert (
        mine["outcome"],
        mine["culprit"]["by"]["commit"],
        mine["signals"]["patch_id"]["commit"],
    ) == ("taken", culprit, culprit)
    assert (mine["signals"]["reverse"], mine["signals"]["lines"], mine["signals"]["of"]) == (
        False,
        3,
        4,
    )


def test_taken_and_thrown_out_again_is_not_taken(story: Story) -> None:
    story.mine(l20="ours\n")
    story.pin()
    up = story.bench.upstream
    up.commit({"pkg/a.py": make_text(l20="ours\n")}, "take it")
    up.commit({"pkg/a.py": make_text()}, "revert")
    culprit = up.commit({"pkg/a.py": make_text(l20="another way\n")}, "do it another way")
    mine = story.patch()
    assert (mine["outcome"], mine["proposal"], mine["culprit"]["by"]["commit"]) == (
        "conflict",
        None,
        culprit,
    )


def test_taken_in_part_is_a_proposal_and_no_mechanical_change(story: Story) -> None:
    file = story.mine(l5="five\n", l20="ours\n")
    before = file.read_bytes()
    story.pin()
    up = story.bench.upstream
    good = up.commit({"README": b"x\n"}, "words")
    culprit = up.commit({"pkg/a.py": make_text(l5="five\n")}, "take half")
    found = story.up()
    (mine,) = found["patches"]
    assert (
        mine["outcome"],
        mine["proposal"],
        mine["culprit"]["by"]["commit"],
        mine["signals"]["partly"],
    ) == ("reworked", "refresh", culprit, True)
    assert (found["pin"], found["ok"], file.read_bytes()) == (good, False, before)
    assert "refresh mine to the result of a merge (+1 -1)" in story.run("--forecast")[1]
    found = story.up("--accept")
    assert (found["pin"], found["ok"]) == (up.head, True)
    assert b"+ours" in file.read_bytes()
    assert b"five" not in file.read_bytes()


def test_a_conflict_with_half_of_it_upstream_says_so(story: Story) -> None:
    story.mine(l5="five\n", l20="ours\n")
    story.pin()
    story.bench.upstream.commit(
        {"pkg/a.py": make_text(l5="five\n", l20="theirs\n")},
        "take half, and another way for the rest",
    )
    mine = story.patch()
    assert (
        mine["outcome"],
        mine["signals"]["partly"],
        mine["signals"]["lines"],
        mine["signals"]["of"],
    ) == ("conflict", True, 3, 4)
    assert "partly upstream: 3 of 4" in story.run("--forecast")[1]


def test_lines_that_only_went_away_prove_nothing(story: Story) -> None:
    story.mine(l20="ours\n")
    story.pin()
    story.bench.upstream.commit({"pkg/a.py": make_text(l20="theirs\n")}, "rework")
    signals = story.patch()["signals"]
    assert (signals["lines"], signals["taken"], signals["partly"]) == (0, False, False)


def test_a_patch_that_only_takes_away(story: Story) -> None:
    story.mine(l20="")
    story.pin()
    story.bench.upstream.commit({"pkg/a.py": make_text(l19="near\n", l20="")}, "clean up")
    mine = story.patch()
    assert (mine["outcome"], mine["signals"]["lines"], mine["signals"]["of"]) == ("taken", 1, 1)


@pytest.mark.parametrize("subject", ["mine", "up: Mine.", "Mine (#4)"])
def test_a_subject_alone_is_a_hint_only(story: Story, subject: str) -> None:
    story.mine(l20="ours\n")
    story.pin()
    by = story.bench.upstream.commit({"pkg/a.py": make_text(l20="theirs\n")}, subject)
    mine = story.patch()
    assert (mine["outcome"], mine["signals"]["subject"]["commit"], mine["proposal"]) == (
        "conflict",
        by,
        None,
    )
