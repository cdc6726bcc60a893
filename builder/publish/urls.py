"""Addresses as they may be published."""

from __future__ import annotations

import urllib.parse


def bare(url: str) -> str:
    """A URL without its user, password, query and fragment; what is no URL (a wheel's project==version) as it is."""
    parts = urllib.parse.urlsplit(url)
    if not parts.scheme or not parts.netloc:
        return url
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
