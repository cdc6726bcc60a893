from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING

import pytest

from builder.upstream import git_objects
from builder.upstream.git import Git
from builder.upstream.git_objects import (
    Entry,
    MissingObjectError,
    Reader,
    list_tree_files,
    write_trees,
)
from rosetta.core.errors import UserError
from tests.support import errors, git_repository

if TYPE_CHECKING:
    from pathlib import Path

ABSENT = "0123456789" * 4


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return git_repository.init_repository(tmp_path / "repo.git")


def walked(repo: Path, tree: str) -> list[Entry]:
    with Reader(Git(repo)) as reader:
        return list_tree_files(reader, tree)


def test_reads_what_git_wrote_and_git_reads_what_we_write(repo: Path) -> None:
    data = b"\0binary\r\n" * 1000
    sha = git_repository.write_raw_object(repo, "blob", data)
    ours = git_objects.write_object(repo, "blob", b"ours")
    with Reader(Git(repo)) as reader:
        assert reader.read(sha, "blob") == data
        assert reader.read(ours, "blob") == b"ours"
        assert reader.read(sha, "blob") == data
    assert git_repository.run_git(repo, "cat-file", "blob", ours) == "ours"
    git_repository.run_git(repo, "fsck", "--strict")


def test_writing_twice_is_one_object_and_leaves_nothing_else(repo: Path) -> None:
    assert (
        git_objects.write_object(repo, "blob", b"x")
        == git_objects.write_object(repo, "blob", b"x")
        == git_repository.write_raw_object(repo, "blob", b"x")
    )
    assert len(git_repository.list_loose_objects(repo)) == 1


def test_mode_of_an_object_is_not_the_umasks(repo: Path) -> None:
    before = os.umask(0o077)
    try:
        sha = git_objects.write_object(repo, "blob", b"y")
    finally:
        os.umask(before)
    assert git_objects.loose_object_path(repo, sha).stat().st_mode & 0o777 == 0o444


def test_a_missing_object_is_named(repo: Path) -> None:
    with (
        Reader(Git(repo)) as reader,
        errors.expect_user_error(errors.MISSING, where=ABSENT, error=MissingObjectError),
    ):
        reader.read(ABSENT, "blob")


def test_an_object_of_another_kind_is_refused(repo: Path) -> None:
    sha = git_repository.write_raw_object(repo, "blob", b"x")
    with (
        Reader(Git(repo)) as reader,
        errors.expect_user_error(errors.INVALID, where=sha, value="blob", remedy="commit"),
    ):
        reader.read(sha, "commit")


def test_wrong_content_under_a_right_name_is_refused(repo: Path) -> None:
    good, other = (
        git_repository.write_raw_object(repo, "blob", b"good"),
        git_repository.write_raw_object(repo, "blob", b"evil"),
    )
    git_repository.damage_object(repo, good, other)
    assert git_repository.run_git(repo, "cat-file", "blob", good) == "evil", (
        "git itself hands it out"
    )
    with (
        Reader(Git(repo), "mirror m") as reader,
        errors.expect_user_error(errors.DAMAGED, where=good) as caught,
    ):
        reader.read(good, "blob")
    assert caught.value.where == f"mirror m, object {good}"


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 64, zlib.compress(b"blob 100\0short"), zlib.compress(b"blob 4\0good")[:-6]],
    ids=["empty", "nulls", "short", "cut"],
)
def test_a_mangled_object_is_one_clear_error(
    repo: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_objects, "_SILENCE", 1)
    good = git_repository.write_raw_object(repo, "blob", b"good")
    path = git_objects.loose_object_path(repo, good)
    path.unlink()
    path.write_bytes(content)
    with Reader(Git(repo)) as reader, pytest.raises(UserError) as caught:
        reader.read(good, "blob")
    assert good in caught.value.where
    assert "delete" in caught.value.do


def test_an_object_that_claims_to_be_huge_is_refused(repo: Path) -> None:
    sha = git_repository.write_raw_object(repo, "blob", b"x")
    path = git_objects.loose_object_path(repo, sha)
    path.unlink()
    path.write_bytes(zlib.compress(b"blob 99999999999\0x"))
    with Reader(Git(repo)) as reader, pytest.raises(UserError) as caught:
        reader.read(sha, "blob")
    assert sha in caught.value.where


