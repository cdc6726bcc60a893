from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.upstream import git_index, patch_file, patch_hunks
from rosetta.core.errors import UserError
from tests.support.patch_series import FIELDS, Upstream

if TYPE_CHECKING:
    from builder.upstream.patch_file import FilePatch

pytestmark = pytest.mark.slow


def _parsed(diff: bytes) -> FilePatch:
    return patch_file.parse_patch(
        Path("x.patch"), patch_file.render_patch("a <a@b>", "s", FIELDS, diff)
    ).files[0]


def _edited(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    changed = list(lines)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(changed) or 1)
        changed[at : at + rng.randint(0, 2)] = [
            b"new %d\n" % rng.randint(0, 4) for _ in range(rng.randint(0, 2))
        ]
    return changed


def test_a_hunk_goes_where_git_puts_it(tmp_path: Path) -> None:
    rng = random.Random(7)  # noqa: S311 - repeatable, not secret
    upstream = Upstream(tmp_path)
    seen = {True: 0, False: 0}
    for round_ in range(60):
        base = [b"line %d\n" % rng.randint(0, 9) for _ in range(rng.randint(6, 16))]
        other = _edited(rng, base) if round_ % 3 else base
        upstream.commit({"f": b"".join(base)})
        diff = upstream.diff({"f": b"".join(_edited(rng, base))})
        if not diff or upstream.git.run("apply", "--numstat", "-", stdin=diff).stdout.startswith(
            b"0\t0"
        ):
            continue
        try:
            file = _parsed(diff)
        except UserError:  # replaces the whole file: not ours to apply
            continue
        upstream.head = ""
        commit = upstream.commit({"f": b"".join(other)})
        index = git_index.Index(upstream.git, tmp_path / "try")
        index.read_tree(f"{commit}^{{tree}}")
        taken = index.apply(diff) is None
        ours = patch_hunks.apply_hunks(other, file.hunks)
        seen[taken] += 1
        assert taken == (ours is not None), (round_, diff, other)
        if ours is not None:
            assert upstream.git.run("cat-file", "blob", index.entries()["f"][1]).stdout == b"".join(
                ours
            )
    assert min(seen.values()) >= 5, seen


def test_reversed_hunks_take_a_patch_out_again(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path)
    before, after = b"a\nb\nc\nd\ne\n", b"a\nB\nc\ne\nf\n"
    upstream.commit({"f": before})
    file = _parsed(upstream.diff({"f": after}))
    there = patch_hunks.apply_hunks(patch_hunks.split_lines(before), file.hunks)
    assert there == patch_hunks.split_lines(after)
    assert patch_hunks.apply_hunks(
        there or [], patch_hunks.reverse_hunks(file.hunks)
    ) == patch_hunks.split_lines(before)


def test_lines_keep_a_missing_last_newline_and_carriage_returns() -> None:
    assert patch_hunks.split_lines(b"a\r\nb\x0bc\nd") == [b"a\r\n", b"b\x0bc\n", b"d"]
    assert patch_hunks.split_lines(b"") == []


def test_a_hunk_that_fits_twice_and_not_at_its_line_is_doubtful(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path)
    block = b"begin\nvalue\nend\n"
    upstream.commit({"f": block + b"x\n" * 5})
    file = _parsed(upstream.diff({"f": b"begin\nother\nend\n" + b"x\n" * 5}))
    (own,) = patch_hunks.fit_hunks(patch_hunks.split_lines(block + block), file.hunks)[1]
    assert not own.is_ambiguous
    upstream.head = ""
    upstream.commit({"f": b"top\n" * 4 + block})
    file = _parsed(upstream.diff({"f": b"top\n" * 4 + b"begin\nother\nend\n"}))
    (moved,) = patch_hunks.fit_hunks(
        patch_hunks.split_lines(b"top\n" + block + b"y\n" + block), file.hunks
    )[1]
    assert moved.is_ambiguous


def test_what_fits_but_is_there_already_is_not_taken(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path)
    before, after = b"# up\n\n## Overview\nall\n", b"# up\n\nNote\n\n## Overview\nall\n"
    upstream.commit({"f": before})
    file = _parsed(upstream.diff({"f": after}))
    assert patch_hunks.accepts_hunks(patch_hunks.split_lines(before), file.hunks)
    assert not patch_hunks.contains_hunks(patch_hunks.split_lines(before), file.hunks)
    assert patch_hunks.apply_hunks(patch_hunks.split_lines(after), file.hunks) is not None
    assert not patch_hunks.accepts_hunks(patch_hunks.split_lines(after), file.hunks)
    assert patch_hunks.contains_hunks(patch_hunks.split_lines(after), file.hunks)
