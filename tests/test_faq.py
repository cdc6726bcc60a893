"""docs/faq.md quotes messages as the code has them, so that people find them by search."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "faq.md"
# "- rosetta says: `one`, `another`." with the lines that continue the item.
SAID = re.compile(r"^- rosetta says: (.*(?:\n  .*)*)", re.MULTILINE)
SOURCES = (ROOT / "rosetta",)


def quoted_messages() -> list[str]:
    """Return what the page quotes of rosetta, in "rosetta says" and in quotes of tables."""
    text = PAGE.read_text(encoding="utf-8")
    said = [message for item in SAID.findall(text) for message in re.findall(r"`([^`]+)`", item)]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    found = [message for row in rows for message in re.findall(r'"([^"]+)"', row)]
    return sorted({" ".join(message.split()) for message in [*said, *found]})


@functools.cache
def texts() -> list[str]:
    """Return the strings of the code. A replacement field of an f-string is a NUL character."""
    found = []
    for folder in SOURCES:
        for path in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [
                        part.value if isinstance(part, ast.Constant) else "\0"
                        for part in node.values
                    ]
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return found


@pytest.mark.parametrize("message", quoted_messages())
def test_message_is_one_of_the_code(message: str) -> None:
    """A quoted message may leave out what varies: `the vocabulary has ... ids`."""
    pattern = re.compile(".*".join(map(re.escape, message.split("..."))), re.DOTALL)
    assert any(pattern.search(text) for text in texts()), (
        f"{PAGE.name} quotes {message!r}, which the code does not say"
    )


def test_page_quotes_messages() -> None:
    assert len(quoted_messages()) > 40
