"""Copy the Markdown pages for the site, and adapt their links.

In the repository, pages link by relative paths, as GitHub expects. In the site, a link to another
page stays. A link to any other file becomes an address of the repository on the web.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FOLDER = "docs"
# The paths in the site of pages that are outside the folder, where GitHub looks for them.
OUTSIDE = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}

_FENCE = re.compile(r" *(`{3,}|~{3,})")
# A code span, which holds no link, or the beginning of a link or of the definition of one.
_LINK = re.compile(
    r"(?P<code>(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`))"
    r"|(?P<before>\]\(\s*<?|^ {0,3}\[[^\]^][^\]]*\]:\s+<?)(?P<target>[^\s<>()]+)"
)
# GitHub nests what is indented by two or three spaces in Markdown. The site does not.
_SHALLOW = re.compile(r" {1,3}(?:[-*+] |\d+[.)] |```|~~~)")
_SHALLOW_AFTER_BLANK = re.compile(r" {1,3}\S")


@dataclass
class Staging:
    """The copy of all pages for the site.

    Attributes:
        root: The checkout.
        repository: The address of the repository on the web.
        pages: The file of each page in the checkout, by the path of the page in the site.
        problems: What is wrong with the pages, each with its file and line.
    """

    root: Path
    repository: str
    pages: Mapping[str, str]
    problems: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Copy the pages, and all files beside them, to an empty folder."""
        shutil.copytree(
            self.root / FOLDER, folder, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True
        )
        for page, source in self.pages.items():
            text = self._convert(page, source, (self.root / source).read_text(encoding="utf-8"))
            (folder / page).write_text(text, encoding="utf-8")

    def _convert(self, page: str, source: str, text: str) -> str:
        """Return the text of a page with the links of the site."""

        def replace_link(match: re.Match[str]) -> str:
            if match["code"]:
                return match[0]
            return match["before"] + self._convert_link(page, source, number, match["target"])

        lines: list[str] = []
        fence = previous = ""
        for number, line in enumerate(text.splitlines(), 1):
            opening = _FENCE.match(line)
            if not fence:
                if _SHALLOW.match(line) or (
                    not previous.strip() and _SHALLOW_AFTER_BLANK.match(line)
                ):
                    self.problems.append(f"{source}:{number}: indented by less than four spaces")
                lines.append(line if opening else _LINK.sub(replace_link, line))
                fence = opening[1] if opening else ""
            else:
                lines.append(line)
                if line.strip().startswith(fence) and not line.strip(f" {fence[0]}"):
                    fence = ""
            previous = line
        return "\n".join(lines) + "\n"

    def _convert_link(self, page: str, source: str, number: int, target: str) -> str:
        """Return a link of a page as the site has it.

        Args:
            page: The path of the page in the site.
            source: The file of the page in the checkout.
            number: The number of the line, for problems.
            target: What the link leads to in the checkout.
        """
        path, mark, anchor = target.partition("#")
        if not path or re.match(r"[a-z][a-z0-9+.-]*:", target):
            return target
        name = posixpath.normpath(posixpath.join(posixpath.dirname(source), unquote(path)))
        file = self.root / name
        if path.startswith("/") or name.startswith("..") or not file.exists():
            self.problems.append(f"{source}:{number}: links to {target}, which does not exist")
            return target
        path_in_site = {file: path for path, file in self.pages.items()}.get(name)
        if path_in_site is None and name.startswith(f"{FOLDER}/") and file.is_file():
            path_in_site = name.removeprefix(f"{FOLDER}/")
        if path_in_site is not None:
            relative = posixpath.relpath(path_in_site, posixpath.dirname(page) or ".")
            return f"{relative}{mark}{anchor}"
        kind = "tree" if file.is_dir() else "blob"
        return f"{self.repository}/{kind}/main/{quote(name)}{mark}{anchor}"


def find_pages(root: Path) -> dict[str, str]:
    """Return the file of each page in a checkout, by the path of the page in the site."""
    files = sorted((root / FOLDER).rglob("*.md"))
    own = [file.relative_to(root).as_posix() for file in files]
    return {name.removeprefix(f"{FOLDER}/"): name for name in own} | OUTSIDE
