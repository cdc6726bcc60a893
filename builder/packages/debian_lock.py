"""Read and write the locked Debian packages of a base, and fetch them into a folder.

The lock of a base is locks/base-NAME-ARCHITECTURE.json. The apt of this machine fetches the
packages, so its mirror, proxies, certificates and credentials apply. The builder checks the sha256
of each package.
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

# The repository of the builder. Its Dockerfile.base and OS packages are used with every manifest.
ROOT = Path(__file__).resolve().parents[2]
# The list of the OS packages of an image, which Dockerfile.base and the locks share.
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

    Attributes:
        name: The name of the package.
        version: Its version.
        architecture: "all", "amd64" or "arm64".
        filename: The path of the file below a Debian archive.
        sha256: The hash of the file.
        size: The size of the file in bytes.
        layer: "base" for a package of a minimal system, otherwise "os".
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
    """A locked package is no longer available: Debian has a newer version."""


@dataclass(frozen=True)
class BaseLock:
    """A base on one architecture.

    Attributes:
        base: The name of the base.
        suite: The Debian release.
        architecture: "amd64" or "arm64".
        inputs: The key of what the packages were chosen for, see `compute_inputs_key`.
        images: Names of registry images, with the digests that were recorded.
        packages: The packages that the base is made from without a registry.
        date: A day on which the archive had all packages, as "2026-01-31", or "".
    """

    base: str
    suite: str
    architecture: str
    inputs: str = ""
    images: tuple[tuple[str, str], ...] = ()
    packages: tuple[Deb, ...] = ()
    date: str = ""

    @property
    def digest(self) -> str:
        """The sha256 of the package list, used as a digest for a base without an image."""
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
    """Return the names of the OS packages of an image, from docker/packages."""
    file = root / PACKAGES
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            "cannot be read", str(file), "restore it: git checkout -- docker/packages"
        ) from error
    names = []
    for number, line in enumerate(lines, 1):
        name = line.partition("#")[0].strip()
        if not name:
            continue
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
    """Return the key of what the packages of a base are chosen for.

    If it differs from the key in the lock, the lock is stale.
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
    """Return the lock of a base, or an empty one if the file does not exist.

    Args:
        manifest: The manifest with the base.
        base: The name of the base.
        architecture: "amd64" or "arm64".
        current: Refuse a lock that was made for another suite or other OS packages.

    Raises:
        UserError: The file is not a lock of this base, or it is stale.
    """
    file, suite = lock_path(manifest, base, architecture), manifest.bases[base].bootstrap
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return BaseLock(base, suite, architecture)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            "is not a lock of a base", str(file), "git checkout it, or python build.py lock --base"
        ) from error
    try:
        lock = _parse_lock(document)
        if (lock.base, lock.architecture) != (base, architecture):
            raise ValueError(file.name)
        if current and lock.suite != suite:
            raise ValueError(lock.suite)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"is not the lock of {base} ({suite}) for {architecture}",
            str(file),
            "git checkout it, or python build.py lock --base",
            kind=INVALID,
        ) from error
    is_checked = current and bool(lock.packages)
    if is_checked and lock.inputs != compute_inputs_key(manifest, base, architecture):
        raise UserError(
            f"was made for other packages than {PACKAGES} names",
            str(file),
            "python build.py lock --base",
            kind=DIFFERS,
        )
    return lock


def _parse_lock(document: Any) -> BaseLock:
    """Return a lock from its document.

    Raises:
        ValueError: A value is not valid. KeyError, TypeError and AttributeError mean the same.
    """
    lock = BaseLock(
        document["base"],
        document["suite"],
        document["architecture"],
        document["inputs"],
        tuple(sorted(document["images"].items())),
        tuple(parse_package(row) for row in document["packages"]),
        check_date(document.get("date", "")),
    )
    if document["schema"] != 1:
        raise ValueError(document["schema"])
    for name, digest in lock.images:
        if not isinstance(name, str) or not re.fullmatch(_DIGEST, digest):
            raise ValueError(name)
    if len({deb.file for deb in lock.packages}) != len(lock.packages):
        raise ValueError("two packages of one file name")
    return lock


