"""The gin files that train the projects, and what they include of the projects' pinned sources."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest

from builder.upstream import patched_source
from builder.upstream.git_objects import Reader, list_tree_files
from rosetta.selftest import project_checks
from tests.support.shipped_sources import ROOT, SHIPPED, need_pinned_source

pytestmark = pytest.mark.upstream


def _read_files(source: str) -> dict[str, str]:
    """Return the gin files and the files __init__.py of a patched source, by path."""
    pin = need_pinned_source(source)
    patched = patched_source.build_patched_source(pin, SHIPPED.source(source))
    with Reader(pin.git) as reader:
        return {
            entry.path: reader.read(entry.sha, "blob").decode()
            for entry in list_tree_files(reader, patched.exported_tree)
            if entry.path.endswith((".gin", "__init__.py"))
        }


@pytest.mark.parametrize("project", SHIPPED.projects)
def test_what_is_included_is_in_a_package_where_gin_finds_it(project: str) -> None:
    distribution = SHIPPED.distribution(SHIPPED.projects[project].distribution)
    sources = [*SHIPPED.choose_projects("t5x", [project]), *distribution.sources]
    files: dict[str, str] = {}
    for source in sources:
        files |= _read_files(source)
    own = (project_checks.GIN_FOLDER / f"{project}.gin").read_text(encoding="utf-8")
    waiting, seen = [own], set[str]()
    while waiting:
        for path in re.findall(r"(?m)^include ['\"](.+)['\"]", waiting.pop()):
            if path in seen:
                continue
            seen.add(path)
            if path.startswith("rosetta/"):
                assert (ROOT / path).is_file()
                continue
            folder = PurePosixPath(path).parent
            assert f"{folder}/__init__.py" in files, path
            waiting.append(files[path])
    assert any(not path.startswith(("rosetta/", "t5x/")) for path in seen)
