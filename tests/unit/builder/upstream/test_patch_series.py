from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.upstream import patch_file, patch_series
from tests.support import errors
from tests.support.patch_series import FIELDS

if TYPE_CHECKING:
    from pathlib import Path

PATCH = patch_file.render_patch("a <a@b>", "s", FIELDS, b"")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "series").write_text("# the order\nsecond\n\nfirst # a reason\n")
    for name in ("first", "second"):
        (tmp_path / f"{name}.patch").write_bytes(PATCH)
    return tmp_path


def test_the_order_is_that_of_series(folder: Path) -> None:
    assert [patch.name for patch in patch_series.load_patches(folder)] == ["second", "first"]


def test_an_empty_series_is_fine(tmp_path: Path) -> None:
    (tmp_path / "series").write_text("")
    assert patch_series.load_patches(tmp_path) == ()


@pytest.mark.parametrize(
    "entry",
    [
        "../first",
        "sub/first",
        "-first",
        "0001-first",
        ".first",
        "first.patch",
        "fir..st",
        "fi rst",
        "fïrst",
        "/first",
    ],
)
def test_names_that_are_no_names(folder: Path, entry: str) -> None:
    (folder / "series").write_text(f"second\n{entry}\n")
    with errors.expect_user_error(
        errors.INVALID, where=f"{folder}/series:2", value=entry
    ) as caught:
        patch_series.load_patches(folder)
    assert caught.value.where == f"{folder}/series:2"


def test_twice_missing_unlisted_and_no_series(folder: Path) -> None:
    (folder / "series").write_text("first\nsecond\nfirst\n")
    with errors.expect_user_error(errors.CONFLICT, where="series:3", value="first") as caught:
        patch_series.load_patches(folder)
    assert caught.value.where.endswith("series:3")
    (folder / "series").write_text("first\nsecond\nthird\n")
    with errors.expect_user_error(errors.MISSING, where="series", value="third.patch"):
        patch_series.load_patches(folder)
    (folder / "series").write_text("first\n")
    with errors.expect_user_error(errors.UNKNOWN, where=f"{folder}/second.patch") as caught:
        patch_series.load_patches(folder)
    assert caught.value.where == f"{folder}/second.patch"
    assert len(patch_series.load_patches(folder, tolerated=["second.patch"])) == 1
    (folder / "series").unlink()
    with errors.expect_user_error(errors.MISSING, where="series", value=None):
        patch_series.load_patches(folder)


def test_what_a_killed_write_left_is_no_patch(folder: Path) -> None:
    (folder / ".tmp-77-first.patch").write_bytes(b"half")
    assert len(patch_series.load_patches(folder)) == 2


def test_links_are_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "x.patch"
    elsewhere.write_bytes(PATCH)
    (folder / "first.patch").unlink()
    (folder / "first.patch").symlink_to(elsewhere)
    with errors.expect_user_error(errors.INVALID, where="first.patch"):
        patch_series.load_patches(folder)


def test_series_is_plain_text(folder: Path) -> None:
    (folder / "series").write_bytes(b"first\r\nsecond\r\n")
    with errors.expect_user_error(errors.INVALID, where="series", remedy="LF"):
        patch_series.load_patches(folder)
    (folder / "series").write_bytes(b"f\xefrst\n")
    with errors.expect_user_error(errors.INVALID, where="series", names="UTF-8"):
        patch_series.load_patches(folder)
