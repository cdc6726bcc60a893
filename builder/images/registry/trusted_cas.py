"""The CA certificates that verify the certificate of a registry."""

from __future__ import annotations

import os
from pathlib import Path

import certifi

from builder.core import package_index
from rosetta.core.errors import MISSING, UserError


def find_files(host: str) -> list[Path]:
    """Return the files of CA certificates that this machine sets for a registry.

    SSL_CERT_FILE (or its like) and SSL_CERT_DIR replace Python's own list. The certificates in
    certs.d/HOST:PORT of docker and podman are added to the list.

    Args:
        host: The registry, HOST or HOST:PORT.

    Returns:
        The files; none if Python's own list is used.
    """
    files = []
    if bundle := package_index.find_ca_bundle():
        if not os.path.exists(bundle):
            raise UserError(
                "the file of CA certificates that the environment names does not exist",
                bundle,
                "correct SSL_CERT_FILE, or the other variable that names it",
                kind=MISSING,
            )
        files += _list_certificates(Path(bundle)) if os.path.isdir(bundle) else [Path(bundle)]
    for folder in filter(None, os.environ.get("SSL_CERT_DIR", "").split(os.pathsep)):
        files += _list_certificates(Path(folder))
    added = [
        path
        for folder in _find_folders()
        for path in _list_certificates(folder / host)
        if path.suffix == ".crt"
    ]
    if added and not files:
        files.append(Path(certifi.where()))
    return [*files, *added]


def _find_folders() -> list[Path]:
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path(os.path.expanduser("~")) / ".config")
    return [
        config / "containers/certs.d",
        Path("/etc/containers/certs.d"),
        Path("/etc/docker/certs.d"),
    ]


def _list_certificates(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_file() and path.suffix != ".key")


def join_certificates(files: list[Path]) -> bytes:
    """Return the certificates of all files as one PEM text."""
    try:
        return b"\n".join(path.read_bytes() for path in files)
    except OSError as error:
        raise UserError(
            f"a file of CA certificates cannot be read ({error.strerror})",
            str(error.filename),
            "correct that file, or the variable that names it",
        ) from error
