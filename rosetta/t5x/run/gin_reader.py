"""What gin files bind, in milliseconds: gin itself would import T5X and JAX first.

A value is the one that gin gives, or NOT_KNOWN. What an imported module binds by Python code is not
seen. The trainer checks again what its run depends on.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core.not_known import NOT_KNOWN
from rosetta.t5x.run import gin_files, gin_text, upstream_names
from rosetta.t5x.run.gin_text import Macro, Reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_SHIPPED = Path(os.path.realpath(gin_files.ROOT / gin_files.GIN_FOLDER))
_DYNAMIC = "__gin__.dynamic_registration"
_MACRO = "gin.macro"
_BUILT_IN = {name: name for name in (_MACRO, "gin.constant", "gin.singleton")}


@dataclass(frozen=True)
class Bound:
    """What a name is bound to.

    Attributes:
      value: with Macro and Reference in it.
      text: of the value, as written.
      place: file:line.
      shown: the name, as it was first written.
      is_last: whether no file can change it: the command line is read after all files.
    """

    value: object
    text: str
    place: str
    shown: str
    is_last: bool = False


@dataclass(frozen=True)
class Configuration:
    """What a run's gin files bind.

    Attributes:
      bound: by full name: NAME of a macro, [scope/]module.configurable.parameter.
      configurables: that the files name: gin's name in its registry -> the name with its module.
      shipped: those of them that our own files name.
      missing: files that are included and not here, or that gin refuses. They could bind anything.
      translates: whether settings of upstream's classes act on ours, see rosetta.t5x.names.
    """

    bound: Mapping[str, Bound] = field(default_factory=dict)
    configurables: Mapping[str, str] = field(default_factory=dict)
    shipped: frozenset[str] = frozenset()
    missing: tuple[str, ...] = ()
    translates: bool = False

    def bind(self, values: Mapping[str, object]) -> Configuration:
        """Return this configuration with the --gin words of a command line.

        Args:
          values: by macro, or by [scope/][module.]configurable.parameter.
        """
        bound = dict(self.bound)
        for name, value in values.items():
            *scopes, selector = name.split("/")
            configurable, _, parameter = selector.rpartition(".")
            if configurable:
                configurable = _match_configurable(configurable, self.configurables) or configurable
                selector = f"{configurable}.{parameter}"
            key = "/".join([*scopes, selector])
            shown = bound[key].shown if key in bound else name
            bound[key] = Bound(value, _format_value(value), "command line", shown, is_last=True)
        return replace(self, bound=bound)

    def listing(self) -> dict[str, Bound]:
        """Return what is bound, by the name as written, or in full where two names are written
        alike.
        """
        listed: dict[str, Bound] = {}
        for name, bound in self.bound.items():
            listed[name if bound.shown in listed else bound.shown] = bound
        return listed

    def binds(self, name: str) -> bool:
        """Return whether the files and words that were read bind a full name."""
        return name in self._effective

    def value(self, name: str) -> object:
        """Return what a full name comes to, through macros, or NOT_KNOWN.

        A Reference stands for what only gin can make.

        Args:
          name: see `bound`. A parameter that some scope binds too is not known without a scope:
            gin uses whichever scope is active.
        """
        return self._resolve(name, ())

    def integer(self, name: str) -> int | None:
        """Return the whole number that a full name comes to; None for anything else."""
        value = self.value(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, name: str) -> str | None:
        """Return the string that a full name comes to; None for anything else."""
        value = self.value(name)
        return value if isinstance(value, str) else None

    @functools.cached_property
    def _effective(self) -> dict[str, Bound]:
        """What is bound after the settings of upstream's classes were carried over to ours."""
        effective = dict(self.bound)
        if not self.translates:
            return effective
        carried = set[str]()
        for name, bound in self.bound.items():
            scope, configurable, parameter = _split_name(name)
            ours = upstream_names.translate(configurable, parameter) if configurable else None
            if ours is None:
                continue
            target = f"{scope}/{ours}" if scope else ours
            # Which of two of upstream's classes wins is left to gin.
            value = NOT_KNOWN if target in carried else bound.value
            effective[target] = replace(bound, value=value)
            carried.add(target)
        return effective

    @functools.cached_property
    def _owners(self) -> dict[str, set[tuple[str, str]]]:
        """(scope, configurable) of each parameter's name."""
        owners: dict[str, set[tuple[str, str]]] = {}
        for name in self._effective:
            scope, configurable, parameter = _split_name(name)
            if configurable:
                owners.setdefault(parameter, set()).add((scope, configurable))
        return owners

    def _is_ambiguous(self, name: str) -> bool:
        """Return whether a parameter may be the same as another one that is bound.

        A user's module can have a class of ours under a name of its own.
        """
        scope, configurable, parameter = _split_name(name)
        if not configurable:
            return False
        for other_scope, other in self._owners[parameter]:
            if other == configurable:
                if other_scope and not scope:
                    return True
            elif not (self._is_distinct(other) and self._is_distinct(configurable)):
                return True
        return False

    def _is_distinct(self, configurable: str) -> bool:
        return (
            configurable in self.shipped or upstream_names.translate(configurable, "") is not None
        )

    def _resolve(self, name: str, inside: tuple[str, ...]) -> object:
        bound = self._effective.get(name)
        if bound is None or name in inside or name == "REQUIRED":
            return NOT_KNOWN
        if (self.missing and not bound.is_last) or self._is_ambiguous(name):
            return NOT_KNOWN
        return self._resolve_value(bound.value, (*inside, name))

    def _resolve_value(self, value: object, inside: tuple[str, ...]) -> object:
        if isinstance(value, Macro):
            # A name with a dot is a constant of Python code.
            return NOT_KNOWN if "." in value.name else self._resolve(value.name, inside)
        if isinstance(value, (list, tuple)):
            items = [self._resolve_value(item, inside) for item in value]
            return NOT_KNOWN if NOT_KNOWN in items else type(value)(items)
        if isinstance(value, dict):
            keys = [self._resolve_value(key, inside) for key in value]
            items = [self._resolve_value(item, inside) for item in value.values()]
            if NOT_KNOWN in keys or NOT_KNOWN in items:
                return NOT_KNOWN
            try:
                return dict(zip(keys, items))  # noqa: B905 (Python 3.9)
            except TypeError:
                return NOT_KNOWN
        return value


