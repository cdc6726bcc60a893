"""The locked Debian packages of a base: locks/base-NAME-ARCHITECTURE.json, and a folder that holds
exactly these files.

They are fetched by the machine's own apt, so that its mirror, proxies, certificates and credentials
count; each is checked by its sha256.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from builder.core import log
from builder.core.cache import Cache, remove_path, stage_key
from builder.core.file_copies import copy_file
from builder.core.secrets import redact
from builder.packages.debian_mirrors import MIRROR, find_mirrors, mirror_url, snapshot_url
from rosetta.core.errors import DIFFERS, INVALID, MISSING, UNREACHABLE, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.core.manifest import Manifest

ROOT = (
    Path(__file__).resolve().parents[2]
)  # of the repository: Dockerfile.base and what it runs are ours, whatever manifest is used
# The OS packages of an image, for people, Dockerfile.base and the locks alike.
PACKAGES = "docker/packages"
_DIGEST = r"sha256:[0-9a-f]{64}"
_DATE = r"(\d{4}-\d{2}-\d{2})?"
_HELPER = "/usr/lib/apt/apt-helper"
_FIELDS = {
    "name": r"[a-z0-9][a-z0-9+.-]+",
    "version": r"[A-Za-z0-9.+:~-]+",
    "architecture": r"all|amd64|arm64",
    "sha256": r"[0-9a-f]{64}",
    "layer": r"base|os",
    "filename": r"(?!.*\.\.)pool/[A-Za-z0-9+._~/%-]+/[A-Za-z0-9+._~%-]+\.deb",
}


@dataclass(frozen=True)
class Deb:
    """One package file.

    `filename` is its path below a Debian archive, `layer` "base" (what a minimal system has) or
    "os", `size` in bytes.
    """

    name: str
    version: str
    architecture: str
    filename: str
    sha256: str
    size: int
    layer: str

    @property
    def file(self) -> str:
        """The file name of the package."""
        return self.filename.rpartition("/")[2]


class SupersededError(UserError):
    """A locked package is no longer to be had: Debian has a newer version of it."""


@dataclass(frozen=True)
class BaseLock:
    """What a base is on one architecture: the registry images whose digests were recorded, and the
    packages it is made from without a registry.
    """

    base: str
    suite: str
    architecture: str
    inputs: str = ""
    images: tuple[tuple[str, str], ...] = ()
    packages: tuple[Deb, ...] = ()
    date: str = ""  # "2026-01-31": a day on which the archive had all packages

    @property
    def digest(self) -> str:
        """What stands for an image's digest where there is none: the sha256 of the package list."""
        rows = [
            [deb.name, deb.version, deb.architecture, deb.sha256, deb.layer]
            for deb in self.packages
        ]
        return "sha256:" + stage_key(
            "debs", {"suite": self.suite, "architecture": self.architecture, "packages": rows}
        )

    @property
    def key(self) -> str:
        """The digest without its algorithm."""
        return self.digest.removeprefix("sha256:")


def lock_path(manifest: Manifest, base: str, architecture: str) -> Path:
    """Return the path of the lock of a base for an architecture."""
    return manifest.root / "locks" / f"base-{base}-{architecture}.json"


def read_package_names(root: Path = ROOT) -> tuple[str, ...]:
    """Return the OS packages of an image by name, from docker/packages."""
    file = root / PACKAGES
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            "cannot be read", str(file), "restore it: git checkout -- docker/packages"
        ) from error
    names = []
    for number, line in enumerate(lines, 1):
        if name := line.partition("#")[0].strip():
            if not re.fullmatch(_FIELDS["name"], name):
                raise UserError(
                    f"{name[:60]!r} is not the name of a Debian package",
                    f"{PACKAGES}:{number}",
                    "one name a line",
                    kind=INVALID,
                    value=name[:60],
                )
            names.append(name)
    return tuple(names)


def compute_inputs_key(manifest: Manifest, base: str, architecture: str) -> str:
    """Return the key of what a package list is made from: another list is due where it differs from
    the lock's.
    """
    return stage_key(
        "base-lock",
        {
            "suite": manifest.bases[base].bootstrap,
            "architecture": architecture,
            "packages": sorted(read_package_names()),
        },
    )


