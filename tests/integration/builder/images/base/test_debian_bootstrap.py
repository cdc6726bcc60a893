"""Debian made from its packages: by the real mmdebstrap, twice."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from builder.core import machine_architecture, manifest
from builder.core.cache import Cache
from builder.images.base import debian_bootstrap, requirements, root_file_system
from builder.images.engines import dockerfile_step, layer_normalisation
from builder.images.oci import layer
from builder.images.oci.layer import Layer
from builder.images.oci.tar_entry import Entry, make_file
from builder.packages import debian_lock
from builder.packages.debian_lock import BaseLock, Deb
from rosetta.core.errors import UserError
from tests.support import container_engines, debian_packages, errors

pytestmark = pytest.mark.engine

MARK = "a7f3-mark-of-this-machine"
_MAKE = """
import os, sys
from pathlib import Path
from builder.core import manifest
from builder.images.base import debian_bootstrap
from builder.packages import debian_lock
from builder.core.cache import Cache
os.umask(int(sys.argv[4], 8))
lock = debian_lock.load_lock(manifest.load(Path(sys.argv[1])), sys.argv[2], sys.argv[3])
print(*(each.digest for each in debian_bootstrap.make_layers(Cache(Path(sys.argv[5])), lock, debian_lock.ROOT, "gzip")))
"""


def _lock() -> BaseLock:
    architecture = machine_architecture.ARCHITECTURES.get(platform.machine(), "")
    loaded = manifest.load(debian_packages.REAL)
    lock = debian_lock.load_lock(loaded, "trixie", architecture) if architecture else None
    if not lock or not lock.packages:
        pytest.skip(f"NOT CHECKED: no Debian packages are locked for {platform.machine()}")
    return lock


def _start(lock: BaseLock, cache: Path, umask: str, **env: str) -> subprocess.Popen[str]:
    argv = [
        sys.executable,
        "-c",
        _MAKE,
        str(debian_packages.REAL),
        lock.base,
        lock.architecture,
        umask,
        str(cache),
    ]
    return subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(debian_lock.ROOT), **env},
    )


def _finished(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=1200)
    assert process.returncode == 0, err[-2000:]
    return out.split()


@dataclass(frozen=True)
class Made:
    """What the first run made, and the digests of a second one under other circumstances."""

    cache: Cache
    lock: BaseLock
    layers: tuple[Layer, Layer]
    second: list[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The layers of the locked trixie, made after a first try was killed."""
    debian_packages.need_programs("mmdebstrap", "dpkg-deb", "/usr/lib/apt/apt-helper")
    if os.geteuid() != 0:
        pytest.skip("NOT CHECKED: mmdebstrap is tested as root")
    lock, folder = _lock(), tmp_path_factory.mktemp("bootstrap")
    cache, again = Cache(folder / "one"), Cache(folder / "two")
    try:
        packages = debian_lock.fetch_packages(cache, lock)
    except UserError as error:
        pytest.skip(f"NOT CHECKED: Debian's packages cannot be had: {error.what}")
    for deb in lock.packages:
        os.link(packages / deb.file, again.path("debs") / f"{deb.sha256}.deb")
    killed = _start(lock, cache.root, "022")
    scratch = cache.path("base", f".tmp-bootstrap-{lock.key[:16]}")
    # When packages are set up, /proc and /sys are mounted there.
    while killed.poll() is None and not list(scratch.glob("tmp/mmdebstrap.*/etc/passwd")):
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert str(scratch) not in Path("/proc/self/mountinfo").read_text(), (
        "a rerun would delete through a mount that outlived its run"
    )
    (folder / "other tmp").mkdir()
    marked = {
        "http_proxy": f"http://user:{MARK}@127.0.0.1:9",
        "HTTPS_PROXY": f"http://user:{MARK}@127.0.0.1:9",
        "TMPDIR": str(folder / "other tmp"),
        "SECRET_TOKEN": MARK,
        "PIP_INDEX_URL": MARK,
    }
    first = _finished(_start(lock, cache.root, "022", **marked))
    second = _finished(
        _start(lock, again.root, "077", TZ="Asia/Tokyo", LANG="tr_TR.UTF-8", LC_ALL="C")
    )
    layers = debian_bootstrap.make_layers(cache, lock, debian_lock.ROOT, "gzip")
    assert [each.digest for each in layers] == first
    return Made(cache, lock, layers, second)


