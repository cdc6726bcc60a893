"""A parser of gin files and a writer of gin literals, by gin's own grammar (see gin_reader).

Gin is not installed where a run is described or submitted. The test test_gin_comparison compares
this module and gin_reader with gin.
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
_BASIC = (tokenize.NAME, tokenize.NUMBER, tokenize.STRING)
_BETWEEN_ITEMS = (tokenize.COMMENT, tokenize.NL)
_INDENTATION = (tokenize.INDENT, tokenize.DEDENT)
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class NotGinError(ValueError):
    """A text that gin refuses."""


@dataclass(frozen=True)
class Macro:
    """`%NAME`: the value to which NAME is bound after all files are read."""

    name: str


@dataclass(frozen=True)
class Reference:
    """`@scope/name`, or `@scope/name()` if gin calls the configurable.

    Attributes:
      name: the name as written; gin_reader replaces it with the full name.
      called: whether the value is what the configurable returns, and not the configurable itself.
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

    Attributes:
      name: the name that the file can use afterwards.
      module: the module that the name stands for.
      imported: the module that is imported. `import a.b` imports a.b, and its name `a` stands
        for a.
      registered: the name under which gin registers the module; for `from a import b as c` it is
        a.c.
    """

    name: str
    module: str
    imported: str
    registered: str


@dataclass(frozen=True)
class Include:
    """A statement that includes another file, which gin reads at this place."""

    path: str
    line: int


def format_literal(value: object) -> str:
    """Return a gin literal for a string, number, None, boolean, or a dict or tuple of them."""
    if isinstance(value, str):
        # Gin reads Python's escapes, which JSON's are too.
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
      NotGinError: gin refuses the text at this place.
    """
    lines: list[str] = []

    def read_and_keep() -> str:
        lines.append(read_line())
        return lines[-1]

    try:
        tokens = list(tokenize.generate_tokens(read_and_keep))
    except (tokenize.TokenError, SyntaxError) as error:
        raise NotGinError(str(error)) from error
    yield from _Parser(tokens, lines).statements()


