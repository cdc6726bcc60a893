from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builder.core.cache import Cache
from builder.core.manifest import WheelSource
from builder.upstream.git import Git
from builder.upstream.git_objects import loose_object_path
from builder.upstream.source import Pinned, acquire_source
from rosetta.core import atomic_files
from rosetta.core.errors import UserError
from tests.support import errors, git_repository
from tests.unit.builder.upstream.test_git import hostile_home  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]


@pytest.fixture
def served(tmp_path: Path) -> tuple[Path, str]:
    """A mirror's clone of the upstream `t5x`, and the pin."""
    return git_repository.make_upstream(tmp_path / "mirror" / "t5x.git")


def test_a_mirror_serves_once_and_is_not_needed_again(
    served: tuple[Path, str], tmp_path: Path
) -> None:
    clone, pin = served
    source = git_repository.make_source(pin)
    first = acquire_source(
        source, git_repository.make_access(tmp_path / "cache", tmp_path / "mirror")
    )
    assert (first.transport, first.history, first.commit, first.date) == (
        "mirror",
        True,
        pin,
        git_repository.DATE + 60,
    )
    assert first.tree == git_repository.run_git(clone, "rev-parse", f"{pin}^{{tree}}")
    shutil.rmtree(tmp_path / "mirror")
    again = acquire_source(source, git_repository.make_access(tmp_path / "cache"))
    assert (again.transport, again.history, again.commit, again.tree, again.date) == (
        "cache",
        False,
        pin,
        first.tree,
        first.date,
    )
    found = git_repository.export_pin(again, tmp_path / "out")
    assert {path for path, (mode, _) in found.items() if not mode.startswith("4")} == set(
        git_repository.FILES
    )
    assert found["t5x/run.sh"] == ("100755", b"#!/bin/sh\n")


def test_the_pins_copy_has_no_history_and_git_knows(
    served: tuple[Path, str], tmp_path: Path
) -> None:
    pinned = acquire_source(
        git_repository.make_source(served[1]),
        git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
    )
    assert len(pinned.git.text("rev-list", pinned.commit).splitlines()) == 2, "through the mirror"
    ours = Git(pinned.git.git_dir)
    assert ours.text("rev-list", pinned.commit) == pinned.commit
    ours.run("update-ref", "refs/heads/pin", pinned.commit)
    ours.run("fsck", "--strict")


def test_only_what_the_pin_needs_is_copied(served: tuple[Path, str], tmp_path: Path) -> None:
    clone, pin = served
    git_repository.write_commit(
        clone, git_repository.make_tree(clone, {"x": b"not of the pin"}), pin
    )
    pinned = acquire_source(
        git_repository.make_source(pin),
        git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
    )
    needed = {
        pin,
        *git_repository.run_git(
            clone, "rev-list", "--objects", "--no-object-names", "--no-walk", pin
        ).split(),
    }
    assert git_repository.list_loose_objects(pinned.git.git_dir) == needed
    assert sorted(path.name for path in (tmp_path / "cache" / "git").iterdir()) == ["t5x.git"]


