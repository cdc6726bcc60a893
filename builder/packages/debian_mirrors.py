"""Find the addresses that Debian's packages are fetched from: set by the user, or those of apt."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from builder.core.secrets import redact
from rosetta.core.errors import INVALID, MISSING, UserError
from rosetta.core.variables import lookup

MIRROR = "ROSETTA_DEBIAN_MIRROR"
SECURITY = "ROSETTA_DEBIAN_SECURITY_MIRROR"
SNAPSHOT = "ROSETTA_DEBIAN_SNAPSHOT"
_LABELS = {"debian": "Debian", "security": "Debian-Security"}
_URL = r"(https?|file|copy|mirror(\+\w+)?|tor\+https?):[^\s\[\]]+"
_SECURITY_POOL = "pool/updates/"


def find_mirrors() -> dict[str, str]:
    """Return the addresses of the archives "debian" and, if it is known, "security".

    The addresses come from the environment, else from the lists that apt has downloaded, else from
    apt's configured sources. A new machine has sources and no lists.

    Raises:
        UserError: No mirror of the archive "debian" is known, or an address is malformed.
    """
    urls = {"debian": os.environ.get(MIRROR, ""), "security": os.environ.get(SECURITY, "")}
    for read_labels in (_labels_of_lists, _labels_of_sources):
        if not all(urls.values()) and shutil.which("apt-get"):
            labels = read_labels()
            for archive, label in _LABELS.items():
                urls[archive] = urls[archive] or labels.get(label, "")
    urls = {archive: url.rstrip("/") for archive, url in urls.items() if url}
    for archive, url in urls.items():
        _check_url(url, {"debian": MIRROR, "security": SECURITY}[archive])
    if "debian" not in urls:
        raise UserError(
            "no Debian mirror is known: none of apt's sources answers",
            MIRROR,
            (
                "set it to the address of the folder with dists/ and pool/, and install apt "
                "(or give --base IMAGE)"
            ),
        )
    return urls


def mirror_url(urls: dict[str, str], filename: str) -> str:
    """Return the address of a package file. `filename` is its path below its archive.

    Only the archive of security updates has files below pool/updates/. If no mirror of that archive
    is known, its address is guessed from the main mirror's, as on Debian's own hosts.

    Raises:
        UserError: No address of the archive is known.
    """
    base = urls["debian"]
    if filename.startswith(_SECURITY_POOL):
        base = urls.get("security", "")
        if not base and urls["debian"].endswith("/debian"):
            base = f"{urls['debian']}-security"
        if not base:
            raise UserError(
                "no mirror of Debian's security updates is known",
                SECURITY,
                "set it to the address of the folder with dists/ and pool/",
                kind=MISSING,
            )
    return f"{base}/{filename}"


def snapshot_url(date: str, filename: str) -> str:
    """Return the address of a package file at the snapshot service, as of the end of a day.

    Args:
        date: The day, as "2026-01-31".
        filename: The path of the file below its archive.
    """
    service = os.environ.get(SNAPSHOT) or lookup.find_variable(SNAPSHOT).default
    _check_url(service, SNAPSHOT)
    archive = "debian-security" if filename.startswith(_SECURITY_POOL) else "debian"
    return f"{service.rstrip('/')}/{archive}/{date.replace('-', '')}T235959Z/{filename}"


def _check_url(url: str, variable: str) -> None:
    if not re.fullmatch(_URL, url):
        raise UserError(
            f"{redact(url)[:80]!r} is not a valid address of a Debian mirror",
            variable,
            "give the address of the folder with dists/ and pool/",
            kind=INVALID,
        )


def _labels_of_lists() -> dict[str, str]:
    """Return the addresses of the archives that apt has downloaded lists of, by their labels."""
    shown = _apt_get("indextargets", "--format", "$(LABEL)\t$(REPO_URI)", "Created-By: Packages")
    labels: dict[str, str] = {}
    for line in shown.splitlines():
        label, tab, url = line.partition("\t")
        if tab:
            labels.setdefault(label, url)
    return labels


def _labels_of_sources() -> dict[str, str]:
    """Return the addresses of the archives of apt's configured sources, by their labels.

    Only the Release files are fetched. They go to a temporary folder, so this needs no root and
    changes nothing.
    """
    with tempfile.TemporaryDirectory(prefix="rosetta-apt-") as scratch:
        lists = Path(scratch, "lists")
        (lists / "partial").mkdir(parents=True)
        options = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={scratch}/cache"]
        options += ["-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=1"]
        for target in re.findall(
            r"(?m)^(Acquire::IndexTargets::\w+::[^:\s]+) ", _run_program("apt-config", "dump")
        ):
            options += ["-o", f"{target}::DefaultEnabled=false"]
        planned = _apt_get(*options, "--print-uris", "update")
        _apt_get(*options, "update")
        labels: dict[str, str] = {}
        for url, name in re.findall(r"(?m)^'(\S+)/dists/\S+/InRelease' (\S+)", planned):
            label = _read_label(lists / name)
            if label:
                labels.setdefault(label, url)
        return labels


def _read_label(in_release: Path) -> str:
    """Return the label of an archive from its InRelease file, or from Release beside it."""
    release = in_release.with_name(in_release.name.removesuffix("InRelease") + "Release")
    for file in (in_release, release):
        if file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            label = re.search(r"(?m)^Label: *(.+)$", text)
            return label[1].strip() if label else ""
    return ""


def _apt_get(*arguments: str) -> str:
    return _run_program("apt-get", "-q", *arguments)


def _run_program(*argv: str) -> str:
    """Return what a program prints, whatever its exit status.

    apt fails if one source does not answer, and the others are still usable.
    """
    env = {**os.environ, "LC_ALL": "C.UTF-8"}
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env).stdout
