"""Shorten error texts to one line of a log."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, at most 200 characters."""
    return next(iter(str(error).splitlines()), "")[:200]
