"""YAML that means one thing: no duplicate keys, anchors, tags, floats, dates or yes/no; every value
knows its line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from rosetta.core.errors import INVALID, TOO_BIG, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOADER: Any = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # PyYAML may have been built without libyaml
_DEEPEST = 20
_TAG = "tag:yaml.org,2002:"
_ADVICE = {
    "float": "put it in quotes",
    "int": "write a plain decimal number, or put it in quotes",
    "bool": "write true or false, or put it in quotes",
}


@dataclass(frozen=True)
class Document:
    """The data of a YAML file, and the line (from 1) of each path of keys; where: what the file is
    called.
    """

    data: Any
    lines: Mapping[tuple[str, ...], int]
    where: str

    def place(self, path: tuple[str, ...]) -> str:
        """Return file:line of a path."""
        return f"{self.where}:{self.lines.get(path, 1)}"

    def error(
        self,
        what: str,
        path: tuple[str, ...],
        do: str,
        *,
        kind: str = INVALID,
        value: Any = None,
    ) -> UserError:
        """Return the error for what stands at a path."""
        where = f"{self.place(path)}: {'.'.join(path)}" if path else self.place(path)
        return UserError(what, where, do, kind=kind, value=value)


def load(text: str, where: str) -> Document:
    """Return the one document of a text; its data are None where there is nothing in it.

    Raises:
      UserError: it is no plain data; with file, line and key.
    """
    try:
        for event in yaml.parse(text, Loader=_LOADER) if "&" in text or "*" in text else ():
            if getattr(event, "anchor", None):
                raise UserError(
                    "anchors and aliases are not allowed",
                    _at(where, event.start_mark),
                    "write the value out",
                    kind=INVALID,
                )
        nodes = list(yaml.compose_all(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        raise UserError(
            f"not valid YAML: {error.problem or error.context}",
            _at(where, error.problem_mark or error.context_mark),
            "mend the syntax",
            kind=INVALID,
        ) from None
    except RecursionError:
        raise UserError(
            "not valid YAML: it is nested too deeply", where, "mend the syntax", kind=INVALID
        ) from None
    except yaml.YAMLError as error:
        raise UserError(
            f"not valid YAML: {str(error).splitlines()[0]}", where, "mend the syntax", kind=INVALID
        ) from None
    if len(nodes) > 1:
        raise UserError(
            f"{len(nodes)} YAML documents where one belongs",
            where,
            "keep exactly one",
            kind=INVALID,
            value=len(nodes),
        )
    lines: dict[tuple[str, ...], int] = {}
    return Document(_built(nodes[0], (), lines, where) if nodes else None, lines, where)


def _at(where: str, mark: Any) -> str:
    return f"{where}:{mark.line + 1}" if mark else where


def _built(
    node: Any, path: tuple[str, ...], lines: dict[tuple[str, ...], int], where: str, depth: int = 0
) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if depth > _DEEPEST:
        raise UserError(
            "it is nested too deeply", _at(where, node.start_mark), "write it flat", kind=TOO_BIG
        )

    def error(what: str, at: Any, do: str, *more: str, value: Any = None) -> UserError:
        place = ": ".join(filter(None, [_at(where, at.start_mark), ".".join([*path, *more])]))
        return UserError(what, place, do, kind=INVALID, value=value)

    if isinstance(node, yaml.MappingNode):
        if node.tag != f"{_TAG}map":
            raise error(f"tag {node.tag} is not allowed", node, "remove it")
        made: dict[str, Any] = {}
        for key, value in node.value:
            if key.tag != f"{_TAG}str" or not isinstance(key, yaml.ScalarNode):
                raise error(
                    "a key is no string", key, "put it in quotes; merge keys (<<) are written out"
                )
            if key.value in made:
                raise error(
                    "it is there twice", key, "keep one of them", key.value, value=key.value
                )
            lines[(*path, key.value)] = key.start_mark.line + 1
            made[key.value] = _built(value, (*path, key.value), lines, where, depth + 1)
        return made
    if isinstance(node, yaml.SequenceNode):
        if node.tag != f"{_TAG}seq":
            raise error(f"tag {node.tag} is not allowed", node, "remove it")
        return [_built(item, path, lines, where, depth + 1) for item in node.value]
    kind, text = node.tag.replace(_TAG, ""), node.value
    if kind == "str":
        return text
    if kind == "null":
        return None
    if kind == "bool" and text in ("true", "false"):
        return text == "true"
    if kind == "int" and re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text):
        return int(text)
    advice = _ADVICE.get(kind, "put it in quotes")
    raise error(f"{text!r} is read as a {kind}", node, advice, value=text)
