"""Read the hyper-parameters of rosetta's experiments from the text of their classes.

Reading the files takes milliseconds, where importing them takes seconds and needs JAX. The checks
before JAX starts, `rosetta explain` and the reference pages use the values.
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
_CONFIGS = MODULES[0]
# The values of Paxml's base class that at least one of rosetta's experiments does not change.
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
    """The value that a class states for a hyper-parameter.

    Attributes:
      text: The value as Python text.
      place: The file and the line that state it, such as "rosetta/pax/gpt.py:22".
    """

    text: str
    place: str


@dataclass(frozen=True)
class _ExperimentClass:
    """The bases of a class as "module.name", and the values that the class itself states."""

    bases: tuple[str, ...]
    stated: Mapping[str, StatedValue]


@functools.lru_cache(maxsize=1)
def _read_classes() -> dict[str, _ExperimentClass]:
    """Return all classes of the modules by "module.name".

    Another name of an experiment, as in `New = Old`, is a class with that one base.
    """
    classes: dict[str, _ExperimentClass] = {}
    for module in MODULES:
        classes.update(_read_module(module))
    return classes


def _read_module(module: str) -> dict[str, _ExperimentClass]:
    """Return the classes of one module by "module.name"."""
    path = PACKAGE_FOLDER / f"{module}.py"
    body = ast.parse(path.read_text(encoding="utf-8")).body
    constants: dict[str, ast.expr] = {}
    full_names: dict[str, str] = {}  # of classes that are imported or defined here
    for node in body:
        constants.update(_list_assignments(node))
        if isinstance(node, ast.ImportFrom):
            source = (node.module or "").rpartition(".")[2]
            full_names.update({alias.name: f"{source}.{alias.name}" for alias in node.names})
    classes: dict[str, _ExperimentClass] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            base_texts = [ast.unparse(base) for base in node.bases]
            bases = tuple(full_names.get(text, text) for text in base_texts)
            stated = dict(_list_stated_values(node, f"rosetta/pax/{module}.py", constants))
            full_names[node.name] = f"{module}.{node.name}"
            classes[full_names[node.name]] = _ExperimentClass(bases, stated)
    for name, value in constants.items():
        if isinstance(value, ast.Name) and value.id in full_names:
            classes[f"{module}.{name}"] = _ExperimentClass((full_names[value.id],), {})
    return classes


def _find_target(node: ast.stmt) -> str:
    """Return the name that a statement assigns to, with or without a value; "" for no name."""
    target: ast.expr | None = None
    if isinstance(node, ast.Assign):
        target = node.targets[0]
    elif isinstance(node, ast.AnnAssign):
        target = node.target
    return target.id if isinstance(target, ast.Name) else ""


def _list_assignments(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name and the value if a statement is an assignment to a name."""
    name = _find_target(node)
    if name and isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        yield name, node.value


def _list_stated_values(
    node: ast.ClassDef, file: str, constants: Mapping[str, ast.expr]
) -> Iterator[tuple[str, StatedValue]]:
    """Yield the hyper-parameters that a class states; constants of the module are resolved."""
    for statement in node.body:
        for name, value in _list_assignments(statement):
            if name.isupper() and name != "DIFFERENCES":
                shown = constants.get(value.id, value) if isinstance(value, ast.Name) else value
                yield name, StatedValue(ast.unparse(shown), f"{file}:{statement.lineno}")


def list_experiments() -> list[str]:
    """Return the names of the experiments of rosetta.pax.configs."""
    names = []
    for full_name in _read_classes():
        module, name = full_name.split(".")
        if module == _CONFIGS and not name.startswith("_"):
            names.append(name)
    return sorted(names)


def find_model_class(config: str) -> str:
    """Return the class that an experiment of rosetta.pax.configs takes its model from."""
    order = _order_classes(f"{_CONFIGS}.{config}")
    return next(name.split(".")[1] for name in order if not name.startswith(f"{_CONFIGS}."))


def list_paxml_defaults() -> dict[str, str]:
    """Return the known values of Paxml's base class, as Python text."""
    texts = {name: repr(value) for name, value in _PAXML_DEFAULTS.items()}
    # Paxml states a member of an enumeration with this value.
    return {**texts, "CHECKPOINT_POLICY": "'save_nothing'"}


def list_names() -> list[str]:
    """Return the names of all hyper-parameters that classes of rosetta state.

    Those that only Paxml's base classes state are left out.
    """
    names: set[str] = set()
    for experiment_class in _read_classes().values():
        names.update(experiment_class.stated)
    return sorted(names)


def read_class_names(path: Path, name: str) -> set[str]:
    """Return the hyper-parameters that a class of a Python file states, with or without a value.

    Args:
      path: The Python file.
      name: The class.
    """
    body = ast.parse(path.read_text(encoding="utf-8")).body
    targets: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            targets.update(_find_target(statement) for statement in node.body)
    return {target for target in targets if target.isupper()}


def read_stated_values(config: str) -> dict[str, StatedValue]:
    """Return the hyper-parameters that the classes of an experiment state, by name.

    The values of Paxml's base classes are left out.

    Args:
      config: A name of rosetta.pax.configs, with or without the module. The result is empty for
        another name, such as MODULE.CLASS of the user.
    """
    name = config.removeprefix(f"{CONFIGS_MODULE}.")
    classes = _read_classes()
    stated: dict[str, StatedValue] = {}
    for base in reversed(_order_classes(f"{_CONFIGS}.{name}")):
        stated.update(classes[base].stated)
    return stated


def resolve_values(
    config: str, hyper: Mapping[str, str], words: Iterable[str] = ()
) -> dict[str, object]:
    """Return the values of the hyper-parameters of a run by name.

    A value of the command line wins over the value that the experiment's classes state. A value
    that only Python can compute is NOT_KNOWN. If the experiment is a class of the user, only the
    values of the command line are known.

    Args:
      config: The experiment, see `read_stated_values`.
      hyper: The literals of the command line by name, as `fiddle_arguments.split_arguments`
        returns them.
      words: Other arguments of Paxml. The result is empty if they choose another experiment.
    """
    if fiddle_arguments.changes_experiment(words):
        return {}
    stated = read_stated_values(config)
    return {
        **(_PAXML_DEFAULTS if stated else {}),
        **{name: _evaluate(value.text) for name, value in stated.items()},
        **fiddle_arguments.parse_values(hyper),
    }


def _order_classes(name: str) -> list[str]:
    """Return a class and its bases, without Paxml's, in the order in which Python looks them up.

    This is the C3 linearisation (https://www.python.org/download/releases/2.3/mro/).
    """
    classes = _read_classes()
    if name not in classes:
        return []
    bases = [base for base in classes[name].bases if base in classes]
    chains = [*(_order_classes(base) for base in bases), bases]
    order = [name]
    while any(chains):
        chains = [chain for chain in chains if chain]
        heads = [chain[0] for chain in chains]
        following = {member for chain in chains for member in chain[1:]}
        first = next(head for head in heads if head not in following)
        order.append(first)
        chains = [[member for member in chain if member != first] for chain in chains]
    return order


def _evaluate(text: str) -> object:
    """Return the value of a literal, NOT_KNOWN for any other expression."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return NOT_KNOWN