def test_an_object_larger_than_any_source_file_is_refused(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha = git_repository.write_raw_object(repo, "blob", b"x" * 2001)
    monkeypatch.setattr(git_objects, "LARGEST_OBJECT", 1 << 20)
    with Reader(Git(repo)) as reader:
        assert reader.read(sha, "blob")
    monkeypatch.setattr(git_objects, "LARGEST_OBJECT", 2000)
    with (
        Reader(Git(repo)) as reader,
        errors.expect_user_error(errors.TOO_BIG, where=sha, value=2001),
    ):
        reader.read(sha, "blob")


def test_a_reader_collects_the_objects_that_it_read(repo: Path) -> None:
    sha = git_repository.write_raw_object(repo, "blob", b"x")
    collected: dict[str, tuple[str, bytes]] = {}
    with Reader(Git(repo), collected=collected) as reader:
        reader.read(sha, "blob")
    assert collected == {sha: ("blob", b"x")}


def test_no_replacement_of_the_repository_counts(repo: Path) -> None:
    good, other = (
        git_repository.write_raw_object(repo, "blob", b"good"),
        git_repository.write_raw_object(repo, "blob", b"evil"),
    )
    git_repository.run_git(repo, "replace", good, other)
    assert git_repository.run_git(repo, "cat-file", "blob", good) == "evil"
    with Reader(Git(repo)) as reader:
        assert reader.read(good, "blob") == b"good"


def test_walk_and_tree_of_are_each_others_inverse(repo: Path) -> None:
    files = {
        **git_repository.FILES,
        "a.b": b"",
        "a/x": b"1",
        "a-b/y": b"2",
        "a0": b"3",
        "ä/ö": b"4",
    }  # where git's order is not the plain one
    root = git_repository.make_tree(repo, files)
    entries = walked(repo, root)
    assert [entry.path for entry in entries] == sorted(files)
    assert {entry.path: entry.mode for entry in entries}["t5x/run.sh"] == "100755"
    assert write_trees(repo, reversed(entries)) == root


def test_tree_of_needs_no_blobs_and_writes_sound_trees(repo: Path) -> None:
    root = write_trees(repo, [Entry("a/b", "100644", ABSENT), Entry("c", "120000", ABSENT)])
    assert git_repository.run_git(repo, "ls-tree", "-r", root).splitlines() == [
        f"100644 blob {ABSENT}\ta/b",
        f"120000 blob {ABSENT}\tc",
    ]


@pytest.mark.parametrize(
    "paths",
    [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("a/b/c", "a/b"), ("../a",), ("a/.git",), ("/a",)],
)
def test_tree_of_refuses_what_cannot_be_a_tree(repo: Path, paths: tuple[str, ...]) -> None:
    with pytest.raises(UserError):
        write_trees(repo, [Entry(path, "100644", ABSENT) for path in paths])


@pytest.mark.parametrize(
    "name",
    [
        b"..",
        b".",
        b"",
        b".git",
        b".GIT",
        b".git ",
        b"git~1",
        b".gitmodules",
        b"a/b",
        b"a\\b",
        b"a\nb",
        b"\xff",
        b"C:",
    ],
)
@pytest.mark.parametrize("mode", ["100644", "40000"])
def test_a_hostile_name_in_a_tree_is_refused(repo: Path, name: bytes, mode: str) -> None:
    blob = git_repository.write_raw_object(repo, "blob", b"x")
    inner = git_repository.raw_tree(repo, [("100644", b"x", blob)])
    hostile = git_repository.raw_tree(repo, [(mode, name, inner if mode == "40000" else blob)])
    outer = git_repository.raw_tree(repo, [("40000", b"sub", hostile)])
    with pytest.raises(UserError) as caught:
        walked(repo, outer)
    assert hostile in caught.value.where
    assert "sub/" in caught.value.where


@pytest.mark.parametrize("mode", ["160000", "100664", "100000", "40755", "0", "x"])
def test_a_mode_that_is_no_files_is_refused(repo: Path, mode: str) -> None:
    root = git_repository.raw_tree(
        repo, [(mode, b"vendored", git_repository.write_raw_object(repo, "blob", b"x"))]
    )
    with errors.expect_user_error(errors.UNSUPPORTED, value="vendored"):
        walked(repo, root)


def test_a_name_that_is_there_twice_is_refused(repo: Path) -> None:
    blob = git_repository.write_raw_object(repo, "blob", b"/etc")
    inner = git_repository.raw_tree(repo, [("100644", b"passwd", blob)])
    for rows in (
        [("100644", b"a", blob), ("100755", b"a", blob)],
        [("120000", b"a", blob), ("100644", b"a.b", blob), ("40000", b"a", inner)],
    ):
        with errors.expect_user_error(errors.CONFLICT, value="a"):
            walked(repo, git_repository.raw_tree(repo, rows))


@pytest.mark.parametrize(
    "data", [b"100644", b"100644 a", b"100644 a\0short", b"\0\0\0", b"100644\0a " + b"x" * 20]
)
def test_a_malformed_tree_is_refused(repo: Path, data: bytes) -> None:
    with errors.expect_user_error(errors.INVALID):
        walked(repo, git_repository.write_raw_object(repo, "tree", data))


def test_a_tree_that_unfolds_without_end_is_refused(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_objects, "_MOST_FILES", 500)
    sha, mode = git_repository.write_raw_object(repo, "blob", b"x"), "100644"
    for _ in range(6):
        sha, mode = (
            git_repository.raw_tree(
                repo, [(mode, name, sha) for name in (b"a", b"b", b"c", b"d", b"e")]
            ),
            "40000",
        )
    with errors.expect_user_error(errors.TOO_BIG, names="500"):
        walked(repo, sha)


def test_a_tree_too_deep_is_refused(repo: Path) -> None:
    sha, mode = git_repository.write_raw_object(repo, "blob", b"x"), "100644"
    for _ in range(12):
        sha, mode = git_repository.raw_tree(repo, [(mode, b"n" * 100, sha)]), "40000"
    with errors.expect_user_error(errors.TOO_BIG):
        walked(repo, sha)


def test_without_git_there_is_one_clear_error(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repo))
    with (
        Reader(Git(repo)) as reader,
        errors.expect_user_error(errors.MISSING, where="git", remedy="apt-get install git"),
    ):
        reader.read(ABSENT, "blob")
