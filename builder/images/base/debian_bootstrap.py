"""Make Debian from its packages: mmdebstrap with exactly the locked files, without network.

It is for machines that reach no image registry. One run makes two layers: a minimal system
("base"), and what the script of Dockerfile.base adds to it ("os").
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

from builder.core import log, machine_architecture
from builder.core.cache import Cache, remove_path, stage_key
from builder.core.file_copies import copy_file
from builder.core.secrets import redact
from builder.core.subprocesses import output_end
from builder.images.base import root_file_system
from builder.images.engines import layer_normalisation
from builder.images.engines.image_archive import ExportedImage
from builder.images.oci import blob_compression, layer, tar_file
from builder.images.oci.tar_entry import EPOCH, Entry, make_file, make_folder
from builder.packages import debian_lock
from rosetta.core.errors import DIFFERS, IN_USE, MISSING, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from builder.images.oci.layer import Layer
    from builder.packages.debian_lock import BaseLock

_SCRIPT = "docker/install-packages"
_FORMAT = 3  # counts up whenever the same packages would give other layers than before
# As in Debian's own slim images: no manuals, translations and documents, but all copyright files.
_DPKG_OPTIONS = (
    *(
        f"path-exclude=/usr/share/{folder}/*"
        for folder in ("man", "info", "doc", "locale", "lintian", "linda", "groff")
    ),
    "path-include=/usr/share/doc/*/copyright",
)
_APT_EXAMPLES = (
    "usr/share/doc/apt/examples/"  # Debian's own example of its sources, in the package apt
)
_BINFMT = "/proc/sys/fs/binfmt_misc"


def compute_layer_keys(lock: BaseLock, root: Path) -> dict[str, str]:
    """Return the keys of the layers "base" and "os".

    Args:
        lock: The locked packages.
        root: The repository, which has the script that installs packages.
    """
    script = hashlib.sha256(
        (root / _SCRIPT).read_bytes() + (root / debian_lock.PACKAGES).read_bytes()
    ).hexdigest()
    inputs = {
        "debs": lock.digest,
        "script": script,
        "slim": _DPKG_OPTIONS,
        "version": _FORMAT,
        "rules": layer_normalisation.RULES_VERSION,
        "epoch": EPOCH,
    }
    return {name: stage_key("bootstrap", {"layer": name, **inputs}) for name in ("base", "os")}


def make_layers(
    cache: Cache, lock: BaseLock, root: Path, compression: str, *, offline: bool = False
) -> tuple[Layer, Layer]:
    """Return the layers "base" and "os"; make them if the cache lacks them.

    Args:
        cache: The cache.
        lock: The locked packages.
        root: The repository, which has the script that installs packages.
        compression: "gzip" or "zstd".
        offline: Whether packages may come from the cache only.

    Raises:
        UserError: This machine lacks a program, or the packages cannot be had or installed.
    """
    keys = compute_layer_keys(lock, root)
    if layers := _find_layers(cache, keys, compression):
        return layers
    with cache.lock(f"bootstrap-{lock.key}"):
        if layers := _find_layers(cache, keys, compression):
            return layers
        _check_programs(lock)
        packages = debian_lock.fetch_packages(cache, lock, offline=offline)
        scratch = cache.path("base", f".tmp-bootstrap-{lock.key[:16]}")
        _refuse_mounts(scratch)
        remove_path(scratch)
        scratch.mkdir()
        try:
            with log.stage(
                f"make Debian {lock.suite} for {lock.architecture} from {len(lock.packages)} "
                "packages"
            ):
                lower, upper = _run_mmdebstrap(scratch, packages, lock, root)
            return _write_layers(cache, keys, compression, lock, scratch, lower, upper)
        finally:
            _refuse_mounts(scratch)
            remove_path(scratch)


def _refuse_mounts(scratch: Path) -> None:
    """Raise UserError if something is mounted below a folder that is about to be deleted."""
    inside = f"{scratch.resolve()}/"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mount_points = [line.split()[4] for line in file]
    mounts = sorted(mount_point for mount_point in mount_points if mount_point.startswith(inside))
    if mounts:
        raise UserError(
            f"a killed run left {len(mounts)} mounts there",
            str(scratch),
            f"umount --lazy {' '.join(reversed(mounts))}, then run again",
            kind=IN_USE,
            value=len(mounts),
        )


def has_layers(cache: Cache, lock: BaseLock, root: Path) -> bool:
    """Return whether the cache has both layers of a base."""
    return all(has_layer(cache, key) for key in compute_layer_keys(lock, root).values())


def has_layer(cache: Cache, key: str) -> bool:
    """Return whether the cache has a layer in any compression."""
    return any(
        layer.find_layer(cache, key, "", compression)
        for compression in blob_compression.MEDIA_TYPES
    )


def _find_layers(
    cache: Cache, keys: Mapping[str, str], compression: str
) -> tuple[Layer, Layer] | None:
    """Return both layers if the cache has them, in whichever compression."""
    base = find_or_recompress(cache, keys["base"], "base", compression)
    os_layer = find_or_recompress(cache, keys["os"], "os", compression)
    return (base, os_layer) if base and os_layer else None


def find_or_recompress(cache: Cache, key: str, name: str, compression: str) -> Layer | None:
    """Return a layer of the cache, or None if the cache lacks it.

    A layer that the cache has in the other compression only is compressed again.
    """
    if existing := layer.find_layer(cache, key, name, compression):
        return existing
    other_compression = "gzip" if compression == "zstd" else "zstd"
    other = layer.find_layer(cache, key, name, other_compression)
    if other is None:
        return None
    blob = layer.blob_path(cache, other.digest)
    return layer.rewrite_layer(cache, key, name, compression, lambda: open(blob, "rb"))


def _check_programs(lock: BaseLock) -> None:
    """Raise UserError if this machine lacks a program, before anything is fetched."""
    if not shutil.which("mmdebstrap"):
        raise UserError(
            "mmdebstrap is not installed, and the base is made with it",
            f"Debian {lock.suite}",
            "apt-get install mmdebstrap, or give --base IMAGE to use an image of a registry",
            kind=MISSING,
        )
    own_architecture = machine_architecture.detect_architecture()
    if own_architecture != lock.architecture:
        _check_emulation(lock, own_architecture)


def _check_emulation(lock: BaseLock, own_architecture: str) -> None:
    """Raise UserError if this machine lacks what runs programs of another architecture."""
    machine = next(
        name
        for name, architecture in machine_architecture.ARCHITECTURES.items()
        if architecture == lock.architecture
    )
    missing = []
    if not os.path.exists(f"{_BINFMT}/qemu-{machine}"):
        missing += ["qemu-user-static", "binfmt-support"]
    if not shutil.which("arch-test"):  # mmdebstrap calls it; Debian only recommends it
        missing.append("arch-test")
    if missing:
        reason = (
            f"it registers qemu-{machine}"
            if "binfmt-support" in missing
            else "mmdebstrap asks it what this machine runs"
        )
        raise UserError(
            (
                f"programs for {lock.architecture} do not run on this {own_architecture} machine, "
                "and the packages of its base run some"
            ),
            f"Debian {lock.suite}",
            (
                f"apt-get install {' '.join(missing)} ({reason}), or leave {lock.architecture} out "
                f"with --platform linux/{own_architecture}"
            ),
            kind=UNSUPPORTED,
            value=lock.architecture,
        )


def _run_mmdebstrap(scratch: Path, packages: Path, lock: BaseLock, root: Path) -> tuple[Path, Path]:
    """Install the minimal system, and then the OS packages.

    Args:
        scratch: An empty folder.
        packages: The folder with the locked .deb files and their Packages.
        lock: The locked packages.
        root: The repository, which has the script that installs packages.

    Returns:
        The tar of the minimal system, and the tar of the system with the OS packages.
    """
    lower, upper, temporary = (scratch / name for name in ("base.tar", "all.tar", "tmp"))
    repository = scratch / "debs"
    # Without root, mmdebstrap runs in a user namespace. It is another user then, who must be able
    # to read and write here.
    scratch.chmod(0o755)
    temporary.mkdir()
    temporary.chmod(0o1777)
    lower.touch()
    lower.chmod(0o666)
    repository.mkdir()
    for name in sorted(os.listdir(packages)):
        copy_file(packages / name, repository / name)
    (scratch / "docker").mkdir()
    for name in (_SCRIPT, debian_lock.PACKAGES):
        shutil.copyfile(root / name, scratch / name)
    hook = scratch / "hook"
    hook.write_text(_format_hook(scratch, lower), encoding="utf-8")
    hook.chmod(0o755)
    argv = [
        *_isolation_words(),
        "mmdebstrap",
        "--variant=minbase",
        f"--architectures={lock.architecture}",
        "--format=tar",
        "--skip=chroot/policy-rc.d,chroot/start-stop-daemon",
        *(f"--dpkgopt={option}" for option in _DPKG_OPTIONS),
        f"--customize-hook={hook}",
        "--",
        "",
        str(upper),
        f"deb [trusted=yes] copy:{repository} ./",
    ]
    env = {
        "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "TMPDIR": str(temporary),
        "HOME": str(temporary),
        "SOURCE_DATE_EPOCH": str(EPOCH),
    }
    done = subprocess.run(
        argv, capture_output=True, text=True, errors="replace", check=False, env=env, umask=0o022
    )
    if done.returncode:
        report = scratch.with_name(f"bootstrap-{lock.suite}-{lock.architecture}.log")
        report.write_text(redact(done.stderr), encoding="utf-8")
        raise _explain_failure(done.stderr, report, lock)
    return lower, upper


def _isolation_words() -> list[str]:
    """Return the words before mmdebstrap that end all of its programs and mounts with the builder.

    A later run would meet what is left of them, and delete through /proc and /sys.
    """
    if os.geteuid() == 0 and shutil.which("setpriv") and shutil.which("unshare"):
        return [
            *("setpriv", "--pdeathsig", "KILL"),
            *("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL"),
        ]
    return []


def _explain_failure(stderr: str, report: Path, lock: BaseLock) -> UserError:
    """Return the error for a failed mmdebstrap; `report` is the file with its messages."""
    # docker/install-packages marks its own errors with "rosetta: ".
    own_errors = [line for line in stderr.splitlines() if line.startswith("rosetta: ")]
    reason = output_end("\n".join(own_errors) or stderr, prefer=("E: ",) if not own_errors else ())
    is_disk_full = "No space left" in stderr
    return UserError(
        f"mmdebstrap failed: {reason}",
        f"Debian {lock.suite} for {lock.architecture}",
        "free some space and run again" if is_disk_full else f"see {report}",
    )


def _format_hook(scratch: Path, lower: Path) -> str:
    """Return a script that copies the minimal system, then installs as Dockerfile.base does.

    It runs with the system's root as $1, once the minimal system is there.
    """
    folder = shlex.quote(str(scratch))
    return f"""#!/bin/sh
