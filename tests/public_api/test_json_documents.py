"""Compare the keys of JSON documents, and the names in a run's folder, with the code."""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING

import pytest

from rosetta.health import progress
from tests.support.command_tree import (
    list_builder_commands,
    list_options,
    list_rosetta_commands,
)
from tests.support.public_names import (
    PAGE,
    assert_same_names,
    parse_module,
    read_names,
    read_sources,
    read_tables,
)

if TYPE_CHECKING:
    from pathlib import Path

# Fields of the class behind progress.jsonl that its lines do not have.
NOT_WRITTEN = {"extra", "notes"}


@functools.cache
def find_records(path: Path) -> set[frozenset[str]]:
    """Return the keys of each dict display of a module, and the fields of each of its classes."""
    records = set()
    for node in ast.walk(parse_module(path)):
        if isinstance(node, ast.Dict):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            records.add(frozenset(key for key in keys if isinstance(key, str)))
        elif isinstance(node, ast.ClassDef):
            fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
            records.add(frozenset(item.id for item in fields if isinstance(item, ast.Name)))
    return records


def has_record(package: str, keys: frozenset[str]) -> bool:
    """Return whether some dict display or class in a package has exactly these keys."""
    return any(
        not find_records(path).isdisjoint((keys, keys | NOT_WRITTEN))
        for path, text in read_sources(package).items()
        if all(f'"{key}":' in text or f"\n    {key}: " in text for key in keys)
    )


@pytest.mark.parametrize(
    ("heading", "package"),
    [
        ("The document of --json", "rosetta"),
        ("Results of build.py", "builder"),
        ("Results of rosetta", "rosetta"),
        ("Files of the builder", "builder"),
        ("Files of a run", "rosetta"),
    ],
)
def test_json_keys(heading: str, package: str) -> None:
    """Some dict or dataclass of the package has exactly the keys of each document that is listed."""
    texts = "\n".join(read_sources(package).values())
    wrong = []
    for cells in read_tables()[heading]:
        keys, added = cells[1], cells[2] if len(cells) > 2 else []
        if not has_record(package, frozenset(keys)):
            wrong.append(
                f"{cells[0][0]}: no dict or dataclass has exactly the keys {' '.join(keys)}"
            )
        if file := re.match(r"[\w/]+\.(?:jsonl?|lock)\b", cells[0][0]):
            added = [*added, file[0]]
        wrong += [f"{cells[0][0]}: no {key}" for key in added if f'{key}"' not in texts]
    assert not wrong, "\n".join([f"{PAGE}, {heading}: {package}/", *wrong])


def test_every_command_has_a_result() -> None:
    """The page says of each command with --json what its result is."""
    for program, parsers in (
        ("build.py", list_builder_commands()),
        ("rosetta", list_rosetta_commands()),
    ):
        listed = {name for cells in read_tables()[f"Results of {program}"] for name in cells[0]}
        wanted = {
            name
            for name, parser in parsers.items()
            if program == "build.py" or "--json" in list_options(parser)
        }
        missing = {
            name
            for name in wanted
            if not any(f"{command} ".startswith(f"{name} ") for command in listed)
        }
        assert not missing, f"{PAGE}, Results of {program}: {sorted(missing)}"


def test_findings() -> None:
    """The ids of findings of `rosetta doctor` are those that the page lists."""
    code = "\n".join(read_sources("rosetta").values())
    identifiers = set(re.findall(r'Finding\(\s*"([a-z0-9-]+)"', code))
    heading = "Findings of rosetta doctor"
    assert_same_names(heading, read_names(heading), identifiers)


def test_names_in_the_folder_of_a_run() -> None:
    """The code writes the files and folders that the page lists."""
    heading = "Names in the folder of a run"
    code = "\n".join(read_sources("rosetta").values())
    stems = {name: re.split(r"N$|RANK", name)[0] for name in read_names(heading)}
    existing = {name for name, stem in stems.items() if re.search(rf"[\"/]{re.escape(stem)}", code)}
    assert_same_names(heading, stems, existing)


def test_scalars() -> None:
    """What is drawn over the steps of a run has the names that the page lists."""
    report = progress.ProgressReport(
        1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, device_memory=1, extra={"goodput": 1.0}
    )
    existing = {*(f"rosetta/{name}" for name in report.scalars()), "rosetta/skipped"}
    assert_same_names("Scalars", read_names("Scalars"), existing)