def _entries(made: Made, number: int, wanted: str = "") -> dict[str, Entry]:
    return {
        entry.path: entry
        for entry in root_file_system.read_entries(
            layer.blob_path(made.cache, made.layers[number].digest),
            lambda entry: bool(re.fullmatch(wanted, entry.path)),
        )
    }


def test_twice_the_same(made: Made) -> None:
    assert [each.digest for each in made.layers] == made.second


def test_a_killed_run_leaves_nothing_that_runs(made: Made) -> None:
    cache = str(made.cache.root).encode()
    running = [
        path
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.parent.name != str(os.getpid()) and _read(path).count(cache)
    ]
    assert not running
    assert not list(made.cache.path("base").glob(".tmp-*"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_it_does_not_delete_through_a_mount(cache: Cache) -> None:
    if os.geteuid():
        pytest.skip("NOT CHECKED: a mount needs root")
    lock = _lock()
    scratch = cache.path("base", f".tmp-bootstrap-{lock.key[:16]}")
    (scratch / "proc").mkdir(parents=True)
    if subprocess.run(
        ["mount", "-t", "tmpfs", "tmpfs", str(scratch / "proc")], capture_output=True, check=False
    ).returncode:
        pytest.skip("NOT CHECKED: this machine does not let us mount")
    try:
        (scratch / "proc/kept").touch()
        with errors.expect_user_error(errors.IN_USE, value=1):
            debian_bootstrap._refuse_mounts(scratch)
        assert (scratch / "proc/kept").exists()
    finally:
        subprocess.run(["umount", str(scratch / "proc")], check=True)
    debian_bootstrap._refuse_mounts(scratch)


def test_an_image_can_stand_on_it(made: Made) -> None:
    facts = requirements.find_facts(
        requirements.scan_layers(
            [layer.blob_path(made.cache, each.digest) for each in made.layers]
        ),
        "x",
        made.lock.architecture,
        ["3.13"],
    )
    assert (facts.python, facts.glibc, facts.release) == (
        "3.13",
        "2.41",
        "Debian GNU/Linux 13 (trixie)",
    )


def test_nothing_of_the_machine_is_in_it(made: Made) -> None:
    machine = [
        MARK.encode(),
        str(made.cache.root).encode(),
        b"mmdebstrap",
        *([os.uname().nodename.encode()] if len(os.uname().nodename) > 8 else []),
    ]
    for number in (0, 1):
        entries = _entries(made, number, ".*")
        assert (
            not {"etc/resolv.conf", "etc/hostname", "etc/hosts", "etc/machine-id"} & entries.keys()
        )
        assert not [
            path
            for path in entries
            if re.match(r"(tmp|run/rosetta|var/log|var/lib/apt/lists)/.*\w\.\w", path)
        ]
        found = [
            (path, word)
            for path, entry in entries.items()
            for word in machine
            if word in (entry.data or b"") or word in path.encode()
        ]
        assert not found
    # The same search does find what is there.
    assert [
        path
        for path, entry in _entries(made, 1, "var/lib/dpkg/status").items()
        if b"Package: git\n" in (entry.data or b"")
    ]


def test_it_is_small_and_has_its_licences(made: Made) -> None:
    base, above = _entries(made, 0), _entries(made, 1)
    assert {
        "usr/share/doc/apt/copyright",
        "etc/apt/sources.list.d/debian.sources",
        "etc/dpkg/dpkg.cfg.d/rosetta",
    } <= base.keys()
    assert {
        "usr/share/doc/git/copyright",
        "usr/bin/git",
        "usr/bin/numactl",
        "etc/ssl/certs/ca-certificates.crt",
    } <= above.keys()
    assert not [path for path in [*base, *above] if re.match(r"usr/share/(man|locale)/.", path)]
    assert any(path.endswith("/libmlx5.so.1") for path in above)


def test_the_os_layer_holds_only_what_is_new(made: Made) -> None:
    base, above = _entries(made, 0), _entries(made, 1)
    both = {path for path in base.keys() & above.keys() if base[path].kind != "dir"}
    assert both <= {
        "etc/group",
        "etc/gshadow",
        "etc/passwd",
        "etc/shadow",
        "etc/ld.so.cache",
        "etc/shells",
        "var/lib/dpkg/status",
        "var/lib/dpkg/diversions",
        "var/lib/dpkg/triggers/File",
        "var/lib/apt/extended_states",
        "var/cache/debconf/config.dat",
        "var/cache/debconf/templates.dat",
    }


@pytest.mark.parametrize("name", ["docker", "buildah"])
def test_an_engine_makes_the_same_layer(made: Made, name: str) -> None:
    base, above = made.layers
    chosen = container_engines.need_engine(name, builds=True)
    with dockerfile_step.build_base(
        chosen,
        made.cache,
        debian_lock.ROOT,
        [base],
        made.lock.architecture,
        debian_lock.fetch_packages(made.cache, made.lock),
    ) as exported:
        assert (
            layer_normalisation.make_os_layer(made.cache, f"of-{name}", "gzip", exported).digest
            == above.digest
        )


@pytest.mark.parametrize(
    ("emulator", "arch_test", "packages"),
    [
        (False, False, "apt-get install qemu-user-static binfmt-support arch-test "),
        (False, True, "apt-get install qemu-user-static binfmt-support "),
        (True, False, "apt-get install arch-test "),
    ],
)
def test_what_runs_another_architecture_is_missed_before_anything_is_fetched(
    emulator: bool,
    arch_test: bool,
    packages: str,
    cache: Cache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ["mmdebstrap", *(["arch-test"] if arch_test else [])]:
        (programs / name).touch(0o755)
    if emulator:
        (tmp_path / "qemu-x86_64").touch()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(debian_bootstrap, "_BINFMT", str(tmp_path))
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    lock = BaseLock(
        "trixie",
        "trixie",
        "amd64",
        packages=(Deb("x", "1", "all", "pool/x/x.deb", "a" * 64, 1, "os"),),
    )
    with errors.expect_user_error(
        errors.UNSUPPORTED, value="amd64", names="arm64", remedy="--platform linux/arm64"
    ) as caught:
        debian_bootstrap.make_layers(cache, lock, debian_lock.ROOT, "gzip")
    assert caught.value.do.startswith(packages)


def test_a_list_that_lacks_a_package_fails_in_one_line(made: Made) -> None:
    broken = replace(
        made.lock,
        packages=tuple(deb for deb in made.lock.packages if deb.name not in ("libc6", "libc-bin")),
    )
    with pytest.raises(UserError, match="mmdebstrap failed: ") as caught:
        debian_bootstrap.make_layers(made.cache, broken, debian_lock.ROOT, "gzip")
    report = Path(caught.value.do.removeprefix("see "))
    assert report.stat().st_size
    assert "no message" not in caught.value.what
    assert not list(made.cache.path("base").glob(".tmp-*"))


def test_what_was_installed_is_compared_with_the_list() -> None:
    lock = BaseLock(
        "trixie",
        "trixie",
        "amd64",
        packages=(Deb("git", "1.0", "all", "pool/x/x.deb", "a" * 64, 1, "os"),),
    )
    status = "Package: git\nStatus: install ok installed\nVersion: {}\n\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    debian_bootstrap._check_installed(
        [make_file("var/lib/dpkg/status", status.format("1.0"))], lock.packages, lock
    )
    for text in (status.format("1.1"), ""):
        with errors.expect_user_error(errors.DIFFERS, names="git=1.0"):
            debian_bootstrap._check_installed(
                [make_file("var/lib/dpkg/status", text)], lock.packages, lock
            )
