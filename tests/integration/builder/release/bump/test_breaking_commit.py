from __future__ import annotations

import pytest

from builder.release.bump import breaking_commit
from tests.support.bump_history import OTHER, Story
from tests.support.patch_series import make_text

pytestmark = pytest.mark.slow


def test_a_conflict_names_the_commit_that_broke_it_and_the_pin_goes_up_to_there(
    story: Story,
) -> None:
    story.mine(l20="ours\n")
    story.pin()
    up = story.bench.upstream
    up.commit({"pkg/a.py": make_text(l1="top\n")}, "elsewhere")
    good = up.commit({"README": b"more\n"}, "words")
    culprit = up.commit({"pkg/a.py": make_text(l1="top\n", l20="theirs\n")}, "rework")
    tip = up.commit({"README": b"even more\n"}, "more words")
    found = story.up()
    (mine,) = found["patches"]
    assert (
        mine["outcome"],
        mine["culprit"]["by"]["commit"],
        mine["culprit"]["by"]["author"],
        mine["culprit"]["by"]["subject"],
        mine["proposal"],
    ) == (
        "conflict",
        culprit,
        "Ada Upstream",
        "rework",
        None,
    )
    assert (found["tip"], found["applies_up_to"], found["pin"], found["ok"], story.pinned) == (
        tip,
        good,
        good,
        False,
        good,
    )
    assert [one["subject"] for one in found["log"]] == [
        "more words",
        "rework",
        "words",
        "elsewhere",
    ]


def test_the_newest_breakage_and_the_newest_good_commit_count(story: Story) -> None:
    story.mine(l20="ours\n")
    story.pin()
    up = story.bench.upstream
    up.commit({"pkg/a.py": make_text(l20="theirs\n")}, "break")
    good = up.commit({"pkg/a.py": make_text()}, "revert")
    again = up.commit({"pkg/a.py": make_text(l20="theirs again\n")}, "break again")
    found = story.up()
    assert (found["patches"][0]["culprit"]["by"]["commit"], found["pin"]) == (again, good)


def test_a_commit_that_only_a_merge_survives_is_not_blamed(story: Story) -> None:
    """By its context alone the patch is broken by the first commit; a three-way merge carries it on to the second."""
    wide = story.bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}, context=3)
    story.bench.add("mine", wide)
    story.pin()
    up = story.bench.upstream
    mergeable = up.commit({"pkg/a.py": make_text(l18="near\n")}, "near")
    culprit = up.commit({"pkg/a.py": make_text(l18="near\n", l20="theirs\n")}, "rework")
    found = story.up()
    assert (found["patches"][0]["culprit"]["by"]["commit"], found["pin"]) == (culprit, mergeable)
    assert found["mechanical"] == {"refreshed": ["mine"]}
    assert found["patches"][0]["detail"].startswith("hunk 1 of 1 in pkg/a.py fits nowhere")


def test_each_patch_has_its_own_culprit(story: Story) -> None:
    story.mine(l20="ours\n")
    story.bench.add("other", story.bench.upstream.diff({"pkg/b.py": b"x = 1\ny = 2\nz = 4\n"}))
    good = story.pin()
    up = story.bench.upstream
    first = up.commit({"pkg/b.py": b"x = 1\ny = 2\nz = 5\n"}, "b")
    second = up.commit({"pkg/a.py": make_text(l20="theirs\n")}, "a")
    found = story.up()
    assert {one["name"]: one["culprit"]["by"]["commit"] for one in found["patches"]} == {
        "mine": second,
        "other": first,
    }
    assert found["pin"] == good == story.pinned


def test_a_patch_on_a_patch_is_judged_with_it(story: Story) -> None:
    up = story.bench.upstream
    story.mine(l20="ours\n")
    base = up.tree({"pkg/a.py": make_text(l20="ours\n")}, f"{up.head}^{{tree}}")
    after = up.tree({"pkg/a.py": make_text(l20="ours, better\n")}, f"{up.head}^{{tree}}")
    story.bench.add(
        "upon", up.git.run("diff-tree", "-p", "-U1", "--full-index", base, after).stdout
    )
    story.pin()
    up.commit({"pkg/a.py": make_text(l5="away\nfrom\nit\n")}, "elsewhere")
    culprit = up.commit({"pkg/a.py": make_text(l5="away\nfrom\nit\n", l20="theirs\n")}, "rework")
    found = story.up()
    assert {
        one["name"]: (one["outcome"], one["culprit"]["by"]["commit"]) for one in found["patches"]
    } == {
        "mine": ("conflict", culprit),
        "upon": ("conflict", culprit),
    }


