"""Debian from its packages, where no image registry is reachable: mmdebstrap on exactly the locked
files, without network.

One run makes both layers: a minimal system ("base"), then what Dockerfile.base's own script
installs into it ("os", the difference).
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
from builder.images.oci.tar_entry import EPOCH, Entry, make_file
from builder.images.oci.tar_entry import make_folder as empty
from builder.packages import debian_lock
from rosetta.core.errors import DIFFERS, IN_USE, MISSING, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from builder.images.oci.layer import Layer
    from builder.packages.debian_lock import BaseLock

_SCRIPT = "docker/install-packages"
_FORMAT = 3  # of what is done here: another number makes other layers
# As Debian's own slim images: no manuals, translations and documents, but every copyright file.
_DPKG_OPTIONS = (
    *(
        f"path-exclude=/usr/share/{each}/*"
        for each in ("man", "info", "doc", "locale", "lintian", "linda", "groff")
    ),
    "path-include=/usr/share/doc/*/copyright",
)
_APT_EXAMPLES = (
    "usr/share/doc/apt/examples/"  # Debian's own example of its sources, in the package apt
)
_BINFMT = "/proc/sys/fs/binfmt_misc"


def compute_layer_keys(lock: BaseLock, root: Path) -> dict[str, str]:
    """Return the keys of the layers "base" and "os": of the packages, and of the script that
    installs them.
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
    """Return the layers "base" and "os" of a locked base.

    `root` is the repository, for docker/. UserError with what is missing on this machine.
    """
    wanted = compute_layer_keys(lock, root)
    if known := _find_layers(cache, wanted, compression):
        return known
    with cache.lock(f"bootstrap-{lock.key}"):
        if known := _find_layers(cache, wanted, compression):
            return known
        _check_programs(lock)
        folder = debian_lock.fetch(cache, lock, offline=offline)
        scratch = cache.path("base", f".tmp-bootstrap-{lock.key[:16]}")
        _refuse_mounts(scratch)
        remove_path(scratch)
        scratch.mkdir()
        try:
            with log.stage(
                f"make Debian {lock.suite} for {lock.architecture} from {len(lock.packages)} "
                "packages"
            ):
                lower, upper = _run_mmdebstrap(scratch, folder, lock, root)
            return _write_layers(cache, wanted, compression, lock, scratch, lower, upper)
        finally:
            _refuse_mounts(scratch)
            remove_path(scratch)


