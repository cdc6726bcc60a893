"""Check the HTML pages of the site for what the strict build does not check.

Every link must lead to a page, a file or a heading of the site. Nothing may be loaded from another
host, so that the site also works without internet. No paragraph may contain the source of a list, a
table or a block of code. GitHub renders these without a blank line before them, the site does not.
"""

from __future__ import annotations

import posixpath
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_LOADING_RELATIONS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect"}
_SOURCE_OF_BLOCK = re.compile(r"^\s*(?:[-*+] |\d{1,2}[.)] |\||```)", re.MULTILINE)


class _Page(HTMLParser):
    """The identifiers, links, loaded files and paragraphs of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.identifiers: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.paragraphs: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.identifiers |= {values[name] for name in ("id", "name") if values.get(name)}
        loading = tag == "link" and not _LOADING_RELATIONS.isdisjoint(values.get("rel", "").split())
        if "href" in values:
            (self.loads if loading else self.links).append(values["href"])
        if "src" in values:
            self.loads.append(values["src"])
        if tag == "p":
            self.paragraphs.append("")
            self._open = "p"
        elif tag == "code" and self._open:
            self._open = "code"
            self.paragraphs[-1] += "`"

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self._open = ""
        elif tag == "code" and self._open:
            self._open = "p"

    def handle_data(self, data: str) -> None:
        if self._open == "p":
            self.paragraphs[-1] += data


def find_problems(site: Path, pages: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the pages of a site, each with the file of its source.

    Args:
        site: The folder of the site.
        pages: The file of each page in the checkout, by the path of the page in the site.
    """
    parsed: dict[str, _Page] = {}
    problems = []
    for name, source in pages.items():
        file = site / _html_file(name)
        if file.is_file():
            parsed[_html_file(name)] = _Page(file.read_text(encoding="utf-8"))
        else:
            problems.append(f"{source}: the site has no page of it")
    for name, source in pages.items():
        if page := parsed.get(_html_file(name)):
            page_problems = _find_problems_of_page(site, _html_file(name), page, parsed)
            problems += [f"{source}: {problem}" for problem in page_problems]
    return problems


def _html_file(page: str) -> str:
    """Return the file of a page in the site."""
    name = page.removesuffix(".md")
    folder = posixpath.dirname(name) if posixpath.basename(name) == "index" else name
    return posixpath.join(folder, "index.html")


def _find_problems_of_page(
    site: Path, name: str, page: _Page, parsed: Mapping[str, _Page]
) -> Sequence[str]:
    """Return what is wrong with a page.

    Args:
        site: The folder of the site.
        name: The file of the page in the site.
        page: The page.
        parsed: All pages, by their files in the site.
    """
    problems = []
    for address in dict.fromkeys((*page.links, *page.loads)):
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            if address in page.loads and parts.scheme != "data":
                problems.append(f"loads {address} from another host")
            continue
        path = _resolve_path(site, name, unquote(parts.path))
        target = parsed.get(path)
        if path.startswith(("..", "/")) or not (site / path).is_file():
            problems.append(f"leads to {address}, which the site does not have")
        elif target and parts.fragment and unquote(parts.fragment) not in target.identifiers:
            problems.append(f"leads to {address}, a heading that does not exist")
    for paragraph in page.paragraphs:
        if match := _SOURCE_OF_BLOCK.search(paragraph):
            line = paragraph[match.start() :].strip().splitlines()[0]
            problems.append(f"{line[:40]!r} is not rendered: leave a blank line before it")
    return problems


def _resolve_path(site: Path, name: str, path: str) -> str:
    """Return the file in the site that a relative link of a page leads to."""
    if not path:
        return name
    resolved = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    if (site / resolved).is_dir():
        return posixpath.normpath(posixpath.join(resolved, "index.html"))
    return resolved
