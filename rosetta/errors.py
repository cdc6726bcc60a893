"""Public name: see rosetta.core.errors."""

from rosetta.core.errors import UserError

__all__ = ["UserError"]
