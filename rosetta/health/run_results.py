"""Keep the results of a run, and show them as its last lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core import log

if TYPE_CHECKING:
    from collections.abc import Mapping

_lines: dict[str, str] = {}
_metrics: dict[str, dict[str, float]] = {}


def set_result(name: str, text: str) -> None:
    """Set a line of the results; a later line of the same name replaces it.

    Args:
      name: What the line is about, such as "training"; it begins with this name.
      text: The result.
    """
    _lines[name] = text


def add_metrics(task: str, values: Mapping[str, float]) -> None:
    """Add metrics of a task to the table; a later value replaces an earlier one.

    Args:
      task: The name of the task.
      values: Metric -> value.
    """
    _metrics.setdefault(task, {}).update(values)


def write_results() -> None:
    """Write the results that this process has so far: the lines, then the table."""
    for name, text in _lines.items():
        log.info(f"{name}: {text}", prefix=False)
    for line in format_table(_metrics):
        log.info(line, prefix=False)
    _lines.clear()
    _metrics.clear()


def format_table(metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the lines of a table of metrics, a row for each value; none without metrics.

    Args:
      metrics: Task -> metric -> value.
    """
    rows = [
        (task, name, f"{value:.4f}")
        for task, values in metrics.items()
        for name, value in values.items()
    ]
    if not rows:
        return []
    rows = [("task", "metric", "value"), *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"{task:<{widths[0]}}  {name:<{widths[1]}}  {value:>{widths[2]}}"
        for task, name, value in rows
    ]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]
