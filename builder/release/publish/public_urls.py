"""Addresses as they may be published."""

from __future__ import annotations

import re
import urllib.parse


def remote(address: str) -> str:
    """Where git has a repository from, bare; empty for a place on this machine."""
    if short := re.fullmatch(r"(?:[^/:@]+@)?([^/:@]+):(?!//)/?(.+)", address):
        address = f"ssh://{short[1]}/{short[2]}"
    return bare(address) if urllib.parse.urlsplit(address).scheme not in ("", "file") else ""


def bare(url: str) -> str:
    """Return a URL without its user, password, query and fragment; what is no URL (a wheel's
    project==version) as it is.
    """
    parts = urllib.parse.urlsplit(url)
    if not parts.scheme or not parts.netloc:
        return url
    return urllib.parse.urlunsplit(
        (parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")
    )
