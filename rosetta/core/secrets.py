"""Keep secrets out of what leaves a process: the terminal, log files and documents.

A secret is recognized in two ways:

- by its form: the user and password of an address, a signature in the query of an address,
  NAME_TOKEN=VALUE, a private key
- by its value: `remember_secrets` takes the secrets of the command line and the environment. Their
  values are then hidden in every text, also without their address or with other quotes.

Both programs use this module. Only the standard library is used, and Python 3.9 runs it.

The option `strict` also hides USER:PASSWORD@ of an address without a scheme, and KEY=VALUE. It is
for the builder. In the texts of rosetta these forms have other meanings: hf:NAME@REVISION is a data
source, and NAME=VALUE a setting.
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
# USER:PASSWORD@ or TOKEN@ of an address. A path object turns "https://" into "https:/". A password
# may have a slash, but a port with a path is not one. What follows must not be a digest or a
# commit.
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
# What may be written before the name of an image or a registry.
_NAME_PREFIX = re.compile(
    r"[^A-Za-z0-9]*(?:--?[\w-]+=)?(?:(?:registry|image|oci|bundle|env|pkg):)*"
)
_WORD_WITH_AT = re.compile(r"[^\s'\"<>]*@[^\s'\"<>]*")
# The "@" before a digest or a commit, which does not end credentials.
_NOT_CREDENTIALS = re.compile(r"@(?=sha256:|[0-9a-f]{40}\b)")
# The fewest characters of a value that is hidden in every text. A shorter value may be part of
# other words.
_SHORTEST = 4
# The same for a variable that is secret because of its name. Its value may be a common word such as
# "true", which must not be hidden in everything that a process prints. A Mask, which is for a few
# texts, hides values of _SHORTEST characters and more.
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
    """Return a text without what has the form of a secret.

    Args:
      text: The text.
      strict: See the module.
    """
    text = _KEY_TEXT.sub(f"{HIDDEN} (a private key)", text)
    text = _KEY_BODY.sub(HIDDEN, text)
    text = _HEADER.sub(rf"\g<name> {HIDDEN}", text)
    if strict:
        text = _WORD_WITH_AT.sub(lambda word: _hide_login(word[0]), text)
        text = _KEY_SETTING.sub(rf"\g<name>={HIDDEN}", text)
    text = _ADDRESS.sub(rf"\g<scheme>{HIDDEN}@", text)
    return _SETTING.sub(rf"\g<name>={HIDDEN}", text)


def redact_text(text: str, *, strict: bool = False) -> str:
    """Return a text without secrets, recognized by their form or remembered.

    Args:
      text: The text.
      strict: See the module.
    """
    text = _KEY_TEXT.sub(f"{HIDDEN} (a private key)", text)
    return hide_forms(_hide_values(text, _values), strict=strict)


def redact_document(document: Any, hide: Callable[[str], str], *, keys: bool = False) -> Any:
    """Return a JSON document without secrets.

    Args:
      document: A document that json.dumps takes.
      hide: A function such as redact_text, which returns a text without its secrets.
      keys: Whether keys may have secrets, too. They may if users choose them.
    """
    if isinstance(document, str):
        return hide(document)
    if isinstance(document, dict):
        redacted = {}
        for key, value in document.items():
            shown_key = hide(key) if keys and isinstance(key, str) else key
            redacted[shown_key] = redact_document(value, hide, keys=keys)
        return redacted
    if isinstance(document, (list, tuple)):
        return [redact_document(item, hide, keys=keys) for item in document]
    return document


class Mask:
    """Hides the secrets of one environment: in texts, in variables and in documents.

    redact_text hides the secrets of this process. A Mask is for the command line and the variables
    of another process.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Make a mask for the secret variables of an environment."""
        self._values = {
            value
            for name, value in environment.items()
            if len(value) >= _SHORTEST and is_secret_name(name)
        }

    def mask_text(self, text: str) -> str:
        """Return an argument or a line without secrets, also NAME=VALUE and --name=VALUE."""
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
    """Return a text without these values."""
    # Longer values first, because a shorter one may be part of a longer one.
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


def remember_secrets(
    arguments: Iterable[str], environment: Mapping[str, str], *, strict: bool = False
) -> None:
    """Hide the secrets among these arguments and variables from now on.

    Args:
      arguments: The arguments of a command.
      environment: The variables.
      strict: See the module.
    """
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
    """Hide a value from now on, unless it is so short that other words may have it."""
    if len(value) >= _SHORTEST:
        _values.update({value, repr(value)[1:-1]})


def forget_secrets() -> None:
    """Forget all remembered values."""
    _values.clear()


def holds_private_key(text: str) -> bool:
    """Return whether a text has the BEGIN line of a private key."""
    return bool(_KEY_TEXT.search(text))


def describe_secret_form(word: str) -> str:
    """Return what a word of a command line has in it, by its form; "" if it has no secret."""
    if _KEY_BODY.search(word):
        return "the text of a key"
    return "an address with a password" if _find_login(word) else ""


def _remember_forms(text: str, *, strict: bool) -> None:
    """Remember what has the form of a secret."""
    if "-----BEGIN" in text and "PRIVATE KEY" in text:
        _remember_key(text)
    for match in (*_ADDRESS.finditer(text), *_SETTING.finditer(text)):
        _remember_login(match["secret"])
    login = _find_login(text) if strict else ""
    if login:
        _remember_login(login)
        # Quoting may change what is between the pieces.
        for piece in re.split(r"[\s'\"\\]+", login.partition(":")[2] or login):
            remember_secret(piece)


def _remember_login(login: str) -> None:
    """Remember USER:PASSWORD, or a token."""
    password = login.partition(":")[2] or login
    for value in (login, password, urllib.parse.unquote(password)):
        remember_secret(value)


def _remember_key(text: str) -> None:
    """Remember the lines of a private key."""
    for line in re.findall(r"[A-Za-z0-9+/=]{16,}", text):
        remember_secret(line)


def _find_login(text: str) -> str:
    """Return USER:PASSWORD of an address, or the token of a web address; "" if it has none.

    Args:
      text: The address. Because it is not part of a longer text, the password may have spaces and
        quotes.
    """
    before, separator = _split_login(text)
    start = before.find("://")
    if start >= 0:
        secret = before[start + 3 :]
        if before[:start].endswith(("http", "https")) and re.fullmatch(r"[^\s/:]+", secret):
            return secret  # a token instead of a user
    else:
        secret = _NAME_PREFIX.sub("", before, count=1)
    return secret if separator and re.match(r"[^\s/:]+:.", secret, re.DOTALL) else ""


def _split_login(text: str) -> tuple[str, str]:
    """Return the text before the "@" that ends the credentials of an address, and that "@".

    Both are "" if the address has no credentials.
    """
    positions = [match.start() for match in re.finditer("@", text)]
    for position in reversed(positions):
        if not _NOT_CREDENTIALS.match(text, position):
            return text[:position], "@"
    return "", ""


def _hide_login(word: str) -> str:
    """Return a word without the credentials of an address."""
    before, separator = _split_login(word)
    start = before.find("://")
    if not separator or (start < 0 and ":" not in _NAME_PREFIX.sub("", before, count=1)):
        return word
    return (before[: start + 3] if start >= 0 else "") + HIDDEN + word[len(before) :]


class RedactedStream:
    """A text stream that hides secrets in everything that is written to it.

    All other methods are those of the stream that it writes to.
    """

    def __init__(self, stream: Any, *, escaped: bool = False) -> None:
        """Wrap a stream.

        Args:
          stream: The stream to write to.
          escaped: Whether characters that control a terminal, and bytes that are not UTF-8, are
            written as escapes.
        """
        self._stream = stream
        self._escaped = escaped

    def write(self, text: str) -> int:
        """Write a text without its secrets; return the length of the text."""
        shown = redact_text(text)
        if self._escaped:
            # Pipes and files keep control characters, but no stream takes surrogates.
            shown = escape(shown) if self._stream.isatty() else escape_surrogates(shown)
        self._stream.write(shown)
        return len(text)

    def write_control(self, text: str) -> None:
        """Write characters of rosetta's own that control a terminal."""
        getattr(self._stream, "write_control", self._stream.write)(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines without their secrets."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def redact_standard_streams() -> None:
    """Hide secrets in everything that this process prints from now on."""
    remember_secrets(sys.argv[1:], os.environ)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, RedactedStream):
            setattr(sys, name, RedactedStream(stream))


@contextlib.contextmanager
def redacted_output(arguments: Iterable[str]) -> Iterator[None]:
    """Hide secrets in what is printed in this context.

    Args:
      arguments: The arguments of the command, whose secrets are hidden too.
    """
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
