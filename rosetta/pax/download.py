"""Public name: see rosetta.pax.run.download."""

from rosetta.pax.run.download import main

__all__ = ["main"]