def load_lock(
    manifest: Manifest, base: str, architecture: str, *, current: bool = True
) -> BaseLock:
    """Return the lock of a base; an empty one where there is no file yet.

    UserError where it is no such lock, or (if `current`) no longer that of the manifest.
    """
    file, suite = lock_path(manifest, base, architecture), manifest.bases[base].bootstrap
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return BaseLock(base, suite, architecture)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            "is not a lock of a base", str(file), "git checkout it, or python build.py lock --base"
        ) from error
    try:
        images = tuple(sorted(data["images"].items()))
        packages = tuple(parse_package(row) for row in data["packages"])
        lock = BaseLock(
            data["base"],
            data["suite"],
            data["architecture"],
            data["inputs"],
            images,
            packages,
            check_date(data.get("date", "")),
        )
        if (
            data["schema"] != 1
            or (lock.base, lock.architecture) != (base, architecture)
            or (current and lock.suite != suite)
        ):
            raise ValueError(file.name)
        if not all(
            isinstance(name, str) and re.fullmatch(_DIGEST, digest) for name, digest in images
        ):
            raise ValueError(file.name)
        if len({deb.file for deb in packages}) != len(packages):
            raise ValueError(file.name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"is not the lock of {base} ({suite}) for {architecture}",
            str(file),
            "git checkout it, or python build.py lock --base",
            kind=INVALID,
        ) from error
    if current and packages and lock.inputs != compute_inputs_key(manifest, base, architecture):
        raise UserError(
            f"was made for other packages than {PACKAGES} names",
            str(file),
            "python build.py lock --base",
            kind=DIFFERS,
        )
    return lock


def parse_package(row: Any) -> Deb:
    """Return a row of a lock as a package; ValueError or TypeError where it is none."""
    deb = Deb(**row)
    for field, pattern in _FIELDS.items():
        if not re.fullmatch(pattern, getattr(deb, field)):
            raise ValueError(field)
    if type(deb.size) is not int or deb.size <= 0:
        raise ValueError(deb.size)
    return deb


def check_date(date: Any) -> str:
    """Return the date of a lock, or "" for one without; ValueError or TypeError for anything
    else.
    """
    if not re.fullmatch(_DATE, date):
        raise ValueError("date")
    return str(date)


def render_lock(lock: BaseLock) -> str:
    """Return the file's text: nothing of the machine that made it."""
    head: dict[str, Any] = {
        "schema": 1,
        "base": lock.base,
        "suite": lock.suite,
        "architecture": lock.architecture,
        "inputs": lock.inputs,
    }
    head |= ({"date": lock.date} if lock.date else {}) | {"images": dict(lock.images)}
    rows = ",\n".join(
        "  " + json.dumps(vars(deb))
        for deb in sorted(lock.packages, key=lambda deb: (deb.name, deb.architecture))
    )
    return (
        json.dumps(head, indent=1)[:-2]
        + ',\n "packages": ['
        + (f"\n{rows}\n ]" if rows else "]")
        + "\n}\n"
    )


def fetch_packages(cache: Cache, lock: BaseLock, *, offline: bool = False) -> Path:
    """Return a folder with the locked package files and a `Packages` index over them: a flat
    repository, for apt's `deb [trusted=yes] copy:FOLDER ./`.
    """

    def make(folder: Path) -> None:
        kept = cache.path("debs")
        with cache.lock("debs"):
            missing = [
                deb for deb in lock.packages if not _is_complete(kept / f"{deb.sha256}.deb", deb)
            ]
            if missing and offline:
                raise UserError(
                    (
                        f"{len(missing)} of {len(lock.packages)} packages of {lock.suite} are not "
                        "in the cache"
                    ),
                    str(kept),
                    "run once without --offline",
                    kind=MISSING,
                )
            if missing:
                with log.stage(
                    f"fetch {len(missing)} Debian packages "
                    f"({sum(deb.size for deb in missing) / 1e6:.0f} MB)"
                ):
                    _download_packages(missing, kept, lock.date)
        index = []
        for deb in sorted(lock.packages, key=lambda deb: deb.file):
            copy_file(kept / f"{deb.sha256}.deb", folder / deb.file)
            index.append(_index_entry(folder / deb.file, deb))
        (folder / "Packages").write_text("\n".join(index), encoding="utf-8")

    return cache.ensure_folder("base", f"debs-{lock.key}", make)


