from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from builder.upstream.local_mirror import (
    Mirror,
    find_mirrors,
    path_words,
    read_ref,
    repository_name,
)
from rosetta.core.errors import UserError
from tests.support import errors, git_repository

if TYPE_CHECKING:
    from pathlib import Path


def found(root: Path, word: str = "t5x") -> list[str]:
    return [mirror.path.relative_to(root).as_posix() for mirror in find_mirrors(root, word)]


@pytest.mark.parametrize(
    "place",
    ["t5x.git", "google-research/t5x.git", "google-research+t5x/repo", "a/b/t5x", ".", "t5x/.git"],
)
def test_clones_are_found_where_people_keep_them(tmp_path: Path, place: str) -> None:
    git_repository.init_repository(tmp_path / place)
    assert found(tmp_path) == [place]


def test_those_named_after_the_source_come_first_and_others_are_not_left_out(
    tmp_path: Path,
) -> None:
    for place in ("a/x.git", "b+t5x/repo", "paxml.git", "t5xx.git"):
        git_repository.init_repository(tmp_path / place)
    assert found(tmp_path) == ["b+t5x/repo", "a/x.git", "paxml.git", "t5xx.git"]
    assert found(tmp_path, "paxml")[0] == "paxml.git"


def test_neither_links_nor_what_lies_deeper_is_followed(tmp_path: Path) -> None:
    git_repository.init_repository(tmp_path / "far" / "t5x.git")
    git_repository.init_repository(tmp_path / "m" / "1" / "2" / "3" / "t5x.git")
    (tmp_path / "m" / "t5x.git").symlink_to(tmp_path / "far" / "t5x.git")
    assert found(tmp_path / "m") == []


@pytest.mark.parametrize("name", ["", "file"])
def test_a_mirror_that_is_no_folder_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with errors.expect_user_error(
        errors.MISSING, where=tmp_path / (name or "gone"), remedy="--mirror"
    ):
        found(tmp_path / (name or "gone"))


def test_words() -> None:
    assert (
        repository_name("https://github.com/google-research/t5x.git")
        == repository_name("ssh://git@h/t5x/")
        == "t5x"
    )


def test_the_mirror_folders_own_name_counts(tmp_path: Path) -> None:
    assert "t5x" in path_words(tmp_path / "t5x" / ".git", tmp_path / "t5x")


def _link_objects(clone: Path, elsewhere: Path) -> None:
    (clone / "objects").rename(elsewhere)
    (clone / "objects").symlink_to(elsewhere)


def _link_pack(clone: Path, elsewhere: Path) -> None:
    (clone / "objects" / "pack").rename(elsewhere)
    (clone / "objects" / "pack").symlink_to(elsewhere)


def _pipe(clone: Path, _: Path) -> None:
    os.mkfifo(clone / "objects" / "pack" / "pack-x.idx")


def _link_in_pack(clone: Path, _: Path) -> None:
    (clone / "objects" / "pack" / "pack-x.idx").symlink_to("/dev/zero")


def _alternate(clone: Path, elsewhere: Path) -> None:
    (clone / "objects" / "info" / "alternates").write_text(f"# mine\n{elsewhere}\n")


def _climbing_alternate(clone: Path, elsewhere: Path) -> None:
    (clone / "objects" / "info" / "alternates").write_text(f"../../../{elsewhere.name}\n")


def _alternate_of_an_alternate(clone: Path, elsewhere: Path) -> None:
    between = git_repository.init_repository(clone.parent / "zz.git")
    (clone / "objects" / "info" / "alternates").write_text("../../zz.git/objects\n")
    _alternate(between, elsewhere)


def _alternate_of_itself(clone: Path, _: Path) -> None:
    (clone / "objects" / "info" / "alternates").write_text(f"{clone}/objects\n")


@pytest.mark.parametrize(
    "spoil",
    [
        _link_objects,
        _link_pack,
        _pipe,
        _link_in_pack,
        _alternate,
        _climbing_alternate,
        _alternate_of_an_alternate,
        _alternate_of_itself,
    ],
)
def test_a_clone_that_reaches_out_of_the_mirror_is_refused(tmp_path: Path, spoil: object) -> None:
    clone = git_repository.init_repository(tmp_path / "m" / "t5x.git")
    assert found(tmp_path / "m") == ["t5x.git"]
    assert callable(spoil)
    spoil(clone, tmp_path / "elsewhere")
    with pytest.raises(UserError) as caught:
        found(tmp_path / "m")
    assert str(clone) in caught.value.where


def test_links_and_alternates_that_stay_inside_are_fine(tmp_path: Path) -> None:
    clone, other = (
        git_repository.init_repository(tmp_path / "t5x.git"),
        git_repository.init_repository(tmp_path / "other.git"),
    )
    (clone / "objects" / "info" / "alternates").write_text(f"{other}/objects\n")
    _link_pack(clone, tmp_path / "pack")
    assert found(tmp_path) == ["t5x.git", "other.git"]


def test_refs_are_read_by_hand_loose_before_packed(tmp_path: Path) -> None:
    clone, pin = git_repository.make_upstream(tmp_path / "t5x.git")
    mirror = Mirror(clone, clone / "objects")
    first = git_repository.run_git(clone, "rev-parse", "main^")
    git_repository.run_git(clone, "tag", "-a", "v1", "-m", "v1", first)
    assert read_ref(mirror, "refs/heads/main") == pin
    git_repository.run_git(clone, "pack-refs", "--all")
    assert read_ref(mirror, "refs/heads/main") == pin
    assert read_ref(mirror, "refs/tags/v1") == first, "peeled"
    git_repository.set_branch(clone, first)
    assert read_ref(mirror, "refs/heads/main") == first
    assert read_ref(mirror, "refs/heads/mai") is None


def test_a_ref_that_is_a_link_out_of_the_clone_is_not_read(tmp_path: Path) -> None:
    clone, pin = git_repository.make_upstream(tmp_path / "t5x.git")
    (tmp_path / "secret").write_text(pin)
    (clone / "refs" / "heads" / "x").symlink_to(tmp_path / "secret")
    (clone / "refs" / "heads" / "y").write_text("ref: refs/heads/main\n")
    mirror = Mirror(clone, clone / "objects")
    assert read_ref(mirror, "refs/heads/x") is None
    assert read_ref(mirror, "refs/heads/y") is None
