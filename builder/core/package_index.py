"""A package index as pip is configured for it: find one file by its hash and fetch it.

Standard library only, for build.py starts here.
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
    """Read the [global] and [install] settings of pip's files; later files win, as in pip."""
    home = Path(os.path.expanduser("~"))
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [
        Path("/etc/xdg/pip/pip.conf"),
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        config / "pip/pip.conf",
    ]
    if own := os.environ.get("PIP_CONFIG_FILE"):
        files = [] if own == os.devnull else [*files, Path(own)]
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


def configured() -> str:
    """Return the index that uv's or pip's settings name, or an empty string."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if value := os.environ.get(name):
            return value.split("=", 1)[1] if re.match(r"[A-Za-z0-9_-]+=", value) else value
    return _pip_settings().get("index-url", "")


def ca_bundle() -> str:
    """Return the CA bundle that the machine names for Python programs, or an empty string."""
    for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if value := os.environ.get(name):
            return value
    return _pip_settings().get("cert", "")


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hrefs += [value for key, value in attrs if tag == "a" and key == "href" and value]


def _open(url: str) -> tuple[bytes, str, str]:
    """Return the body of `url`, its content type and its final address."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("https", "http", "file"):
        raise UserError(
            f"{parts.scheme!r} is no scheme of a package index", redact(url), "use https"
        )
    headers = {"Accept": _ACCEPT, "User-Agent": "rosetta-builder"}
    if parts.username:
        user = (
            f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        )
        headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
        url = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    context = (
        ssl.create_default_context(cafile=ca_bundle() or None) if parts.scheme == "https" else None
    )
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the scheme was checked
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:  # noqa: S310
        length = answer.headers.get("Content-Length")
        body = answer.read()
        if length and len(body) != int(length):
            raise ConnectionError(f"{len(body)} of {length} bytes arrived")
        return body, answer.headers.get_content_type(), answer.geturl()


def _get(url: str, what: str) -> tuple[bytes, str, str]:
    problem: Exception | None = None
    for _ in range(_TRIES):
        try:
            return _open(url)
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
            if isinstance(
                getattr(error, "reason", None), (socket.gaierror, ssl.SSLCertVerificationError)
            ):
                break
    reason = redact(
        str(
            problem
            if isinstance(problem, urllib.error.HTTPError)
            else getattr(problem, "reason", problem)
        )
    )
    raise UserError(
        f"{what} cannot be fetched ({reason})",
        redact(url),
        "check the network and the index settings, then run again",
        kind=UNREACHABLE,
    ) from problem


def _find(project: str, hashes: frozenset[str], part: str) -> tuple[str, str, str]:
    """File name, URL and hash of the file of `project` that has one of these hashes and `part` in
    its name.
    """
    page = (configured() or _PUBLIC).rstrip("/") + f"/{project}/"
    body, kind, final = _get(page, f"the index page of {project}")
    try:
        if kind.endswith("json"):
            found = [
                (entry["url"], entry.get("hashes", {}).get("sha256", ""))
                for entry in json.loads(body)["files"]
            ]
        else:
            links = _Links()
            links.feed(body.decode("utf-8", "replace"))
            found = [
                (href.partition("#")[0], href.partition("#sha256=")[2]) for href in links.hrefs
            ]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"the index page of {project} is not one (a login page or a proxy's answer?)",
            redact(page),
            "check the index settings",
            kind=INVALID,
        ) from error
    for href, digest in found:
        url = urllib.parse.urljoin(final, href)
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
    there, here = urllib.parse.urlsplit(url), urllib.parse.urlsplit(page)
    same = (there.scheme, there.hostname, there.port) == (here.scheme, here.hostname, here.port)
    return (
        urllib.parse.urlunsplit(there._replace(netloc=here.netloc))
        if same and here.username
        else url
    )


def fetch(
    project: str,
    version: str,
    hashes: str | frozenset[str],
    into: Path,
    *,
    part: str = "",
    offline: bool = False,
) -> Path:
    """Return the file of `project` with this hash in the folder `into`; fetch it if need be.

    Of several `hashes` (a lock names every platform's file) the one counts whose file has `part` in
    its name.
    """
    wanted = frozenset({hashes}) if isinstance(hashes, str) else hashes
    for known in sorted(
        path for digest in wanted for path in into.glob(f"{digest[:16]}/{digest}.name")
    ):
        file = known.with_name(known.read_text(encoding="utf-8"))
        if (
            part in file.name
            and file.is_file()
            and hashlib.sha256(file.read_bytes()).hexdigest() == known.stem
        ):
            return file
    if offline:
        raise UserError(
            f"{project} {version} is not in the cache",
            str(into),
            "run once without --offline",
            kind=MISSING,
            value=f"{project}=={version}",
        )
    name, url, sha256 = _find(project, wanted, part)
    if not re.fullmatch(r"[A-Za-z0-9_.+!-]+\.(whl|zip|tgz|tar(\.(gz|bz2|xz))?)", name):
        raise UserError(
            f"the index gives {project} the file name {name!r}",
            redact(url),
            "check the index settings",
            kind=INVALID,
            value=name,
        )
    body, _, _ = _get(url, name)
    if (digest := hashlib.sha256(body).hexdigest()) != sha256:
        kind = "an HTML page" if body.lstrip()[:1] == b"<" else f"a file with sha256 {digest[:12]}…"
        raise UserError(
            f"{name} is not the pinned file: {kind} of {len(body)} bytes came",
            redact(url),
            "nothing was kept; run again, or check the index",
            kind=DAMAGED,
        )
    folder = into / sha256[:16]
    for target, data in ((folder / name, body), (folder / f"{sha256}.name", name.encode())):
        write_atomic(target, data, None)
    return folder / name
