"""Write the result of a tuning as a preset that extends the preset that was tuned."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rosetta.core import yaml_output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.tune.search import SearchResult


def make_preset(
    result: SearchResult,
    *,
    extends: str,
    accelerator: str | None,
    about: str,
    why: str,
) -> dict[str, Any]:
    """Return the document of the preset.

    Args:
        result: The result of the search.
        extends: The preset that was tuned: its name, or the absolute path of its file.
        accelerator: The short name of the GPUs for which the values hold; None for all.
        about: One line about what was tuned on which GPU.
        why: The reason that each value gets.
    """
    values: dict[str, Any] = {}
    gains = dict(result.kept)
    if result.choice.batch is not None:
        reason = _explain_batch(result)
        values["batch"] = {"per_gpu": {"value": result.choice.batch, "why": f"{reason}, {why}"}}
    if result.choice.switches:
        reasons = [f"{name} {gains[name]:+.1%}" for name in result.choice.switches if name in gains]
        values["switches"] = {
            "value": list(result.choice.switches),
            "why": f"{', '.join(reasons)}, {why}",
        }
    for name, value in result.choice.fields:
        reason = f"{gains[name]:+.1%}, {why}" if name in gains else why
        values[name] = {"value": value, "why": reason}
    document: dict[str, Any] = {"about": about, "extends": extends}
    if accelerator and values:
        return document | {"accelerators": {accelerator: values}}
    return document | values


def _explain_batch(result: SearchResult) -> str:
    """Return why the batch is the best one."""
    gains = [1 + gain for name, gain in result.kept if name.startswith("batch ")]
    if not gains:
        return "the preset's batch, halved until it fits"
    return f"{math.prod(gains) - 1:+.1%}"


def format_preset_file(document: Mapping[str, Any], evidence: str) -> str:
    """Return the text of the preset file. Its first line names the file of the evidence."""
    return (
        f"# Made by rosetta tune; each trial is in {evidence}\n"
        f"{yaml_output.format_yaml(dict(document))}"
    )
