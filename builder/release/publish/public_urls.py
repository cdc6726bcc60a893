"""Remove from addresses what must not be published."""

from __future__ import annotations

import re
import urllib.parse

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
