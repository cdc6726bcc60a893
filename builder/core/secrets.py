"""Keep secrets out of everything that the builder prints or stores.

`rosetta.core.secrets` recognizes secrets. This module adds the logins of registries, and checks
that no secret is among the words of a command line.
"""

from __future__ import annotations

import base64
import re
import urllib.parse
from typing import TYPE_CHECKING, Any

from rosetta.core import secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def redact(text: str) -> str:
    """Replace credentials in URLs, values of secret variables, and private keys in a text."""
    return secrets.redact_text(text, strict=True)


def redact_document(value: Any) -> Any:
    """Return a JSON document in which every text is redacted."""
    return secrets.redact_document(value, redact, keys=True)


def remember(arguments: Iterable[str], environment: Mapping[str, str]) -> None:
    """Hide the secrets among these arguments and variables from now on, and no others."""
    secrets.forget_secrets()
    secrets.remember_secrets(arguments, environment, strict=True)


def remember_login(user: str, password: str, token: str = "") -> None:
    """Hide a login from now on, also as USER:PASSWORD, in base64, and URL-encoded."""
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
                secrets.remember_secret(form)


def find_exposed(words: Sequence[str]) -> str:
    """Describe the first secret among the words of a command line; empty if there is none.

    Every user of the machine can read command lines, so no option of the builder takes a secret.
    """
    option = "the command line"
    if secrets.holds_private_key(" ".join(words)):
        return "the text of a private key"
    for word in words:
        name, equals, _ = word.partition("=")
        option = name if re.fullmatch(r"--[a-z-]+", name) else option
        if secret := secrets.describe_secret_form(word):
            return f"{secret}, at {option}"
        option = option if name == option and not equals else "the command line"
    return ""
