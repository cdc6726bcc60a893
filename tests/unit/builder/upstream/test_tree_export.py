from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from builder.upstream.git import Git
from builder.upstream.git_objects import Entry, Reader, list_tree_files
from builder.upstream.tree_export import exported_entries, write_tree
from rosetta.core.errors import UserError
from tests.support import errors, git_repository

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.git_repository import Content


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return git_repository.init_repository(tmp_path / "repo.git")


def export(
    repo: Path, files: Mapping[str, Content], into: Path, absent: tuple[str, ...] = ()
) -> None:
    with Reader(Git(repo)) as reader:
        write_tree(
            reader,
            exported_entries(
                list_tree_files(reader, git_repository.make_tree(repo, files)), absent
            ),
            into,
        )


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_come_out_byte_for_byte_with_fixed_modes(
    repo: Path, tmp_path: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        export(repo, git_repository.FILES, tmp_path / "out")
    finally:
        os.umask(before)
    assert git_repository.read_folder(tmp_path / "out") == {
        ".gitattributes": ("100644", git_repository.FILES[".gitattributes"]),
        "setup.py": ("100644", b"print('x')\r\n"),
        "t5x": ("40755", b""),
        "t5x/__init__.py": ("100644", b""),
        "t5x/link.py": ("120777", b"train.py"),
        "t5x/run.sh": ("100755", b"#!/bin/sh\n"),
        "t5x/train.py": ("100644", b"$Id$ \xff binary \0 too\n"),
    }
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755


def test_absent_paths_are_left_out_and_nothing_else(repo: Path, tmp_path: Path) -> None:
    export(
        repo, {"a/b": b"1", "a/bc": b"2", "b": b"3"}, tmp_path / "out", absent=("a/b", "not/there")
    )
    assert [
        path
        for path, (mode, _) in git_repository.read_folder(tmp_path / "out").items()
        if mode.startswith("100")
    ] == ["a/bc", "b"]


def test_an_absent_blob_need_not_exist(repo: Path, tmp_path: Path) -> None:
    entries = [
        Entry("gone", "100644", "12" * 20),
        Entry("here", "100644", git_repository.write_raw_object(repo, "blob", b"x")),
    ]
    with Reader(Git(repo)) as reader:
        write_tree(reader, exported_entries(entries, ("gone",)), tmp_path / "out")
        with errors.expect_user_error(errors.MISSING, where="12" * 20):
            write_tree(reader, entries, tmp_path / "out2")
    assert git_repository.read_folder(tmp_path / "out") == {"here": ("100644", b"x")}


GOOD_LINKS: list[dict[str, Content]] = [
    {"a/l": ("120000", b"../b"), "b": b""},
    {"a/l": ("120000", b".."), "b": b""},
    {"a/l": ("120000", b"./x/../y"), "b": b""},
    {"d/e/l": ("120000", b"../.."), "m": ("120000", b"d/e/l/b"), "b": b""},
]


@pytest.mark.parametrize("files", GOOD_LINKS)
def test_links_that_stay_inside_are_kept(
    repo: Path, tmp_path: Path, files: dict[str, Content]
) -> None:
    export(repo, files, tmp_path / "out")
    written = git_repository.read_folder(tmp_path / "out")
    for path, content in files.items():
        if isinstance(content, tuple):
            assert written[path] == ("120777", content[1])


BAD_LINKS: dict[str, dict[str, Content]] = {
    "absolute": {"l": ("120000", b"/etc/passwd")},
    "climbs": {"l": ("120000", b"../x")},
    "climbs from below": {"a/b/l": ("120000", b"../../../x")},
    "climbs and returns": {"a/l": ("120000", b"../../out/a")},
    "climbs by way of another": {"d/e/l": ("120000", b"../.."), "d/m": ("120000", b"e/l/../x")},
    "absolute by way of another": {"l": ("120000", b"/"), "m": ("120000", b"l/etc")},
    "round and round": {"l": ("120000", b"m"), "m": ("120000", b"l")},
    "into .git": {"l": ("120000", b".git/config")},
    "empty": {"l": ("120000", b"")},
    "nul": {"l": ("120000", b"a\0b")},
    "backslash": {"l": ("120000", b"..\\x")},
    "no text": {"l": ("120000", b"\xff")},
}


@pytest.mark.parametrize("case", BAD_LINKS)
def test_links_that_lead_out_are_refused_before_anything_is_written(
    repo: Path, tmp_path: Path, case: str
) -> None:
    with pytest.raises(UserError) as caught:
        export(repo, {"a0": b"first in order", **BAD_LINKS[case]}, tmp_path / "out")
    assert str(repo) in caught.value.where
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("paths", [("a", "a/b"), ("a", "a"), ("a/b", "a/b/c")])
def test_a_path_below_a_link_or_a_file_is_refused(
    repo: Path, tmp_path: Path, paths: tuple[str, str]
) -> None:
    blob = git_repository.write_raw_object(repo, "blob", b"..")
    with (
        Reader(Git(repo)) as reader,
        errors.expect_user_error(errors.CONFLICT, where=repo, value=paths[0]),
    ):
        write_tree(
            reader,
            [Entry(paths[0], "120000", blob), Entry(paths[1], "100644", blob)],
            tmp_path / "out",
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", ["../x", "/x", ".git/hooks/post-checkout", "a/../../x"])
def test_a_path_that_climbs_out_is_refused(repo: Path, tmp_path: Path, path: str) -> None:
    with Reader(Git(repo)) as reader, pytest.raises(UserError):
        write_tree(
            reader,
            [Entry(path, "100755", git_repository.write_raw_object(repo, "blob", b"x"))],
            tmp_path / "out",
        )
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_through_what_is_there_already(repo: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "setup.py").symlink_to(victim)
    with errors.expect_user_error(errors.FAILED, where="setup.py"):
        export(repo, {"setup.py": b"theirs"}, tmp_path / "out")
    assert victim.read_bytes() == b"mine"
