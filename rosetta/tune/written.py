"""What was found, as a preset that extends the one that was tuned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.launch import yamltext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.tune.search import Found


def preset(found: Found, *, extends: str, accelerator: str | None, about: str, why: str) -> dict[str, Any]:
    """Return the document of a preset.

    Args:
      found: by the search.
      extends: the preset that was tuned: its name, or its file's whole path.
      accelerator: the cards that it holds for, by short name; None: all.
      about: a line of what was tuned where.
      why: the reason that each value gets.
    """
    values: dict[str, Any] = {}
    gains = dict(found.kept)
    if found.choice.batch is not None:
        gain = gains.get(f"batch {found.choice.batch}")
        reason = why if gain is not None else f"the largest half of the preset's that fits, {why}"
        values["batch"] = {"per_gpu": {"value": found.choice.batch, "why": reason}}
    if found.choice.switches:
        said = ", ".join(f"{name} {gains[name]:+.1%}" for name in found.choice.switches if name in gains)
        values["switches"] = {"value": list(found.choice.switches), "why": f"{said}, {why}"}
    for name, value in found.choice.fields:
        values[name] = {"value": value, "why": f"{gains[name]:+.1%}, {why}" if name in gains else why}
    document: dict[str, Any] = {"about": about, "extends": extends}
    return document | ({"accelerators": {accelerator: values}} if accelerator and values else values)


def text(document: Mapping[str, Any], evidence: str) -> str:
    """Return a preset's file; its first line says where its evidence is."""
    return f"# Made by rosetta tune; each trial is in {evidence}\n{yamltext.written(dict(document))}"
