"""The cache under kills, two builders at once and a full disk."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.commands import cache as cache_command
from builder.core import cache_inspection
from builder.core.cache import Cache, remove_path, stage_key
from builder.core.cache_folder import default_root
from builder.core.cache_records import write_stamp
from builder.core.command_context import Context
from rosetta.core.errors import UserError
from tests.support import errors

ROOT = Path(__file__).parents[4]


def test_key_depends_on_content_not_on_order() -> None:
    assert stage_key("s", {"a": 1, "b": [2]}) == stage_key("s", {"b": [2], "a": 1})
    assert (
        len({stage_key("s", {"a": 1}), stage_key("t", {"a": 1}), stage_key("s", {"a": "1"})}) == 3
    )


def test_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert default_root() == Path(os.environ["HOME"]) / ".cache/rosetta"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "rosetta"
    monkeypatch.setenv("ROSETTA_CACHE", str(tmp_path / "own"))
    assert default_root() == tmp_path / "own"


def test_made_once(cache: Cache) -> None:
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "f").write_text("x")

    first = cache.ensure_folder("trees", "k", make)
    assert cache.ensure_folder("trees", "k", make) == first
    assert len(made) == 1
    assert (first / "f").read_text() == "x"


def test_a_failure_keeps_nothing(cache: Cache) -> None:
    def make(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        cache.ensure_folder("trees", "k", make)
    assert list(cache.path("trees").iterdir()) == []


_SLOW = """
import sys, time
from pathlib import Path
from builder.core.cache import Cache
def make(folder):
    (folder / "part1").write_text("x")
    print("begun", flush=True)
    time.sleep(float(sys.argv[2]))
    (folder / "part2").write_text("x")