def test_a_merge_names_the_commit_that_it_brought(story: Story) -> None:
    story.mine(l20="ours\n")
    base = story.pin()
    up = story.bench.upstream
    up.commit({"pkg/a.py": make_text(l1="side\n")}, "harmless on the side")
    culprit = up.commit({"pkg/a.py": make_text(l1="side\n", l20="theirs\n")}, "rework on the side")
    side = up.commit({"pkg/a.py": make_text(l1="side too\n", l20="theirs\n")}, "later on the side")
    up.head = base
    main = up.commit({"README": b"main\n"}, "main goes on")
    merge = up.commit(
        {"pkg/a.py": make_text(l1="side too\n", l20="theirs\n")}, "Merge side", parents=(main, side)
    )
    found = story.up()
    by = found["patches"][0]["culprit"]
    assert (by["by"]["commit"], by["merge"]["commit"], found["pin"]) == (culprit, merge, main)
    assert "merged by" in story.run("--forecast")[1]


def test_a_merge_that_changes_something_itself_is_the_culprit(story: Story) -> None:
    story.mine(l20="ours\n")
    base = story.pin()
    up = story.bench.upstream
    side = up.commit({"pkg/b.py": b"side\n"}, "side")
    up.head = base
    main = up.commit({"README": b"main\n"}, "main goes on")
    merge = up.commit(
        {"pkg/b.py": b"side\n", "pkg/a.py": make_text(l20="theirs\n")},
        "Merge side",
        parents=(main, side),
    )
    by = story.patch()["culprit"]
    assert (by["by"]["commit"], by["merge"]) == (merge, None)


def test_a_stack_that_does_not_apply_at_the_pin_either(story: Story) -> None:
    story.mine(l20="ours\n")
    story.bench.upstream.commit({"pkg/a.py": make_text(l20="theirs\n")}, "before the pin")
    pin = story.pin()
    story.bench.upstream.commit({"pkg/a.py": make_text(l20="theirs\n", l1="x\n")}, "later")
    found = story.up()
    assert (found["applies_up_to"], found["pin"], found["patches"][0]["culprit"]) == (
        None,
        pin,
        None,
    )
    assert "before the pin" in found["patches"][0]["detail"]
    assert "do not apply at the pin either" in story.run()[1]


@pytest.mark.parametrize(("states", "expected"), [("bgg", 1), ("g", 0), ("b", None), ("bgbg", 1)])
def test_the_newest_states_are_tried_one_by_one(states: str, expected: int | None) -> None:
    assert breaking_commit._find_newest(states, lambda one: one == "g") == expected


@pytest.mark.parametrize("bad", [24, 25, 100, 399])
def test_what_lies_far_back_is_halved(bad: int) -> None:
    tried: list[str] = []
    states = [f"{'b' if n < bad else 'g'}{n}" for n in range(400)]

    def good(state: str) -> bool:
        tried.append(state)
        return state.startswith("g")

    assert breaking_commit._find_newest(states, good) == bad
    assert len(tried) <= breaking_commit._TRIED_ONE_BY_ONE + 10
    assert breaking_commit._find_newest([f"b{n}" for n in range(400)], good) is None


def test_a_file_of_the_overlay_that_changed_names_it_and_the_commit(story: Story) -> None:
    bench, up = story.bench, story.bench.upstream
    bench.lay("pkg/b.py", b"ours\n", up.git.text("rev-parse", f"{up.head}:pkg/b.py"))
    story.pin()
    good = up.commit({"README": b"x\n"}, "words")
    culprit = up.commit({"pkg/b.py": OTHER + b"more\n"}, "b grows")
    up.commit({"README": b"y\n"}, "words")
    found = story.up()
    (laid,) = found["overlay"]
    assert (laid["path"], laid["outcome"], laid["cause"]["commit"], laid["cause"]["author"]) == (
        "pkg/b.py",
        "conflict",
        culprit,
        "Ada Upstream",
    )
    assert found["pin"] == good
    out = story.run()[1]
    assert "overlay pkg/b.py" in out
    assert culprit[:12] in out