def parse_package(row: Any) -> Deb:
    """Return a package from its row in a lock.

    Raises:
        ValueError: A field is not valid.
        TypeError: A field is missing, unknown or of another type.
    """
    deb = Deb(**row)
    for field, pattern in _FIELDS.items():
        if not re.fullmatch(pattern, getattr(deb, field)):
            raise ValueError(field)
    if type(deb.size) is not int or deb.size <= 0:
        raise ValueError(deb.size)
    return deb


def check_date(date: Any) -> str:
    """Return the date of a lock, which is a day or "".

    Raises:
        ValueError: The date is neither.
        TypeError: The date is not a string.
    """
    if not re.fullmatch(_DATE, date):
        raise ValueError("date")
    return str(date)


def render_lock(lock: BaseLock) -> str:
    """Return the text of a lock. It has nothing of the machine that made it."""
    head: dict[str, Any] = {
        "schema": 1,
        "base": lock.base,
        "suite": lock.suite,
        "architecture": lock.architecture,
        "inputs": lock.inputs,
    }
    if lock.date:
        head["date"] = lock.date
    head["images"] = dict(lock.images)
    packages = sorted(lock.packages, key=lambda deb: (deb.name, deb.architecture))
    # One line for each package keeps the differences of two versions short.
    rows = ",\n".join("  " + json.dumps(vars(deb)) for deb in packages)
    package_list = f"[\n{rows}\n ]" if rows else "[]"
    return f'{json.dumps(head, indent=1)[:-2]},\n "packages": {package_list}\n}}\n'


def fetch_packages(cache: Cache, lock: BaseLock, *, offline: bool = False) -> Path:
    """Return a folder with the locked package files and their index `Packages`.

    The folder is a flat repository, for apt's `deb [trusted=yes] copy:FOLDER ./`.

    Raises:
        SupersededError: A package is no longer available.
        UserError: A package cannot be fetched, or is not in the cache if `offline`.
    """

    def fill_folder(folder: Path) -> None:
        package_folder = cache.path("debs")
        with cache.lock("debs"):
            _fetch_missing(lock, package_folder, offline=offline)
        index = []
        for deb in sorted(lock.packages, key=lambda deb: deb.file):
            copy_file(package_folder / f"{deb.sha256}.deb", folder / deb.file)
            index.append(_index_entry(folder / deb.file, deb))
        (folder / "Packages").write_text("\n".join(index), encoding="utf-8")

    return cache.ensure_folder("base", f"debs-{lock.key}", fill_folder)


def _fetch_missing(lock: BaseLock, package_folder: Path, *, offline: bool) -> None:
    """Fetch the packages of a lock that the cache does not have."""
    missing = [
        deb for deb in lock.packages if not _is_complete(package_folder / f"{deb.sha256}.deb", deb)
    ]
    if not missing:
        return
    if offline:
        raise UserError(
            (
                f"{len(missing)} of {len(lock.packages)} packages of {lock.suite} are not "
                "in the cache"
            ),
            str(package_folder),
            "run once without --offline",
            kind=MISSING,
        )
    megabytes = sum(deb.size for deb in missing) / 1e6
    with log.stage(f"fetch {len(missing)} Debian packages ({megabytes:.0f} MB)"):
        _download_packages(missing, package_folder, lock.date)


