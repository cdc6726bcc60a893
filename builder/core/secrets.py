"""Keep secrets out of everything that is printed or stored.

A secret is known by its form (credentials in an address, NAME_TOKEN=..., a private key) or by its
value: `remember` takes the secrets of the command line and the environment, and they are hidden
wherever they stand, also cut out of their address or quoted in another way.
"""

from __future__ import annotations

import base64
import re
import urllib.parse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HIDDEN = "***"
_NAMES = r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|SIGNATURE|CREDENTIAL"
_SECRET_NAME = re.compile(rf"(?i)(?:.*[_-])?(?:{_NAMES})")
_SETTING = re.compile(rf"(?i)\b((?:[A-Z0-9_]+[_-])?(?:{_NAMES}))=([^\s&'\"]+)")
_HEADER = re.compile(r"(?i)\b(authorization: *(?:basic|bearer)) +\S+")
_KEY_TEXT = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_KEY_BODY = re.compile(r"\bM(?:I[A-P]|H[a-f])[A-Za-z0-9+/]{40,}={0,2}")
_KIND = re.compile(
    r"[^A-Za-z0-9]*(?:--?[\w-]+=)?(?:(?:registry|image|oci|bundle|env|pkg):)*"
)  # what stands before a name
_TOKEN = re.compile(r"[^\s'\"<>]*@[^\s'\"<>]*")
_NOT_CREDENTIALS = re.compile(r"@(?=sha256:|[0-9a-f]{40}\b)")  # a digest or a commit follows
# Characters of a value that is hidden wherever it stands: a shorter one is part of other words.
_SHORTEST = 4
_SHORTEST_VARIABLE = 8  # the same of a variable that is secret by its name: "true" is not a secret
_values: set[str] = set()


def redact(text: str) -> str:
    """Return `text` without credentials of addresses, values of secret variables, and private
    keys.
    """
    text = _KEY_TEXT.sub(f"{HIDDEN} (a private key)", text)
    text = _KEY_BODY.sub(HIDDEN, text)
    for value in sorted(_values, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    text = _HEADER.sub(rf"\1 {HIDDEN}", text)
    return _SETTING.sub(
        rf"\1={HIDDEN}", _TOKEN.sub(lambda token: _hide_credentials(token[0]), text)
    )


def redact_document(value: Any) -> Any:
    """Return a JSON document with all of its texts redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {
            redact(name) if isinstance(name, str) else name: redact_document(item)
            for name, item in value.items()
        }
    return [redact_document(item) for item in value] if isinstance(value, (list, tuple)) else value


def remember(arguments: Iterable[str], environment: Mapping[str, str]) -> None:
    """Hide from now on the secrets among these arguments and variables, and no others."""
    _values.clear()
    for name, value in environment.items():
        if _SECRET_NAME.fullmatch(name) and len(value) >= _SHORTEST_VARIABLE:
            _remember_value(value)
        _remember_text(value)
    words = list(arguments)
    for word in words:
        _remember_text(word)
    if any(
        "-----BEGIN" in word for word in words
    ):  # key text without quotes around it arrives as many words
        _remember_key(" ".join(words))


def remember_login(user: str, password: str, token: str = "") -> None:
    """Hide from now on a login, and what is sent of it: USER:PASSWORD, its base64 form, and a
    token.
    """
    pair = f"{user}:{password}" if user and password else ""
    for secret in (password, pair, token):
        data = secret.encode()
        forms = (base64.b64encode(data), base64.urlsafe_b64encode(data))
        for text in (secret, *(form.decode().rstrip("=") for form in forms)):
            for form in (
                text,
                urllib.parse.quote(text),
                urllib.parse.quote(text, safe=""),
                urllib.parse.quote_plus(text),
            ):
                _remember_value(form)


def find_exposed(words: Sequence[str]) -> str:
    """Say which secret stands among the words of a command line; empty where none does.

    Everyone on the machine can read them there, so no option of the builder takes one.
    """
    option = "the command line"
    if _KEY_TEXT.search(" ".join(words)):
        return "the text of a private key"
    for word in words:
        name, equals, _ = word.partition("=")
        option = name if re.fullmatch(r"--[a-z-]+", name) else option
        if _KEY_BODY.search(word):
            return f"the text of a key, at {option}"
        if _find_credentials(word):
            return f"an address with a password, at {option}"
        option = option if name == option and not equals else "the command line"
    return ""


def _remember_text(text: str) -> None:
    if "-----BEGIN" in text and "PRIVATE KEY" in text:
        _remember_key(text)
    credentials = _find_credentials(text)
    password = credentials.partition(":")[2] or credentials
    pieces = re.split(r"[\s'\"\\]+", password)  # quoting may change what stands between them
    for secret in (credentials, password, urllib.parse.unquote(password), *pieces):
        _remember_value(secret)


def _remember_key(text: str) -> None:
    for line in re.findall(r"[A-Za-z0-9+/=]{16,}", text):
        _remember_value(line)


def _remember_value(value: str) -> None:
    if len(value) >= _SHORTEST:
        _values.update({value, repr(value)[1:-1]})


def _find_credentials(text: str) -> str:
    """Return USER:PASSWORD of the address in a text, or the token of a web address; empty where it
    has none.
    """
    before, at = _split_credentials(text)
    start = before.find("://")
    if start >= 0:
        secret = before[start + 3 :]
        if before[:start].endswith(("http", "https")) and re.fullmatch(r"[^\s/:]+", secret):
            return secret  # a token in the place of the user
    else:
        secret = _KIND.sub("", before, count=1)
    return secret if at and re.match(r"[^\s/:]+:.", secret, re.DOTALL) else ""


def _split_credentials(text: str) -> tuple[str, str]:
    """Return what stands before the `@` that ends the credentials of an address, and that `@`;
    nothing where there is none.
    """
    for place in reversed([match.start() for match in re.finditer("@", text)]):
        if not _NOT_CREDENTIALS.match(text, place):
            return text[:place], "@"
    return "", ""


def _hide_credentials(token: str) -> str:
    before, at = _split_credentials(token)
    start = before.find("://")
    if not at or (start < 0 and ":" not in _KIND.sub("", before, count=1)):
        return token
    return (before[: start + 3] if start >= 0 else "") + HIDDEN + token[len(before) :]
