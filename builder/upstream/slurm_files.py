"""Render the Slurm files of scripts/ from scripts/slurm: one template, and a table of the jobs.

A batch script has to hold everything that it needs, since Slurm copies the one file only. And
people submit the files of a clone by their names, so that they stand in the repository as they are
run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.core import strict_yaml

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = "scripts/slurm"


def render(root: Path) -> dict[str, str]:
    """Return the text of every Slurm file, by its path below the root of the repository."""
    template = (root / SOURCE / "job.template").read_text(encoding="utf-8")
    where = root / SOURCE / "jobs.yaml"
    table = strict_yaml.load(where.read_text(encoding="utf-8"), str(where)).data
    texts: dict[str, str] = {}
    for name, job in table["jobs"].items():
        framework = table["frameworks"][job["framework"]]
        levels = (table, framework, job)
        variables = {
            key: text for level in levels for key, text in level.get("variables", {}).items()
        }
        text = _render_job(template, {**framework, **job, "variables": variables})
        for file in (name, *job.get("copies", ())):
            texts[f"{framework['folder']}/{file}.sub"] = text
    return texts


def _render_job(template: str, fields: dict[str, Any]) -> str:
    """Return the text of one job."""
    width = max(len(name) for name in fields["variables"]) + 2
    described = [f"# {name:<{width}}{text}\n" for name, text in fields["variables"].items()]
    blocks = {
        "options": fields["options"],
        "usage": _indent("#   ", fields["usage"]),
        "variables": "".join(described),
        "note": fields["note"],
        "folders": _indent("  ", fields["folders"]),
    }
    text = f"#!/bin/bash\n{template}"
    for name, block in blocks.items():
        text = text.replace(f"{{{{{name}}}}}\n", block)
    for name in ("framework", "purpose", "script"):
        text = text.replace(f"{{{{{name}}}}}", fields[name])
    return text


def _indent(prefix: str, block: str) -> str:
    return "".join(prefix + line for line in block.splitlines(keepends=True))
