from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.upstream import patch_import
from tests.support import errors
from tests.support.patch_series import Bench

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("t5x: Import airio lazily!", "import-airio-lazily"),
        ("#2 fix", "fix"),
        ("../../etc/passwd", "etc-passwd"),
        ("[x] ünï", "x-n"),
        ("12", "change"),
        ("word " * 30, "word-word-word-word-word-word-word-word"),
        ("a" * 60, "change"),
    ],
)
def test_a_name_comes_from_the_subject(subject: str, name: str) -> None:
    assert patch_import.derive_name(subject) == name


def test_a_folder_that_is_no_clone_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.upstream.commit({"a": b"a\n"})
    pinned = bench.pinned()
    for folder in (tmp_path, tmp_path / "mirror", tmp_path / "nosuch"):
        with errors.expect_user_error(errors.INVALID, where=folder, remedy="--repo"):
            patch_import.join_clone(pinned, folder)
    joined, clone = patch_import.join_clone(pinned, tmp_path / "mirror/up.git")
    assert clone
    assert joined.git.alternates[-1] == clone.objects
    assert patch_import.resolve_commit(joined.git, clone, "main") == bench.upstream.head


def test_a_clone_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.upstream.commit({"a": b"a\n"})
    pinned = bench.pinned()
    info = tmp_path / "mirror/up.git/objects/info"
    info.mkdir(exist_ok=True)
    (info / "alternates").write_text("/\n")
    with errors.expect_user_error(errors.INVALID, where="up.git", value="/"):
        patch_import.join_clone(pinned, tmp_path / "mirror/up.git")
