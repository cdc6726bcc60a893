"""Compare gin files, macros and configurables with the gin files that are shipped."""

from __future__ import annotations

import re

from tests.support.module_syntax import list_parameters, resolve_name
from tests.support.public_names import (
    assert_same_names,
    join_members,
    read_folders,
    read_mapping,
    read_names,
    strip_comments,
)

GIN_HOMES = {"rosetta/t5x/gin": "", "overlay/t5x": "overlay/t5x/"}


def read_gin_files() -> dict[str, str]:
    """Return the texts of the gin files that are shipped, by the path that --gin_file takes."""
    texts = {}
    for folder, prefix in GIN_HOMES.items():
        for name, text in read_folders([folder], ".gin"):
            texts[name.removeprefix(prefix)] = text
    return texts


def test_gin_files() -> None:
    """Gin files keep the paths that the page lists."""
    heading = "Gin files"
    listed = {
        f"{folder}/{name}" for folder, names in read_mapping(heading).items() for name in names
    }
    assert_same_names(heading, listed, read_gin_files())


def test_gin_macros() -> None:
    """Macros that gin files define or use are those that the page lists."""
    macros = set()
    for text in read_gin_files().values():
        code = strip_comments(text)
        macros |= set(re.findall(r"(?m)^([A-Z][A-Z0-9_]*)\s*=", code))
        macros |= set(re.findall(r"%([A-Z][A-Z0-9_]*)", code))
    assert_same_names("Gin macros", read_names("Gin macros"), macros)


def find_gin_imports(code: str) -> dict[str, str]:
    """Return the modules of rosetta that a gin file imports, by their name in the file."""
    modules = {}
    for package, name in re.findall(r"(?m)^from (rosetta[\w.]*) import (\w+)\s*$", code):
        modules[name] = f"{package}.{name}"
    return modules


def find_configurables() -> dict[str, set[str]]:
    """Return the parameters that gin files bind, by the full name of the configurable of rosetta."""
    parameters: dict[str, set[str]] = {}
    for text in read_gin_files().values():
        code = strip_comments(text)
        for alias, module in find_gin_imports(code).items():
            for name in re.findall(rf"@(?:\w+/)?{alias}\.(\w+)", code):
                parameters.setdefault(f"{module}.{name}", set())
            pattern = rf"(?m)^(?:\w+/)?{alias}\.(\w+)\.(\w+)\s*="
            for name, parameter in re.findall(pattern, code):
                parameters.setdefault(f"{module}.{name}", set()).add(parameter)
            pattern = rf"(?m)^(?:\w+/)?{alias}\.(\w+):\n((?:[ \t]+.*\n|\s*\n)*)"
            for name, block in re.findall(pattern, code):
                bound = re.findall(r"(?m)^[ \t]+(\w+)\s*=", block)
                parameters.setdefault(f"{module}.{name}", set()).update(bound)
    return parameters


def test_gin_configurables() -> None:
    """What gin files bind of our modules is listed, and is there with these parameters."""
    heading = "Gin configurables"
    listed = read_mapping(heading)
    assert_same_names(
        heading,
        set(join_members(listed)),
        set(join_members(find_configurables())) | list_network_fields(),
    )
    for name, parameters in listed.items():
        module, _, member = name.rpartition(".")
        known = list_parameters(*resolve_name(module, member))
        assert known is None or parameters <= known, f"{name}: no parameter {parameters - known}"


def list_network_fields() -> set[str]:
    """Return the fields of the network's configuration as configurables: users bind any of them."""
    name = "rosetta.t5x.network.T5Config"
    known = list_parameters(*resolve_name("rosetta.t5x.network", "T5Config"))
    assert known
    return {f"{name} {field}" for field in known}
