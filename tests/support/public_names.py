"""Read the tables of docs/reference/public-api.md, and the files that the tables are compared with.

A name is a code span of a table. `tests/public_api` has the comparisons.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/reference/public-api.md"

# The rows of a table. Each row is a list of cells, and each cell a list of code spans.
Rows = list[list[list[str]]]


@functools.cache
def read_tables() -> dict[str, Rows]:
    """Return the rows of the tables of the page, by the heading above them."""
    rows: dict[str, Rows] = {}
    heading = ""
    for line in (ROOT / PAGE).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("#").strip()
        elif line.startswith("|"):
            cells = [re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split("|")]
            if cells[0]:
                rows.setdefault(heading, []).append(cells)
    return rows


def read_names(heading: str, column: int = 0) -> set[str]:
    """Return the names of a column of the tables below a heading. A name may be there once."""
    spans = [span for cells in read_tables()[heading] for span in cells[column]]
    assert len(spans) == len(set(spans)), f"{PAGE}, {heading}: a name is listed twice"
    return set(spans)


def read_mapping(heading: str, column: int = 1) -> dict[str, set[str]]:
    """Return the names of another column, by the name in the first column of the same row."""
    read_names(heading)
    return {name: set(cells[column]) for cells in read_tables()[heading] for name in cells[0]}


def assert_same_names(heading: str, listed: Collection[str], existing: Collection[str]) -> None:
    """Fail with the names that only the page has, and with the names that only the code has."""
    problems = [f"{name}: public, but gone" for name in sorted(set(listed) - set(existing))]
    problems += [f"{name}: exists, but not listed" for name in sorted(set(existing) - set(listed))]
    assert not problems, "\n".join([f"{PAGE}, {heading}:", *problems])


def join_members(table: dict[str, set[str]]) -> set[str]:
    """Return each name of a table, and "name member" for each of its members."""
    return {f"{name} {member}" for name in table for member in table[name]} | set(table)


@functools.cache
def read_sources(package: str) -> dict[Path, str]:
    """Return the texts of the modules of a package, by file."""
    files = sorted((ROOT / package).rglob("*.py"))
    return {path: path.read_text(encoding="utf-8") for path in files}


@functools.cache
def parse_module(path: Path) -> ast.Module:
    """Return the syntax tree of a module. This takes milliseconds, and there are hundreds of modules."""
    return ast.parse(path.read_text(encoding="utf-8"))


def read_files(files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of files."""
    for name in files:
        yield name, (ROOT / name).read_text(encoding="utf-8")


def read_folders(folders: Iterable[str], *suffixes: str) -> Iterator[tuple[str, str]]:
    """Yield the name and text of the files below folders, or of those with one of the suffixes.

    Bytecode is left out, which Python writes beside a module that it has run.
    """
    for folder in folders:
        assert (ROOT / folder).is_dir(), f"{folder} has moved: change its name in this file"
        for path in sorted((ROOT / folder).rglob("*")):
            is_text = path.is_file() and path.suffix != ".pyc"
            if is_text and (not suffixes or path.suffix in suffixes):
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def load_presets(name: str) -> dict[str, Any]:
    """Return the content of a YAML file of the presets."""
    (folder,) = {path.parent for path in (ROOT / "rosetta").rglob("switches.yaml")}
    loaded: dict[str, Any] = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    return loaded


def strip_comments(text: str) -> str:
    """Return a gin file without its comments."""
    return re.sub(r"(?m)#.*$", "", text)