def test_when_nothing_changed_no_process_is_started(
    served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, access = (
        git_repository.make_source(served[1]),
        git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
    )
    acquire_source(source, access)
    monkeypatch.setenv("PATH", "")
    assert (
        acquire_source(source, git_repository.make_access(tmp_path / "cache")).transport == "cache"
    )


def test_the_first_mirror_that_has_the_commit_serves(
    served: tuple[Path, str], tmp_path: Path
) -> None:
    old = git_repository.init_repository(tmp_path / "old" / "t5x.git")
    git_repository.set_branch(
        old,
        git_repository.write_commit(
            old, git_repository.make_tree(old, {"a": b"of another history"})
        ),
    )
    git_repository.init_repository(tmp_path / "old" / "empty.git")
    shutil.move(served[0], tmp_path / "mirror" / "some-name.git")
    pinned = acquire_source(
        git_repository.make_source(served[1]),
        git_repository.make_access(tmp_path / "cache", tmp_path / "old", tmp_path / "mirror"),
    )
    assert pinned.git.alternates == (tmp_path / "mirror" / "some-name.git" / "objects",)


def test_a_packed_mirror_and_a_working_clone_serve_as_well(
    served: tuple[Path, str], tmp_path: Path
) -> None:
    clone, pin = served
    git_repository.run_git(clone, "repack", "-adq")
    git_repository.run_git(tmp_path, "clone", "-q", str(clone), "work/t5x")
    trees = {
        acquire_source(
            git_repository.make_source(pin), git_repository.make_access(tmp_path / str(n), root)
        ).tree
        for n, root in enumerate((tmp_path / "mirror", tmp_path / "work"))
    }
    assert trees == {git_repository.run_git(clone, "rev-parse", f"{pin}^{{tree}}")}


def test_a_shallow_mirror_serves_without_history(served: tuple[Path, str], tmp_path: Path) -> None:
    git_repository.run_git(
        tmp_path, "clone", "-q", "--bare", "--depth=1", f"file://{served[0]}", "shallow/t5x.git"
    )
    pinned = acquire_source(
        git_repository.make_source(served[1]),
        git_repository.make_access(tmp_path / "cache", tmp_path / "shallow"),
    )
    assert (pinned.transport, pinned.history) == ("mirror", False)
    assert pinned.git.text("rev-list", pinned.commit) == pinned.commit


# absent paths


def test_absent_paths_make_no_difference_whether_the_mirror_has_them_or_not(
    served: tuple[Path, str], tmp_path: Path
) -> None:
    clone, pin = served
    source = git_repository.make_source(pin, absent=("t5x/train.py", "t5x/link.py"))
    found = [
        acquire_source(source, git_repository.make_access(tmp_path / "cache1", tmp_path / "mirror"))
    ]
    for path in source.absent:
        loose_object_path(
            clone, git_repository.run_git(clone, "rev-parse", f"{pin}:{path}")
        ).unlink()
    found.append(
        acquire_source(source, git_repository.make_access(tmp_path / "cache2", tmp_path / "mirror"))
    )
    assert len({(pinned.commit, pinned.tree, pinned.date) for pinned in found}) == 1
    assert (
        len({frozenset(git_repository.list_loose_objects(pinned.git.git_dir)) for pinned in found})
        == 1
    )
    outs = [
        git_repository.export_pin(pinned, tmp_path / f"out{n}") for n, pinned in enumerate(found)
    ]
    assert outs[0] == outs[1]
    assert "t5x/train.py" not in outs[0]


def test_a_file_that_is_missing_and_not_listed_is_named(
    served: tuple[Path, str], tmp_path: Path
) -> None:
    clone, pin = served
    loose_object_path(
        clone, git_repository.run_git(clone, "rev-parse", f"{pin}:t5x/run.sh")
    ).unlink()
    with pytest.raises(UserError, match=r"t5x/run\.sh") as caught:
        acquire_source(
            git_repository.make_source(pin, absent=("t5x/train.py",)),
            git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
        )
    assert str(clone) in caught.value.where
    assert not git_repository.list_cached_files(tmp_path / "cache")


def test_a_path_taken_off_the_absent_list_is_fetched_then(
    served: tuple[Path, str], tmp_path: Path
) -> None:
    pin = served[1]
    acquire_source(
        git_repository.make_source(pin, absent=("setup.py",)),
        git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
    )
    with errors.expect_user_error(
        errors.MISSING, where="source t5x", value=pin, remedy="--mirror DIR"
    ):
        acquire_source(
            git_repository.make_source(pin), git_repository.make_access(tmp_path / "cache")
        )
    pinned = acquire_source(
        git_repository.make_source(pin),
        git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
    )
    assert "setup.py" in git_repository.export_pin(pinned, tmp_path / "out")


@pytest.mark.parametrize("path", ["t5x/gone.py", "t5x", "../x"])
def test_an_absent_path_that_is_no_file_of_the_pin_is_an_error(
    served: tuple[Path, str], tmp_path: Path, path: str
) -> None:
    with pytest.raises(UserError, match="absent"):
        acquire_source(
            git_repository.make_source(served[1], absent=(path,)),
            git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
        )


# what cannot be had


def test_offline_the_error_names_source_commit_and_ways_out(tmp_path: Path) -> None:
    for name, ways in (("t5x", 2), ("paxml", 3)):
        source = git_repository.make_source("ab" * 20, name=name)
        with pytest.raises(UserError) as caught:
            acquire_source(source, git_repository.make_access(tmp_path / "cache"))
        said = str(caught.value)
        assert all(
            part in said
            for part in (f"source {name}", "ab" * 20, "--mirror", source.git, "--offline")
        )
        assert said.count("; or ") == ways - 1
        assert ("pax-1.4" in said) == (name == "paxml")


OFFLINE = """
import sys, os
from pathlib import Path
def hook(event, args):
    if event.startswith("socket."):
        os.write(2, f"SOCKET {event} {args}".encode()); os._exit(9)
sys.addaudithook(hook)
from rosetta.core.errors import UserError
from builder.upstream.source import acquire_source
from tests.support import git_repository
try:
    acquire_source(git_repository.make_source(sys.argv[1]), git_repository.make_access(Path(sys.argv[2])))
except UserError as error:
    print(error)
"""


def test_offline_starts_no_transport_and_opens_no_socket(tmp_path: Path) -> None:
    real = shutil.which("git")
    log = tmp_path / "log"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {real} "$@"\n')
    (tmp_path / "bin" / "git").chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, "ab" * 20, str(tmp_path / "cache")],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--offline" in done.stdout
    called = log.read_text()
    assert " init " in called
    assert not any(verb in called for verb in (" fetch ", " ls-remote ", "remote-http", " clone "))


