"""Read YAML files that can only be read in one way.

Duplicate keys, anchors, tags, floats, dates and yes/no are refused, and every value knows its line.
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
_MAXIMUM_BRACKETS = 200  # open at the same time
_MAXIMUM_DEPTH = 20  # collections inside each other
_TAG = "tag:yaml.org,2002:"
# Type that YAML reads a text as -> how to write what was meant.
_SCALAR_REMEDIES = {
    "float": "a version written without quotes loses its zeros: put it in quotes",
    "int": "write a plain decimal number, or put it in quotes",
    "bool": "write true or false, or put it in quotes",
}


@dataclass(frozen=True)
class Document:
    """The content of a YAML file.

    Attributes:
        data: Mappings, lists, texts, whole numbers, truth values and None.
        lines: The keys and list indices that lead to a value -> the line of that value, from 1.
        where: The name of the file, for messages.
    """

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
        return self.format_position(path) + _format_keys(path)

    def make_error(
        self, what: str, path: Path, do: str, *, kind: str = INVALID, value: Any = None
    ) -> UserError:
        """Return the error for the value at a path.

        Args:
            what: What is wrong.
            path: The path of the value.
            do: The remedy.
            kind: The class of problem, see rosetta.core.errors.
            value: The value that is refused.
        """
        return UserError(what, self.format_place(path), do, kind=kind, value=value)


def parse_document(text: str, where: str, *, may_be_empty: bool = False) -> Document:
    """Return the one document of a text.

    Args:
        text: The text of the file.
        where: The name of the file, for messages.
        may_be_empty: Whether a text without a document is valid. Its data are None.

    Raises:
        UserError: A value is not plain data. The error names line and key.
    """
    _refuse_deep_brackets(text, where)
    try:
        _refuse_anchors(text, where)
        nodes = _compose_nodes(text, _LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = f"not valid YAML: {error.problem or error.context}"
        raise _make_error(where, mark, what, "correct the syntax") from error
    except RecursionError as error:
        raise _make_depth_error(where) from error
    except yaml.YAMLError as error:
        what = f"not valid YAML: {str(error).splitlines()[0]}"
        raise UserError(what, where, "correct the syntax", kind=INVALID) from error
    if not nodes and may_be_empty:
        return Document(None, {}, where)
    if len(nodes) != 1:
        raise UserError(
            f"the file has {len(nodes)} YAML documents, and has to have one",
            where,
            "keep exactly one",
            kind=INVALID,
            value=len(nodes),
        )
    reader = _NodeReader(where)
    data = reader.read_node(nodes[0], ())
    return Document(data, reader.lines, where)


def _refuse_deep_brackets(text: str, where: str) -> None:
    """Raise UserError for brackets nested so deeply that PyYAML would take minutes over them."""
    depth = 0
    for bracket in re.finditer(r"[\[{\]}]", text):
        depth = max(0, depth + (1 if bracket[0] in "[{" else -1))
        if depth > _MAXIMUM_BRACKETS:
            line = text.count("\n", 0, bracket.start()) + 1
            raise _make_depth_error(f"{where}:{line}")


def _refuse_anchors(text: str, where: str) -> None:
    """Raise UserError for an anchor or an alias."""
    if "&" not in text and "*" not in text:
        return
    for event in yaml.parse(text, Loader=_LOADER):
        if getattr(event, "anchor", None):
            what = "anchors and aliases are not allowed"
            raise _make_error(where, event.start_mark, what, "write the value out")


@functools.lru_cache(maxsize=8)
def _compose_nodes(text: str, loader: Any) -> tuple[Any, ...]:
    """Return the nodes of each document; cached, as a command reads the manifest several times."""
    return tuple(yaml.compose_all(text, Loader=loader))


class _NodeReader:
    """Reads the data of PyYAML's nodes, and notes the line of every value.

    Attributes:
        lines: See Document.
    """

    def __init__(self, where: str) -> None:
        self.lines: dict[Path, int] = {}
        self._where = where

    def read_node(self, node: Any, path: Path) -> Any:
        """Return the data of a node."""
        self.lines.setdefault(path, node.start_mark.line + 1)
        if len(path) > _MAXIMUM_DEPTH:
            raise _make_depth_error(_format_mark(self._where, node.start_mark) + _format_keys(path))
        if isinstance(node, yaml.MappingNode):
            self._check_tag(node, "map", path)
            return self._read_mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            self._check_tag(node, "seq", path)
            return [self.read_node(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._read_scalar(node, path)

    def _check_tag(self, node: Any, tag: str, path: Path) -> None:
        """Raise UserError for a collection with a tag of its own."""
        if node.tag != _TAG + tag:
            what = f"tag {node.tag} is not allowed"
            raise _make_error(self._where, node.start_mark, what, "remove it", path)

    def _read_mapping(self, node: Any, path: Path) -> dict[str, Any]:
        """Return the data of a mapping."""
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._read_key(key_node, path)
            key_path = (*path, key)
            if key in data:
                raise _make_error(
                    self._where,
                    key_node.start_mark,
                    f"duplicate key {key!r}",
                    "keep one of them",
                    key_path,
                    value=key,
                )
            self.lines[key_path] = key_node.start_mark.line + 1
            data[key] = self.read_node(value_node, key_path)
        return data

    def _read_key(self, node: Any, path: Path) -> str:
        """Return the key of a mapping at a path."""
        if node.tag == _TAG + "merge":
            what = "merge keys (<<) are not allowed"
            raise _make_error(self._where, node.start_mark, what, "write the keys out", path)
        is_scalar = isinstance(node, yaml.ScalarNode)
        if not is_scalar or node.tag != _TAG + "str":
            what = f"key {node.value if is_scalar else 'a collection'} is not a string"
            raise _make_error(self._where, node.start_mark, what, "put it in quotes", path)
        key: str = node.value
        return key

    def _read_scalar(self, node: Any, path: Path) -> Any:
        """Return a text, a whole number, a truth value or None."""
        tag, value = node.tag.removeprefix(_TAG), node.value
        if tag == "str":
            return value
        if tag == "null" and value in ("", "~", "null"):
            return None
        if tag == "bool" and value in ("true", "false"):
            return value == "true"
        if tag == "int" and re.fullmatch(r"0|-?[1-9][0-9]{0,17}", value):
            return int(value)
        raise _make_error(
            self._where,
            node.start_mark,
            f"{value!r} is read as a {tag}",
            _SCALAR_REMEDIES.get(tag, "put it in quotes"),
            path,
            value=value,
        )


def _format_mark(where: str, mark: Any) -> str:
    """Return `file:line` of a mark of PyYAML."""
    return f"{where}:{mark.line + 1}" if mark else where


def _format_keys(path: Path) -> str:
    """Return a path as the end of a place, `: key.path`; "" for the empty path."""
    return f": {'.'.join(map(str, path))}" if path else ""


def _make_depth_error(place: str) -> UserError:
    """Return the error for a document that is nested too deeply."""
    return UserError("nested too deeply", place, "use fewer levels", kind=TOO_BIG)


def _make_error(
    where: str, mark: Any, what: str, do: str, path: Path = (), *, value: Any = None
) -> UserError:
    """Return the error for what stands at a mark of PyYAML."""
    place = _format_mark(where, mark) + _format_keys(path)
    return UserError(what, place, do, kind=INVALID, value=value)
