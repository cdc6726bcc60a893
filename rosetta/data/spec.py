"""The public name of `parse`: scripts of T5X import it from here."""

from __future__ import annotations

from rosetta.data.data_spec import parse_spec as parse

__all__ = ["parse"]
