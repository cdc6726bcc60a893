"""YAML that means one thing: no duplicate keys, anchors, tags, floats, dates or yes/no; every value
knows its line.

Both programs read their files with this module. It needs PyYAML alone, and Python 3.9 runs it.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from rosetta.core.errors import INVALID, TOO_BIG, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    Path = tuple[str | int, ...]

# PyYAML may have been built without libyaml.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST_BRACKETS = 200  # that are open at a time
_DEEPEST = 20  # collections within each other
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Document:
    """The data of a YAML file, and the line (from 1) on which each path of keys stands."""

    data: Any
    lines: Mapping[Path, int]
    where: str

    def format_position(self, path: Path) -> str:
        """Return `file:line` of a path; an unknown one has the line of its nearest known parent."""
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        return f"{self.where}:{self.lines.get(known, 1)}"

    def format_place(self, path: Path) -> str:
        """Return `file:line: key.path`, for messages."""
        dotted = ".".join(str(part) for part in path)
        return self.format_position(path) + (f": {dotted}" if dotted else "")

    def make_error(
        self, what: str, path: Path, do: str, *, kind: str = INVALID, value: Any = None
    ) -> UserError:
        """Return the error for what stands at a path."""
        return UserError(what, self.format_place(path), do, kind=kind, value=value)


def _refuse_deep(text: str, where: str) -> None:
    """Raise UserError for brackets nested so deeply that PyYAML would take minutes over them."""
    depth = 0
    for bracket in re.finditer(r"[\[{\]}]", text):
        depth = max(0, depth + (1 if bracket[0] in "[{" else -1))
        if depth > _DEEPEST_BRACKETS:
            line = text.count("\n", 0, bracket.start()) + 1
            raise UserError(
                "is nested too deeply", f"{where}:{line}", "write it flat", kind=TOO_BIG
            )


@functools.lru_cache(maxsize=8)
def _compose_nodes(text: str, loader: Any) -> tuple[Any, ...]:
    """Return the nodes of each document; a command reads the manifest several times."""
    return tuple(yaml.compose_all(text, Loader=loader))


def _refuse_anchors(text: str, where: str) -> None:
    if "&" not in text and "*" not in text:
        return
    for event in yaml.parse(text, Loader=_LOADER):
        if getattr(event, "anchor", None):
            raise _make_error(
                where,
                event.start_mark,
                "anchors and aliases are not allowed",
                "write the value out",
            )


def parse_document(text: str, where: str, *, may_be_empty: bool = False) -> Document:
    """Return the one document of a text.

    Args:
        text: of the file.
        where: what the file is called, for messages.
        may_be_empty: accept a text without a document, whose data are None.

    Raises:
        UserError: something is not plain data; the error names line and key.
    """
    _refuse_deep(text, where)
    try:
        _refuse_anchors(text, where)
        nodes = _compose_nodes(text, _LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _make_error(
            where, mark, f"not valid YAML: {error.problem or error.context}", "mend the syntax"
        ) from error
    except RecursionError as error:
        raise UserError("is nested too deeply", where, "write it flat", kind=TOO_BIG) from error
    except yaml.YAMLError as error:
        raise UserError(
            f"not valid YAML: {str(error).splitlines()[0]}", where, "mend the syntax", kind=INVALID
        ) from error
    if not nodes and may_be_empty:
        return Document(None, {}, where)
    if len(nodes) != 1:
        raise UserError(
            f"{len(nodes)} YAML documents where one belongs",
            where,
            "keep exactly one",
            kind=INVALID,
            value=len(nodes),
        )
    lines: dict[Path, int] = {}
    return Document(_build_value(nodes[0], (), lines, where), lines, where)


def _make_error(
    where: str,
    mark: Any,
    what: str,
    do: str,
    path: Path = (),
    *,
    kind: str = INVALID,
    value: Any = None,
) -> UserError:
    line = f":{mark.line + 1}" if mark else ""
    dotted = ".".join(str(part) for part in path)
    place = f"{where}{line}" + (f": {dotted}" if dotted else "")
    return UserError(what, place, do, kind=kind, value=value)


def _build_value(node: Any, path: Path, lines: dict[Path, int], where: str) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if len(path) > _DEEPEST:
        raise _make_error(
            where, node.start_mark, "is nested too deeply", "write it flat", path, kind=TOO_BIG
        )
    if isinstance(node, yaml.MappingNode):
        if node.tag != _TAG + "map":
            raise _make_error(
                where, node.start_mark, f"tag {node.tag} is not allowed", "remove it", path
            )
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                raise _make_error(
                    where,
                    key_node.start_mark,
                    "merge keys (<<) are not allowed",
                    "write the keys out",
                    path,
                )
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _TAG + "str":
                shown = key_node.value if isinstance(key_node, yaml.ScalarNode) else "a collection"
                raise _make_error(
                    where,
                    key_node.start_mark,
                    f"key {shown} is not a string",
                    "put it in quotes",
                    path,
                )
            key = key_node.value
            if key in result:
                raise _make_error(
                    where,
                    key_node.start_mark,
                    f"duplicate key {key!r}",
                    "keep one of them",
                    (*path, key),
                    value=key,
                )
            lines[(*path, key)] = key_node.start_mark.line + 1
            result[key] = _build_value(value_node, (*path, key), lines, where)
        return result
    if isinstance(node, yaml.SequenceNode):
        if node.tag != _TAG + "seq":
            raise _make_error(
                where, node.start_mark, f"tag {node.tag} is not allowed", "remove it", path
            )
        return [
            _build_value(item, (*path, index), lines, where)
            for index, item in enumerate(node.value)
        ]
    return _parse_scalar(node, path, where)


def _parse_scalar(node: Any, path: Path, where: str) -> Any:
    tag, value = node.tag.removeprefix(_TAG), node.value
    if tag == "str":
        return value
    if tag == "null" and value in ("", "~", "null"):
        return None
    if tag == "bool" and value in ("true", "false"):
        return value == "true"
    if tag == "int" and re.fullmatch(r"0|-?[1-9][0-9]{0,17}", value):
        return int(value)
    hints = {
        "float": "a version written without quotes loses its zeros: put it in quotes",
        "int": "write a plain decimal number, or put it in quotes",
        "bool": "write true or false, or put it in quotes",
        "timestamp": "put it in quotes",
    }
    raise _make_error(
        where,
        node.start_mark,
        f"{value!r} is read as a {tag}",
        hints.get(tag, "put it in quotes"),
        path,
        value=value,
    )