class _Parser:
    """A recursive-descent parser over the tokens of a text.

    Each method reads what its name says, and the comments and line ends after it.
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
        raise NotGinError(f"line {self._token.start[0]}: {self._token.string!r}")

    def _next(self) -> None:
        self._index += 1

    def _skip(self, types: tuple[int, ...] = ()) -> None:
        """Skip tokens of these types; by default, those that gin allows inside a statement."""
        if not types:
            types = _BETWEEN_ITEMS if self._in_block else (*_BETWEEN_ITEMS, *_INDENTATION)
        while self._token.type in types:
            self._next()

    def _expect(self, expected: int | str) -> None:
        """Read a token of this text or type."""
        actual = self._token.string if isinstance(expected, str) else self._token.type
        if actual != expected:
            self._fail()
        self._next()

    def statements(self) -> Iterator[Binding | Import | Include]:
        """Yield the statements up to the end of the text."""
        self._skip()
        while self._token.type != tokenize.ENDMARKER:
            yield from self._statement()
            if self._token.type not in (tokenize.NEWLINE, tokenize.DEDENT, tokenize.ENDMARKER):
                self._fail()
            if self._token.type != tokenize.ENDMARKER:
                self._next()
            self._skip()

    def _statement(self) -> Iterator[Binding | Import | Include]:
        line = self._token.start[0]
        key = self._selector()
        if self._token.string == "=":
            scope, _, selector = key.rpartition("/")
            selector, _, parameter = selector.rpartition(".")
            if selector:
                yield self._binding(scope, selector, parameter, line)
            else:
                yield self._binding("", key, "", line)
        elif self._token.string == ":":
            scope, _, selector = key.rpartition("/")
            yield from self._block(scope, selector)
        elif key in ("import", "from"):
            yield self._import(is_from=key == "from")
        elif key == "include":
            path = self._basic()
            if not isinstance(path, str):
                self._fail()
            yield Include(path, line)
        else:
            self._fail()

    def _binding(self, scope: str, selector: str, parameter: str, line: int) -> Binding:
        self._expect("=")
        first = self._token
        value = self._value()
        index = self._index - 1
        while self._tokens[index].type not in _BASIC and self._tokens[index].type != tokenize.OP:
            index -= 1
        text = self._source(first.start, self._tokens[index].end)
        return Binding(scope, selector, parameter, value, text, line)

    def _source(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        """Return the text between two places, each a line (the first is 1) and a column."""
        lines = self._lines[start[0] - 1 : end[0]]
        lines[-1] = lines[-1][: end[1]]
        lines[0] = lines[0][start[1] :]
        return "".join(lines)

    def _block(self, scope: str, selector: str) -> Iterator[Binding]:
        self._expect(":")
        self._skip((tokenize.COMMENT,))
        self._expect(tokenize.NEWLINE)
        self._skip(_BETWEEN_ITEMS)
        self._expect(tokenize.INDENT)
        self._skip(_BETWEEN_ITEMS)
        self._in_block = True
        while self._token.type != tokenize.DEDENT:
            line = self._token.start[0]
            yield self._binding(scope, selector, self._identifier(), line)
            self._expect(tokenize.NEWLINE)
            self._skip()
        self._in_block = False

    def _import(self, *, is_from: bool) -> Import:
        module = self._selector(scoped=False)
        name = module.partition(".")[0]
        if is_from:
            self._expect("import")
            name = self._identifier()
            module = f"{module}.{name}"
        if self._token.string == "as":
            self._next()
            name = self._identifier()
            return Import(name, module, module, ".".join([*module.split(".")[:-1], name]))
        stands_for = module if is_from else name
        return Import(name, stands_for, module, stands_for)

    def _identifier(self) -> str:
        name = self._token.string
        if not _IDENTIFIER.fullmatch(name):
            self._fail()
        self._next()
        self._skip()
        return name

    def _selector(self, *, scoped: bool = True, dotted_scope: bool = False) -> str:
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
            self._next()
        self._skip()
        selector = "".join(parts)
        *scopes, name = selector.split("/")
        scope_pattern = _DOTTED if dotted_scope else _IDENTIFIER
        if (scopes and not scoped) or not _DOTTED.fullmatch(name):
            self._fail()
        if not all(scope_pattern.fullmatch(scope) for scope in scopes):
            self._fail()
        return selector

    def _value(self) -> object:
        if self._token.string in _CLOSING:
            return self._container()
        if self._token.type in _BASIC or self._token.string == "-":
            return self._basic()
        return self._named()

    def _named(self) -> Macro | Reference:
        mark = self._token.string
        if mark not in ("%", "@"):
            self._fail()
        self._next()
        selector = self._selector(dotted_scope=True)
        if mark == "%":
            return Macro(selector)
        called = self._token.string == "("
        if called:
            self._next()
            self._skip()
            self._expect(")")
        self._skip()
        scope, _, name = selector.rpartition("/")
        return Reference(name, called, scope)

    def _basic(self) -> object:
        text = ""
        if self._token.string == "-":
            text = "-"
            self._next()
            self._skip()
            if self._token.string in ("%", "@"):
                return self._named()  # gin ignores the sign
        if self._token.type not in _BASIC:
            self._fail()
        while True:
            is_string = self._token.type == tokenize.STRING
            text += self._token.string
            try:
                value: object = ast.literal_eval(text)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                self._fail()
            self._next()
            self._skip()
            if not is_string or self._token.type != tokenize.STRING:
                return value

    def _container(self) -> object:
        opening = self._token.string
        closing = _CLOSING[opening]
        self._next()
        self._skip()
        items: list[object] = []
        keys: list[Hashable] = []
        has_comma = False
        while self._token.string != closing:
            value = self._value()
            if opening == "{":
                keys.append(self._key(value))
                value = self._value()
            items.append(value)
            if self._token.string == ",":
                has_comma = True
                self._next()
                self._skip()
            elif self._token.string != closing:
                self._fail()
        self._next()
        self._skip()
        if opening == "{":
            return dict(zip(keys, items))  # noqa: B905 (Python 3.9)
        if opening == "[":
            return items
        return items[0] if len(items) == 1 and not has_comma else tuple(items)

    def _key(self, value: object) -> Hashable:
        """Return a value that is the key of a dict, and read the colon after it."""
        if self._token.string != ":":
            self._fail()
        self._next()
        self._skip()
        try:
            hash(value)
        except TypeError:
            self._fail()
        return value