def _refuse_mounts(scratch: Path) -> None:
    """UserError where something is mounted below a folder that is about to be deleted."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        below = sorted(
            line.split()[4] for line in file if line.split()[4].startswith(f"{scratch.resolve()}/")
        )
    if below:
        raise UserError(
            f"a killed run left {len(below)} mounts there",
            str(scratch),
            f"umount --lazy {' '.join(reversed(below))}, then run again",
            kind=IN_USE,
            value=len(below),
        )


def has_layers(cache: Cache, lock: BaseLock, root: Path) -> bool:
    """Has the cache both layers, so that nothing is made?"""
    return all(has_layer(cache, each) for each in compute_layer_keys(lock, root).values())


def has_layer(cache: Cache, key: str) -> bool:
    """Has the cache the layer of this key, in one compression or the other?"""
    return any(layer.find_layer(cache, key, "", each) for each in blob_compression.MEDIA_TYPES)


def _find_layers(
    cache: Cache, wanted: Mapping[str, str], compression: str
) -> tuple[Layer, Layer] | None:
    """Return the layers if the cache has them, be it in the other compression."""
    found = [find_or_recompress(cache, each, name, compression) for name, each in wanted.items()]
    base, above = found
    return (base, above) if base and above else None


def find_or_recompress(cache: Cache, key: str, name: str, compression: str) -> Layer | None:
    """Return the layer of this key, written again if the cache has it in the other compression
    only; None where it has none.
    """
    other = "gzip" if compression == "zstd" else "zstd"
    if (made := layer.find_layer(cache, key, name, compression)) or not (
        known := layer.find_layer(cache, key, name, other)
    ):
        return made
    return layer.rewrite_layer(
        cache, key, name, compression, lambda: open(layer.blob_path(cache, known.digest), "rb")
    )


def _check_programs(lock: BaseLock) -> None:
    """One clear refusal before anything is fetched."""
    if not shutil.which("mmdebstrap"):
        raise UserError(
            "mmdebstrap is not here, and the base is made with it",
            f"Debian {lock.suite}",
            "apt-get install mmdebstrap, or give --base IMAGE to stand on a registry's image",
            kind=MISSING,
        )
    here = machine_architecture.detect_architecture()
    if here != lock.architecture:
        _check_emulation(lock, here)


def _check_emulation(lock: BaseLock, here: str) -> None:
    """Raise UserError if this machine lacks what runs programs of another architecture."""
    machine = next(
        name
        for name, each in machine_architecture.ARCHITECTURES.items()
        if each == lock.architecture
    )
    missing = []
    if not os.path.exists(f"{_BINFMT}/qemu-{machine}"):
        missing += ["qemu-user-static", "binfmt-support"]
    if not shutil.which("arch-test"):  # mmdebstrap calls it; Debian only recommends it
        missing.append("arch-test")
    if missing:
        why = (
            f"it registers qemu-{machine}"
            if "binfmt-support" in missing
            else "mmdebstrap asks it what this machine runs"
        )
        raise UserError(
            (
                f"programs for {lock.architecture} do not run on this {here} machine, and the "
                "packages of its base run some"
            ),
            f"Debian {lock.suite}",
            (
                f"apt-get install {' '.join(missing)} ({why}), or leave {lock.architecture} out "
                f"with --platform linux/{here}"
            ),
            kind=UNSUPPORTED,
            value=lock.architecture,
        )


def _run_mmdebstrap(scratch: Path, folder: Path, lock: BaseLock, root: Path) -> tuple[Path, Path]:
    """Return the tar of the minimal system, and of that with the OS packages."""
    # In user namespaces (without root) the maker is another user, who must be able to read and
    # write here.
    scratch.chmod(0o755)
    lower, upper, temporary, repository = (
        scratch / name for name in ("base.tar", "all.tar", "tmp", "debs")
    )
    temporary.mkdir()
    temporary.chmod(0o1777)
    lower.touch()
    lower.chmod(0o666)
    repository.mkdir()
    for each in sorted(os.listdir(folder)):
        copy_file(folder / each, repository / each)
    (scratch / "docker").mkdir()
    for name in (_SCRIPT, debian_lock.PACKAGES):
        shutil.copyfile(root / name, scratch / name)
    hook = scratch / "hook"
    hook.write_text(_format_hook(scratch, lower), encoding="utf-8")
    hook.chmod(0o755)
    argv = [
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
    if os.geteuid() == 0 and shutil.which("setpriv") and shutil.which("unshare"):
        # Nothing of it survives this process, neither a program nor a mount: a rerun would meet it,
        # and delete through /proc and /sys.
        argv = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            *argv,
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
        own = [line for line in done.stderr.splitlines() if line.startswith("rosetta: ")]
        reason = output_end("\n".join(own) or done.stderr, prefer=("E: ",) if not own else ())
        report = scratch.with_name(f"bootstrap-{lock.suite}-{lock.architecture}.log")
        report.write_text(redact(done.stderr), encoding="utf-8")
        do = "free some space and run again" if "No space left" in done.stderr else f"see {report}"
        raise UserError(
            f"mmdebstrap failed: {reason}", f"Debian {lock.suite} for {lock.architecture}", do
        )
    return lower, upper


def _format_hook(scratch: Path, lower: Path) -> str:
    """Return a script that copies the minimal system, then installs as Dockerfile.base does.

    It runs with the system's root as $1, once the minimal system is there.
    """
    here = shlex.quote(str(scratch))
    return f"""#!/bin/sh
