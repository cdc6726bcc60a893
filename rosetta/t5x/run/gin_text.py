"""Parse gin files without gin, and write gin literals.

Gin is not installed where a run is described or submitted. This module knows the grammar of gin;
gin_reader resolves the names. The test test_gin_comparison compares both with gin.
"""

from __future__ import annotations

import ast
import json
import re
import tokenize
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from typing import NoReturn

_IDENTIFIER = re.compile(r"[a-zA-Z_]\w*")
_DOTTED = re.compile(r"[a-zA-Z_]\w*(\.[a-zA-Z_]\w*)*")
# The tokens of simple values: numbers, strings, and the names True, False and None.
_SIMPLE_VALUES = (tokenize.NAME, tokenize.NUMBER, tokenize.STRING)
_COMMENTS_AND_BLANKS = (tokenize.COMMENT, tokenize.NL)
_INDENTATION = (tokenize.INDENT, tokenize.DEDENT)
_CLOSING_BRACKETS = {"(": ")", "[": "]", "{": "}"}


class NotGinError(ValueError):
    """The text is not valid gin. The message says where."""


@dataclass(frozen=True)
class Macro:
    """`%NAME`: the value to which NAME is bound after all files are read."""

    name: str


@dataclass(frozen=True)
class Reference:
    """`@scope/name` is a configurable itself, `@scope/name()` is what it returns when called.

    Attributes:
      name: the name as written; gin_reader replaces it with the full name.
      called: whether the parentheses are there.
      scope: the scope; "" for none.
    """

    name: str
    called: bool = True
    scope: str = ""


@dataclass(frozen=True)
class Binding:
    """A statement that binds a macro or a parameter.

    Attributes:
      scope: the scope, as written; "" for none, and for a macro.
      selector: the configurable of a parameter, as written, or the name of a macro.
      parameter: the name of the parameter; "" for a macro.
      value: a literal, which may contain Macro and Reference.
      text: the text of the value, as written.
      line: the line of the name; the first line is 1.
    """

    scope: str
    selector: str
    parameter: str
    value: object
    text: str
    line: int


@dataclass(frozen=True)
class Import:
    """An import statement.

    | statement | name | module | imported | registered |
    |---|---|---|---|---|
    | `import a.b` | a | a | a.b | a |
    | `from a import b` | b | a.b | a.b | a.b |
    | `from a import b as c` | c | a.b | a.b | a.c |

    Attributes:
      name: the name that the file can use afterwards.
      module: the module that the name stands for.
      imported: the module that is imported.
      registered: the name under which gin registers the module.
    """

    name: str
    module: str
    imported: str
    registered: str


@dataclass(frozen=True)
class Include:
    """A statement that includes another file, which gin reads at this place.

    Attributes:
      path: the path of the other file, as written.
      line: the line of the statement; the first line is 1.
    """

    path: str
    line: int


