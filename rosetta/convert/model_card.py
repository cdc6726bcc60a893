"""Write the model card of a converted model: README.md, which says what it was made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.core import environment_info, lock_record
from rosetta.core.errors import UserError
from rosetta.core.printable_text import escape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HEADER = """\
---
library_name: transformers
pipeline_tag: {task}
tags:
- {model_type}
---
"""


def describe_converter() -> str:
    """Return the name and the commit of the program that converts."""
    try:
        revision = environment_info.read_revision()
        lock = lock_record.read_lock()
    except UserError:  # The program runs outside a baked environment.
        return "rosetta"
    distribution = lock.get("distribution") or "unknown distribution"
    commit = revision["commit"][:12] if revision else "unknown"
    return f"rosetta, distribution {distribution}, commit {commit}"


@dataclass(frozen=True)
class Origin:
    """How a model was made.

    Attributes:
        source: What it was converted from, for example "a checkpoint of T5X".
        command: The command that converted it.
        task: The Hub's name of what the model does.
    """

    source: str
    command: str
    task: str


def render_card(
    title: str, origin: Origin, model_type: str, facts: Mapping[str, str], changes: Sequence[str]
) -> str:
    """Return the text of a model card.

    Args:
        title: The title.
        origin: How the model was made.
        model_type: The `model_type` of config.json, as a tag.
        facts: What the model is and what it was made from, by a label.
        changes: Lines that say what the conversion changed or left out.
    """
    rows = [f"| {label} | {_escape_cell(value)} |" for label, value in facts.items()]
    lines = [
        f"# {_escape_cell(title)}",
        "",
        f"The weights were converted from {origin.source} by `{origin.command}`.",
        "",
        "| | |",
        "|---|---|",
        *rows,
    ]
    if changes:
        lines += ["", "What the conversion changed or left out:", ""]
        lines += [f"- {_escape_cell(change)}" for change in changes]
    header = _HEADER.format(task=origin.task, model_type=model_type)
    return header + "\n" + "\n".join(lines) + "\n"


def _escape_cell(text: str) -> str:
    """Return a text that cannot end its line or its cell of a table."""
    return escape(text, keep="").replace("|", r"\|")
