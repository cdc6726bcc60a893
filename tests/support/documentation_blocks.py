"""The code blocks of the pages, and how a test checks each of them.

A bash block has a comment on the line above it, which says how it is tested:

    <!-- test: run in t5x; loss falls below 3.5 -->

`CONTRIBUTING.md` describes what a comment may say.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("bash", "text", "yaml", "python", "toml", "gin", "json", "dockerfile")
RUN, DRY_RUN, OPTIONS_ONLY = "run", "dry run", "options only"
CHECKOUT = "checkout"
PLACES = ("t5x", "pax", "pax-1.4", CHECKOUT)
_FENCE = re.compile(r"(?P<indent> *)(?P<marks>`{3,})(?P<language>[^`]*)")
_COMMENT = re.compile(r"\s*<!-- *test:(?P<words>.*)-->\s*")
_IN_PLACES = re.compile(rf"(?P<how>{RUN}|{DRY_RUN}) in (?P<places>.+)")
_LOSS = re.compile(r"loss falls below (?P<loss>[0-9]+(?:\.[0-9]+)?)")
_STATUS = re.compile(r"fails with (?P<status>[0-9]+)")
_INTERRUPTED = re.compile(r"interrupted after step (?P<step>[0-9]+)")
_REASON = re.compile(r"\S+ .*")


class InvalidPageError(ValueError):
    """A page has a block that is not written as the pages are."""


@dataclass(frozen=True)
class Check:
    """How a bash block is tested.

    Attributes:
      how: RUN, DRY_RUN or OPTIONS_ONLY.
      places: The environments that it runs in, each by itself, or CHECKOUT.
      loss: What the last loss that the block reports has to be below; None if it trains nothing.
      status: The exit status that the block ends with.
      interrupted: The step after which Ctrl-C is sent to the block; None for never.
      slow: Whether only `build.py test --all` runs the block in a checkout.
      reason: Why the block does not run: what it needs, or what it costs.
    """

    how: str
    places: tuple[str, ...] = ()
    loss: float | None = None
    status: int = 0
    interrupted: int | None = None
    slow: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
      page: The page's path in the repository.
      line: The number of the line that opens the block.
      language: What follows the backticks.
      text: The lines in the block, without their common indentation.
      comment: The words of the comment above it; "" without one.
    """

    page: str
    line: int
    language: str
    text: str
    comment: str

    @property
    def where(self) -> str:
        """The place of the block, as an editor opens it."""
        return f"{self.page}:{self.line}"

    @property
    def check(self) -> Check:
        """How a bash block is tested.

        Raises:
          InvalidPageError: The block has no comment, or one that says something else.
        """
        try:
            return parse_comment(self.comment)
        except InvalidPageError as error:
            raise InvalidPageError(f"{self.where}: {error}") from None


def page_paths(root: Path = ROOT) -> list[str]:
    """Return the paths of all pages in the repository."""
    pages = sorted((root / "docs").rglob("*.md"))
    return ["README.md", "CONTRIBUTING.md", *(str(page.relative_to(root)) for page in pages)]


def read_page(page: str, root: Path = ROOT) -> list[Block]:
    """Return the code blocks of a page, in their order."""
    return parse_page(page, (root / page).read_text(encoding="utf-8"))


def parse_page(page: str, text: str) -> list[Block]:
    """Return the code blocks in the text of a page.

    Raises:
      InvalidPageError: A block is not closed.
    """
    blocks = list[Block]()
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        fence = _FENCE.fullmatch(lines[number])
        if not fence:
            number += 1
            continue
        end = _find_end(lines, number, fence["marks"])
        if end is None:
            raise InvalidPageError(f"{page}:{number + 1}: the block is not closed")
        inside = textwrap.dedent("\n".join(lines[number + 1 : end]))
        comment = _COMMENT.fullmatch(lines[number - 1]) if number else None
        words = comment["words"].strip() if comment else ""
        blocks.append(Block(page, number + 1, fence["language"].strip(), f"{inside}\n", words))
        number = end + 1
    return blocks


def _find_end(lines: list[str], start: int, marks: str) -> int | None:
    """Return the number of the line that closes the block which begins at `start`."""
    for number in range(start + 1, len(lines)):
        if lines[number].strip() == marks:
            return number
    return None


def parse_comment(words: str) -> Check:
    """Return what the words of a comment ask for.

    Raises:
      InvalidPageError: They are not valid.
    """
    if not words:
        raise InvalidPageError("a bash block needs a comment: <!-- test: run in t5x -->")
    first, *conditions = [part.strip() for part in words.split(";")]
    if first == OPTIONS_ONLY:
        return _parse_reason(conditions)
    placed = _IN_PLACES.fullmatch(first)
    if not placed:
        raise InvalidPageError(
            f"{first!r} is not a check; write 'run in PLACE', 'dry run in PLACE' or 'options only'"
        )
    places = tuple(placed["places"].split(" or "))
    for place in places:
        if place not in PLACES:
            raise InvalidPageError(f"{place!r} is not one of {', '.join(PLACES)}")
    values = dict[str, object]()
    for condition in conditions:
        name, value = _parse_condition(condition)
        values[name] = value
    if placed["how"] == DRY_RUN and {"loss", "interrupted"} & values.keys():
        raise InvalidPageError("a dry run trains nothing")
    return Check(placed["how"], places, **values)  # type: ignore[arg-type]


def _parse_reason(conditions: list[str]) -> Check:
    reason = "; ".join(conditions)
    if not _REASON.fullmatch(reason):
        raise InvalidPageError("say why: 'options only; needs a GPU'")
    return Check(OPTIONS_ONLY, reason=reason)


def _parse_condition(condition: str) -> tuple[str, object]:
    if condition == "slow":
        return "slow", True
    if loss := _LOSS.fullmatch(condition):
        return "loss", float(loss["loss"])
    if status := _STATUS.fullmatch(condition):
        return "status", int(status["status"])
    if step := _INTERRUPTED.fullmatch(condition):
        return "interrupted", int(step["step"])
    raise InvalidPageError(f"{condition!r} is not a condition")
