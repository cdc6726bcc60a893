"""The settings by which this machine reaches package archives, as secrets of a build.

Secrets are mounted for the one step that needs them, so that no layer, label or history keeps
them. Their names are those in Dockerfile.base, and docker/install-packages reads them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import package_index
from rosetta.core.errors import MISSING, TOO_BIG, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAXIMUM_SIZE = 500 * 1024  # bytes; BuildKit refuses larger secrets
_ENVIRONMENT_NAME = re.compile(
    r"(?i)(https?|ftp|all|no)_proxy|(PIP|UV)_\w*(INDEX|FIND_LINKS|TRUSTED_HOST|INSECURE_HOST)\w*"
)
_APT_SETTING = re.compile(
    r"Acquire::(?:https?::|ftp::|Retries |ForceIPv[46] |Check-Valid-Until |Check-Date "
    r'|Max-FutureTime )\S* ?"[^"]*";'
)
_APT_FILE_SETTING = re.compile(r'Acquire::https::(?:\S+::)?(CaInfo|SslCert|SslKey) "([^"]+)";')
_SECRETS_FOLDER = "/run/secrets/"


def collect_secrets() -> dict[str, bytes]:
    """Return the secrets of this machine by name, without empty ones.

    Raises:
        UserError: A secret is larger than engines take, or a file that a setting names is missing.
    """
    secrets = {
        "rosetta-environment": _collect_environment(),
        **_collect_apt(),
        "rosetta-sources": _collect_sources(),
    }
    if bundle := package_index.find_ca_bundle():
        certificates = _read_file(bundle)
        apt_certificates = secrets.get("rosetta-ca", b"")
        if certificates != apt_certificates:
            separator = b"\n" if apt_certificates else b""
            secrets["rosetta-ca"] = certificates + separator + apt_certificates
    for name, data in secrets.items():
        if len(data) > _MAXIMUM_SIZE:
            raise UserError(
                f"{len(data)} bytes are more than an engine takes as a secret",
                name,
                "name a smaller file in SSL_CERT_FILE or in apt's settings",
                kind=TOO_BIG,
                value=len(data),
            )
    return {name: data for name, data in sorted(secrets.items()) if data}


@contextlib.contextmanager
def write_files(secrets: Mapping[str, bytes]) -> Iterator[dict[str, Path]]:
    """Yield a file for each secret, which only this user can read; remove them with the context.

    The files are in memory if the machine has a folder there.
    """
    if not secrets:
        yield {}
        return
    memory = Path("/dev/shm")  # noqa: S108 - so that the secrets reach no disk
    parent = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="rosetta-", dir=parent) as folder:
        paths = {}
        for name, data in secrets.items():
            paths[name] = Path(folder) / name
            paths[name].touch(mode=0o600)
            paths[name].write_bytes(data)
        yield paths


def _read_file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})",
            path,
            "correct the setting that names it (SSL_CERT_FILE, PIP_CERT or apt's)",
            kind=MISSING,
        ) from error


def _collect_environment() -> bytes:
    """Return the settings of proxies and package indexes, one NAME=VALUE a line."""
    values = {
        name: value
        for name, value in os.environ.items()
        if value and _ENVIRONMENT_NAME.fullmatch(name)
    }
    if url := package_index.find_index_url():
        values.setdefault("PIP_INDEX_URL", url)
    lines = [f"{name}={value}\n" for name, value in sorted(values.items()) if "\n" not in value]
    return "".join(lines).encode()


def _run_apt_config(*arguments: str) -> str:
    """Return the output of apt-config; empty if it cannot run."""
    try:
        return subprocess.run(
            ["apt-config", *arguments], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return ""


def _collect_apt() -> dict[str, bytes]:
    """Return apt's settings for downloads, its credentials, and the files that it names."""
    if not shutil.which("apt-config"):
        return {}
    secret_names = {
        "CaInfo": "rosetta-ca",
        "SslCert": "rosetta-client-cert",
        "SslKey": "rosetta-client-key",
    }
    secrets: dict[str, bytes] = {}
    lines = []
    for line in _run_apt_config("dump").splitlines():
        setting = line
        if match := _APT_FILE_SETTING.fullmatch(line):
            name, path = secret_names[match[1]], match[2]
            secrets.setdefault(name, _read_file(path))
            setting = line.replace(path, _SECRETS_FOLDER + name)
        if _is_portable(setting):
            lines.append(f"{setting}\n")
    secrets["rosetta-apt"] = "".join(lines).encode()
    secrets["rosetta-auth"] = _collect_apt_credentials()
    return secrets


