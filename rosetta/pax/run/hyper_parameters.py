"""Experiments' hyper-parameters as text: what their classes state, read off our own files in
milliseconds, where importing them takes seconds.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core.not_known import NOT_KNOWN
from rosetta.pax.run import fiddle_arguments
from rosetta.pax.run.settings import CONFIGS_MODULE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PACKAGE_FOLDER = Path(__file__).parents[1]
MODULES = ("configs", "gpt", "glam", "llama", "experiment", "switches", "data")
# What Paxml's base class states, if some experiment of ours leaves it at that.
_PAXML_DEFAULTS = {
    "CHECKPOINT_EVERY_N_STEPS": 5000,
    "CHECKPOINT_MAX_TO_KEEP": 10,
    "CLIP_GRADIENT_NORM_TO_VALUE": 5.0,
    "DROPOUT_PROB": 0.0,
    "EVAL_INTERVAL_STEPS": 100,
    "SEPARATE_EMBEDDING": False,
    "SUMMARY_INTERVAL_STEPS": 100,
    "TRAINABLE_POSITION_EMB": False,
    "USE_GATED_ACTIVATION": False,
    "USE_REPEATED_LAYER": False,
    "WEIGHT_DECAY": 1e-3,
}


@dataclass(frozen=True)
class StatedValue:
    """A hyper-parameter: its value as Python text, and the file and line that state it, as
    "rosetta/pax/gpt.py:22".
    """

    text: str
    place: str


@dataclass(frozen=True)
class _ExperimentClass:
    bases: tuple[str, ...]
    stated: Mapping[str, StatedValue]


@functools.lru_cache(maxsize=1)
def _read_classes() -> dict[str, _ExperimentClass]:
    """All classes of the modules by "module.name"; another name of an experiment is a class of
    nothing but that experiment.
    """
    found: dict[str, _ExperimentClass] = {}
    for module in MODULES:
        body = ast.parse((PACKAGE_FOLDER / f"{module}.py").read_text(encoding="utf-8")).body
        constants = {name: value for node in body for name, value in _list_assignments(node)}
        # What a bare name means there: a class of this module, or of the one that it is imported
        # from.
        known = {
            each.name: f"{(node.module or '').rpartition('.')[2]}.{each.name}"
            for node in body
            if isinstance(node, ast.ImportFrom)
            for each in node.names
        }
        for node in body:
            if isinstance(node, ast.ClassDef):
                bases = tuple(known.get(text, text) for text in map(ast.unparse, node.bases))
                found[f"{module}.{node.name}"] = _ExperimentClass(
                    bases, dict(_list_stated_values(node, f"rosetta/pax/{module}.py", constants))
                )
                known[node.name] = f"{module}.{node.name}"
        found.update(
            {
                f"{module}.{name}": _ExperimentClass((known[value.id],), {})
                for name, value in constants.items()
                if isinstance(value, ast.Name) and value.id in known
            }
        )
    return found


def _find_target(node: ast.stmt) -> str:
    target = (
        node.targets[0]
        if isinstance(node, ast.Assign)
        else node.target
        if isinstance(node, ast.AnnAssign)
        else None
    )
    return target.id if isinstance(target, ast.Name) else ""


def _list_assignments(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if (
        (name := _find_target(node))
        and isinstance(node, (ast.Assign, ast.AnnAssign))
        and node.value is not None
    ):
        yield name, node.value


def _list_stated_values(
    node: ast.ClassDef, file: str, constants: Mapping[str, ast.expr]
) -> Iterator[tuple[str, StatedValue]]:
    for each in node.body:
        for name, value in _list_assignments(each):
            if name.isupper() and name != "DIFFERENCES":
                shown = constants.get(value.id, value) if isinstance(value, ast.Name) else value
                yield name, StatedValue(ast.unparse(shown), f"{file}:{each.lineno}")


def list_experiments() -> list[str]:
    """Return the experiments of rosetta.pax.configs."""
    modules_and_names = (name.split(".") for name in _read_classes())
    return sorted(
        name for module, name in modules_and_names if module == MODULES[0] and name[0] != "_"
    )


def find_model_class(config: str) -> str:
    """Return the class that an experiment of rosetta.pax.configs takes its model from."""
    order = _order_classes(f"{MODULES[0]}.{config}")
    return next(name.split(".")[1] for name in order if not name.startswith(f"{MODULES[0]}."))


def list_paxml_defaults() -> dict[str, str]:
    """Return what Paxml's base class states, as far as it is known here, as Python text."""
    texts = {name: repr(value) for name, value in _PAXML_DEFAULTS.items()}
    return {**texts, "CHECKPOINT_POLICY": "'save_nothing'"}  # there, a member of an enumeration


def list_names() -> list[str]:
    """Return every hyper-parameter that some experiment states, but for those of Paxml's own base
    classes alone.
    """
    return sorted({name for each in _read_classes().values() for name in each.stated})


def read_class_names(path: Path, name: str) -> set[str]:
    """Return the hyper-parameters that a class of a Python file states itself, with or without a
    value.
    """
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {
        found
        for node in body
        if isinstance(node, ast.ClassDef) and node.name == name
        for each in node.body
        if (found := _find_target(each)).isupper()
    }


def read_stated_values(config: str) -> dict[str, StatedValue]:
    """Return an experiment's hyper-parameters by name; empty for one that is not ours.

    Values of Paxml's own base classes are left out.

    Args:
      config: a name of rosetta.pax.configs, with or without the module, or a dotted name of the
        user's.
    """
    found: dict[str, StatedValue] = {}
    for name in reversed(
        _order_classes(f"{MODULES[0]}.{config.removeprefix(f'{CONFIGS_MODULE}.')}")
    ):
        found.update(_read_classes()[name].stated)
    return found


def resolve_values(
    config: str, hyper: Mapping[str, str], words: Iterable[str] = ()
) -> dict[str, object]:
    """Return the values of an experiment's hyper-parameters: those given as --fdl has them, else
    those that its classes state, or NOT_KNOWN. One that the experiment does not have is left out.

    Of an experiment that is not ours only what is given is known.

    Args:
      config: see read_stated_values.
      hyper: as fiddle_arguments.split_arguments returns them.
      words: for Paxml's program. Nothing is known where they choose another experiment.
    """
    if fiddle_arguments.changes_experiment(words):
        return {}
    stated = read_stated_values(config)
    return {
        **(_PAXML_DEFAULTS if stated else {}),
        **{name: _evaluate(each.text) for name, each in stated.items()},
        **fiddle_arguments.parse_values(hyper),
    }


def _order_classes(name: str) -> list[str]:
    """Ours of the classes in Python's order of resolution
    (https://www.python.org/download/releases/2.3/mro/), the experiment's own first.
    """
    known = _read_classes()
    if name not in known:
        return []
    chains = [_order_classes(base) for base in known[name].bases]
    left = [*chains, [each for each in known[name].bases if each in known]]
    found = [name]
    while any(left):
        left = [each for each in left if each]
        first = next(each[0] for each in left if not any(each[0] in other[1:] for other in left))
        found.append(first)
        left = [[each for each in chain if each != first] for chain in left]
    return found


def _evaluate(text: str) -> object:
    """Return the value of a literal, NOT_KNOWN for any other expression."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return NOT_KNOWN