def _format_value(value: object) -> str:
    if isinstance(value, Reference):
        scope = f"{value.scope}/" if value.scope else ""
        return f"@{scope}{value.name}{'()' if value.called else ''}"
    return gin_text.format_literal(value)


def _split_name(name: str) -> tuple[str, str, str]:
    """Return scope, configurable and parameter; the configurable is "" for a macro."""
    scope, _, selector = name.rpartition("/")
    configurable, _, parameter = selector.rpartition(".")
    return scope, configurable, parameter


def _match_configurable(selector: str, configurables: Mapping[str, str]) -> str | None:
    """Return the configurable that a selector names by its end, as gin finds it; None where none
    or several match.
    """
    if selector in configurables:
        return configurables[selector]
    found = [full for name, full in configurables.items() if name.endswith(f".{selector}")]
    return found[0] if len(found) == 1 else None


def read_configuration(files: Sequence[Path], roots: Sequence[Path]) -> Configuration:
    """Return what gin files bind.

    Args:
      files: in the order gin parses them.
      roots: folders that relative includes are looked for in, in gin's order: the working folder
        first.
    """
    reading = _Reading(roots)
    for file in files:
        reading.add_file(file)
    return Configuration(
        reading.bound,
        reading.configurables,
        frozenset(reading.shipped),
        tuple(reading.missing),
        reading.translates,
    )