# kills, full disks, two at once

KILLED = """
import os, signal, sys
from pathlib import Path
from builder.core import cache
from builder.upstream import git_objects
from tests.support import git_repository
left = [int(sys.argv[3])]
def dying(call):
    def step(*args):
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return call(*args)
    return step
os.replace, os.rename = dying(os.replace), dying(os.rename)
from builder.upstream.source import acquire_source
acquire_source(git_repository.make_source(sys.argv[1]), git_repository.make_access(Path(sys.argv[2]), Path(sys.argv[2]).parent / "mirror"))
print(left[0])
"""


def test_a_kill_at_any_write_leaves_what_a_rerun_finishes(
    served: tuple[Path, str], tmp_path: Path
) -> None:
    pin = served[1]
    env = os.environ | {"PYTHONPATH": str(ROOT)}

    def run(cache: str, steps: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", KILLED, pin, str(tmp_path / cache), str(steps)],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    whole = run("whole", 1000)
    assert whole.returncode == 0, whole.stderr
    steps = 1000 - int(whole.stdout)
    assert steps >= len(git_repository.FILES) + 4, (
        "repository, blobs, trees, commit, shallow, stamp"
    )
    reference = git_repository.list_loose_objects(tmp_path / "whole" / "git" / "t5x.git")
    for step in range(steps):
        killed = run(f"cache{step}", step)
        assert killed.returncode == -signal.SIGKILL
        cache = tmp_path / f"cache{step}"
        pinned = acquire_source(
            git_repository.make_source(pin), git_repository.make_access(cache, tmp_path / "mirror")
        )
        complete = {
            name
            for name in git_repository.list_loose_objects(pinned.git.git_dir)
            if not name[2:].startswith("tmp_obj")
        }
        assert complete == reference
        assert Git(pinned.git.git_dir).text("rev-list", pin) == pin
        assert (
            acquire_source(
                git_repository.make_source(pin), git_repository.make_access(cache)
            ).transport
            == "cache"
        )


def test_a_full_disk_is_one_clear_error_and_a_rerun_converges(
    served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, access = (
        git_repository.make_source(served[1]),
        git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
    )
    with monkeypatch.context() as patched:
        patched.setattr(atomic_files, "open", lambda *_: open("/dev/full", "wb"), raising=False)  # noqa: SIM115
        with pytest.raises(UserError, match=os.strerror(errno.ENOSPC)):
            acquire_source(source, access)
    assert not git_repository.list_cached_files(tmp_path / "cache")
    assert acquire_source(source, access).transport == "mirror"


def test_two_at_once_do_the_work_once(served: tuple[Path, str], tmp_path: Path) -> None:
    source, access = (
        git_repository.make_source(served[1]),
        git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
    )
    barrier = threading.Barrier(4)

    def one(_: int) -> Pinned:
        barrier.wait()
        return acquire_source(source, access)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(4)))
    assert sorted(pinned.transport for pinned in found) == ["cache", "cache", "cache", "mirror"]
    assert len({pinned.tree for pinned in found}) == 1


# wheels


