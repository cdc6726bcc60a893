from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.core import manifest
from builder.core.cache import Cache
from builder.release.bump import statistics
from builder.upstream.source import Access
from tests.support import git_repository
from tests.support.bump_history import Story, begin_story
from tests.support.patch_series import make_text

pytestmark = pytest.mark.slow

DAY = 86400
START = 1_600_000_000  # the upstream of patch_series makes its commit n on day n after this


@pytest.fixture
def ours(story: Story) -> Story:
    """A source with one patch, and this repository with one commit, on day 10."""
    story.mine(l20="ours\n")
    story.pin()
    git_repository.run_git(story.bench.root, "init", "--quiet", "--initial-branch=main", ".")
    return story


def _commit(story: Story, day: int, *paths: str) -> str:
    root = story.bench.root
    git_repository.run_git(root, "add", "-A", "--", *(paths or ("manifest.yaml", "patches")))
    date = f"@{START + DAY * day} +0000"
    git_repository.run_git(
        root,
        "commit",
        "--quiet",
        "--allow-empty",
        "-m",
        f"day {day}",
        GIT_COMMITTER_DATE=date,
        GIT_AUTHOR_DATE=date,
    )
    return git_repository.run_git(root, "rev-parse", "HEAD")


def _stats(story: Story, day: int = 100) -> dict[str, Any]:
    shipped = manifest.load(story.manifest)
    access = Access(
        Cache(story.bench.root / "cache"), offline=True, mirrors=(story.bench.root / "mirror",)
    )
    found: dict[str, Any] = statistics.report_statistics(
        shipped, story.manifest.name, [shipped.source("up")], access, START + DAY * day
    ).data["sources"]["up"]
    return found


def test_numbers_of_today(ours: Story) -> None:
    _commit(ours, 10)
    ours.bench.add(
        "other",
        ours.bench.upstream.diff({"pkg/b.py": b"x = 1\ny = 2\nz = 4\nzz = 5\n"}),
        **{"Upstream-Status": "Denied [not theirs]"},
    )
    _commit(ours, 12)
    found = _stats(ours)
    assert (found["count"], found["added"], found["removed"], found["upstream_status"]) == (
        2,
        3,
        2,
        {"Denied": 1, "Pending": 1},
    )
    assert [
        (one["name"], one["added"], one["removed"], one["days"], one["since"])
        for one in found["patches"]
    ] == [
        ("mine", 1, 1, 90, "2020-09-23"),
        ("other", 2, 1, 88, "2020-09-25"),
    ]
    assert found["oldest_days"] == 90
    assert found["behind"] == {"commits": 0, "days": 0}


def test_how_far_the_pin_is_behind(ours: Story) -> None:
    for _ in range(3):
        ours.bench.upstream.commit({"README": f"{ours.bench.upstream.count}\n".encode()}, "goes on")
    _commit(ours, 10)
    assert _stats(ours)["behind"] == {"commits": 3, "days": 3}


def test_over_time_each_state_once_with_what_was_upstream_then(ours: Story) -> None:
    up = ours.bench.upstream
    first = _commit(ours, 3)
    (ours.bench.root / "elsewhere").write_text("no patch\n")
    _commit(ours, 4, "elsewhere")
    for n in range(3, 13):
        up.commit({"README": f"{n}\n".encode()}, f"day {n}")
    (ours.bench.patches / "series").write_text("")
    second = _commit(ours, 5)
    pin = up.git.text("rev-parse", "main~5")
    ours.manifest.write_text(ours.manifest.read_text().replace(str(ours.pinned), pin))
    third = _commit(ours, 20)
    (ours.bench.patches / "mine.patch").unlink()
    points = _stats(ours)["over_time"]
    assert [
        (one["commit"], one["count"], one["added"], one["removed"], one["behind"]) for one in points
    ] == [
        (first, 1, 1, 1, {"commits": 1, "days": 1}),
        (second, 0, 0, 0, {"commits": 3, "days": 3}),
        (third, 0, 0, 0, {"commits": 5, "days": 5}),
    ]
    assert points[2]["pin"] == pin


def test_commits_from_before_the_source_was_there_are_no_points(ours: Story) -> None:
    text_ = ours.manifest.read_text()
    ours.manifest.write_text(
        text_.replace("  up: {", "  before: {").replace("patches/up", "patches/before")
    )
    _commit(ours, 2, "manifest.yaml")
    ours.manifest.write_text(text_)
    first = _commit(ours, 3)
    assert [one["commit"] for one in _stats(ours)["over_time"]] == [first]


