"""A row of a table, and its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.data.bad_records import RecordFault


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        place: The place in the file, such as "line 3".
        fields: Column -> value; {} if the row is bad.
        fault: What is wrong with a bad row; None for another one.
    """

    place: str
    fields: Mapping[str, Any]
    fault: RecordFault | None