def _is_portable(setting: str) -> bool:
    """Return whether an apt setting is for downloads and names no program of this machine."""
    return (
        bool(_APT_SETTING.fullmatch(setting))
        and '""' not in setting
        and "utoDetect" not in setting
        and "uto-Detect" not in setting
    )


def _collect_apt_credentials() -> bytes:
    parts_folder = Path(_find_apt_path("Dir::Etc::netrcparts/d"))
    texts = []
    for path in (
        Path(_find_apt_path("Dir::Etc::netrc/f")),
        *sorted(parts_folder.glob("*.conf")),
    ):
        with contextlib.suppress(OSError):
            texts.append(path.read_bytes().rstrip(b"\n") + b"\n")
    return b"".join(text for text in texts if text.strip())


def _find_apt_path(key: str) -> str:
    """Return the path that apt uses for a setting; /dev/null if apt-config does not tell."""
    name, _, value = _run_apt_config("shell", "X", key).partition("=")
    return value.strip().strip("'") if name == "X" else os.devnull


def _collect_sources() -> bytes:
    """Return the archives of this machine's own distribution.

    The first line is the id and the codename of the distribution. Each other line is `URI SUITE
    COMPONENTS`.
    """
    try:
        release = Path("/etc/os-release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return b""
    system = dict(re.findall(r'(?m)^(ID|VERSION_CODENAME)="?([\w.-]+)"?$', release))
    if len(system) < 2 or not shutil.which("apt-config"):
        return b""
    codename = system["VERSION_CODENAME"]
    own_suite = re.compile(re.escape(codename) + r"(-[a-z-]+)?")
    lines = [
        f"{uri} {suite} {components}\n"
        for uri, suite, components in _read_archives()
        if own_suite.fullmatch(suite) and components
    ]
    if not lines:
        return b""
    return f"{system['ID']} {codename}\n{''.join(dict.fromkeys(lines))}".encode()


def _read_archives() -> Iterator[tuple[str, str, str]]:
    """Yield URI, suite and components of every archive in apt's files.

    apt itself would leave out credentials, and archives that it has never updated.
    """
    parts_folder = Path(_find_apt_path("Dir::Etc::sourceparts/d"))
    for path in (
        Path(_find_apt_path("Dir::Etc::sourcelist/f")),
        *sorted(parts_folder.glob("*.list")),
        *sorted(parts_folder.glob("*.sources")),
    ):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        yield from _parse_stanzas(text) if path.suffix == ".sources" else _parse_lines(text)


def _parse_lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield URI, suite and components of each line of a sources.list."""
    for uri, suite, components in re.findall(
        r"(?m)^\s*deb\s+(?:\[[^\]]*\]\s*)?(\S+)\s+(\S+)\s+([^#\n]+)", text
    ):
        yield uri, suite, " ".join(components.split())


def _parse_stanzas(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield URI, suite and components of each archive in a file of the form deb822."""
    for stanza in re.split(r"\n\s*\n", re.sub(r"(?m)^#.*\n?", "", text)):
        fields = {
            name.lower(): value.split()
            for name, value in re.findall(r"(?m)^([\w-]+):((?:.*\n?)(?:[ \t]+.*\n?)*)", stanza)
        }
        if "deb" not in fields.get("types", []) or fields.get("enabled") == ["no"]:
            continue
        components = " ".join(fields.get("components", []))
        for uri in fields.get("uris", []):
            for suite in fields.get("suites", []):
                yield uri, suite, components