set -eu
tar --create --file={shlex.quote(str(lower))} --directory="$1" --numeric-owner \
--one-file-system --xattrs --xattrs-include='security.capability' \
--exclude=./proc --exclude=./sys --exclude=./dev .
mkdir -p "$1/run/rosetta"
cp -R {folder}/docker {folder}/debs "$1/run/rosetta/"
chroot "$1" sh /run/rosetta/{_SCRIPT} /run/rosetta >&2
rm -rf "$1/run/rosetta"
"""


def _write_layers(
    cache: Cache,
    keys: Mapping[str, str],
    compression: str,
    lock: BaseLock,
    scratch: Path,
    lower: Path,
    upper: Path,
) -> tuple[Layer, Layer]:
    """Write the layers "base" and "os" from the two tars of `_run_mmdebstrap`."""
    added = _make_apt_files(scratch / "debs", lock)
    with (
        open(lower, "rb") as lower_tar,
        tar_file.spool_tar(lower_tar, scratch / "spool") as spooled,
    ):
        minimal = _normalise_entries(spooled, added)
        _check_installed(minimal, [deb for deb in lock.packages if deb.layer == "base"], lock)
        base = layer.write_layer(cache, keys["base"], "base", compression, lambda: minimal)
    with (
        open(upper, "rb") as upper_tar,
        tar_file.spool_tar(upper_tar, scratch / "spool") as spooled,
        open(lower, "wb") as out,
    ):
        complete = _normalise_entries(spooled, added)
        _check_installed(complete, lock.packages, lock)
        removed = root_file_system.find_removed(minimal, complete)
        tar_file.write_tar([*complete, *removed], tar_file.PlainSink(out))
    exported = ExportedImage(
        {},
        (),
        (lambda: open(layer.blob_path(cache, base.digest), "rb"), lambda: open(lower, "rb")),  # noqa: SIM115 - its reader closes it
        base_count=1,
    )
    os_layer = layer_normalisation.make_os_layer(cache, keys["os"], compression, exported)
    return base, os_layer


def _normalise_entries(entries: Iterable[Entry], added: Iterable[Entry]) -> list[Entry]:
    """Return the entries of a system, sorted by path, that are the same in every run.

    Args:
        entries: What mmdebstrap made.
        added: Entries that the builder adds or replaces.
    """
    by_path = {entry.path: entry for entry in entries if not root_file_system.is_dropped(entry)}
    by_path |= {entry.path: entry for entry in added}
    return [by_path[path] for path in sorted(by_path)]


def _make_apt_files(packages: Path, lock: BaseLock) -> list[Entry]:
    """Return the files by which apt works in the image.

    Debian's sources are those of the examples in Debian's package apt. dpkg's options leave the
    same files out of packages that are installed later.
    """
    apt = next((deb for deb in lock.packages if deb.name == "apt"), None)
    if apt is None:
        raise UserError("the list lacks apt", f"Debian {lock.suite}", "python build.py lock --base")
    options = "".join(f"{option}\n" for option in _DPKG_OPTIONS)
    entries = [
        make_folder("dev"),
        make_folder("proc"),
        make_folder("sys"),
        make_file("etc/dpkg/dpkg.cfg.d/rosetta", options),
    ]
    targets = {
        f"{_APT_EXAMPLES}debian.sources": "etc/apt/sources.list.d/debian.sources",
        f"{_APT_EXAMPLES}sources.list": "etc/apt/sources.list",
    }
    unpack = subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(packages / apt.file)], stdout=subprocess.PIPE
    )
    with unpack:
        for entry, content in tar_file.read_tar(unpack.stdout) if unpack.stdout else ():
            if content is not None and entry.path in targets:
                entries.append(make_file(targets[entry.path], content.read()))
    return entries


def _check_installed(
    entries: Iterable[Entry], packages: Iterable[debian_lock.Deb], lock: BaseLock
) -> None:
    """Raise UserError unless exactly the locked packages are installed.

    Args:
        entries: The entries of the system; dpkg's status lists what is installed.
        packages: The packages that have to be installed.
        lock: The lock, for errors.
    """
    status = next(
        (
            root_file_system.read_content(entry).decode()
            for entry in entries
            if entry.path == "var/lib/dpkg/status"
        ),
        "",
    )
    installed = set()
    for stanza in status.split("\n\n"):
        fields = dict(re.findall(r"(?m)^(Package|Version|Status): (.+)$", stanza))
        if fields.get("Status", "").endswith(" installed"):
            installed.add(f"{fields['Package']}={fields['Version']}")
    locked = {f"{deb.name}={deb.version}" for deb in packages}
    if different := installed ^ locked:
        raise UserError(
            f"what was installed is not what was locked: {' '.join(sorted(different)[:6])}",
            f"Debian {lock.suite} for {lock.architecture}",
            "python build.py lock --base",
            kind=DIFFERS,
        )
