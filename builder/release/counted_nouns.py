"""Numbers with the noun that they count."""

from __future__ import annotations


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun, for example "1 commit" or "2 commits".

    Args:
        number: The number.
        noun: The noun in the singular.
        plural: The noun in the plural, if it is not `noun` with an "s".
    """
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
