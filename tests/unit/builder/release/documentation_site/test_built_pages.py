from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.release.documentation_site import built_pages

if TYPE_CHECKING:
    from pathlib import Path

PAGES = {"index.md": "docs/index.md", "sub/b.md": "docs/sub/b.md", "c.md": "CHANGELOG.md"}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name in ("index.html", "sub/b/index.html", "c/index.html"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('<h1 id="one">One</h1>')
    (tmp_path / "style.css").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        '<a href="sub/b/#one">b</a> <a href="./c/">c</a> <a href=".">home</a> <a href="#x" id="x">',
        '<link rel="stylesheet" href="style.css"> <img src="data:image/png;base64,AA==">',
        '<a href="https://other.example/">elsewhere</a> <a href="mailto:a@b.c">mail</a>',
        '<link rel="canonical" href="https://rosetta.example/">',
        "<p>a - b, <code>- c</code>\n<code>| d |</code></p> <pre>- e</pre> <p>in 2026. Then</p>",
    ],
)
def test_a_page_that_is_well(text: str, site: Path) -> None:
    (site / "index.html").write_text(text)
    assert built_pages.find_problems(site, PAGES) == []


@pytest.mark.parametrize(
    "text",
    [
        '<a href="gone/">x</a>',
        '<a href="sub/">x</a>',
        '<a href="../outside">x</a>',
        '<a href="sub/b/#two">x</a>',
        '<a href="#two">x</a>',
        '<img src="x.png">',
        '<img src="https://other.example/x.png">',
        '<script src="//cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="https://fonts.example/css">',
        "<p>a list:\n- one</p>",
        "<p>more\n4. four</p>",
        "<p>a table:\n| a | b |\n|---|---|</p>",
    ],
)
def test_a_page_that_is_not_well(text: str, site: Path) -> None:
    (site / "index.html").write_text(text)
    (problem,) = built_pages.find_problems(site, PAGES)
    assert problem.startswith("docs/index.md: ")


def test_a_page_that_was_not_built(site: Path) -> None:
    (site / "c/index.html").unlink()
    (problem,) = built_pages.find_problems(site, PAGES)
    assert problem.startswith("CHANGELOG.md: ")
