from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from builder.upstream import overlay, patched_source
from tests.support import errors
from tests.support.patch_series import Bench, make_text

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.upstream.commit(
        {"pkg/a.py": make_text(), "bin/run.sh": b"#!/bin/sh\n"}, modes={"bin/run.sh": "100755"}
    )
    return made


def _blob(bench: Bench, path: str) -> str:
    return bench.upstream.git.text("rev-parse", f"{bench.upstream.head}:{path}")


def _judged(bench: Bench, *, history: bool = True) -> list[overlay.OverlayResult]:
    return list(
        patched_source.survey_patches(
            bench.pinned(history=history), (), overlay.load_overlay(bench.overlay)
        ).overlaid
    )


def test_files_of_ours_stand_in_one_commit_after_the_patches(bench: Bench) -> None:
    bench.add("mine", bench.upstream.diff({"pkg/a.py": make_text(l3="ours\n")}))
    bench.lay("bin/lib/common.sh", b"# shared\n", "new")
    bench.lay("bin/run.sh", b"#!/bin/sh\nexec ours\n", _blob(bench, "bin/run.sh")).chmod(0o755)
    done = patched_source.build_patched_source(bench.pinned(), bench.source())
    git = bench.pinned().git
    assert git.text(
        "diff-tree", "-r", "--name-status", f"{done.commit}^", done.commit
    ).splitlines() == ["A\tbin/lib/common.sh", "M\tbin/run.sh"]
    assert git.text("rev-parse", f"{done.commit}^") == done.patches[0].commit
    assert git.text("log", "-1", "--format=%ct", done.commit) == str(bench.pinned().date + 2)
    assert git.text("ls-tree", done.tree, "bin/run.sh").startswith("100755 ")
    assert git.text("ls-tree", done.tree, "bin/lib/common.sh").startswith("100644 ")
    assert done.overlay == (
        ("bin/lib/common.sh", _sha(bench, b"# shared\n")),
        ("bin/run.sh", _sha(bench, b"#!/bin/sh\nexec ours\n")),
    )


def _sha(bench: Bench, data: bytes) -> str:
    return bench.upstream.git.text("hash-object", "--stdin", stdin=data)


def test_only_the_owners_executable_bit_counts(bench: Bench) -> None:
    file = bench.lay("x.sh", b"#!/bin/sh\n", "new")
    for mode, wanted in (
        (0o644, "100644"),
        (0o600, "100644"),
        (0o755, "100755"),
        (0o700, "100755"),
        (0o655, "100644"),
    ):
        file.chmod(mode)
        assert overlay.load_overlay(bench.overlay)[0].mode == wanted


def test_a_changed_blob_is_a_conflict_that_names_the_commit(bench: Bench) -> None:
    bench.lay("bin/run.sh", b"ours\n", _blob(bench, "bin/run.sh"))
    culprit = bench.upstream.commit({"bin/run.sh": b"#!/bin/sh\nset -e\n"}, "safer")
    bench.upstream.commit({"bin/run.sh": b"#!/bin/sh\nset -eu\n"}, "safer still")
    (laid,) = _judged(bench)
    assert (laid.outcome, laid.cause and laid.cause.commit) == ("conflict", culprit)
    assert f"is now {_blob(bench, 'bin/run.sh')}" in laid.detail
    with errors.expect_user_error(
        errors.CONFLICT,
        where="overlay/up/bin/run.sh",
        value="conflict",
        names=_blob(bench, "bin/run.sh"),
    ) as caught:
        patched_source.build_patched_source(bench.pinned(), bench.source())
    assert caught.value.where.endswith("overlay/up/bin/run.sh")
    (blind,) = _judged(bench, history=False)
    assert (blind.outcome, blind.cause) == ("conflict", None)
    assert "give --mirror" in blind.detail


def test_new_where_upstream_now_has_a_file(bench: Bench) -> None:
    bench.lay("bin/more.sh", b"ours\n", "new")
    culprit = bench.upstream.commit({"bin/more.sh": b"theirs\n"}, "more")
    bench.upstream.commit({"bin/more.sh": b"theirs!\n"}, "even more")
    (laid,) = _judged(bench)
    assert (laid.outcome, laid.cause and laid.cause.commit) == ("conflict", culprit)


def test_gone_and_moved(bench: Bench) -> None:
    bench.lay("bin/run.sh", b"ours\n", _blob(bench, "bin/run.sh"))
    culprit = bench.upstream.commit({"bin/run.sh": None, "tools/run.sh": b"#!/bin/sh\n"}, "move")
    (laid,) = _judged(bench)
    assert (laid.outcome, laid.cause and laid.cause.commit) == ("gone", culprit)
    assert "moved to tools/run.sh" in laid.detail


def test_the_same_file_upstream_is_not_needed(bench: Bench) -> None:
    bench.lay("bin/run.sh", b"#!/bin/sh\n", _blob(bench, "bin/run.sh")).chmod(0o755)
    (laid,) = _judged(bench)
    assert laid.outcome == "upstream"
    assert (
        patched_source.build_patched_source(bench.pinned(), bench.source()).commit
        == bench.upstream.head
    )


