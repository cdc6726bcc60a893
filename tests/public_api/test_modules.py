"""Compare public modules, experiments and hyper-parameters with the code."""

from __future__ import annotations

import ast
import re

from tests.support.module_syntax import (
    find_module_file,
    list_bound_names,
    list_definitions,
    resolve_name,
)
from tests.support.public_names import (
    PAGE,
    ROOT,
    assert_same_names,
    parse_module,
    read_folders,
    read_mapping,
    read_names,
    read_sources,
    strip_comments,
)

# Folders and files that name modules of rosetta from outside. A move may not break them.
NAMING_FOLDERS = (
    "patches",
    "overlay",
    "scripts",
    "docs",
    "rosetta/t5x/gin",
    "rosetta/t5x/templates",
)
NAMING_FILES = ("README.md", "Dockerfile.base", "Dockerfile.t5x", "Dockerfile.pax")
# The most lines of imports in a module that only re-exports names.
REEXPORT_LINES = 5

DOTTED_NAME = re.compile(r"(?<![\w.])rosetta(?:\.[a-z_0-9]+)+(?:\.\w+)*")
FROM_IMPORT = re.compile(
    r"\bfrom (rosetta[\w.]*) import ([\w*]+(?: as \w+)?(?:, \w+(?: as \w+)?)*)"
)


def split_dotted_name(name: str) -> tuple[str, str]:
    """Split a dotted name into the module of rosetta and the name in the module. Each may be ""."""
    module, rest = name, ""
    while module and not find_module_file(module):
        module, _, last = module.rpartition(".")
        rest = rest or ""
        rest = f"{last}.{rest}" if rest else last
    return module, rest.partition(".")[0]


def find_named_modules() -> dict[str, set[str]]:
    """Return the names that files outside the package use, by module."""
    used_names: dict[str, set[str]] = {}
    files = [
        *read_folders(NAMING_FOLDERS),
        *((name, (ROOT / name).read_text("utf-8")) for name in NAMING_FILES),
    ]
    for path, text in files:
        if path == PAGE:
            continue
        for package, imported in FROM_IMPORT.findall(text):
            for item in imported.split(", "):
                name = item.partition(" ")[0]
                if find_module_file(f"{package}.{name}"):
                    used = re.findall(rf"\b{item.split()[-1]}\.([A-Za-z]\w*)", strip_comments(text))
                    used_names.setdefault(f"{package}.{name}", set()).update(used)
                else:
                    used_names.setdefault(package, set()).add(name)
        for dotted in DOTTED_NAME.findall(FROM_IMPORT.sub("", text)):
            module, name = split_dotted_name(dotted)
            if module != "rosetta":
                used_names.setdefault(module, set()).update({name} - {""})
    return used_names


def test_modules() -> None:
    """Modules that other files name are listed with the names they use; all of them are there."""
    listed = read_mapping("Modules")
    named = find_named_modules()
    unlisted = [
        f"{module} {name}".strip()
        for module, used in named.items()
        for name in [*used, ""]
        if module not in listed or (name and name not in listed[module] and name != "*")
    ]
    assert not unlisted, f"{PAGE}, Modules: named, but not listed: {sorted(unlisted)}"
    for module, members in listed.items():
        assert find_module_file(module), f"{module}: public, but gone"
        for member in members:
            resolve_name(module, member)


def test_programs_by_module() -> None:
    """Modules that files and pages run by `python -m` are listed, and have a main part."""
    listed = read_names("Programs by module")
    for path, text in read_folders(NAMING_FOLDERS):
        run = set(re.findall(r"-m (rosetta[\w.]*)", text)) if path != PAGE else set()
        assert run <= listed, f"{PAGE}, Programs by module: {path} runs {sorted(run - listed)}"
    for name in listed:
        file = find_module_file(f"{name}.__main__") or find_module_file(name)
        assert file, f"{name}: public, but gone"
        assert file.name == "__main__.py" or "__main__" in file.read_text(encoding="utf-8"), name


def test_reexports_are_short() -> None:
    """A module that only re-exports names has a docstring and at most five lines of imports."""
    other = re.compile(
        r"^(?:def|class|if|for|try|with|@|(?!__all__)[\w.]+(?: =|:|\())", re.MULTILINE
    )
    for path, text in read_sources("rosetta").items():
        if other.search(text) or "import" not in text or path.name == "__main__.py":
            continue
        nodes = [node for node in parse_module(path).body if isinstance(node, ast.ImportFrom)]
        nodes = [node for node in nodes if node.module != "__future__"]
        lines = sum((node.end_lineno or 0) - node.lineno + 1 for node in nodes)
        assert lines <= REEXPORT_LINES, f"{path}: {lines} lines of re-exports"


def test_experiments() -> None:
    """Experiments of Pax, and the data sets that users derive from, are those that the page lists."""
    existing = {name for name in list_bound_names("rosetta.pax.configs") if name[0].isupper()}
    assert_same_names("Experiments", read_names("Experiments"), existing)


def test_hyper_parameters() -> None:
    """Hyper-parameters of experiments are those that the page lists."""
    hyper_parameters = set()
    for path in (ROOT / "rosetta/pax").rglob("*.py"):
        for node in parse_module(path).body:
            if isinstance(node, ast.ClassDef):
                hyper_parameters |= {name for name, _ in list_definitions(node) if name.isupper()}
    assert_same_names(
        "Hyper-parameters", read_names("Hyper-parameters"), hyper_parameters - {"DIFFERENCES"}
    )
