from __future__ import annotations

import pytest

from tests.support.bump_history import Story

pytestmark = pytest.mark.slow


def test_a_forecast_changes_nothing(story: Story) -> None:
    tip = story.blocked()
    before = story.ours()
    status, document = story.json("--forecast")
    assert (status, story.ours()) == (1, before)
    up = document["result"]["sources"]["up"]
    assert (up["tip"], up["pin"] == up["applies_up_to"], document["result"]["forecast"]) == (
        tip,
        True,
        True,
    )
    assert not (story.bench.root / "cache/bump").exists() or not list(
        (story.bench.root / "cache/bump").iterdir()
    )
    (story.bench.patches / "series").write_text("")
    (story.bench.patches / "mine.patch").unlink()
    assert story.run("--forecast")[0] == 0


def test_tip_only_leaves_the_pin(story: Story) -> None:
    story.blocked()
    before = story.ours()
    status, out = story.run("--tip-only")
    assert (status, story.ours()) == (1, before)
    assert "up: not moved" in out
    assert f"apply up to {story.up('--forecast')['applies_up_to']}" in out


def test_mended_and_continued(story: Story) -> None:
    tip = story.blocked()
    status, out = story.run()
    assert (status, story.pinned == tip) == (1, False)
    assert "build.py bump --continue" in out
    status, out = story.run("--continue")
    assert (status, "rework" in out) == (1, True)
    story.mend()
    later = story.bench.upstream.commit({"README": b"later\n"}, "comes too late")
    status, out = story.run("--continue")
    assert (status, story.pinned) == (0, tip)
    assert story.run("refresh", "--dry-run", verb="patches")[0] == 0
    assert story.run("--continue")[0] == 2
    assert story.run()[0] == 0
    assert story.pinned == later


def test_a_plain_run_after_mending_goes_to_the_newest(story: Story) -> None:
    story.blocked()
    story.run()
    story.mend()
    later = story.bench.upstream.commit({"README": b"later\n"}, "later")
    assert story.run()[0] == 0
    assert story.pinned == later


def test_a_source_that_cannot_move_holds_back_nobody(story: Story) -> None:
    story.blocked()
    other = story.bench.root / "patches/other"
    other.mkdir()
    (other / "series").write_text("")
    pin = story.bench.upstream.git.text("rev-parse", "main~2")
    text_ = story.manifest.read_text().replace(
        "lines:",
        f"  zz: {{git: https://example.org/up.git, track: main, commit: {pin}, patches: patches/other}}\nlines:",
    )
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
    story.blocked()
    other = story.bench.root / "patches/other"
    other.mkdir()
    (other / "series").write_text("")
    pin = story.bench.upstream.git.text("rev-parse", "main~2")
    story.manifest.write_text(
        story.manifest.read_text().replace(
            "lines:",
            f"  zz: {{git: https://example.org/up.git, track: main, commit: {pin}, patches: patches/other}}\nlines:",
        )
    )
    before = story.ours()
    assert story.run("up")[0] == 1
    assert story.run("zz")[0] == 0
    assert story.run("--abort")[0] == 0
    assert story.ours() == before


def test_a_path_that_is_never_exported_and_is_gone_holds_the_pin(story: Story) -> None:
    good = story.pin()
    story.manifest.write_text(
        story.manifest.read_text().replace(
            "patches: patches/up", "patches: patches/up, absent: [README]"
        )
    )
    story.bench.upstream.commit({"README": None}, "away")
    status, out = story.run()
    assert (status, story.pinned) == (1, good)
    assert "`absent` lists 'README', which the pinned commit does not have" in out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("nosuch",), "no source 'nosuch'"),
        (("wheel",), "wheel is a release wheel"),
        (("--continue",), "no bump of this manifest is in progress"),
        (("--abort",), "no bump of this manifest is in progress"),
        (("--abort", "up"), "restores all sources, not some"),
        (("--forecast", "--abort"), "not allowed with"),
        (("--log", "-1"), "--log"),
        (("--log", "x"), "'x' is not a valid number"),
    ],
)
def test_wrong_use_is_one_line(story: Story, argv: tuple[str, ...], says: str) -> None:
    story.pin()
    story.manifest.write_text(
        story.manifest.read_text().replace(
            "lines:",
            f"  wheel: {{wheel: w==1.0, sha256: {'ab' * 32}, patches: patches/up}}\nlines:",
        )
    )
    status, out = story.run(*argv)
    assert (status, len(out.splitlines())) == (2, 1), out
    assert says in out


def test_wheels_are_left_alone(story: Story) -> None:
    story.pin()
    story.manifest.write_text(
        story.manifest.read_text().replace(
            "lines:",
            f"  wheel: {{wheel: w==1.0, sha256: {'ab' * 32}, patches: patches/up}}\nlines:",
        )
    )
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