print(Cache(Path(sys.argv[1])).ensure_folder("trees", "k", make), flush=True)
"""


def _start(cache: Cache, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _SLOW, str(cache.root), str(seconds)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )


def test_kill_9_in_the_middle_and_a_rerun(cache: Cache) -> None:
    with _start(cache, 60) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGKILL)
    assert [path.name for path in cache.path("trees").iterdir()] == [".tmp-k"]
    with _start(cache, 0) as process:
        process.communicate()
    assert sorted(path.name for path in (cache.root / "trees/k").iterdir()) == ["part1", "part2"]
    assert [path.name for path in cache.path("trees").iterdir()] == ["k"]


def test_two_at_once_make_it_once(cache: Cache) -> None:
    with _start(cache, 1.5) as first, _start(cache, 1.5) as second:
        said = [process.communicate()[0] for process in (first, second)]
    assert sorted(text.count("begun") for text in said) == [0, 1]
    assert all(text.endswith("trees/k\n") for text in said)


def test_unwritable_cache_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with errors.expect_user_error(errors.DENIED, where="file", remedy="ROSETTA_CACHE") as caught:
        Cache(tmp_path / "file").path("trees")
    assert "ROSETTA_CACHE" in caught.value.do


def test_remove_takes_read_only_folders(tmp_path: Path) -> None:
    folder = tmp_path / "a/b"
    folder.mkdir(parents=True)
    (folder / "f").write_text("x")
    folder.chmod(0o500)
    remove_path(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    remove_path(tmp_path / "a")


def test_du_counts_hard_links_once_and_prune_spares_what_is_fresh(cache: Cache) -> None:
    def make(folder: Path) -> None:
        (folder / "f").write_bytes(b"x" * 100_000)
        os.link(folder / "f", folder / "g")

    old, fresh = (
        cache.ensure_folder("trees", "old", make),
        cache.ensure_folder("trees", "fresh", make),
    )
    cache.path("git", "t5x.git").mkdir()
    killed = cache.path("env", ".tmp-killed")
    killed.mkdir()
    (cache.root / "Documents").mkdir()
    (cache.root / "Documents/thesis.tex").write_text("mine")
    long_ago = time.time() - 40 * 86400
    os.utime(old, (long_ago, long_ago))
    os.utime(cache.path("git", "t5x.git"), (long_ago, long_ago))
    assert 200_000 <= cache_inspection.measure_usage(cache.root)["trees"] < 300_000
    assert set(cache_inspection.prune_entries(cache, days=30, sources=False, dry_run=True)) == {
        "env/.tmp-killed",
        "trees/old",
    }
    assert old.exists()
    cache_inspection.prune_entries(cache, days=30, sources=False, dry_run=False)
    assert (cache.root / "Documents/thesis.tex").exists()
    assert not old.exists()
    assert not killed.exists()
    assert fresh.exists()
    assert cache.path("git", "t5x.git").exists()
    cache.ensure_folder("trees", "fresh", make)
    assert cache_inspection.prune_entries(cache, days=30, sources=True, dry_run=False).keys() == {
        "git/t5x.git"
    }


def test_a_folder_of_other_files_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mine").write_text("x")
    with errors.expect_user_error(errors.EXISTS, where=tmp_path, remedy="ROSETTA_CACHE"):
        Cache(tmp_path).path("trees")
    with errors.expect_user_error(errors.CONFLICT, where=tmp_path, remedy="ROSETTA_CACHE"):
        cache_inspection.prune_entries(Cache(tmp_path), days=0, sources=True, dry_run=False)
    assert (tmp_path / "bin/mine").exists()


def _make(folder: Path) -> None:
    (folder / "d").mkdir()
    (folder / "d/f").write_text("whole")
    (folder / "d/f").chmod(0o644)
    (folder / "d/l").symlink_to("f")


def _flip(file: Path) -> None:
    """Change a byte, and nothing that a look from outside would see."""
    state = file.stat()
    file.write_text("wholf")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


def _replace_by_link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


def _replace_by_file(path: Path) -> None:
    path.unlink()
    path.write_text("f")


def _move_and_link(entry: Path) -> None:
    entry.rename(entry.with_name("elsewhere"))
    entry.symlink_to("elsewhere")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "unlink": lambda entry: (entry / "d/f").unlink(),
    "edit": lambda entry: (entry / "d/f").write_text("WHOLE"),
    "flip": lambda entry: _flip(entry / "d/f"),
    "truncate": lambda entry: os.truncate(entry / "d/f", 2),
    "add": lambda entry: (entry / "d/g").write_text("more"),
    "mode": lambda entry: (entry / "d/f").chmod(0o666),
    "program": lambda entry: (entry / "d/f").chmod(0o755),
    "mode of a folder": lambda entry: (entry / "d").chmod(0o700),
    "link": lambda entry: _replace_by_link(entry / "d/l", "/etc/passwd"),
    "file for link": lambda entry: _replace_by_file(entry / "d/l"),
    "empty": lambda entry: remove_path(entry / "d"),
    "link for entry": _move_and_link,
    "no record": lambda entry: (entry.parents[1] / "sums/trees-k").unlink(),
    "record of an earlier version": lambda entry: (entry.parents[1] / "sums/trees-k").write_text(
        "0" * 64
    ),
    "half a record": lambda entry: os.truncate(entry.parents[1] / "sums/trees-k", 30),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_made_again(
    cache: Cache, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = cache.ensure_folder("trees", "k", _make)
    DAMAGES[damage](kept)
    again = cache.ensure_folder("trees", "k", _make)
    assert again == kept
    assert (again / "d/f").read_text() == "whole"
    assert (again / "d/f").stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in (again / "d").iterdir()) == ["f", "l"]
    assert os.readlink(again / "d/l") == "f"
    assert not again.is_symlink()
    assert "again" in capsys.readouterr().err
    assert cache_inspection.check_entries(cache) == (1, {})


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "no record"])
def test_check_finds_damage_and_the_next_build_mends_it(cache: Cache, damage: str) -> None:
    cache.ensure_folder("trees", "good", _make)
    kept = cache.ensure_folder("trees", "k", _make)
    assert cache_inspection.check_entries(cache) == (2, {})
    DAMAGES[damage](kept)
    checked, damaged = cache_inspection.check_entries(cache)
    assert (checked, list(damaged)) == (2, ["trees/k"])
    assert damaged["trees/k"][0]
    cache.ensure_folder("trees", "k", _make, contents=False)
    assert cache_inspection.check_entries(cache) == (2, {})


def test_check_is_a_verb_that_ends_with_1_where_something_is_damaged(cache: Cache) -> None:
    kept = cache.ensure_folder("trees", "k", _make)
    context = Context(ROOT, ROOT / "manifest.yaml", cache)
    whole = cache_command.run(context, argparse.Namespace(action="check"))
    assert (whole.ok, whole.text) == (True, f"all 1 entries of {cache.root} are unchanged")
    _flip(kept / "d/f")
    damaged = cache_command.run(context, argparse.Namespace(action="check"))
    assert not damaged.ok
    assert "trees/k: d/f: its content has changed" in damaged.text
    assert "makes them again" in damaged.text


@pytest.mark.parametrize(
    "place",
    [
        "trees",
        "env",
        "layers",
        "blobs",
        "blobs/sha256",
        "sums",
        "git",
        "trees/k",
        "trees/.tmp-k",
        "blobs/.tmp-k",
        "trees/k/below",
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_prune_follows_no_link(cache: Cache, tmp_path: Path, place: str, dry_run: bool) -> None:
    """Whatever in a cache is a symbolic link: nothing behind it is deleted."""
    cache.ensure_folder("wheels", "old", _make)
    mine = tmp_path / "mine"
    (mine / "sha256").mkdir(parents=True)
    for name in ("thesis.tex", ".tmp-draft", "wheels-old", "sha256/picture"):
        (mine / name).write_text("mine")
    link = cache.root / place
    link.parent.mkdir(parents=True, exist_ok=True)
    remove_path(link)
    link.symlink_to(mine)
    before = sorted(str(path) for path in mine.rglob("*"))
    long_ago = time.time() - 40 * 86400
    for path in (*mine.rglob("*"), mine, link.parent, *(cache.root / "wheels").iterdir()):
        os.utime(path, (long_ago, long_ago))
    gone = cache_inspection.prune_entries(cache, days=30, sources=True, dry_run=dry_run)
    assert "wheels/old" in gone
    assert sorted(str(path) for path in mine.rglob("*")) == before
    assert (cache.root / "wheels/old").exists() == dry_run
    cache_inspection.check_entries(cache)
    cache_inspection.measure_usage(cache.root)
    assert sorted(str(path) for path in mine.rglob("*")) == before


def test_prune_waits_for_those_who_use_it(cache: Cache) -> None:
    program = "import sys; from pathlib import Path; from builder.core import cache_inspection; from builder.core.cache import Cache; print(cache_inspection.prune_entries(Cache(Path(sys.argv[1])), days=0, sources=False, dry_run=False))"
    entry = cache.ensure_folder("trees", "k", lambda folder: (folder / "f").touch())
    argv = [sys.executable, "-c", program, str(cache.root)]
    with (
        cache.in_use(),
        subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        assert "waiting" in process.stderr.readline()
        assert entry.exists()
        process.kill()
    with cache.in_use(exclusive=True):
        assert entry.exists()


def test_check_finds_an_edited_record_and_removes_it(cache: Cache) -> None:
    stamp = cache.path("stamps", "patched-1.json")
    write_stamp(stamp, {"tree": "1" * 40})
    assert cache_inspection.check_entries(cache) == (1, {})
    stamp.write_text(stamp.read_text().replace("1" * 40, "2" * 40))
    checked, damaged = cache_inspection.check_entries(cache)
    assert (checked, list(damaged)) == (1, ["stamps/patched-1.json"])
    assert not stamp.exists()
    assert cache_inspection.check_entries(cache) == (0, {})