def cached_wheel(
    cache: Path, members: dict[str, bytes], name: str = "paxml-1.4.0-py3-none-any.whl"
) -> WheelSource:
    """A wheel that was downloaded before."""
    made = cache.parent / name
    with zipfile.ZipFile(made, "w") as archive:
        for path, data in members.items():
            archive.writestr(path, data)
    sha256 = hashlib.sha256(made.read_bytes()).hexdigest()
    folder = Cache(cache).path("wheels") / sha256[:16]
    folder.mkdir(parents=True)
    shutil.move(made, folder / name)
    (folder / f"{sha256}.name").write_text(name)
    return WheelSource("paxml-1.4", "paxml==1.4.0", sha256, Path("patches"), None)


WHEEL = {
    "paxml/__init__.py": b"\r\n",
    "paxml/x.sh": b"#!/bin/sh\n",
    "paxml-1.4.0.dist-info/METADATA": b"Name: paxml\n",
    "paxml-1.4.0.dist-info/RECORD": b"",
}


def test_a_wheel_becomes_a_root_commit_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = cached_wheel(tmp_path / "cache", WHEEL)
    pinned = acquire_source(source, git_repository.make_access(tmp_path / "cache"))
    assert (pinned.transport, pinned.history, pinned.url, pinned.date) == (
        "wheel",
        False,
        "paxml==1.4.0",
        315532800,
    )
    assert pinned.git.text("log", "--format=%P|%an <%ae>|%cn <%ce>|%ct|%s", pinned.commit).endswith(
        "|rosetta <rosetta@localhost>|rosetta <rosetta@localhost>|315532800|paxml==1.4.0"
    )
    pinned.git.run("update-ref", "refs/heads/pin", pinned.commit)
    pinned.git.run("fsck", "--strict")
    found = git_repository.export_pin(pinned, tmp_path / "out")
    assert {path: data for path, (mode, data) in found.items() if mode == "100644"} == WHEEL
    shutil.rmtree(tmp_path / "cache" / "wheels")
    monkeypatch.setenv("PATH", "")
    again = acquire_source(source, git_repository.make_access(tmp_path / "cache"))
    assert (again.transport, again.commit, again.tree) == ("cache", pinned.commit, pinned.tree)


def test_a_wheels_commit_is_the_same_from_another_home_and_time(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    source = cached_wheel(tmp_path / "1" / "cache", WHEEL)
    shutil.copytree(tmp_path / "1" / "cache", tmp_path / "2" / "cache")
    first = acquire_source(source, git_repository.make_access(tmp_path / "1" / "cache"))
    request.getfixturevalue("hostile_home")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert (
        acquire_source(source, git_repository.make_access(tmp_path / "2" / "cache")).commit
        == first.commit
    )


def test_a_wheel_that_is_not_there_offline_is_one_clear_error(tmp_path: Path) -> None:
    with errors.expect_user_error(errors.MISSING, value="paxml==1.4.0", remedy="--offline"):
        acquire_source(
            WheelSource("paxml-1.4", "paxml==1.4.0", "ab" * 32, Path("patches"), None),
            git_repository.make_access(tmp_path / "cache"),
        )


@pytest.mark.parametrize(
    "members", [{"../x": b""}, {".git/config": b""}, {"other-1.dist-info/METADATA": b""}]
)
def test_a_hostile_or_wrong_wheel_is_refused_and_nothing_kept(
    tmp_path: Path, members: dict[str, bytes]
) -> None:
    source = cached_wheel(tmp_path / "cache", members)
    with pytest.raises(UserError):
        acquire_source(source, git_repository.make_access(tmp_path / "cache"))
    assert not git_repository.list_cached_files(tmp_path / "cache")


@pytest.mark.parametrize(
    ("wheel", "sha256"),
    [
        ("--x==1", "ab" * 32),
        ("paxml", "ab" * 32),
        ("paxml==1", "ab"),
        ("paxml==1", "-" * 64),
        ("../p==1", "ab" * 32),
    ],
)
def test_a_wheels_pin_is_checked(tmp_path: Path, wheel: str, sha256: str) -> None:
    with pytest.raises(UserError):
        acquire_source(
            WheelSource("p", wheel, sha256, Path("patches"), None),
            git_repository.make_access(tmp_path / "cache"),
        )