def format_literal(value: object) -> str:
    """Return a gin literal for a string, number, None, boolean, or a dict or tuple of them."""
    if isinstance(value, str):
        # Gin reads strings as Python does. A JSON string is also a valid Python string.
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        items = (f"{format_literal(key)}: {format_literal(item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    return repr(value)


def parse_statements(read_line: Callable[[], str]) -> Iterator[Binding | Import | Include]:
    """Yield the statements of a gin file in their order.

    Args:
      read_line: returns the next line of the file; "" at the end of the file.

    Raises:
      NotGinError: the text is not valid gin.
    """
    lines: list[str] = []

    def read_and_record() -> str:
        lines.append(read_line())
        return lines[-1]

    try:
        tokens = list(tokenize.generate_tokens(read_and_record))
    except (tokenize.TokenError, SyntaxError) as error:
        raise NotGinError(str(error)) from error
    yield from _Parser(tokens, lines).parse_statements()


class _Parser:
    """A recursive-descent parser over the tokens of a text.

    Each `_parse_` method reads one construct, and the comments and line ends after it. It raises
    NotGinError if the text is something else.
    """

    def __init__(self, tokens: list[tokenize.TokenInfo], lines: list[str]) -> None:
        self._tokens = tokens
        self._lines = lines
        self._index = 0
        self._in_block = False

    @property
    def _token(self) -> tokenize.TokenInfo:
        return self._tokens[self._index]

    def _fail(self) -> NoReturn:
        token = self._token
        raise NotGinError(f"line {token.start[0]}: unexpected {token.string!r}")

    def _advance(self) -> None:
        self._index += 1

    def _skip(self, types: tuple[int, ...] = ()) -> None:
        """Skip tokens of these types; if there are none, those that gin allows in a statement."""
        if not types:
            types = _COMMENTS_AND_BLANKS
            if not self._in_block:
                # Outside a block, gin ignores the indentation of lines.
                types += _INDENTATION
        while self._token.type in types:
            self._advance()

    def _expect(self, expected: int | str) -> None:
        """Read a token of this text or type."""
        actual = self._token.string if isinstance(expected, str) else self._token.type
        if actual != expected:
            self._fail()
        self._advance()

    def parse_statements(self) -> Iterator[Binding | Import | Include]:
        """Yield the statements up to the end of the text."""
        self._skip()
        while self._token.type != tokenize.ENDMARKER:
            yield from self._parse_statement()
            if self._token.type not in (tokenize.NEWLINE, tokenize.DEDENT, tokenize.ENDMARKER):
                self._fail()
            if self._token.type != tokenize.ENDMARKER:
                self._advance()
            self._skip()

    def _parse_statement(self) -> Iterator[Binding | Import | Include]:
        line = self._token.start[0]
        key = self._parse_selector()
        if self._token.string == "=":
            scope, _, selector = key.rpartition("/")
            selector, _, parameter = selector.rpartition(".")
            if selector:
                yield self._parse_binding(scope, selector, parameter, line)
            else:
                yield self._parse_binding("", key, "", line)
        elif self._token.string == ":":
            scope, _, selector = key.rpartition("/")
            yield from self._parse_block(scope, selector)
        elif key in ("import", "from"):
            yield self._parse_import(is_from=key == "from")
        elif key == "include":
            path = self._parse_simple_value()
            if not isinstance(path, str):
                self._fail()
            yield Include(path, line)
        else:
            self._fail()

    def _parse_binding(self, scope: str, selector: str, parameter: str, line: int) -> Binding:
        self._expect("=")
        first = self._token
        value = self._parse_value()
        # Comments and line ends after the value are already skipped. Go back to its last token.
        last_index = self._index - 1
        while self._tokens[last_index].type not in (*_SIMPLE_VALUES, tokenize.OP):
            last_index -= 1
        text = self._read_source(first.start, self._tokens[last_index].end)
        return Binding(scope, selector, parameter, value, text, line)

    def _read_source(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        """Return the text between two places, each a line (the first is 1) and a column."""
        lines = self._lines[start[0] - 1 : end[0]]
        lines[-1] = lines[-1][: end[1]]
        lines[0] = lines[0][start[1] :]
        return "".join(lines)

    def _parse_block(self, scope: str, selector: str) -> Iterator[Binding]:
        self._expect(":")
        self._skip((tokenize.COMMENT,))
        self._expect(tokenize.NEWLINE)
        self._skip(_COMMENTS_AND_BLANKS)
        self._expect(tokenize.INDENT)
        self._skip(_COMMENTS_AND_BLANKS)
        self._in_block = True
        while self._token.type != tokenize.DEDENT:
            line = self._token.start[0]
            yield self._parse_binding(scope, selector, self._parse_identifier(), line)
            self._expect(tokenize.NEWLINE)
            self._skip()
        self._in_block = False

    def _parse_import(self, *, is_from: bool) -> Import:
        module = self._parse_selector(scoped=False)
        name = module.partition(".")[0]
        if is_from:
            self._expect("import")
            name = self._parse_identifier()
            module = f"{module}.{name}"
        if self._token.string == "as":
            self._advance()
            name = self._parse_identifier()
            return Import(name, module, module, ".".join([*module.split(".")[:-1], name]))
        stands_for = module if is_from else name
        return Import(name, stands_for, module, stands_for)

    def _parse_identifier(self) -> str:
        name = self._token.string
        if not _IDENTIFIER.fullmatch(name):
            self._fail()
        self._advance()
        self._skip()
        return name

    def _parse_selector(self, *, scoped: bool = True, dotted_scope: bool = False) -> str:
        """Read `scope/module.name`, which has no spaces between its parts."""
        if self._token.type != tokenize.NAME:
            self._fail()
        end = self._token.start
        parts: list[str] = []
        while True:
            # Names and separators alternate.
            if len(parts) % 2:
                continues = self._token.string in ("/", ".")
            else:
                continues = self._token.type == tokenize.NAME
            if not continues:
                break
            if self._token.start != end:
                self._fail()
            parts.append(self._token.string)
            end = self._token.end
            self._advance()
        self._skip()
        selector = "".join(parts)
        *scopes, name = selector.split("/")
        scope_pattern = _DOTTED if dotted_scope else _IDENTIFIER
        if (scopes and not scoped) or not _DOTTED.fullmatch(name):
            self._fail()
        if not all(scope_pattern.fullmatch(scope) for scope in scopes):
            self._fail()
        return selector

    def _parse_value(self) -> object:
        if self._token.string in _CLOSING_BRACKETS:
            return self._parse_container()
        if self._token.type in _SIMPLE_VALUES or self._token.string == "-":
            return self._parse_simple_value()
        return self._parse_macro_or_reference()

    def _parse_macro_or_reference(self) -> Macro | Reference:
        prefix = self._token.string
        if prefix not in ("%", "@"):
            self._fail()
        self._advance()
        selector = self._parse_selector(dotted_scope=True)
        if prefix == "%":
            return Macro(selector)
        called = self._token.string == "("
        if called:
            self._advance()
            self._skip()
            self._expect(")")
        self._skip()
        scope, _, name = selector.rpartition("/")
        return Reference(name, called, scope)

    def _parse_simple_value(self) -> object:
        text = ""
        if self._token.string == "-":
            text = "-"
            self._advance()
            self._skip()
            if self._token.string in ("%", "@"):
                # Gin accepts a minus before a macro or a reference, and ignores it.
                return self._parse_macro_or_reference()
        if self._token.type not in _SIMPLE_VALUES:
            self._fail()
        # As in Python, adjacent strings are one string.
        while True:
            is_string = self._token.type == tokenize.STRING
            text += self._token.string
            try:
                value: object = ast.literal_eval(text)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                self._fail()
            self._advance()
            self._skip()
            if not is_string or self._token.type != tokenize.STRING:
                return value

    def _parse_container(self) -> object:
        opening = self._token.string
        closing = _CLOSING_BRACKETS[opening]
        self._advance()
        self._skip()
        items: list[object] = []
        keys: list[Hashable] = []
        has_comma = False
        while self._token.string != closing:
            value = self._parse_value()
            if opening == "{":
                keys.append(self._parse_key(value))
                value = self._parse_value()
            items.append(value)
            if self._token.string == ",":
                has_comma = True
                self._advance()
                self._skip()
            elif self._token.string != closing:
                self._fail()
        self._advance()
        self._skip()
        if opening == "{":
            return dict(zip(keys, items))  # noqa: B905 - Python 3.9 has no strict=
        if opening == "[":
            return items
        return items[0] if len(items) == 1 and not has_comma else tuple(items)

    def _parse_key(self, value: object) -> Hashable:
        """Return a value that is the key of a dict, and read the colon after it."""
        if self._token.string != ":":
            self._fail()
        self._advance()
        self._skip()
        try:
            hash(value)
        except TypeError:
            self._fail()
        return value
