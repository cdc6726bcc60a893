"""Find one file of a project in the package index by its hash, and download the file.

The index is the one that pip or uv is configured for. The module imports only the standard library
and other such modules, because build.py uses it before anything is installed.
"""

from __future__ import annotations

import base64
import configparser
import contextlib
import hashlib
import html.parser
import http.client
import json
import os
import re
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from builder.core.secrets import redact
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import DAMAGED, FAILED, INVALID, MISSING, UNREACHABLE, UserError

_ACCEPT = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, "
    "text/html;q=0.1"
)
_PUBLIC = "https://" + ".".join(("pypi", "org")) + "/simple"  # noqa: FLY002 - the public index, as pip has it built in: stock Debian has no pip to ask
_TRIES = 3


def _pip_settings() -> dict[str, str]:
    """Return the [global] and [install] settings of pip's files; later files win, as in pip."""
    home = Path(os.path.expanduser("~"))
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [
        Path("/etc/xdg/pip/pip.conf"),
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        config / "pip/pip.conf",
    ]
    if configured := os.environ.get("PIP_CONFIG_FILE"):
        files = [] if configured == os.devnull else [*files, Path(configured)]
    settings: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        with contextlib.suppress(OSError, configparser.Error, UnicodeDecodeError):
            parser.read_string(file.read_text(encoding="utf-8"))
        for section in ("global", "install"):
            if parser.has_section(section):
                settings |= {
                    key.replace("_", "-"): value.strip() for key, value in parser.items(section)
                }
    return settings


def find_index_url() -> str:
    """Return the URL of the index in the settings of uv or pip; empty if they name none."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if value := os.environ.get(name):
            return value.split("=", 1)[1] if re.match(r"[A-Za-z0-9_-]+=", value) else value
    return _pip_settings().get("index-url", "")


def find_ca_bundle() -> str:
    """Return the CA bundle that this machine sets for Python programs; empty if it sets none."""
    for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if value := os.environ.get(name):
            return value
    return _pip_settings().get("cert", "")


class _LinkParser(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hrefs += [value for key, value in attrs if tag == "a" and key == "href" and value]


def _request(url: str) -> tuple[bytes, str, str]:
    """Return the body of a URL, its content type, and the URL after redirections."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("https", "http", "file"):
        raise UserError(
            f"{parts.scheme!r} is not a protocol of a package index", redact(url), "use https"
        )
    headers = {"Accept": _ACCEPT, "User-Agent": "rosetta-builder"}
    if parts.username:
        user = (
            f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        )
        headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
        url = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    context = (
        ssl.create_default_context(cafile=find_ca_bundle() or None)
        if parts.scheme == "https"
        else None
    )
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the scheme was checked
    with urllib.request.urlopen(request, timeout=60, context=context) as response:  # noqa: S310
        length = response.headers.get("Content-Length")
        body = response.read()
        if length and len(body) != int(length):
            raise ConnectionError(f"{len(body)} of {length} bytes arrived")
        return body, response.headers.get_content_type(), response.geturl()


def _download(url: str, what: str) -> tuple[bytes, str, str]:
    """Return what `_request` returns; try again after an error that may be temporary."""
    problem: Exception | None = None
    for _ in range(_TRIES):
        try:
            return _request(url)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500:
                raise UserError(
                    f"the index answered {error.code} for {what}",
                    redact(url),
                    "check the index settings",
                    kind=FAILED,
                    value=error.code,
                ) from error
            problem = error
        except (OSError, EOFError, ValueError, http.client.HTTPException) as error:
            problem = error
            reason = getattr(error, "reason", None)
            if isinstance(reason, (socket.gaierror, ssl.SSLCertVerificationError)):
                break  # another attempt would fail, too
    is_status = isinstance(problem, urllib.error.HTTPError)
    reason = redact(str(problem if is_status else getattr(problem, "reason", problem)))
    raise UserError(
        f"{what} cannot be fetched ({reason})",
        redact(url),
        "check the network and the index settings, then run again",
        kind=UNREACHABLE,
    ) from problem


def _list_files(project: str) -> tuple[str, str, list[tuple[str, str, str]]]:
    """Return the files that the index has of a project.

    Returns:
        The URL of the project's page, the same after redirections, and for each file its link,
        its sha256 and the time of its upload. The last two are empty if the index has none.

    Raises:
        UserError: The index cannot be read.
    """
    page = (find_index_url() or _PUBLIC).rstrip("/") + f"/{project}/"
    body, content_type, final_url = _download(page, f"the index page of {project}")
    try:
        if content_type.endswith("json"):
            files = [
                (
                    entry["url"],
                    entry.get("hashes", {}).get("sha256", ""),
                    str(entry.get("upload-time") or ""),
                )
                for entry in json.loads(body)["files"]
            ]
        else:
            link_parser = _LinkParser()
            link_parser.feed(body.decode("utf-8", "replace"))
            files = [
                (href.partition("#")[0], href.partition("#sha256=")[2], "")
                for href in link_parser.hrefs
            ]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"the index page of {project} is not valid (a login page or a proxy's answer?)",
            redact(page),
            "check the index settings",
            kind=INVALID,
        ) from error
    return page, final_url, files


