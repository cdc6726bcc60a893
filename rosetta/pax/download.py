"""Public name: see rosetta.pax.run.dataset_download."""

from rosetta.pax.run.dataset_download import main

__all__ = ["main"]
