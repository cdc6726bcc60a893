"""The cache under kills, two builders at once and a full disk."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builder import cachetool
from builder.cache import Cache, remove, stage_key, write_atomic
from builder.cachedir import default_root
from builder.errors import FatalError

ROOT = Path(__file__).parents[2]


def test_key_depends_on_content_not_on_order() -> None:
    assert stage_key("s", {"a": 1, "b": [2]}) == stage_key("s", {"b": [2], "a": 1})
    assert len({stage_key("s", {"a": 1}), stage_key("t", {"a": 1}), stage_key("s", {"a": "1"})}) == 3


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

    first = cache.folder("trees", "k", make)
    assert cache.folder("trees", "k", make) == first
    assert len(made) == 1
    assert (first / "f").read_text() == "x"


def test_a_failure_keeps_nothing(cache: Cache) -> None:
    def make(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise FatalError("no")

    with pytest.raises(FatalError, match="no"):
        cache.folder("trees", "k", make)
    assert list(cache.path("trees").iterdir()) == []


_SLOW = """
import sys, time
from pathlib import Path
from builder.cache import Cache
def make(folder):
    (folder / "part1").write_text("x")
    print("begun", flush=True)
    time.sleep(float(sys.argv[2]))
    (folder / "part2").write_text("x")
print(Cache(Path(sys.argv[1])).folder("trees", "k", make), flush=True)
"""


def _start(cache: Cache, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _SLOW, str(cache.root), str(seconds)], stdout=subprocess.PIPE, cwd=ROOT, text=True)


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
    with pytest.raises(FatalError, match="cannot be written") as caught:
        Cache(tmp_path / "file").path("trees")
    assert "ROSETTA_CACHE" in caught.value.do


def test_write_atomic_leaves_the_old_file_on_failure(tmp_path: Path) -> None:
    target = tmp_path / "f"
    write_atomic(target, "old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))  # what a full disk looks like to a writer
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(OSError, match="File too large"):
            write_atomic(target, "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_remove_takes_read_only_folders(tmp_path: Path) -> None:
    folder = tmp_path / "a/b"
    folder.mkdir(parents=True)
    (folder / "f").write_text("x")
    folder.chmod(0o500)
    remove(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    remove(tmp_path / "a")


def test_du_counts_hard_links_once_and_prune_spares_what_is_fresh(cache: Cache) -> None:
    def make(folder: Path) -> None:
        (folder / "f").write_bytes(b"x" * 100_000)
        os.link(folder / "f", folder / "g")

    old, fresh = cache.folder("trees", "old", make), cache.folder("trees", "fresh", make)
    cache.path("git", "t5x.git").mkdir()
    killed = cache.path("env", ".tmp-killed")
    killed.mkdir()
    (cache.root / "Documents").mkdir()
    (cache.root / "Documents/thesis.tex").write_text("mine")
    long_ago = time.time() - 40 * 86400
    os.utime(old, (long_ago, long_ago))
    os.utime(cache.path("git", "t5x.git"), (long_ago, long_ago))
    assert 200_000 <= cachetool.usage(cache.root)["trees"] < 300_000
    assert set(cachetool.prune(cache, days=30, sources=False, dry_run=True)) == {"env/.tmp-killed", "trees/old"}
    assert old.exists()
    cachetool.prune(cache, days=30, sources=False, dry_run=False)
    assert (cache.root / "Documents/thesis.tex").exists()
    assert not old.exists()
    assert not killed.exists()
    assert fresh.exists()
    assert cache.path("git", "t5x.git").exists()
    cache.folder("trees", "fresh", make)
    assert cachetool.prune(cache, days=30, sources=True, dry_run=False).keys() == {"git/t5x.git"}


def test_a_folder_of_other_files_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mine").write_text("x")
    with pytest.raises(FatalError, match="not the builder's cache"):
        Cache(tmp_path).path("trees")
    with pytest.raises(FatalError, match="not a cache"):
        cachetool.prune(Cache(tmp_path), days=0, sources=True, dry_run=False)
    assert (tmp_path / "bin/mine").exists()


@pytest.mark.parametrize("damage", ["unlink", "edit", "truncate", "empty"])
def test_a_damaged_entry_is_made_again(cache: Cache, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    def make(folder: Path) -> None:
        (folder / "d").mkdir()
        (folder / "d/f").write_text("whole")

    kept = cache.folder("trees", "k", make)
    if damage == "unlink":
        (kept / "d/f").unlink()
    elif damage == "empty":
        remove(kept / "d")
    else:
        (kept / "d/f").write_text("wh" if damage == "truncate" else "WHOLE")
        os.utime(kept / "d/f", (1, 1))
    assert (cache.folder("trees", "k", make) / "d/f").read_text() == "whole"
    assert "made again" in capsys.readouterr().err


def test_prune_waits_for_those_who_use_it(cache: Cache) -> None:
    program = "import sys; from pathlib import Path; from builder import cachetool; from builder.cache import Cache; print(cachetool.prune(Cache(Path(sys.argv[1])), days=0, sources=False, dry_run=False))"
    entry = cache.folder("trees", "k", lambda folder: (folder / "f").touch())
    argv = [sys.executable, "-c", program, str(cache.root)]
    with cache.used(), subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "waiting for the builds" in process.stderr.readline()
        assert entry.exists()
        process.kill()
    with cache.used(alone=True):
        assert entry.exists()
