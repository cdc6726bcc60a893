"""Find the assertions that pin the sentence of a message, and not a fact in it.

    .venv/bin/python -m tests.support.pinned_sentences [FOLDER]

lists them.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "python -m tests.support.pinned_sentences"
MESSAGE_FIELDS = frozenset({"what", "do", "err", "stderr"})

Strings = dict[str, list[ast.Constant]]  # the strings that a parameter or a constant can be


def _iterate_strings(node: ast.AST) -> Iterator[ast.Constant]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, (str, bytes)):
            yield part


def _collect_parameters(function: ast.FunctionDef) -> Strings:
    """Return the strings of each parameter that pytest.mark.parametrize sets."""
    strings: Strings = {}
    for decorator in function.decorator_list:
        if not isinstance(decorator, ast.Call) or not ast.unparse(decorator.func).endswith(
            "parametrize"
        ):
            continue
        given = decorator.args[0]
        if isinstance(given, ast.Constant):
            names = [name.strip() for name in str(given.value).split(",")]
        else:
            names = [str(part.value) for part in _iterate_strings(given)]
        rows = decorator.args[1]
        for row in getattr(rows, "elts", []):
            cells = [row] if len(names) == 1 else getattr(row, "elts", getattr(row, "args", []))
            for name, cell in zip(names, cells, strict=False):
                strings.setdefault(name, []).extend(_iterate_strings(cell))
    return strings


def _collect_constants(tree: ast.Module) -> Strings:
    return {
        node.targets[0].id: [node.value]
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def _is_message(node: ast.AST, messages: set[str]) -> bool:
    """Say whether an expression is the text of an error or of the standard error stream."""
    if isinstance(node, ast.Attribute):
        return node.attr in MESSAGE_FIELDS
    if isinstance(node, ast.Name):
        return node.id in messages
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return node.slice.value in ("what", "do")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        text = ast.unparse(node.args[0]) if node.args else ""
        return text.endswith(".value") or text in {"error", "caught", "problem"}
    return False


def _message_names(function: ast.AST) -> set[str]:
    """Return the local names that hold such a text, or its lines."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(
            _is_message(part, set()) for part in ast.walk(node.value)
        ):
            names.update(part.id for part in node.targets if isinstance(part, ast.Name))
    return names


def _iterate_pinned_strings(
    node: ast.AST, known: Strings, messages: set[str]
) -> Iterator[ast.Constant]:
    """Yield the strings that an assertion, or a `match=`, compares with a message."""
    if isinstance(node, ast.keyword) and node.arg == "match":
        compared: ast.AST = node.value
    elif isinstance(node, ast.Assert) and any(
        _is_message(part, messages) for part in ast.walk(node.test)
    ):
        compared = node.test
    else:
        return
    yield from _iterate_strings(compared)
    for part in ast.walk(compared):
        if isinstance(part, ast.Name):
            yield from known.get(part.id, [])


def find_in(text: str) -> list[tuple[int, str]]:
    """Return the line and the sentence of each assertion in a source text that pins one."""
    tree = ast.parse(text)
    constants = _collect_constants(tree)
    found: set[tuple[int, int, str]] = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        known = constants | _collect_parameters(function)
        messages = _message_names(function)
        for node in ast.walk(function):
            for string in _iterate_pinned_strings(node, known, messages):
                value = string.value
                words = value.decode("latin-1") if isinstance(value, bytes) else str(value)
                if sentence := errors.find_sentence(words):
                    found.add((string.lineno, string.col_offset, sentence))
    return [(line, sentence) for line, _, sentence in sorted(found)]


def find_pinned_sentences(folder: Path) -> list[str]:
    """Return `FILE:LINE: SENTENCE` for each assertion below a folder that pins one."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {sentence}"
        for path in sorted(folder.rglob("*.py"))
        for line, sentence in find_in(path.read_text(encoding="utf-8"))
    ]


if __name__ == "__main__":
    pinned = find_pinned_sentences(ROOT / (sys.argv[1] if len(sys.argv) > 1 else "tests"))
    print(*pinned, f"{len(pinned)} pinned sentences", sep="\n")