class _Reading:
    """What was read so far; see Configuration."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = roots
        self._open: list[Path] = []
        self.bound: dict[str, Bound] = {}
        self.configurables = dict(_BUILT_IN)
        self.shipped: set[str] = set()
        self.missing: list[str] = []
        self.translates = False

    def add_file(self, file: Path) -> None:
        """Read a file, and what it includes where it includes it."""
        if file in self._open:
            self.missing.append(f"{file}, which includes itself")
            return
        try:
            with open(file, encoding="utf-8") as opened:
                statements = list(gin_text.parse_statements(opened.readline))
        except (OSError, UnicodeDecodeError, gin_text.NotGinError) as error:
            self.missing.append(f"{file}: {error}")
            return
        self._open.append(file)
        _File(self, file).add(statements)
        self._open.pop()

    def include(self, path: str) -> None:
        """Read the file that an include statement names."""
        for root in self._roots:
            if os.path.isfile(root / path):
                self.add_file(root / path)
                return
        self.missing.append(path)


class _File:
    """One file: what its names stand for."""

    def __init__(self, reading: _Reading, file: Path) -> None:
        self._reading = reading
        self._path = file
        self._is_shipped = _SHIPPED in Path(os.path.realpath(file)).parents
        self._imports: dict[str, gin_text.Import] | None = None  # None: all is in gin's registry
        self._has_imports = False

    def add(self, statements: Iterable[object]) -> None:
        """Add the statements of the file."""
        for statement in statements:
            if isinstance(statement, gin_text.Include):
                self._reading.include(statement.path)
            elif isinstance(statement, gin_text.Import):
                self._import(statement)
            elif isinstance(statement, gin_text.Binding):
                self._bind(statement)

    def _import(self, statement: gin_text.Import) -> None:
        is_first, self._has_imports = not self._has_imports, True
        if statement.imported.startswith("__gin__."):
            if statement.imported == _DYNAMIC and is_first:
                self._imports = {"gin": gin_text.Import("gin", "gin", "gin", "gin")}
            else:
                self._reading.missing.append(f"{self._path}: {statement.imported}")
            return
        self._reading.translates |= statement.imported == "rosetta.t5x.names"
        if self._imports is not None:
            self._imports[statement.name] = statement

    def _bind(self, statement: gin_text.Binding) -> None:
        scope = f"{statement.scope}/" if statement.scope else ""
        shown = f"{scope}{statement.selector}.{statement.parameter}"
        value = self._find_references(statement.value)
        if not statement.parameter:
            name = shown = statement.selector
        else:
            configurable = self._find(statement.selector)
            name = f"{scope}{configurable or statement.selector}.{statement.parameter}"
            if configurable is None:
                value = NOT_KNOWN
            elif configurable == _MACRO and statement.parameter == "value":
                name = statement.scope
        earlier = self._reading.bound.get(name)
        self._reading.bound[name] = Bound(
            value,
            statement.text,
            f"{self._path}:{statement.line}",
            earlier.shown if earlier else shown,
        )

    def _find(self, selector: str) -> str | None:
        """Return a configurable with its module in full, or None where that is not known."""
        configurables = self._reading.configurables
        if self._imports is None:
            return _match_configurable(selector, configurables)
        first, dot, rest = selector.partition(".")
        imported = self._imports.get(first)
        if imported is None:
            return None
        found = imported.module + dot + rest
        if found not in configurables.values():
            configurables[imported.registered + dot + rest] = found
        if self._is_shipped:
            self._reading.shipped.add(found)
        return found

    def _find_references(self, value: object) -> object:
        """Return a value with the full names of configurables in it."""
        if isinstance(value, Reference):
            name = self._find(value.name)
            if name == _MACRO and value.called:
                return Macro(value.scope)
            return NOT_KNOWN if name is None else replace(value, name=name)
        if isinstance(value, (list, tuple)):
            return type(value)(self._find_references(item) for item in value)
        if isinstance(value, dict):
            return {
                self._find_references(key): self._find_references(item)
                for key, item in value.items()
            }
        return value