set -eu
tar --create --file={shlex.quote(str(lower))} --directory="$1" --numeric-owner \
--one-file-system --xattrs --xattrs-include='security.capability' \
--exclude=./proc --exclude=./sys --exclude=./dev .
mkdir -p "$1/run/rosetta"
cp -R {here}/docker {here}/debs "$1/run/rosetta/"
chroot "$1" sh /run/rosetta/{_SCRIPT} /run/rosetta >&2
rm -rf "$1/run/rosetta"
"""


def _write_layers(
    cache: Cache,
    wanted: Mapping[str, str],
    compression: str,
    lock: BaseLock,
    scratch: Path,
    lower: Path,
    upper: Path,
) -> tuple[Layer, Layer]:
    own = _make_apt_files(scratch / "debs", lock)
    with open(lower, "rb") as one, tar_file.spool_tar(one, scratch / "spool") as minimal:
        below = _normalise_entries(minimal, own)
        _check_installed(below, [deb for deb in lock.packages if deb.layer == "base"], lock)
        base = layer.write_layer(cache, wanted["base"], "base", compression, lambda: below)
    with (
        open(upper, "rb") as other,
        tar_file.spool_tar(other, scratch / "spool") as everything,
        open(lower, "wb") as out,
    ):
        above = _normalise_entries(everything, own)
        _check_installed(above, lock.packages, lock)
        tar_file.write_tar(
            [*above, *root_file_system.find_removed(below, above)], tar_file.PlainSink(out)
        )
    made = ExportedImage(
        {},
        (),
        (lambda: open(layer.blob_path(cache, base.digest), "rb"), lambda: open(lower, "rb")),  # noqa: SIM115 - its reader closes it
        base_count=1,
    )
    return base, layer_normalisation.make_os_layer(cache, wanted["os"], compression, made)


def _normalise_entries(entries: Iterable[Entry], own: Iterable[Entry]) -> list[Entry]:
    """Return a system without what differs from run to run or names this machine, and with what
    every one has from us.
    """
    found = {entry.path: entry for entry in entries if not root_file_system.is_dropped(entry)} | {
        entry.path: entry for entry in own
    }
    return [found[path] for path in sorted(found)]


def _make_apt_files(folder: Path, lock: BaseLock) -> list[Entry]:
    """Debian's sources as Debian's own apt package shows them, so that apt works inside; and what
    is left out of later packages too.
    """
    apt = next((deb for deb in lock.packages if deb.name == "apt"), None)
    if apt is None:
        raise UserError("the list lacks apt", f"Debian {lock.suite}", "python build.py lock --base")
    result = [
        empty("dev"),
        empty("proc"),
        empty("sys"),
        make_file(
            "etc/dpkg/dpkg.cfg.d/rosetta", "".join(f"{option}\n" for option in _DPKG_OPTIONS)
        ),
    ]
    content = subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(folder / apt.file)], stdout=subprocess.PIPE
    )
    with content as packed:
        for entry, data in tar_file.read_tar(packed.stdout) if packed.stdout else ():
            name = entry.path.removeprefix(_APT_EXAMPLES)
            if (
                data is not None
                and entry.path.startswith(_APT_EXAMPLES)
                and name in ("debian.sources", "sources.list")
            ):
                result.append(
                    make_file(
                        "etc/apt/sources.list.d/debian.sources"
                        if name == "debian.sources"
                        else "etc/apt/sources.list",
                        data.read(),
                    )
                )
    return result


def _check_installed(
    entries: Iterable[Entry], packages: Iterable[debian_lock.Deb], lock: BaseLock
) -> None:
    """Check what the system itself says is installed: exactly the list, or there is no layer."""
    status = next(
        (
            root_file_system.read_content(entry).decode()
            for entry in entries
            if entry.path == "var/lib/dpkg/status"
        ),
        "",
    )
    found = set()
    for stanza in status.split("\n\n"):
        fields = dict(re.findall(r"(?m)^(Package|Version|Status): (.+)$", stanza))
        if fields.get("Status", "").endswith(" installed"):
            found.add(f"{fields['Package']}={fields['Version']}")
    if other := found ^ {f"{deb.name}={deb.version}" for deb in packages}:
        raise UserError(
            f"what was installed is not what was locked: {' '.join(sorted(other)[:6])}",
            f"Debian {lock.suite} for {lock.architecture}",
            "python build.py lock --base",
            kind=DIFFERS,
        )
