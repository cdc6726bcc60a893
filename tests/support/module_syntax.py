"""Find names in the modules of rosetta by their syntax, without importing a module."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.support.public_names import ROOT, parse_module

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def find_module_file(name: str) -> Path | None:
    """Return the file of a module of rosetta, or None if there is no such module."""
    place = ROOT.joinpath(*name.split("."))
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((path for path in files if path.is_file()), None)


def list_definitions(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[str, ast.AST]]:
    """Yield each name that a module or class binds at its top level, and the node that binds it."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for item in node.names:
                yield item.asname or item.name.partition(".")[0], node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield getattr(target, "id", ""), node
        elif isinstance(node, ast.AnnAssign):
            yield getattr(node.target, "id", ""), node


def list_bound_names(module: str) -> set[str]:
    """Return the names that a module of rosetta binds, including those of `import *`."""
    path = find_module_file(module)
    assert path, f"no module {module}"
    names: set[str] = set()
    for name, node in list_definitions(parse_module(path)):
        star = isinstance(node, ast.ImportFrom) and name == "*"
        names |= list_bound_names(str(getattr(node, "module", ""))) if star else {name}
    return names


def resolve_name(module: str, name: str) -> tuple[str, ast.AST]:
    """Follow re-exports, and return the module that defines a name and the node that does."""
    path = find_module_file(module)
    assert path, f"no module {module}"
    tree = parse_module(path)
    node = dict(list_definitions(tree)).get(name)
    if isinstance(node, ast.ImportFrom):
        origin = next(item.name for item in node.names if (item.asname or item.name) == name)
        source = str(node.module)
        if not source.startswith("rosetta") or find_module_file(f"{source}.{origin}"):
            return source, node
        return resolve_name(source, origin)
    if node is None:
        for item in tree.body:
            if isinstance(item, ast.ImportFrom) and item.names[0].name == "*":
                return resolve_name(str(item.module), name)
    assert node is not None, f"{module} has no {name}"
    return module, node


def list_parameters(module: str, node: ast.AST) -> set[str] | None:
    """Return the parameters of a function or class, or None if some come from outside of rosetta."""
    if isinstance(node, ast.FunctionDef):
        arguments = node.args
        everything = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        return None if arguments.kwarg else {item.arg for item in everything}
    if not isinstance(node, ast.ClassDef):
        return None
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    for method in methods:
        if method.name == "__init__":
            return list_parameters(module, method)
    fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
    names = {item.id for item in fields if isinstance(item, ast.Name)}
    return None if node.bases else names
