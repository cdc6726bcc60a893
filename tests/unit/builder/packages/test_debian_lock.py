"""The lock of a base and its package files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.core import manifest
from builder.core.cache import Cache
from builder.packages import debian_lock, debian_mirrors
from builder.packages.debian_lock import BaseLock, Deb
from rosetta.core.errors import UserError
from tests.support import debian_packages, errors
from tests.support.debian_packages import Mirror

DEB = Deb(
    "thing", "1:1.0-1", "amd64", "pool/main/t/thing/thing_1.0-1_amd64.deb", "a" * 64, 10, "os"
)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    debian_packages.need_programs("dpkg-deb", "/usr/lib/apt/apt-helper")
    made = Mirror(tmp_path / "mirror")
    monkeypatch.setenv(debian_mirrors.MIRROR, made.url)
    monkeypatch.setenv(debian_mirrors.SECURITY, made.url)
    monkeypatch.setenv(debian_mirrors.SNAPSHOT, f"file:{tmp_path}/snapshot")
    return made


def _written(tmp_path: Path, lock: BaseLock) -> Any:
    loaded = debian_packages.load_manifest(tmp_path)
    debian_lock.lock_path(loaded, lock.base, lock.architecture).write_text(
        debian_lock.render_lock(lock), encoding="utf-8"
    )
    return loaded


def _current(tmp_path: Path, **changes: Any) -> BaseLock:
    return replace(
        BaseLock(
            "trixie",
            "trixie",
            "amd64",
            debian_lock.compute_inputs_key(
                debian_packages.load_manifest(tmp_path), "trixie", "amd64"
            ),
            (("debian:trixie-slim", "sha256:" + "b" * 64),),
            (DEB,),
        ),
        **changes,
    )


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    lock = _current(tmp_path)
    assert debian_lock.load_lock(_written(tmp_path, lock), "trixie", "amd64") == lock
    assert debian_lock.load_lock(
        debian_packages.load_manifest(tmp_path), "trixie", "arm64"
    ) == BaseLock("trixie", "trixie", "arm64")


def test_the_real_locks_are_current_and_name_no_machine() -> None:
    loaded = manifest.load(debian_packages.REAL)
    for base, architecture in (("trixie", "amd64"), ("trixie", "arm64"), ("bookworm", "amd64")):
        lock = debian_lock.load_lock(loaded, base, architecture)
        assert {"libc6", "apt", "dpkg"} <= {
            deb.name for deb in lock.packages if deb.layer == "base"
        }
        assert {"python3", "git", "ibverbs-providers"} <= {
            deb.name for deb in lock.packages if deb.layer == "os"
        }
        assert "//" not in debian_lock.lock_path(loaded, base, architecture).read_text(
            encoding="utf-8"
        )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.pop("packages"),
        lambda data: data.update(schema=2),
        lambda data: data.update(architecture="arm64"),
        lambda data: data["packages"][0].update(filename="pool/../../etc/passwd.deb"),
        lambda data: data["packages"][0].update(filename="https://example.invalid/pool/x.deb"),
        lambda data: data["packages"][0].update(sha256="a"),
        lambda data: data["packages"][0].update(size="10"),
        lambda data: data["packages"][0].update(layer="cuda"),
        lambda data: data["packages"][0].update(extra=1),
        lambda data: data["packages"].append(data["packages"][0]),
        lambda data: data["images"].update({"x": "latest"}),
        lambda data: data.update(packages=[1]),
    ],
)
def test_a_spoilt_lock_is_refused(tmp_path: Path, spoil: Callable[[dict[str, Any]], Any]) -> None:
    loaded = _written(tmp_path, _current(tmp_path))
    file = debian_lock.lock_path(loaded, "trixie", "amd64")
    data = json.loads(file.read_text(encoding="utf-8"))
    spoil(data)
    file.write_text(json.dumps(data), encoding="utf-8")
    with errors.expect_user_error(
        errors.INVALID, where=file.name, names=("trixie", "amd64"), remedy="lock --base"
    ):
        debian_lock.load_lock(loaded, "trixie", "amd64")


def test_a_lock_for_other_packages_says_so(tmp_path: Path) -> None:
    loaded = _written(tmp_path, _current(tmp_path, inputs="0" * 64))
    with errors.expect_user_error(
        errors.DIFFERS, where="base-trixie-amd64.json", names="docker/packages"
    ) as caught:
        debian_lock.load_lock(loaded, "trixie", "amd64")
    assert caught.value.do == "python build.py lock --base"
    assert debian_lock.load_lock(loaded, "trixie", "amd64", current=False).packages == (DEB,)


def test_the_digest_goes_by_the_packages(tmp_path: Path) -> None:
    lock = _current(tmp_path)
    assert replace(lock, images=(), inputs="").digest == lock.digest
    others = [replace(DEB, sha256="c" * 64), replace(DEB, version="2"), replace(DEB, layer="base")]
    assert len({lock.digest, *(replace(lock, packages=(each,)).digest for each in others)}) == 4


def test_names_of_packages_only(tmp_path: Path) -> None:
    (tmp_path / "docker").mkdir()
    (tmp_path / debian_lock.PACKAGES).write_text("# why\nlibnuma1 # and why\n\ng++\n")
    assert debian_lock.read_package_names(tmp_path) == ("libnuma1", "g++")
    (tmp_path / debian_lock.PACKAGES).write_text("git\n--allow-unauthenticated\n")
    with pytest.raises(UserError) as caught:
        debian_lock.read_package_names(tmp_path)
    assert caught.value.where == "docker/packages:2"


def test_the_folder_holds_the_files_and_an_index(cache: Cache, mirror: Mirror) -> None:
    mirror.add("first", layer="base")
    mirror.add("second")
    folder = debian_lock.fetch_packages(cache, mirror.lock())
    assert sorted(path.name for path in folder.iterdir()) == [
        "Packages",
        "first_1.0_all.deb",
        "second_1.0_all.deb",
    ]
    index = (folder / "Packages").read_text()
    assert [line for line in index.splitlines() if line.startswith("Priority")] == [
        "Priority: required",
        "Priority: optional",
    ]
    assert f"SHA256: {mirror.packages[0].sha256}" in index
    # From then on neither mirror nor network counts.
    for deb in mirror.packages:
        (mirror.folder / deb.filename).unlink()
    assert debian_lock.fetch_packages(cache, mirror.lock(), offline=True) == folder


def test_offline_says_what_is_not_there(cache: Cache, mirror: Mirror) -> None:
    mirror.add("first")
    with errors.expect_user_error(
        errors.MISSING, where="debs", names=("1 of 1", "trixie"), remedy="--offline"
    ):
        debian_lock.fetch_packages(cache, mirror.lock(), offline=True)


def test_what_a_mirror_no_longer_has(cache: Cache, mirror: Mirror) -> None:
    kept, lost = mirror.add("kept"), mirror.add("lost")
    (mirror.folder / lost.filename).unlink()
    with errors.expect_user_error(errors.MISSING, names="lost 1.0", remedy="lock --base") as caught:
        debian_lock.fetch_packages(cache, mirror.lock())
    assert "lock --base" in caught.value.do
    assert not list(cache.path("base").glob("debs-*"))
    # What did arrive is kept: the rest is all that a later run asks for.
    assert [path.name for path in cache.path("debs").glob("*.deb")] == [f"{kept.sha256}.deb"]


def test_a_superseded_package_comes_from_the_snapshot_of_the_locks_day(
    cache: Cache, mirror: Mirror, tmp_path: Path
) -> None:
    kept, lost, other = mirror.add("kept"), mirror.add("lost"), mirror.add("other")
    day = tmp_path / "snapshot/debian/20260131T235959Z"
    for deb in (lost, other):
        (day / deb.filename).parent.mkdir(parents=True)
        (mirror.folder / deb.filename).rename(day / deb.filename)
    folder = debian_lock.fetch_packages(cache, replace(mirror.lock(), date="2026-01-31"))
    assert {path.name for path in folder.glob("*.deb")} == {deb.file for deb in (kept, lost, other)}


@pytest.mark.parametrize("date", ["", "2026-01-30"])
def test_a_package_that_is_gone_everywhere_is_superseded(
    date: str, cache: Cache, mirror: Mirror
) -> None:
    lost = mirror.add("lost")
    (mirror.folder / lost.filename).unlink()
    with errors.expect_user_error(
        errors.MISSING, names="lost 1.0", error=debian_lock.SupersededError
    ):
        debian_lock.fetch_packages(cache, replace(mirror.lock(), date=date))


def test_a_package_that_only_cannot_be_reached_is_not_superseded(
    cache: Cache, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.add("first")
    monkeypatch.setenv(debian_mirrors.MIRROR, "http://127.0.0.1:9/debian")
    with errors.expect_user_error(errors.UNREACHABLE, names="first 1.0") as caught:
        debian_lock.fetch_packages(cache, replace(mirror.lock(), date="2026-01-31"))
    assert not isinstance(caught.value, debian_lock.SupersededError)


def test_each_file_has_its_own_reason(cache: Cache, mirror: Mirror) -> None:
    """A damaged file is not a superseded one, though another file is gone."""
    gone, damaged = mirror.add("gone", "1.0+deb1"), mirror.add("odd", "1.0+deb2")
    (mirror.folder / gone.filename).unlink()
    file = mirror.folder / damaged.filename
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with errors.expect_user_error(errors.UNREACHABLE, names="odd 1.0+deb2") as caught:
        debian_lock.fetch_packages(cache, replace(mirror.lock(), date="2026-01-31"))
    assert not isinstance(caught.value, debian_lock.SupersededError)


@pytest.mark.parametrize("date", ["2026-1-1", 5, "x", "2026-01-01T00", None])
def test_a_date_that_is_none_spoils_the_lock(date: Any, tmp_path: Path) -> None:
    loaded = _written(tmp_path, _current(tmp_path, date="2026-01-31"))
    assert debian_lock.load_lock(loaded, "trixie", "amd64").date == "2026-01-31"
    file = debian_lock.lock_path(loaded, "trixie", "amd64")
    file.write_text(
        json.dumps(json.loads(file.read_text(encoding="utf-8")) | {"date": date}), encoding="utf-8"
    )
    with errors.expect_user_error(
        errors.INVALID, where=file.name, names=("trixie", "amd64"), remedy="lock --base"
    ):
        debian_lock.load_lock(loaded, "trixie", "amd64")


def test_another_file_under_the_name_is_not_taken(cache: Cache, mirror: Mirror) -> None:
    deb = mirror.add("first")
    file = mirror.folder / deb.filename
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with errors.expect_user_error(errors.UNREACHABLE, names="first 1.0"):
        debian_lock.fetch_packages(cache, mirror.lock())
    assert not list(cache.path("debs").glob("*.deb"))


def test_a_damaged_file_in_the_cache_is_fetched_again(cache: Cache, mirror: Mirror) -> None:
    deb = mirror.add("first")
    (kept := cache.path("debs") / f"{deb.sha256}.deb").write_bytes(b"x" * deb.size)
    debian_lock.fetch_packages(cache, mirror.lock())
    assert kept.read_bytes() == (mirror.folder / deb.filename).read_bytes()


def test_a_package_of_another_name_is_refused(cache: Cache, mirror: Mirror) -> None:
    lock = replace(mirror.lock(), packages=(replace(mirror.add("first"), name="other"),))
    with errors.expect_user_error(errors.DIFFERS, names="other 1.0", remedy="lock --base"):
        debian_lock.fetch_packages(cache, lock)