def _is_complete(file: Path, deb: Deb) -> bool:
    try:
        if file.stat().st_size != deb.size:
            return False
        with open(file, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == deb.sha256
    except OSError:
        return False


def _download_packages(missing: Sequence[Deb], package_folder: Path, date: str) -> None:
    """Fetch package files from the mirrors, or from the snapshot service if the mirrors no longer
    have them.

    A complete file stays in the cache, even if another file fails.

    Args:
        missing: The packages to fetch.
        package_folder: The folder of the cache that gets the files.
        date: The day of the lock, or "" to leave the snapshot service out.

    Raises:
        SupersededError: A package is neither on its mirror nor at the snapshot service.
        UserError: A package cannot be fetched for another reason.
    """
    if not os.access(_HELPER, os.X_OK):
        raise UserError(
            "apt is needed to fetch Debian packages, and is not installed",
            _HELPER,
            "build on Debian or Ubuntu, or give --base IMAGE",
        )
    urls = find_mirrors()
    failed = _fetch_files({deb: mirror_url(urls, deb.filename) for deb in missing}, package_folder)
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
    snapshot_message = (
        _fetch_from_snapshot(gone, package_folder, date) if date else "the lock has no date"
    )
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


def _fetch_from_snapshot(gone: Sequence[Deb], package_folder: Path, date: str) -> str:
    """Fetch superseded packages as they were on the day of the lock.

    Returns:
        The message of the first failure, or "" if all packages were fetched.
    """
    log.info(
        f"the Debian mirror no longer has {_count_packages(gone)}: asking the snapshot "
        f"service of {date}"
    )
    # The first file alone: if the service cannot be reached, the others need not wait for it.
    for part in (gone[:1], gone[1:]):
        failed = _fetch_files(
            {deb: snapshot_url(date, deb.filename) for deb in part}, package_folder, patient=False
        )
        if failed:
            return next(iter(failed.values()))
    return ""


def _fetch_files(
    urls: dict[Deb, str], package_folder: Path, *, patient: bool = True
) -> dict[Deb, str]:
    """Fetch package files with one run of apt's downloader.

    Args:
        urls: The address of each package.
        package_folder: The folder of the cache that gets the files.
        patient: Wait and try again if a server does not answer.

    Returns:
        The message of each package that could not be fetched.
    """
    if not urls:
        return {}
    new = package_folder / ".tmp-new"
    new.mkdir(exist_ok=True)
    settings = ["APT::Sandbox::User=root"]
    if patient:
        settings += ["Acquire::Retries=3"]
    else:
        settings += ["Acquire::Retries=0"]
        settings += ["Acquire::http::Timeout=20", "Acquire::https::Timeout=20"]
    argv = [_HELPER, *(word for setting in settings for word in ("-o", setting)), "download-file"]
    for deb, url in urls.items():
        argv += [url, str(new / deb.sha256), f"SHA256:{deb.sha256}"]
    completed = subprocess.run(
        argv, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    messages = [
        line[3:].strip()
        for line in completed.stderr.splitlines()
        if line.startswith(("E: ", "W: "))
    ]
    failed = {}
    for deb, url in urls.items():
        if _is_complete(new / deb.sha256, deb):
            # apt wrote it, beside other files of the same call.
            os.replace(new / deb.sha256, package_folder / f"{deb.sha256}.deb")
        else:
            failed[deb] = _find_message(messages, url)
    remove_path(new)
    return failed


def _find_message(messages: Sequence[str], url: str) -> str:
    """Return the message of apt about an address, else the first message, on one line."""
    # apt may write %2b for "+".
    about_url = [message for message in messages if unquote(url) in unquote(message)]
    message = [*about_url, *messages, "no message"][0]
    return redact(re.sub(r"\s+", " ", message))[:300]


def _is_gone(message: str) -> bool:
    """Return whether a message of apt says that a server has no such file."""
    return bool(re.search(r"\b(404|410)\b|[Nn]ot [Ff]ound|No such file", message))


def _count_packages(packages: Sequence[Deb]) -> str:
    first = f"{packages[0].name} {packages[0].version}"
    return f"{first} and {len(packages) - 1} more" if len(packages) > 1 else first


def _index_entry(file: Path, deb: Deb) -> str:
    """Return the entry of a package in the index.

    A package of the minimal system is marked as required, whatever priority the archive gives it.
    """
    completed = subprocess.run(
        ["dpkg-deb", "-f", str(file)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    fields = re.sub(r"(?m)^Priority:.*\n", "", completed.stdout)
    if (
        completed.returncode
        or f"Package: {deb.name}\n" not in fields
        or f"Version: {deb.version}\n" not in fields
    ):
        raise UserError(
            f"is not {deb.name} {deb.version}",
            deb.filename,
            "python build.py lock --base",
            kind=DIFFERS,
        )
    priority = "required" if deb.layer == "base" else "optional"
    return (
        f"{fields}Priority: {priority}\nFilename: ./{deb.file}\n"
        f"Size: {deb.size}\nSHA256: {deb.sha256}\n"
    )
