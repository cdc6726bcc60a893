from __future__ import annotations

import pytest

from builder.upstream.path_rules import check_name, check_path
from rosetta.core.errors import UserError

HOSTILE = [
    "",
    ".",
    "..",
    ".git",
    ".GIT",
    ".Git",
    ".git ",
    ".git.",
    ".git. .",
    "git~1",
    "GIT~1",
    "git~2",
    ".git::$INDEX_ALLOCATION",
    ".g\u200cit",
    "\ufeff.git",
    "\uff0egit",
    ".gitmodules",
    ".GITMODULES",
    ".gitmodules ",
    "gitmod~1",
    "a/b",
    "a\\b",
    "c:",
    "C:x",
    "a\nb",
    "a\x1b[2J",
    "a\x7f",
    "a\u2028b",
    "a\udcff",
]
FINE = [
    ".gitignore",
    ".gitattributes",
    ".github",
    "git",
    "a.git",
    "...",
    "-",
    "ä",
    "a b",
    "x~1",
    "gitmodules",
    "__init__.py",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_name(name: str) -> None:
    with pytest.raises(UserError) as caught:
        check_name(name, "tree abc")
    assert caught.value.where == "tree abc"
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", FINE)
def test_fine_name(name: str) -> None:
    assert check_name(name, "here") == name


@pytest.mark.parametrize(
    "path",
    ["", "/", "/etc/passwd", "../x", "a/../x", "a//b", "a/", "a/.git/config", "a/./b", "x" * 1025],
)
def test_hostile_path(path: str) -> None:
    with pytest.raises(UserError):
        check_path(path, "here")


@pytest.mark.parametrize("path", ["a", "a/b/c.py", ".github/workflows/x.yml", "x" * 1024])
def test_fine_path(path: str) -> None:
    assert check_path(path, "here") == path