def _is_complete(file: Path, deb: Deb) -> bool:
    try:
        if file.stat().st_size != deb.size:
            return False
        with open(file, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == deb.sha256
    except OSError:
        return False


def _download_packages(missing: Sequence[Deb], kept: Path, date: str) -> None:
    """Fetch package files from the mirrors, and what these no longer have from the snapshot
    service.

    What arrives whole is kept, even if another file fails.

    Args:
        missing: The packages to fetch.
        kept: The folder of the cache that they go to.
        date: The day of the lock; without one there is no snapshot to ask for.

    Raises:
        SupersededError: A package is neither on its mirror nor at the snapshot service.
        UserError: A package cannot be fetched for another reason.
    """
    if not os.access(_HELPER, os.X_OK):
        raise UserError(
            "Debian packages are fetched by apt, which is not here",
            _HELPER,
            "build on Debian or Ubuntu, or give --base IMAGE",
        )
    urls = find_mirrors()
    failed = _fetch_files({deb: mirror_url(urls, deb.filename) for deb in missing}, kept)
    if not failed:
        return
    unreachable = [(deb, message) for deb, message in failed.items() if not _is_gone(message)]
    if unreachable:
        deb, message = unreachable[0]
        raise UserError(
            f"{_count_packages([deb for deb, _ in unreachable])} cannot be fetched ({message})",
            redact(mirror_url(urls, deb.filename)),
            (
                f"check the network and apt's settings, or set {MIRROR}, then run again: what was "
                "fetched is kept"
            ),
            kind=UNREACHABLE,
        )
    gone = list(failed)
    snapshot_message = _fetch_from_snapshot(gone, kept, date) if date else "the lock has no date"
    if snapshot_message:
        raise SupersededError(
            (
                f"the Debian mirror no longer has {_count_packages(gone)}, and the snapshot "
                f"service does not give it ({snapshot_message})"
            ),
            failed[gone[0]],
            (
                f"lock what the mirror has now (python build.py lock --base), or set {MIRROR} to "
                "a mirror that keeps old files"
            ),
            kind=MISSING,
        )


def _fetch_from_snapshot(gone: Sequence[Deb], kept: Path, date: str) -> str:
    """Fetch superseded packages as of the lock's day. Returns why this failed, or ""."""
    log.info(
        f"the Debian mirror no longer has {_count_packages(gone)}: asking the snapshot "
        f"service of {date}"
    )
    # One file first: where the service cannot be reached, the others need not wait for it too.
    for part in (gone[:1], gone[1:]):
        failed = _fetch_files(
            {deb: snapshot_url(date, deb.filename) for deb in part}, kept, patient=False
        )
        if failed:
            return next(iter(failed.values()))
    return ""


def _fetch_files(urls: dict[Deb, str], kept: Path, *, patient: bool = True) -> dict[Deb, str]:
    """Fetch package files by one run of apt's own downloader.

    Returns those that failed, and why.
    """
    if not urls:
        return {}
    new = kept / ".tmp-new"
    new.mkdir(exist_ok=True)
    limits = (
        ["Acquire::Retries=3"]
        if patient
        else ["Acquire::Retries=0", "Acquire::http::Timeout=20", "Acquire::https::Timeout=20"]
    )
    argv = [
        _HELPER,
        "-o",
        "APT::Sandbox::User=root",
        *(word for limit in limits for word in ("-o", limit)),
        "download-file",
    ]
    for deb, url in urls.items():
        argv += [url, str(new / deb.sha256), f"SHA256:{deb.sha256}"]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    messages = [
        line[3:].strip() for line in done.stderr.splitlines() if line.startswith(("E: ", "W: "))
    ] or ["no message"]
    failed = {}
    for deb, url in urls.items():
        if _is_complete(new / deb.sha256, deb):
            # apt wrote it, beside other files of the same call.
            os.replace(new / deb.sha256, kept / f"{deb.sha256}.deb")
        else:
            message = next(
                (line for line in messages if unquote(url) in unquote(line)), messages[0]
            )  # apt writes %2b for +
            failed[deb] = redact(re.sub(r"\s+", " ", message))[:300]
    remove_path(new)
    return failed


def _is_gone(message: str) -> bool:
    return bool(re.search(r"\b(404|410)\b|[Nn]ot [Ff]ound|No such file", message))


def _count_packages(packages: Sequence[Deb]) -> str:
    first = f"{packages[0].name} {packages[0].version}"
    return f"{first} and {len(packages) - 1} more" if len(packages) > 1 else first


def _index_entry(file: Path, deb: Deb) -> str:
    """Return a package's entry in the index.

    What belongs to the minimal system is marked required, whatever the archive's editors say of it
    today.
    """
    done = subprocess.run(
        ["dpkg-deb", "-f", str(file)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    fields = re.sub(r"(?m)^Priority:.*\n", "", done.stdout)
    if (
        done.returncode
        or f"Package: {deb.name}\n" not in fields
        or f"Version: {deb.version}\n" not in fields
    ):
        raise UserError(
            f"is not {deb.name} {deb.version}",
            deb.filename,
            "python build.py lock --base",
            kind=DIFFERS,
        )
    return (
        f"{fields}Priority: {'required' if deb.layer == 'base' else 'optional'}\nFilename: "
        f"./{deb.file}\nSize: {deb.size}\nSHA256: {deb.sha256}\n"
    )
