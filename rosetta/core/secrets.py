"""Keep secrets out of what leaves a process: the terminal, log files and documents.

A secret is known by its form (the user and password of an address, a signature in its query,
NAME_TOKEN=VALUE, a private key), or by its value: `remember` takes the secrets of the command line
and the environment, which are then hidden wherever they stand, also cut out of their address or
quoted in another way. Both programs use this module. Only the standard library is used, and Python
3.9 runs it.

`strict` hides more, for a program in whose own texts these forms have no other meaning: the
USER:PASSWORD@ of an address without a scheme, and KEY=VALUE. The data of a run is named by
hf:NAME@REVISION, and its settings are written NAME=VALUE.
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
    from collections.abc import Callable, Iterable, Iterator, Mapping

HIDDEN = "..."
_NAMES = r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|SIGNATURE|CREDENTIAL"
_SECRET_NAME = re.compile(rf"(.*[_-])?({_NAMES})", re.IGNORECASE)
# USER:PASSWORD@ or TOKEN@ of an address. A path object has made one slash of two. The password may
# hold a slash; a port and a path are not one. What follows must not be a digest or a commit.
_ADDRESS = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://|https?:/)"
    r"(?P<secret>[^\s/'\"@:]*:(?!\d+/)[^\s'\"]*|[^\s/'\"]+)@(?!sha256:|[0-9a-f]{40}\b)"
)
_SETTING = re.compile(
    rf"(?P<name>\b(?:[A-Za-z0-9]+[_-])+(?:{_NAMES})"
    r"|\b(?:TOKEN|SECRET|PASSWORD|PASSWD|SIGNATURE|CREDENTIAL)|[?&](?:SIG|KEY))"
    r"=(?P<secret>[^\s&'\"]+)",
    re.IGNORECASE,
)
_KEY_SETTING = re.compile(r"(?P<name>\bKEY)=(?P<secret>[^\s&'\"]+)", re.IGNORECASE)
_HEADER = re.compile(r"(?P<name>\bauthorization: *(?:basic|bearer)) +[^\s'\"]+", re.IGNORECASE)
_KEY_TEXT = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_KEY_BODY = re.compile(r"\bM(?:I[A-P]|H[a-f])[A-Za-z0-9+/]{40,}={0,2}")
_KIND = re.compile(
    r"[^A-Za-z0-9]*(?:--?[\w-]+=)?(?:(?:registry|image|oci|bundle|env|pkg):)*"
)  # what stands before a name
_WORD_WITH_AT = re.compile(r"[^\s'\"<>]*@[^\s'\"<>]*")
_NOT_CREDENTIALS = re.compile(r"@(?=sha256:|[0-9a-f]{40}\b)")  # a digest or a commit follows
# Characters of a value that is hidden wherever it stands: a shorter one is part of other words.
_SHORTEST = 4
# The same for a variable that is secret by its name, in all that a process prints: "true" is not a
# secret, and other lines have that word. A Mask, which is for a few words, hides from _SHORTEST on.
_SHORTEST_VARIABLE = 8
_SETTING_WORD = re.compile(r"(--?)?([A-Za-z][A-Za-z0-9_.-]*)=(.*)", re.DOTALL)
_values: set[str] = set()


def is_secret_name(name: str) -> bool:
    """Return whether a variable is secret by its name: *_TOKEN, *_KEY, *_SECRET, *_PASSWORD, ..."""
    return bool(_SECRET_NAME.fullmatch(name))


def is_secret(name: str, value: str = "") -> bool:
    """Return whether a variable is a secret: by its name, or by the form of its value."""
    return is_secret_name(name) or hide_forms(value) != value


def hide_forms(text: str, *, strict: bool = False) -> str:
    """Return a text without what is a secret by its form."""
    text = _KEY_TEXT.sub(f"{HIDDEN} (a private key)", text)
    text = _KEY_BODY.sub(HIDDEN, text)
    text = _HEADER.sub(rf"\g<name> {HIDDEN}", text)
    if strict:
        text = _WORD_WITH_AT.sub(lambda word: _hide_login(word[0]), text)
        text = _KEY_SETTING.sub(rf"\g<name>={HIDDEN}", text)
    text = _ADDRESS.sub(rf"\g<scheme>{HIDDEN}@", text)
    return _SETTING.sub(rf"\g<name>={HIDDEN}", text)


def redact_text(text: str, *, strict: bool = False) -> str:
    """Return a text without secrets, those that were remembered among them."""
    text = _KEY_TEXT.sub(f"{HIDDEN} (a private key)", text)
    return hide_forms(_hide_values(text, _values), strict=strict)


def redact_document(document: Any, hide: Callable[[str], str], *, keys: bool = False) -> Any:
    """Return a JSON document whose texts a function such as `redact` has changed.

    Args:
      document: What json.dumps takes.
      hide: Returns a text without its secrets.
      keys: Whether keys may hold secrets, too, as where they are names that a user chose.
    """
    if isinstance(document, str):
        return hide(document)
    if isinstance(document, dict):
        return {
            hide(key) if keys and isinstance(key, str) else key: redact_document(
                value, hide, keys=keys
            )
            for key, value in document.items()
        }
    if isinstance(document, (list, tuple)):
        return [redact_document(item, hide, keys=keys) for item in document]
    return document


class Mask:
    """Hides the secrets of one environment: in words, in variables and in documents.

    `redact` hides those of this process. A Mask is for what another process gets.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Make a mask for the secret variables of an environment."""
        self._values = {
            value
            for name, value in environment.items()
            if len(value) >= _SHORTEST and is_secret_name(name)
        }

    def mask_text(self, text: str) -> str:
        """Return an argument or a line without its secrets, also NAME=VALUE and --name=VALUE."""
        text = _hide_values(text, self._values)
        setting = _SETTING_WORD.fullmatch(text)
        if setting and is_secret_name(setting[2]):
            return f"{setting[1] or ''}{setting[2]}={HIDDEN}"
        return hide_forms(text)

    def mask_variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return variables without the values that are secret."""
        return {
            name: HIDDEN if is_secret_name(name) else self.mask_text(value)
            for name, value in environment.items()
        }

    def mask_document(self, document: Any) -> Any:
        """Return a JSON document without secrets."""
        return redact_document(document, self.mask_text)


