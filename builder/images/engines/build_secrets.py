"""How this machine reaches package archives, for the one step of a build that needs it: as secret
mounts, so that no layer, label or history keeps any of it.

Each secret is one of Dockerfile.base's, by its name there; docker/install-packages reads them.
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

_MAXIMUM_SIZE = 500 * 1024  # bytes: more than that BuildKit refuses
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
    """Return the secrets that this machine has, by name; nothing that is empty.

    Raises UserError for one that no engine takes.
    """
    found = {
        "rosetta-environment": _collect_environment(),
        **_collect_apt(),
        "rosetta-sources": _collect_sources(),
    }
    if (bundle := package_index.find_ca_bundle()) and (data := _read_file(bundle)) != (
        own := found.get("rosetta-ca", b"")
    ):
        found["rosetta-ca"] = data + b"\n" * bool(own) + own
    for name, data in found.items():
        if len(data) > _MAXIMUM_SIZE:
            raise UserError(
                f"{len(data)} bytes are more than an engine takes as a secret",
                name,
                "name a smaller file in SSL_CERT_FILE or in apt's settings",
                kind=TOO_BIG,
                value=len(data),
            )
    return {name: data for name, data in sorted(found.items()) if data}


@contextlib.contextmanager
def write_files(values: Mapping[str, bytes]) -> Iterator[dict[str, Path]]:
    """Each secret as a file that only this user can read, in memory where the machine has such a
    place, gone when the context ends.
    """
    if not values:
        yield {}
        return
    memory = Path("/dev/shm")  # noqa: S108 - so that they reach no disk
    with tempfile.TemporaryDirectory(
        prefix="rosetta-", dir=memory if os.access(memory, os.W_OK) else None
    ) as folder:
        paths = {}
        for name, data in values.items():
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
            "mend the setting that names it (SSL_CERT_FILE, PIP_CERT or apt's)",
            kind=MISSING,
        ) from error


def _collect_environment() -> bytes:
    """Proxies and index settings, one NAME=VALUE a line."""
    values = {
        name: value
        for name, value in os.environ.items()
        if _ENVIRONMENT_NAME.fullmatch(name) and value
    }
    if url := package_index.find_index_url():
        values.setdefault("PIP_INDEX_URL", url)
    return b"".join(
        f"{name}={value}\n".encode() for name, value in sorted(values.items()) if "\n" not in value
    )


def _run_apt_config(*argv: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def _collect_apt() -> dict[str, bytes]:
    """Of this machine's apt: how to fetch, credentials, and the files that its settings name."""
    if not shutil.which("apt-config"):
        return {}
    found: dict[str, bytes] = {}
    names = {
        "CaInfo": "rosetta-ca",
        "SslCert": "rosetta-client-cert",
        "SslKey": "rosetta-client-key",
    }
    lines = []
    for line in _run_apt_config("apt-config", "dump").splitlines():
        if named := _APT_FILE_SETTING.fullmatch(line):
            name = names[named[1]]
            found.setdefault(name, _read_file(named[2]))
            line = line.replace(named[2], _SECRETS_FOLDER + name)  # noqa: PLW2901
        if (
            _APT_SETTING.fullmatch(line)
            and '""' not in line
            and "utoDetect" not in line
            and "uto-Detect" not in line
        ):  # those name programs of this machine
            lines.append(line)
    found["rosetta-apt"] = "".join(f"{line}\n" for line in lines).encode()
    folder = Path(_find_apt_path("Dir::Etc::netrc/f"))
    parts = sorted(Path(_find_apt_path("Dir::Etc::netrcparts/d")).glob("*.conf"))
    texts = []
    for path in (folder, *parts):
        with contextlib.suppress(OSError):
            texts.append(path.read_bytes().rstrip(b"\n") + b"\n")
    found["rosetta-auth"] = b"".join(text for text in texts if text.strip())
    return found


def _find_apt_path(key: str) -> str:
    name, _, value = _run_apt_config("apt-config", "shell", "X", key).partition("=")
    return value.strip().strip("'") if name == "X" else os.devnull


def _collect_sources() -> bytes:
    """Return the archives of this machine's own distribution: its id and codename, then one `URI
    SUITE COMPONENTS` a line.
    """
    try:
        release = Path("/etc/os-release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return b""
    system = dict(re.findall(r'(?m)^(ID|VERSION_CODENAME)="?([\w.-]+)"?$', release))
    if len(system) < 2 or not shutil.which("apt-config"):
        return b""
    ours = re.compile(re.escape(system["VERSION_CODENAME"]) + r"(-[a-z-]+)?")
    lines = [
        f"{uri} {suite} {components}\n"
        for uri, suite, components in _read_archives()
        if ours.fullmatch(suite) and components
    ]
    return (
        f"{system['ID']} {system['VERSION_CODENAME']}\n{''.join(dict.fromkeys(lines))}".encode()
        if lines
        else b""
    )


def _read_archives() -> Iterator[tuple[str, str, str]]:
    """URI, suite and components of every archive that apt is told of: read from its files, for apt
    itself leaves out credentials, and those never updated.
    """
    parts = Path(_find_apt_path("Dir::Etc::sourceparts/d"))
    for path in (
        Path(_find_apt_path("Dir::Etc::sourcelist/f")),
        *sorted(parts.glob("*.list")),
        *sorted(parts.glob("*.sources")),
    ):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if path.suffix != ".sources":
            for uri, suite, components in re.findall(
                r"(?m)^\s*deb\s+(?:\[[^\]]*\]\s*)?(\S+)\s+(\S+)\s+([^#\n]+)", text
            ):
                yield uri, suite, " ".join(components.split())
            continue
        for stanza in re.split(r"\n\s*\n", re.sub(r"(?m)^#.*\n?", "", text)):
            fields = {
                name.lower(): value.split()
                for name, value in re.findall(r"(?m)^([\w-]+):((?:.*\n?)(?:[ \t]+.*\n?)*)", stanza)
            }
            if "deb" in fields.get("types", []) and fields.get("enabled") != ["no"]:
                for uri in fields.get("uris", []):
                    for suite in fields.get("suites", []):
                        yield uri, suite, " ".join(fields.get("components", []))
