"""The public name of UserError, which rosetta.core.errors defines."""

from rosetta.core.errors import UserError

__all__ = ["UserError"]