def _find_file(project: str, hashes: frozenset[str], part: str) -> tuple[str, str, str]:
    """Return the name, the URL and the hash of a file in the index.

    Args:
        project: The project that has the file.
        hashes: The sha256 of the files that would do.
        part: A text that the name of the file must contain.

    Raises:
        UserError: The index cannot be read, or has no such file.
    """
    page, final_url, files = _list_files(project)
    for href, digest, _ in files:
        url = urllib.parse.urljoin(final_url, href)
        name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
        if digest in hashes and part in name:
            return name, _with_credentials(url, page), digest
    shown = ", ".join(f"{digest[:12]}…" for digest in sorted(hashes)[:2])
    raise UserError(
        f"the index has no file of {project} with sha256 {shown}",
        redact(page),
        "check the pin and the index settings",
        kind=MISSING,
    )


def _with_credentials(url: str, page: str) -> str:
    """Add the page's credentials to the URL of a file on the same host."""
    file_parts, page_parts = urllib.parse.urlsplit(url), urllib.parse.urlsplit(page)
    file_host = (file_parts.scheme, file_parts.hostname, file_parts.port)
    page_host = (page_parts.scheme, page_parts.hostname, page_parts.port)
    if file_host == page_host and page_parts.username:
        return urllib.parse.urlunsplit(file_parts._replace(netloc=page_parts.netloc))
    return url


def find_upload_day(project: str, hashes: frozenset[str]) -> str | None:
    """Return the day on which the index got the first of some files.

    Args:
        project: The project that has the files.
        hashes: The sha256 of the files.

    Returns:
        The day in UTC, as YYYY-MM-DD, or None if the index does not tell. PEP 700 describes the
        field, which an index in HTML does not have.

    Raises:
        UserError: The index cannot be read.
    """
    _, _, files = _list_files(project)
    times = [time for _, digest, time in files if digest in hashes]
    days = [time[:10] for time in times if re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T.*Z$", time)]
    return min(days, default=None)


def fetch_file(
    project: str,
    version: str,
    hashes: str | frozenset[str],
    folder: Path,
    *,
    part: str = "",
    offline: bool = False,
) -> Path:
    """Return a file of a project; download the file if the folder does not have it.

    Args:
        project: The name of the project.
        version: The version, for error messages.
        hashes: The sha256 of the file, or of each platform's file, as a lock has them.
        folder: The folder that keeps downloaded files.
        part: A text that the name of the file must contain. It selects one platform's file.
        offline: Whether the network may not be used.

    Raises:
        UserError: The file is not in the folder and cannot be downloaded, or the downloaded file
            has another hash.
    """
    accepted_hashes = frozenset({hashes}) if isinstance(hashes, str) else hashes
    if file := _find_downloaded(folder, accepted_hashes, part):
        return file
    if offline:
        raise UserError(
            f"{project} {version} is not in the cache",
            str(folder),
            "run once without --offline",
            kind=MISSING,
            value=f"{project}=={version}",
        )
    name, url, sha256 = _find_file(project, accepted_hashes, part)
    if not re.fullmatch(r"[A-Za-z0-9_.+!-]+\.(whl|zip|tgz|tar(\.(gz|bz2|xz))?)", name):
        raise UserError(
            f"the index gives {project} the file name {name!r}",
            redact(url),
            "check the index settings",
            kind=INVALID,
            value=name,
        )
    body, _, _ = _download(url, name)
    if (digest := hashlib.sha256(body).hexdigest()) != sha256:
        is_page = body.lstrip()[:1] == b"<"
        received = "an HTML page" if is_page else f"a file with sha256 {digest[:12]}…"
        raise UserError(
            f"{name} is not the pinned file: the index sent {received} of {len(body)} bytes",
            redact(url),
            "nothing was stored; run again, or check the index",
            kind=DAMAGED,
        )
    file = folder / sha256[:16] / name
    write_atomic(file, body, None)
    write_atomic(file.with_name(f"{sha256}.name"), name.encode(), None)
    return file


def _find_downloaded(folder: Path, hashes: frozenset[str], part: str) -> Path | None:
    """Return an intact file of an earlier download.

    A file HASH.name beside each downloaded file holds its name.
    """
    for digest in sorted(hashes):
        for name_file in folder.glob(f"{digest[:16]}/{digest}.name"):
            file = name_file.with_name(name_file.read_text(encoding="utf-8"))
            if part not in file.name or not file.is_file():
                continue
            if hashlib.sha256(file.read_bytes()).hexdigest() == digest:
                return file
    return None
