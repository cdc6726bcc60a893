"""Tables in Markdown, for generated pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def render(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. A `|` in a cell is escaped.

    Args:
      head: The titles of the columns.
      rows: The cells of each row.
    """
    lines = [f"| {' | '.join(map(_escape, cells))} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:], ""])


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|")
