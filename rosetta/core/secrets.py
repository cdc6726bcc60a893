"""Keep secrets out of what leaves a process: the terminal, log files and documents.

A secret is known by its form (the user and password of an address, a signature in its query,
NAME_TOKEN=VALUE), or by its value: `remember` takes the secrets of the command line and the
environment, which are then hidden wherever they stand, also cut out of their address. Only the
standard library is used, and Python 3.9 runs it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import urllib.parse
from typing import TYPE_CHECKING, Any

from rosetta.core.printable_text import escape, escape_surrogates

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

HIDDEN = "..."
_NAMES = r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|SIGNATURE|CREDENTIAL"
_SECRET_NAME = re.compile(rf"(.*[_-])?({_NAMES})", re.IGNORECASE)
# USER:PASSWORD@ or TOKEN@ of an address. A path object has made one slash of two. The password may
# hold a slash; a port and a path are not one.
_ADDRESS = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://|https?:/)(?P<secret>[^\s/'\"@:]*:(?!\d+/)[^\s'\"]*|[^\s/'\"]+)@(?!sha256:)"
)
_SETTING = re.compile(
    rf"(?P<name>\b(?:[A-Za-z0-9]+[_-])+(?:{_NAMES})|\b(?:TOKEN|SECRET|PASSWORD|PASSWD|SIGNATURE)|[?&](?:SIG|KEY))=(?P<secret>[^\s&'\"]+)",
    re.IGNORECASE,
)
# Characters of a value that is hidden wherever it stands: a shorter one is part of other words.
_SHORTEST = 4
_SHORTEST_VARIABLE = 8  # the same of a variable that is secret by its name: "true" is not a secret
_values: set[str] = set()


def hide_forms(text: str) -> str:
    """Return a text without what is a secret by its form."""
    text = _ADDRESS.sub(rf"\g<scheme>{HIDDEN}@", text)
    return _SETTING.sub(rf"\g<name>={HIDDEN}", text)


def redact(text: str) -> str:
    """Return a text without secrets, those that were remembered among them."""
    for value in sorted(_values, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return hide_forms(text)


def remember(arguments: Iterable[str], environment: Mapping[str, str]) -> None:
    """Hide from now on the secrets among these arguments and variables, too."""
    for name, value in environment.items():
        if _SECRET_NAME.fullmatch(name) and len(value) >= _SHORTEST_VARIABLE:
            _values.add(value)
        _remember_forms(value)
    for argument in arguments:
        _remember_forms(argument)


def _remember_forms(text: str) -> None:
    for match in (*_ADDRESS.finditer(text), *_SETTING.finditer(text)):
        secret = match["secret"]
        password = secret.partition(":")[2] or secret
        for value in (secret, password, urllib.parse.unquote(password)):
            if len(value) >= _SHORTEST:
                _values.add(value)


class RedactedStream:
    """A text stream that hides secrets in what is written to it, and is the stream below in all
    else.
    """

    def __init__(self, stream: Any, *, escaped: bool = False) -> None:
        """Wrap a stream; `escaped`: show escapes of what would control a terminal, and of what is
        not UTF-8.
        """
        self._stream = stream
        self._escaped = escaped

    def write(self, text: str) -> int:
        """Write a text without its secrets; return how many characters of it were taken."""
        shown = redact(text)
        if self._escaped:  # a pipe or a file gets what is written as it is, as far as it can
            shown = escape(shown) if self._stream.isatty() else escape_surrogates(shown)
        self._stream.write(shown)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of the lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def install() -> None:
    """Hide secrets in all that this process prints from now on."""
    remember(sys.argv[1:], os.environ)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, RedactedStream):
            setattr(sys, name, RedactedStream(stream))


@contextlib.contextmanager
def redacted_output(arguments: Iterable[str]) -> Iterator[None]:
    """Hide secrets in what is printed in this context, where `arguments` is the command line."""
    streams = sys.stdout, sys.stderr
    remembered = set(_values)
    remember(arguments, os.environ)
    sys.stdout, sys.stderr = (RedactedStream(stream, escaped=True) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        _values.clear()
        _values.update(remembered)
