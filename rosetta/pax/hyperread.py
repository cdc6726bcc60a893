"""Experiments' hyper-parameters as text: what their classes state, read off our own files in milliseconds, where importing them takes seconds."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE = Path(__file__).parent
MODULES = ("configs", "gpt", "glam", "llama", "experiment", "switches", "data")


@dataclass(frozen=True)
class Stated:
    """A hyper-parameter: its value as Python text, and the file and line that state it, as "rosetta/pax/gpt.py:22"."""

    text: str
    place: str


@dataclass(frozen=True)
class _Class:
    bases: tuple[str, ...]
    stated: Mapping[str, Stated]


@functools.lru_cache(maxsize=1)
def _classes() -> tuple[dict[str, _Class], dict[str, str]]:
    """All classes of the modules by name, which no two of them share; and other names of experiments, which may be a base class's, too."""
    found: dict[str, _Class] = {}
    others: dict[str, str] = {}
    for module in MODULES:
        body = ast.parse((HERE / f"{module}.py").read_text(encoding="utf-8")).body
        constants = {name: value for node in body for name, value in _assigned(node)}
        for node in body:
            if isinstance(node, ast.ClassDef):
                bases = tuple(ast.unparse(each).rpartition(".")[2] for each in node.bases)
                found[node.name] = _Class(bases, dict(_stated(node, f"rosetta/pax/{module}.py", constants)))
        if module == "configs":
            others = {name: value.id for name, value in constants.items() if isinstance(value, ast.Name)}
    return found, others


def _assigned(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
    if isinstance(target, ast.Name) and isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        yield target.id, node.value


def _stated(node: ast.ClassDef, file: str, constants: Mapping[str, ast.expr]) -> Iterator[tuple[str, Stated]]:
    for each in node.body:
        for name, value in _assigned(each):
            if name.isupper() and name != "DIFFERENCES":
                shown = constants.get(value.id, value) if isinstance(value, ast.Name) else value
                yield name, Stated(ast.unparse(shown), f"{file}:{each.lineno}")


def names() -> list[str]:
    """Return every hyper-parameter that some experiment states, but for those of Paxml's own base classes alone."""
    return sorted({name for each in _classes()[0].values() for name in each.stated})


def read(config: str) -> dict[str, Stated]:
    """Return an experiment's hyper-parameters by name; empty for one that is none of ours. Values of Paxml's own base classes are left out."""
    classes, others = _classes()
    found: dict[str, Stated] = {}
    for name in reversed(_order(others.get(config, config))):
        found.update(classes[name].stated)
    return found


def _order(name: str) -> list[str]:
    """Ours of the classes in Python's order of resolution (https://www.python.org/download/releases/2.3/mro/), the experiment's own first."""
    known, _ = _classes()
    if name not in known:
        return []
    chains = [_order(base) for base in known[name].bases]
    left = [*chains, [each for each in known[name].bases if each in known]]
    found = [name]
    while any(left):
        left = [each for each in left if each]
        first = next(each[0] for each in left if not any(each[0] in other[1:] for other in left))
        found.append(first)
        left = [[each for each in chain if each != first] for chain in left]
    return found


def value(read: Mapping[str, Stated], name: str) -> object | None:
    """Return a hyper-parameter's value, None for what is not stated, or is no literal."""
    if name not in read:
        return None
    try:
        found: object = ast.literal_eval(read[name].text)
    except (ValueError, SyntaxError):
        return None
    return found