def test_a_patch_that_went_and_came_back_counts_from_the_last_time(ours: Story) -> None:
    _commit(ours, 3)
    (ours.bench.patches / "series").write_text("")
    _commit(ours, 5)
    (ours.bench.patches / "series").write_text("mine\n")
    _commit(ours, 8)
    assert _stats(ours)["patches"][0]["days"] == 92


def test_an_uncommitted_patch_has_the_age_of_its_origin_or_none(ours: Story) -> None:
    up = ours.bench.upstream
    _commit(ours, 3, "manifest.yaml")
    assert _stats(ours)["patches"][0]["days"] is None
    origin = up.commit({"pkg/b.py": b"x = 1\ny = 2\nz = 9\n"}, "a fix")
    ours.bench.add(
        "fix",
        up.git.run("diff-tree", "-p", "-U1", "--full-index", f"{origin}^", origin).stdout,
        Origin=origin,
    )
    assert [one["days"] for one in _stats(ours)["patches"]] == [None, 97]


def test_a_shallow_clone_knows_no_age_of_what_it_always_had(ours: Story) -> None:
    _commit(ours, 3)
    ours.bench.add("new", ours.bench.upstream.diff({"pkg/b.py": b"x = 1\ny = 2\nz = 4\n"}))
    head = _commit(ours, 5)
    (ours.bench.root / ".git/shallow").write_text(
        git_repository.run_git(ours.bench.root, "rev-parse", f"{head}~1") + "\n"
    )
    assert [one["days"] for one in _stats(ours)["patches"]] == [None, 95]


def test_a_patch_of_old_that_no_rule_of_today_allows(ours: Story) -> None:
    file = ours.bench.patches / "mine.patch"
    good = file.read_bytes()
    file.write_bytes(b"old ways\n")
    _commit(ours, 3)
    file.write_bytes(good)
    _commit(ours, 4)
    assert [(one["count"], one["added"]) for one in _stats(ours)["over_time"]] == [
        (1, None),
        (1, 1),
    ]


def test_below_the_top_of_a_repository(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    story = begin_story(tmp_path / "sub", capsys, monkeypatch)
    story.mine(l20="ours\n")
    story.pin()
    git_repository.run_git(tmp_path, "init", "--quiet", "--initial-branch=main", ".")
    _commit(story, 10)
    found = _stats(story)
    assert (found["patches"][0]["days"], [one["pin"] for one in found["over_time"]]) == (
        90,
        [story.pinned],
    )


def test_in_a_work_tree_beside_its_repository(story: Story) -> None:
    root = story.bench.root
    story.mine(l20="ours\n")
    story.pin()
    real = root / "elsewhere.git"
    git_repository.run_git(
        root, "init", "--quiet", "--initial-branch=main", f"--separate-git-dir={real}", "."
    )
    _commit(story, 10)
    assert (root / ".git").is_file()
    assert _stats(story)["patches"][0]["days"] == 90


def test_where_there_is_no_repository_nothing_is_made_up(story: Story) -> None:
    story.mine(l20="ours\n")
    story.pin()
    found = _stats(story)
    assert (
        found["patches"][0]["days"],
        found["over_time"],
        found["oldest_days"],
        found["count"],
    ) == (None, [], None, 1)


def test_why_a_distance_is_not_known(ours: Story) -> None:
    up = ours.bench.upstream
    up.git.run("update-ref", "refs/heads/trunk", up.head)
    up.git.run("update-ref", "-d", "refs/heads/main")
    found = _stats(ours)
    assert (found["behind"], found["behind_unknown"]) == (
        None,
        "branch-lost: the branch main was deleted or renamed; upstream has: trunk",
    )


def test_as_a_verb(ours: Story) -> None:
    ours.manifest.write_text(
        ours.manifest.read_text().replace(
            "lines:",
            f"  wheel: {{wheel: w==1.0, sha256: {'ab' * 32}, patches: patches/wheel}}\nlines:",
        )
    )
    (ours.bench.root / "patches/wheel").mkdir()
    (ours.bench.root / "patches/wheel/series").write_text("")
    _commit(ours, 10)
    ours.bench.upstream.commit(
        {"pkg/a.py": make_text(l20="theirs\n")}, "a conflict is no matter here"
    )
    status, document = ours.json("stats", verb="patches")
    assert (status, list(document["result"]["sources"]), document["result"]["shallow"]) == (
        0,
        ["up", "wheel"],
        False,
    )
    out = ours.run("stats", "wheel", "up", verb="patches")[1]
    assert out.startswith(
        "wheel: 0 patches (+0 -0): none; a release wheel has no branch\n  2020-09-23 "
    )
    assert "up: 1 patch (+1 -1): 1 Pending; 1 commit and 1 day behind" in out
    assert "mine  +1 -1  Pending  " in out
