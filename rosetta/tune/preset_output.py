"""What was found, as a preset that extends the one that was tuned."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rosetta.core import yaml_output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.tune.search import SearchResult


def make_preset(
    found: SearchResult,
    *,
    extends: str,
    accelerator: str | None,
    about: str,
    why: str,
    planned: bool = False,
) -> dict[str, Any]:
    """Return the document of a preset.

    Args:
      found: by the search.
      extends: the preset that was tuned: its name, or its file's whole path.
      accelerator: the cards that it holds for, by short name; None: all.
      about: a line of what was tuned where.
      why: the reason that each value gets.
      planned: whether rates are those of plans, which grow with any batch that fits.
    """
    values: dict[str, Any] = {}
    gains = dict(found.kept)
    if found.choice.batch is not None:
        larger = [1 + gain for name, gain in found.kept if name.startswith("batch ")]
        reason = (
            "the largest half of the preset's that fits"
            if not larger
            else "the preset's doubled while it fits"
            if planned
            else f"{math.prod(larger) - 1:+.1%}"
        )
        values["batch"] = {"per_gpu": {"value": found.choice.batch, "why": f"{reason}, {why}"}}
    if found.choice.switches:
        said = ", ".join(
            f"{name} {gains[name]:+.1%}" for name in found.choice.switches if name in gains
        )
        values["switches"] = {"value": list(found.choice.switches), "why": f"{said}, {why}"}
    for name, value in found.choice.fields:
        values[name] = {
            "value": value,
            "why": f"{gains[name]:+.1%}, {why}" if name in gains else why,
        }
    document: dict[str, Any] = {"about": about, "extends": extends}
    return document | (
        {"accelerators": {accelerator: values}} if accelerator and values else values
    )


def format_preset_file(document: Mapping[str, Any], evidence: str) -> str:
    """Return a preset's file; its first line says where its evidence is."""
    return (
        f"# Made by rosetta tune; each trial is in {evidence}\n"
        f"{yaml_output.format_yaml(dict(document))}"
    )
