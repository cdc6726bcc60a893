"""Putting parts together: fresh, again, changed, killed, and next to what is not ours."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from builder.packages import environment_assembly
from tests.support import errors

ROOT = Path(__file__).parents[4]


def _part(path: str, content: str, made: list[str] | None = None) -> environment_assembly.Part:
    def make(into: Path) -> None:
        if made is not None:
            made.append(path)
        into.mkdir()
        (into / "content").write_text(content)

    return environment_assembly.Part(path, content, make)


def _content(output: Path) -> dict[str, str]:
    return {
        str(path.parent.relative_to(output)): path.read_text() for path in output.rglob("content")
    }


def test_fresh_then_nothing_then_one_part(tmp_path: Path) -> None:
    output, made = tmp_path / "out", list[str]()
    parts = [_part("opt/env", "1", made), _part("opt/t5x", "1", made)]
    assert environment_assembly.assemble_parts(output, parts) == ["opt/env", "opt/t5x"]
    assert environment_assembly.is_current(output, parts)
    assert environment_assembly.assemble_parts(output, parts) == []
    changed = [_part("opt/env", "1", made), _part("opt/t5x", "2", made)]
    assert not environment_assembly.is_current(output, changed)
    assert environment_assembly.assemble_parts(output, changed) == ["opt/t5x"]
    assert made == ["opt/env", "opt/t5x", "opt/t5x"]
    assert _content(output) == {"opt/env": "1", "opt/t5x": "2"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_cannot_be_made_is_one_line() -> None:
    with errors.expect_user_error(errors.DENIED, where="/proc/none/env", remedy="--output env:DIR"):
        environment_assembly.assemble_parts(Path("/proc/none/env"), [])


def test_a_part_no_longer_wanted_goes(tmp_path: Path) -> None:
    output = tmp_path / "out"
    environment_assembly.assemble_parts(output, [_part("opt/a", "1"), _part("opt/b", "1")])
    environment_assembly.assemble_parts(output, [_part("opt/b", "1")])
    assert _content(output) == {"opt/b": "1"}


def test_a_part_deleted_by_hand_comes_back(tmp_path: Path) -> None:
    output, parts = tmp_path / "out", [_part("opt/a", "1")]
    environment_assembly.assemble_parts(output, parts)
    (output / "opt/a/content").unlink()
    (output / "opt/a").rmdir()
    assert not environment_assembly.is_current(output, parts)
    assert environment_assembly.assemble_parts(output, parts) == ["opt/a"]


def test_an_empty_folder_is_taken_and_a_foreign_one_is_not(tmp_path: Path) -> None:
    empty, foreign = tmp_path / "empty", tmp_path / "foreign"
    empty.mkdir()
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("mine")
    environment_assembly.assemble_parts(empty, [_part("a", "1")])
    with errors.expect_user_error(errors.EXISTS, where=foreign, remedy="empty"):
        environment_assembly.assemble_parts(foreign, [_part("a", "1")])
    assert [path.name for path in foreign.iterdir()] == ["thesis.tex"]
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(empty)
    for name in ("file", "link"):
        with errors.expect_user_error(
            errors.EXISTS, where=tmp_path / name, remedy="--output env:DIR"
        ):
            environment_assembly.assemble_parts(tmp_path / name, [_part("a", "1")])


_KILLED = """
import os, signal, sys
from pathlib import Path
from builder.packages import environment_assembly
from tests.unit.builder.packages.test_environment_assembly import _part
count = [0]
real = os.rename, os.replace
def counted(function):
    def call(*args):
        count[0] += 1
        if count[0] == int(sys.argv[3]): os.kill(os.getpid(), signal.SIGKILL)
        return function(*args)
    return call
os.rename, os.replace = map(counted, real)
parts = [_part("opt/a", sys.argv[2]), _part("opt/b", sys.argv[2])]
environment_assembly.assemble_parts(Path(sys.argv[1]), parts)
"""


@pytest.mark.parametrize("first", ["", "old"])
def test_killed_at_every_rename_a_rerun_finishes(tmp_path: Path, first: str) -> None:
    """SIGKILL before each rename of a run, from nothing and over an older output, until a run gets through."""
    for point in range(1, 40):
        output = tmp_path / f"out{point}"
        if first:
            environment_assembly.assemble_parts(
                output, [_part("opt/a", first), _part("opt/b", first)]
            )
        done = subprocess.run(
            [sys.executable, "-c", _KILLED, str(output), "new", str(point)], cwd=ROOT, check=False
        )
        wanted = [_part("opt/a", "new"), _part("opt/b", "new")]
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        assert not environment_assembly.is_current(output, wanted)
        environment_assembly.assemble_parts(output, wanted)
        assert environment_assembly.is_current(output, wanted)
        assert _content(output) == {"opt/a": "new", "opt/b": "new"}
        assert not (output / ".rosetta/old").exists()
    assert point > 4, "the kill points were never reached"


def test_a_state_file_cannot_point_outside(tmp_path: Path) -> None:
    output, victim = tmp_path / "out", tmp_path / "victim"
    victim.mkdir()
    environment_assembly.assemble_parts(output, [_part("opt/a", "1")])
    for text in (
        '{"parts": {"../victim": "x", "opt/../../victim": "x", "/etc": "x"}}',
        '{"parts": [1]}',
        '{"parts": "abc"}',
        "[" * 5000,
    ):
        (output / environment_assembly.STATE).write_text(text)
        environment_assembly.assemble_parts(output, [_part("opt/a", "1")])
    assert victim.is_dir()
    assert _content(output) == {"opt/a": "1"}


def test_a_folder_of_the_same_hidden_name_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / ".out.rosetta-new"
    other.mkdir()
    (other / "precious").write_text("mine")
    with errors.expect_user_error(errors.EXISTS, where=other):
        environment_assembly.assemble_parts(tmp_path / "out", [_part("a", "1")])
    assert (other / "precious").read_text() == "mine"


def test_another_distribution_is_not_overwritten(tmp_path: Path) -> None:
    lock = tmp_path / "opt/rosetta/lock.json"
    lock.parent.mkdir(parents=True)
    lock.write_text('{"distribution": "t5x"}')
    (tmp_path / ".rosetta").mkdir()
    (tmp_path / environment_assembly.STATE).write_text('{"parts": {}}')
    environment_assembly.refuse_foreign_output(tmp_path, "t5x")
    with errors.expect_user_error(errors.CONFLICT, where=tmp_path, value="t5x", remedy="pax"):
        environment_assembly.refuse_foreign_output(tmp_path, "pax")


def test_one_lock_for_two_names_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    with environment_assembly.lock_output(tmp_path / "alias/out") as first:
        assert first == tmp_path / "real/out"
        program = f"import fcntl, os; h = os.open({str(tmp_path / 'real')!r}, os.O_RDONLY); fcntl.flock(h, fcntl.LOCK_EX | fcntl.LOCK_NB)"
        assert subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=False
        ).returncode