def _hide_values(text: str, values: Iterable[str]) -> str:
    """Return a text without these values; of two that begin alike the longer one goes first."""
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


def remember_secrets(
    arguments: Iterable[str], environment: Mapping[str, str], *, strict: bool = False
) -> None:
    """Hide from now on the secrets among these arguments and variables, too."""
    for name, value in environment.items():
        if is_secret_name(name) and len(value) >= _SHORTEST_VARIABLE:
            remember_secret(value)
        _remember_forms(value, strict=strict)
    words = list(arguments)
    for word in words:
        _remember_forms(word, strict=strict)
    # The text of a key without quotes around it arrives as many words.
    if any("-----BEGIN" in word for word in words):
        _remember_key(" ".join(words))


def remember_secret(value: str) -> None:
    """Hide from now on a value, unless it is so short that it is part of other words."""
    if len(value) >= _SHORTEST:
        _values.update({value, repr(value)[1:-1]})


def forget_secrets() -> None:
    """Forget all values that were remembered."""
    _values.clear()


def holds_private_key(text: str) -> bool:
    """Return whether a text holds the frame of a private key."""
    return bool(_KEY_TEXT.search(text))


def describe_secret_form(word: str) -> str:
    """Name the secret that a word of a command line holds by its form; empty where it has none."""
    if _KEY_BODY.search(word):
        return "the text of a key"
    return "an address with a password" if _find_login(word) else ""


def _remember_forms(text: str, *, strict: bool) -> None:
    if "-----BEGIN" in text and "PRIVATE KEY" in text:
        _remember_key(text)
    for match in (*_ADDRESS.finditer(text), *_SETTING.finditer(text)):
        _remember_login(match["secret"])
    login = _find_login(text) if strict else ""
    if login:
        _remember_login(login)
        # Quoting may change what stands between the pieces.
        for piece in re.split(r"[\s'\"\\]+", login.partition(":")[2] or login):
            remember_secret(piece)


def _remember_login(login: str) -> None:
    password = login.partition(":")[2] or login
    for value in (login, password, urllib.parse.unquote(password)):
        remember_secret(value)


def _remember_key(text: str) -> None:
    for line in re.findall(r"[A-Za-z0-9+/=]{16,}", text):
        remember_secret(line)


def _find_login(text: str) -> str:
    """Return USER:PASSWORD of the address that a text is, or the token of a web address; empty
    where it has none. Unlike in a longer text, a password may hold spaces and quotes.
    """
    before, at = _split_login(text)
    start = before.find("://")
    if start >= 0:
        secret = before[start + 3 :]
        if before[:start].endswith(("http", "https")) and re.fullmatch(r"[^\s/:]+", secret):
            return secret  # a token in the place of the user
    else:
        secret = _KIND.sub("", before, count=1)
    return secret if at and re.match(r"[^\s/:]+:.", secret, re.DOTALL) else ""


def _split_login(text: str) -> tuple[str, str]:
    """Return what stands before the `@` that ends the credentials of an address, and that `@`;
    nothing where there is none.
    """
    for place in reversed([match.start() for match in re.finditer("@", text)]):
        if not _NOT_CREDENTIALS.match(text, place):
            return text[:place], "@"
    return "", ""


def _hide_login(word: str) -> str:
    before, at = _split_login(word)
    start = before.find("://")
    if not at or (start < 0 and ":" not in _KIND.sub("", before, count=1)):
        return word
    return (before[: start + 3] if start >= 0 else "") + HIDDEN + word[len(before) :]


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
        shown = redact_text(text)
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


def redact_standard_streams() -> None:
    """Hide secrets in all that this process prints from now on."""
    remember_secrets(sys.argv[1:], os.environ)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, RedactedStream):
            setattr(sys, name, RedactedStream(stream))


@contextlib.contextmanager
def redacted_output(arguments: Iterable[str]) -> Iterator[None]:
    """Hide secrets in what is printed in this context, where `arguments` is the command line."""
    streams = sys.stdout, sys.stderr
    remembered = set(_values)
    remember_secrets(arguments, os.environ)
    sys.stdout, sys.stderr = (RedactedStream(stream, escaped=True) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        _values.clear()
        _values.update(remembered)
