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
    """An image, or with neither tag nor digest a repository.

    `host` has its port, if one was given.
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
        """HOST/NAME, as signed statements name it."""
        return f"{self.host.lower()}/{self.name}"

    @property
    def url(self) -> str:
        """The URL of the registry: https, but http on the loopback address and where
        ROSETTA_INSECURE_REGISTRIES lists the host.
        """
        insecure = parse_list(INSECURE_REGISTRIES, os.environ.get(INSECURE_REGISTRIES, ""))
        host = f"registry-1.{self.host}" if self.host == "docker.io" else self.host
        return f"{'http' if is_loopback(strip_port(self.host)) or self.host in insecure else 'https'}://{host}"

    @property
    def selector(self) -> str:
        """What of the repository is meant: the digest, which wins, or the tag."""
        return self.digest or self.tag


def strip_port(host: str) -> str:
    """Without the port, and an IPv6 address without its brackets."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def is_loopback(name: str) -> bool:
    """Is it this machine, whichever network it hangs on?"""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


def parse_reference(text: str) -> Reference:
    """Read a reference.

    Raises UserError for what is none, and for one without a host: nothing is guessed about where
    an image goes.
    """
    host, slash, rest = text.partition("/")
    shown = redact(text if "://" in text else f"://{text}").removeprefix("://")
    shown = shown if shown.isprintable() else repr(shown)
    if "://" in text or not slash or not ("." in host or ":" in host or host == "localhost"):
        raise UserError(
            "names no registry" if "://" not in text else "is a URL, not the name of an image",
            shown,
            _FORM,
            kind=INVALID,
        )
    if not _HOST.fullmatch(host):
        raise UserError(
            f"{host!r} is no host" if "@" not in host else "credentials do not belong into a name",
            shown,
            _FORM,
            kind=INVALID,
        )
    port = host.rpartition(":")[2] if re.search(r":[0-9]+$", host) else ""
    if port and not 0 < int(port) < 65536:
        raise UserError(f"{port} is no port", shown, _FORM, kind=INVALID, value=port)
    name, at, digest = rest.partition("@")
    name, colon, tag = name.partition(":")
    if not _NAME.fullmatch(name) or len(name) > 255:
        raise UserError(
            f"{name!r} is no name of a repository", shown, _FORM, kind=INVALID, value=name
        )
    if colon and not _TAG.fullmatch(tag):
        raise UserError(
            f"{tag!r} is no tag",
            shown,
            "a tag is letters, digits, . _ -, at most 128 of them",
            kind=INVALID,
            value=tag,
        )
    if at and not _DIGEST.fullmatch(digest):
        raise UserError(
            f"{digest!r} is no digest",
            shown,
            "a digest is sha256: and 64 hexadecimal digits in lower case",
            kind=INVALID,
            value=digest,
        )
    return Reference(host, name, tag, digest)


def is_digest(text: str) -> bool:
    """Is it sha256:<hex>?"""
    return bool(_DIGEST.fullmatch(text))
