from __future__ import annotations

from pathlib import Path

import pytest

from builder.release.documentation_site import configuration, source_pages
from tests.support import errors

ROOT = Path(__file__).parents[5]
SETTINGS = """[project]
nav = [{ "One" = ["index.md", "a.md"] }, { "Two" = [{ "Three" = ["b/c.md"] }] }]
[[project.extra.social]]
link = "https://github.com/OWNER/rosetta"
"""


def test_the_navigation_names_every_page_once() -> None:
    navigation = configuration.read_configuration(ROOT).navigation
    assert navigation[0] == "index.md"
    assert sorted(navigation) == sorted(source_pages.find_pages(ROOT))


def test_a_navigation_has_sections_in_sections(tmp_path: Path) -> None:
    (tmp_path / configuration.FILE).write_text(SETTINGS)
    assert configuration.read_configuration(tmp_path).navigation == ("index.md", "a.md", "b/c.md")


def test_another_repository_takes_the_place_of_the_default(tmp_path: Path) -> None:
    (tmp_path / configuration.FILE).write_text(SETTINGS)
    default = configuration.read_configuration(tmp_path)
    assert default.repository == "https://github.com/OWNER/rosetta"
    assert default.text == SETTINGS
    ours = configuration.read_configuration(tmp_path, "https://git.example/me/fork/")
    assert ours.repository == "https://git.example/me/fork"
    assert 'link = "https://git.example/me/fork"' in ours.text


@pytest.mark.parametrize(
    ("navigation", "named"),
    [
        (("index.md",), "docs/a.md"),
        (("index.md", "a.md", "gone.md"), "gone.md"),
        (("index.md", "a.md", "a.md"), "a.md"),
    ],
)
def test_a_navigation_with_a_gap_a_stranger_or_a_double(
    navigation: tuple[str, ...], named: str
) -> None:
    (problem,) = configuration.find_problems(navigation, ("index.md", "a.md"))
    assert named in problem
    assert configuration.find_problems(("a.md", "index.md"), ("index.md", "a.md")) == []


@pytest.mark.parametrize("text", ["[project]\n", "[project]\nnav = 3\n", "nonsense"])
def test_settings_that_cannot_be_used(text: str, tmp_path: Path) -> None:
    file = tmp_path / configuration.FILE
    with errors.expect_user_error(errors.MISSING, where=file):
        configuration.read_configuration(tmp_path)
    file.write_text(text)
    with errors.expect_user_error(errors.INVALID, where=file):
        configuration.read_configuration(tmp_path)


@pytest.mark.parametrize(
    "text", ["github.com/a/b", "https://host", 'https://host/a"b', "file:///x"]
)
def test_an_address_of_no_repository(text: str) -> None:
    with errors.expect_user_error(errors.INVALID, value=text, remedy="https://"):
        configuration.parse_repository(text)
