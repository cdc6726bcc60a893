"""A fast reader of gin files, for checks and descriptions of a run before JAX starts.

Gin itself would first import T5X and JAX. A value that is read is the one that gin gives, or
NOT_KNOWN. What the Python code of an imported module binds is not seen. The trainer checks the
settings again that its run depends on.
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
    """The binding of a name.

    Attributes:
      value: the value, which may contain Macro and Reference.
      text: the text of the value, as written.
      place: the place of the binding, file:line.
      shown: the name, as first written.
      is_last: whether no file can change the value, as the command line is read after all files.
    """

    value: object
    text: str
    place: str
    shown: str
    is_last: bool = False


@dataclass(frozen=True)
class Configuration:
    """The bindings of a run's gin files.

    Attributes:
      bound: the bindings by full name: NAME of a macro, or [scope/]module.configurable.parameter.
      configurables: the full names of the configurables in the files, by their names in gin's
        registry.
      shipped: the full names of those that rosetta's own files name.
      missing: included files that do not exist or that gin refuses. They could bind anything.
      translates: whether settings of T5X's classes act on rosetta's, see rosetta.t5x.names.
    """

    bound: Mapping[str, Bound] = field(default_factory=dict)
    configurables: Mapping[str, str] = field(default_factory=dict)
    shipped: frozenset[str] = frozenset()
    missing: tuple[str, ...] = ()
    translates: bool = False

    def bind(self, values: Mapping[str, object]) -> Configuration:
        """Return this configuration with the --gin options of a command line.

        Args:
          values: the values by macro, or by [scope/][module.]configurable.parameter.
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
        """Return the bindings by their names as written.

        If two names are written alike, the second is given in full.
        """
        listed: dict[str, Bound] = {}
        for name, bound in self.bound.items():
            listed[name if bound.shown in listed else bound.shown] = bound
        return listed

    def binds(self, name: str) -> bool:
        """Return whether the files or the command line bind a full name."""
        return name in self._effective

    def value(self, name: str) -> object:
        """Return the value of a full name, with macros resolved, or NOT_KNOWN.

        A Reference stands for a value that only gin can make.

        Args:
          name: a name as in `bound`. The value of a parameter without a scope is not known if some
            scope binds the parameter too, because gin uses the active scope.
        """
        return self._resolve(name, ())

    def integer(self, name: str) -> int | None:
        """Return the value of a full name if it is a whole number; None for anything else."""
        value = self.value(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, name: str) -> str | None:
        """Return the value of a full name if it is a string; None for anything else."""
        value = self.value(name)
        return value if isinstance(value, str) else None

    @functools.cached_property
    def _effective(self) -> dict[str, Bound]:
        """The bindings after the settings of T5X's classes are translated to rosetta's."""
        effective = dict(self.bound)
        if not self.translates:
            return effective
        translated = set[str]()
        for name, bound in self.bound.items():
            scope, configurable, parameter = _split_name(name)
            if not configurable:
                continue
            new_name = upstream_names.translate(configurable, parameter)
            if new_name is None:
                continue
            target = f"{scope}/{new_name}" if scope else new_name
            # If two of T5X's classes set the same parameter, only gin knows which one wins.
            value = NOT_KNOWN if target in translated else bound.value
            effective[target] = replace(bound, value=value)
            translated.add(target)
        return effective

    @functools.cached_property
    def _owners(self) -> dict[str, set[tuple[str, str]]]:
        """The scope and the configurable of each binding, by the name of the parameter."""
        owners: dict[str, set[tuple[str, str]]] = {}
        for name in self._effective:
            scope, configurable, parameter = _split_name(name)
            if configurable:
                owners.setdefault(parameter, set()).add((scope, configurable))
        return owners

    def _is_ambiguous(self, name: str) -> bool:
        """Return whether a parameter may be the same as another bound parameter.

        A user's module may have one of rosetta's classes under another name.
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
        """Return whether no other name can stand for a configurable."""
        return (
            configurable in self.shipped or upstream_names.translate(configurable, "") is not None
        )

    def _resolve(self, name: str, inside: tuple[str, ...]) -> object:
        """Return the value of a full name; `inside` has the names that are being resolved."""
        bound = self._effective.get(name)
        if bound is None or name in inside or name == "REQUIRED":
            return NOT_KNOWN
        if (self.missing and not bound.is_last) or self._is_ambiguous(name):
            return NOT_KNOWN
        return self._resolve_value(bound.value, (*inside, name))

    def _resolve_value(self, value: object, inside: tuple[str, ...]) -> object:
        """Return a value with its macros resolved."""
        if isinstance(value, Macro):
            # A name with a dot is a constant that Python code defines.
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
    """Return a value as gin files write it."""
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
    """Return the full name of the configurable whose name ends with a selector, as gin finds it.

    It is None if no configurable or several of them match.
    """
    if selector in configurables:
        return configurables[selector]
    matches = [full for name, full in configurables.items() if name.endswith(f".{selector}")]
    return matches[0] if len(matches) == 1 else None


def read_configuration(files: Sequence[Path], roots: Sequence[Path]) -> Configuration:
    """Read gin files.

    Args:
      files: the files, in the order in which gin parses them.
      roots: the folders in which relative includes are searched, in gin's order: the working folder
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
    """The state of a reading; see Configuration for the attributes."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = roots
        self._open: list[Path] = []
        self.bound: dict[str, Bound] = {}
        self.configurables = dict(_BUILT_IN)
        self.shipped: set[str] = set()
        self.missing: list[str] = []
        self.translates = False

    def add_file(self, file: Path) -> None:
        """Read a file, and each included file at the place of its include statement."""
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
    """The reading of one file, with the meaning of the names in it."""

    def __init__(self, reading: _Reading, file: Path) -> None:
        self._reading = reading
        self._path = file
        self._is_shipped = _SHIPPED in Path(os.path.realpath(file)).parents
        self._imports: dict[str, gin_text.Import] | None = (
            None  # None: gin's registry has all names
        )
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
        """Return the full name of a configurable; None if it is not known."""
        configurables = self._reading.configurables
        if self._imports is None:
            return _match_configurable(selector, configurables)
        first, dot, rest = selector.partition(".")
        imported = self._imports.get(first)
        if imported is None:
            return None
        full_name = imported.module + dot + rest
        if full_name not in configurables.values():
            configurables[imported.registered + dot + rest] = full_name
        if self._is_shipped:
            self._reading.shipped.add(full_name)
        return full_name

    def _find_references(self, value: object) -> object:
        """Return a value in which references have the full names of configurables."""
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
