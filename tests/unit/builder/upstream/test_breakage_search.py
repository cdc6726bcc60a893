from __future__ import annotations

from pathlib import Path

import pytest

from builder.upstream import breakage_search, patch_file
from tests.support.patch_series import FIELDS, Upstream, make_text

pytestmark = pytest.mark.slow


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    made = Upstream(tmp_path)
    made.commit({"a.py": make_text()}, "begin")
    return made


def _wanted(upstream: Upstream, new: bytes) -> patch_file.FilePatch:
    raw = patch_file.render_patch("a <a@b>", "s", FIELDS, upstream.diff({"a.py": new}))
    return patch_file.parse_patch(Path("x.patch"), raw).files[0]


def test_the_newest_breakage_counts_when_a_line_went_to_and_fro(upstream: Upstream) -> None:
    mine = _wanted(upstream, make_text(l20="ours\n"))
    upstream.commit({"a.py": make_text(l20="theirs\n")}, "break")
    upstream.commit({"a.py": make_text()}, "revert")
    again = upstream.commit({"a.py": make_text(l20="theirs again\n")}, "break again")
    found = breakage_search.find_breaking_commit(
        upstream.git, upstream.head, "a.py", mine.hunks, []
    )
    assert found
    assert (found[0].commit, found[0].subject, found[1]) == (again, "break again", False)


def test_a_long_history_is_read_to_its_end(upstream: Upstream) -> None:
    mine = _wanted(upstream, make_text(l20="ours\n"))
    culprit = upstream.commit({"a.py": make_text(l20="theirs\n")}, "break")
    for n in range(70):
        upstream.commit({"a.py": make_text(l1=f"{n}\n", l20="theirs\n")})
    found = breakage_search.find_breaking_commit(
        upstream.git, upstream.head, "a.py", mine.hunks, []
    )
    assert found
    assert found[0].commit == culprit


def test_nothing_is_blamed_where_the_patch_never_fitted(upstream: Upstream) -> None:
    mine = _wanted(upstream, make_text(l20="ours\n"))
    upstream.head = ""
    upstream.commit({"a.py": b"something else\n"})
    upstream.commit({"a.py": b"something else again\n"})
    assert (
        breakage_search.find_breaking_commit(upstream.git, upstream.head, "a.py", mine.hunks, [])
        is None
    )


def test_a_merge_is_blamed_as_the_commit_on_the_main_line(upstream: Upstream) -> None:
    mine = _wanted(upstream, make_text(l20="ours\n"))
    main = upstream.head
    side = upstream.commit({"a.py": make_text(l20="theirs\n")}, "on a side branch")
    upstream.head = main
    trunk = upstream.commit({"b.py": b"b\n"}, "on the main line")
    merge = upstream.commit({"a.py": make_text(l20="theirs\n")}, "merge it", parents=(trunk, side))
    found = breakage_search.find_breaking_commit(
        upstream.git, upstream.head, "a.py", mine.hunks, []
    )
    assert found
    assert found[0].commit == merge


def test_what_a_commit_says_of_itself_cannot_play_with_the_terminal(upstream: Upstream) -> None:
    mine = _wanted(upstream, make_text(l20="ours\n"))
    upstream.commit({"a.py": make_text(l20="theirs\n")}, "red \x1b[31m\x07 alert \x9b2J\x1f\x1fend")
    found = breakage_search.find_breaking_commit(
        upstream.git, upstream.head, "a.py", mine.hunks, []
    )
    assert found
    assert found[0].subject.isprintable()
    assert found[0].subject.startswith("red")
    assert found[0].author == "Ada Upstream"


@pytest.mark.parametrize("path", ["a b.py", ":(top)a.py", "*.py", "a.py:b"])
def test_a_path_is_never_a_pattern(upstream: Upstream, path: str) -> None:
    there = upstream.commit({path: b"1\n"}, "add it")
    upstream.commit({"a.py": b"other\n"}, "another file")
    assert [
        version.cause.commit
        for version in breakage_search.iterate_versions(upstream.git, upstream.head, path)
    ] == [there]
    gone = upstream.commit({path: None}, "delete it")
    found = breakage_search.find_removal(upstream.git, upstream.head, path)
    assert found
    assert (found[0].commit, found[1]) == (gone, None)
    assert [
        version.data
        for version in breakage_search.iterate_versions(upstream.git, upstream.head, path)
    ] == [
        None,
        b"1\n",
    ]


def test_when_a_blob_changed_and_when_a_file_came(upstream: Upstream) -> None:
    first = upstream.git.text("rev-parse", f"{upstream.head}:a.py")
    born = upstream.head
    changed = upstream.commit({"a.py": b"x\n"})
    upstream.commit({"a.py": b"y\n"})
    found, came = (
        breakage_search.find_first_change(upstream.git, upstream.head, "a.py", first),
        breakage_search.find_addition(upstream.git, upstream.head, "a.py"),
    )
    assert found
    assert came
    assert (found.commit, came.commit) == (changed, born)
    assert breakage_search.find_first_change(upstream.git, upstream.head, "a.py", "1" * 40) is None
