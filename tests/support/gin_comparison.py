"""What gin makes of gin files, without T5X and JAX: stand-ins take the place of their modules."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import TYPE_CHECKING, Any

from rosetta.core.not_known import NOT_KNOWN
from rosetta.t5x.run import gin_reader
from rosetta.t5x.run.gin_text import Reference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_STOOD_IN = ("t5x", "seqio", "t5", "__main__")
_REAL = ("rosetta.t5x.names", "rosetta.t5x.run", "rosetta.t5x.gin")


class _Class(type):
    """The type of classes that have every method."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def method(self: object, **parameters: object) -> object:
            return self, parameters

        method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
        method.__module__ = cls.__module__
        setattr(cls, name, method)
        return method


class _Module(types.ModuleType):
    """A module that has every class and every function, each with every parameter."""

    def __getattr__(self, name: str) -> Any:
        if not name:
            return self  # gin imports modules so that Python asks for this
        if name.startswith("_"):
            raise AttributeError(name)

        def initialise(made: object, **parameters: object) -> None:
            vars(made).update(parameters)

        def function(**parameters: object) -> object:
            return parameters

        function.__name__ = function.__qualname__ = name
        function.__module__ = self.__name__
        body = {"__init__": initialise, "__module__": self.__name__, "__qualname__": name}
        setattr(self, name, _Class(name, (), body) if name[0].isupper() else function)
        return getattr(self, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if not _is_stood_in(name):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _is_stood_in(name: str) -> bool:
    if name.startswith("rosetta.t5x."):
        return not f"{name}.".startswith(tuple(f"{real}." for real in _REAL))
    return name.split(".", maxsplit=1)[0] in _STOOD_IN


@contextlib.contextmanager
def isolate_gin() -> Iterator[Any]:
    """Give gin's `config` module as it is in a new process, with stand-ins for T5X and for ours."""
    from gin import config

    import rosetta.t5x

    kept_modules = dict(sys.modules)
    kept_names = dict(vars(rosetta.t5x))
    kept_path = list(sys.path)
    names = (
        "_REGISTRY",
        "_INVERSE_REGISTRY",
        "_CONFIG",
        "_CONSTANTS",
        "_FINALIZE_HOOKS",
        "_LOCATION_PREFIXES",
        "_IMPORTS",
    )
    kept = {name: getattr(config, name).copy() for name in names}
    finder = _Finder()
    for name in kept_modules:
        if _is_stood_in(name) or name == "rosetta.t5x.names":
            del sys.modules[name]
            vars(rosetta.t5x).pop(name.rpartition(".")[2], None)
    sys.modules["__main__"] = _Module("__main__")
    sys.meta_path.insert(0, finder)
    config._REGISTRY = type(config._REGISTRY)()
    config._INVERSE_REGISTRY = {}
    for selector, configurable in kept["_REGISTRY"].items():
        if selector.startswith("gin."):
            config._REGISTRY[selector] = configurable
            config._INVERSE_REGISTRY[configurable.wrapped] = configurable
    # Gin's own hooks refuse what a file alone leaves to other files.
    config._FINALIZE_HOOKS = []
    config.clear_config()
    try:
        yield config
    finally:
        config.clear_config()
        for name, value in kept.items():
            setattr(config, name, value)
        sys.meta_path.remove(finder)
        sys.path[:] = kept_path
        sys.modules.clear()
        sys.modules.update(kept_modules)
        vars(rosetta.t5x).clear()
        vars(rosetta.t5x).update(kept_names)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What gin and rosetta make of the same files.

    Attributes:
      real: what gin binds, by scope, configurable and parameter, with macros resolved.
      known: those of them that rosetta knows.
      differences: names of rosetta's with another value than gin's: both values.
    """

    real: dict[str, Any]
    known: frozenset[str]
    differences: dict[str, tuple[Any, Any]]


def compare_with_gin(
    read: gin_reader.Configuration,
    files: Sequence[Path],
    search: Sequence[Path] = (),
    bindings: Sequence[str] = (),
) -> Comparison:
    """Return how a configuration differs from what gin makes of the same files.

    Args:
      read: rosetta's.
      files: gin files.
      search: folders for includes, after the working folder. Python's path has them, too.
      bindings: lines of the command line.
    """
    with isolate_gin() as config:
        config._LOCATION_PREFIXES[:] = ["", *map(str, search)]
        sys.path[:0] = [str(folder) for folder in search]
        config.parse_config_files_and_bindings([str(file) for file in files], list(bindings))
        real = {
            _format_parameter(config, scope, selector, parameter): _resolve_value(config, value, ())
            for (scope, selector), values in config._CONFIG.items()
            for parameter, value in values.items()
        }
        differences, known = {}, set()
        for name in {*read.bound, *real}:
            value = read.value(name)
            if value is NOT_KNOWN:
                continue
            gins = real.get(_name_of_object(name), NOT_KNOWN)
            known.add(_name_of_object(name))
            # Values are compared as written: True is not 1.
            if repr(_name_objects(value)) != repr(gins):
                differences[name] = value, gins
        return Comparison(real, frozenset(known), differences)


def _name_of_object(name: str) -> str:
    """Return a name of rosetta's with the name that the configurable itself has.

    A user's module may have it under another name.
    """
    scope, slash, selector = name.rpartition("/")
    configurable, _, parameter = selector.rpartition(".")
    parts = configurable.split(".")
    for end in range(len(parts) - 1, 0, -1):
        with contextlib.suppress(ImportError, AttributeError):
            found: Any = importlib.import_module(".".join(parts[:end]))
            for part in parts[end:]:
                found = getattr(found, part)
            return f"{scope}{slash}{_real_name(found)}.{parameter}"
    return name


def _name_objects(value: Any) -> Any:
    """Return a value with the configurables in it named as `_name_of_object` names them."""
    if isinstance(value, Reference):
        name = _name_of_object(f"{value.name}.x").removesuffix(".x")
        return dataclasses.replace(value, name=name)
    if isinstance(value, (list, tuple)):
        return type(value)(_name_objects(item) for item in value)
    if isinstance(value, dict):
        return {_name_objects(key): _name_objects(item) for key, item in value.items()}
    return value


def _format_parameter(config: Any, scope: str, selector: str, parameter: str) -> str:
    if selector == "gin.macro":
        return scope
    full = _real_name(config._REGISTRY[selector].wrapped)
    return f"{scope}/{full}.{parameter}" if scope else f"{full}.{parameter}"


def _real_name(configurable: Any) -> str:
    return f"{configurable.__module__}.{configurable.__qualname__}"


def _resolve_value(config: Any, value: Any, inside: tuple[object, ...]) -> Any:
    if isinstance(value, config.ConfigurableReference):
        scope, selector = value.config_key
        if selector == "gin.constant":
            return NOT_KNOWN
        if selector == "gin.macro" and value.evaluate:
            if scope in inside or (scope, selector) not in config._CONFIG:
                return NOT_KNOWN
            return _resolve_value(
                config, config._CONFIG[scope, selector]["value"], (*inside, scope)
            )
        return Reference(_real_name(value.configurable.wrapped), value.evaluate, scope)
    if isinstance(value, (list, tuple)):
        items = [_resolve_value(config, item, inside) for item in value]
        return NOT_KNOWN if NOT_KNOWN in items else type(value)(items)
    if isinstance(value, dict):
        pairs = [
            (_resolve_value(config, key, inside), _resolve_value(config, item, inside))
            for key, item in value.items()
        ]
        return NOT_KNOWN if any(NOT_KNOWN in pair for pair in pairs) else dict(pairs)
    return value
