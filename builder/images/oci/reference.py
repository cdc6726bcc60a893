"""The name of an image in a registry: HOST[:PORT]/NAME[:TAG][@sha256:DIGEST]."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass

from builder.core.secrets import redact
from rosetta.core.errors import INVALID, UserError
from rosetta.core.value_parsing import parse_list

INSECURE_REGISTRIES = "ROSETTA_INSECURE_REGISTRIES"
_FORM = "give HOST[:PORT]/NAME:TAG, the name in lower case"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?")
_NAME = re.compile(
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Reference:
    """An image in a registry; without tag and digest, a repository.

    `host` includes the port, if one is given.
    """

    host: str
    name: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return (
            f"{self.host}/{self.name}"
            + (f":{self.tag}" if self.tag else "")
            + (f"@{self.digest}" if self.digest else "")
        )

    @property
    def repository(self) -> str:
        """HOST/NAME, as signed statements name the repository."""
        return f"{self.host.lower()}/{self.name}"

    @property
    def url(self) -> str:
        """The URL of the registry.

        It is https, but http on the loopback address and for hosts that
        ROSETTA_INSECURE_REGISTRIES lists.
        """
        insecure = parse_list(INSECURE_REGISTRIES, os.environ.get(INSECURE_REGISTRIES, ""))
        host = f"registry-1.{self.host}" if self.host == "docker.io" else self.host
        if is_loopback(strip_port(self.host)) or self.host in insecure:
            return f"http://{host}"
        return f"https://{host}"

    @property
    def selector(self) -> str:
        """The part that selects an image in the repository: the digest, or else the tag."""
        return self.digest or self.tag


def strip_port(host: str) -> str:
    """Return a host without its port, and an IPv6 address without its brackets."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def is_loopback(name: str) -> bool:
    """Return whether a host is this machine by its loopback address or the name localhost."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


def parse_reference(text: str) -> Reference:
    """Parse the name of an image.

    Raises:
        UserError: The name is not valid, or lacks the host. No registry is assumed for an image.
    """
    shown = redact(text if "://" in text else f"://{text}").removeprefix("://")
    shown = shown if shown.isprintable() else repr(shown)
    host, slash, path = text.partition("/")
    if "://" in text:
        raise UserError("is a URL, not the name of an image", shown, _FORM, kind=INVALID)
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        raise UserError("names no registry", shown, _FORM, kind=INVALID)
    _check_host(host, shown)
    name, at, digest = path.partition("@")
    name, colon, tag = name.partition(":")
    if not _NAME.fullmatch(name) or len(name) > 255:
        raise UserError(
            f"{name!r} is not a valid name of a repository", shown, _FORM, kind=INVALID, value=name
        )
    if colon and not _TAG.fullmatch(tag):
        raise UserError(
            f"{tag!r} is not a valid tag",
            shown,
            "a tag is letters, digits, . _ -, at most 128 of them",
            kind=INVALID,
            value=tag,
        )
    if at and not _DIGEST.fullmatch(digest):
        raise UserError(
            f"{digest!r} is not a valid digest",
            shown,
            "a digest is sha256: and 64 hexadecimal digits in lower case",
            kind=INVALID,
            value=digest,
        )
    return Reference(host, name, tag, digest)


def _check_host(host: str, shown: str) -> None:
    """Raise UserError if a host or its port is not valid; `shown` is the reference for errors."""
    if not _HOST.fullmatch(host):
        if "@" in host:
            problem = "credentials do not belong into a name"
        else:
            problem = f"{host!r} is not a valid host"
        raise UserError(problem, shown, _FORM, kind=INVALID)
    port = host.rpartition(":")[2] if re.search(r":[0-9]+$", host) else ""
    if port and not 0 < int(port) < 65536:
        raise UserError(f"{port} is not a valid port", shown, _FORM, kind=INVALID, value=port)


def is_digest(text: str) -> bool:
    """Return whether a text has the form sha256:<hex>."""
    return bool(_DIGEST.fullmatch(text))
