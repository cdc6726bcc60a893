"""The addresses of sources as they may be published, without credentials."""

from __future__ import annotations

import re
import urllib.parse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_SSH_ADDRESS = re.compile(r"(?:[^/:@]+@)?([^/:@]+):(?!//)/?(.+)")  # such as git@HOST:PATH


def clean_remote(address: str) -> str:
    """Return the address of a git remote as a URL without credentials.

    Returns:
        "" if the address is a path on this machine.
    """
    if match := _SSH_ADDRESS.fullmatch(address):
        address = f"ssh://{match[1]}/{match[2]}"
    is_local = urllib.parse.urlsplit(address).scheme in ("", "file")
    return "" if is_local else clean_url(address)


def clean_url(url: str) -> str:
    """Return a URL without its user, password, query and fragment.

    What is not a URL, such as the PROJECT==VERSION of a wheel, stays as it is.
    """
    parts = urllib.parse.urlsplit(url)
    if not parts.scheme or not parts.netloc:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))


def format_source_uri(state: Mapping[str, Any]) -> str:
    """Return the URI of a source at its pin.

    Args:
        state: The state of the source in lock.json.

    Returns:
        git+URL@COMMIT for a git repository, pkg:pypi/PROJECT@VERSION for a wheel.
    """
    address = clean_url(str(state["url"]))
    if "://" in address:
        return f"git+{address}@{state['commit']}"
    return f"pkg:pypi/{address.replace('==', '@')}"