def test_a_file_cannot_stand_in_for_a_link_a_folder_or_below_a_file(bench: Bench) -> None:
    bench.upstream.commit({"link": b"bin"}, modes={"link": "120000"})
    link = _blob(bench, "link")
    for path, replaces, what in (
        ("link", link, "link is a link"),
        ("pkg", "new", "is a folder upstream"),
        ("link/x", "new", "link is a file or a link"),
        ("pkg/a.py/x", "new", "pkg/a.py is a file"),
    ):
        files = (
            overlay.OverlayFile(
                path, "100644", "1" * 40, None if replaces == "new" else replaces, b""
            ),
        )
        (laid,) = patched_source.survey_patches(bench.pinned(), (), files).overlaid
        assert laid.outcome == "conflict"
        assert what in laid.detail


def test_one_file_is_either_patched_or_overlaid(bench: Bench) -> None:
    bench.add("mine", bench.upstream.diff({"pkg/a.py": make_text(l3="ours\n")}))
    bench.lay("pkg/a.py", b"ours\n", _blob(bench, "pkg/a.py"))
    with errors.expect_user_error(errors.CONFLICT, where="up", value="pkg/a.py", names="mine"):
        patched_source.build_patched_source(bench.pinned(), bench.source())


def test_an_absent_file_is_not_overlaid(bench: Bench) -> None:
    bench.lay("pkg/a.py", b"ours\n", _blob(bench, "pkg/a.py"))
    absent = ("pkg/a.py",)
    with errors.expect_user_error(errors.CONFLICT, where="up", value="pkg/a.py", names="absent"):
        patched_source.build_patched_source(
            bench.pinned(absent=absent), bench.source(absent=absent)
        )


@pytest.mark.parametrize(
    ("line", "kind", "value", "remedy"),
    [
        ("a.py", errors.INVALID, "a.py", "patches.md"),
        ("a.py 1234567", errors.INVALID, "a.py 1234567", "patches.md"),
        ("", errors.INVALID, "", "patches.md"),
        ("../a.py new", errors.INVALID, "../a.py", "inside"),
        ("/a.py new", errors.INVALID, "/a.py", "inside"),
        (".git/hooks/post-checkout new", errors.INVALID, ".git/hooks/post-checkout", "inside"),
        ("x/.GIT/config new", errors.INVALID, "x/.GIT/config", "inside"),
        (".gitmodules new", errors.INVALID, ".gitmodules", "inside"),
        ("sub/.gitattributes new", errors.INVALID, "sub/.gitattributes", "inside"),
        ("-a.py new", errors.INVALID, "-a.py", "inside"),
        ('"a.py" new', errors.INVALID, '"a.py"', "inside"),
        ("aaa new", errors.INVALID, "aaa", "sort"),
        ("b.py new", errors.CONFLICT, "b.py", "delete one"),
        ("c.py new", errors.MISSING, "c.py", "drop"),
    ],
)
def test_lines_of_replaces_that_are_refused(
    bench: Bench, line: str, kind: str, value: str, remedy: str
) -> None:
    bench.lay("b.py", b"ours\n", "new")
    assert len(overlay.load_overlay(bench.overlay)) == 1
    (bench.overlay / "REPLACES").write_text(f"b.py new\n{line}\n")
    with errors.expect_user_error(kind, where="REPLACES", value=value, remedy=remedy):
        overlay.load_overlay(bench.overlay)


def test_every_file_is_listed(bench: Bench) -> None:
    bench.lay("b.py", b"ours\n", "new")
    (bench.overlay / "sub").mkdir()
    (bench.overlay / "sub/extra.py").write_text("x\n")
    with errors.expect_user_error(
        errors.UNKNOWN, where="sub/extra.py", names="REPLACES", remedy="new"
    ) as caught:
        overlay.load_overlay(bench.overlay)
    assert caught.value.where.endswith("sub/extra.py")
    (bench.overlay / "REPLACES").unlink()
    with errors.expect_user_error(errors.MISSING, where="REPLACES"):
        overlay.load_overlay(bench.overlay)


@pytest.mark.parametrize("target", ["/etc/passwd", "b.py", "../../patches"])
def test_links_in_the_overlay_are_refused(bench: Bench, target: str) -> None:
    bench.lay("b.py", b"ours\n", "new")
    (bench.overlay / "c.py").symlink_to(target)
    with errors.expect_user_error(errors.INVALID, where="c.py"):
        overlay.load_overlay(bench.overlay)


def test_a_pipe_in_the_overlay_is_refused(bench: Bench) -> None:
    bench.lay("b.py", b"ours\n", "new")
    os.mkfifo(bench.overlay / "c.py")
    with errors.expect_user_error(errors.INVALID, where="c.py"):
        overlay.load_overlay(bench.overlay)
