"""Keep secrets out of everything that is printed or stored."""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(r"(?<=://)[^\s'\"]*@")
_SECRET = re.compile(r"(?i)\b([A-Z0-9_]*(?:TOKEN|KEY|SECRET|PASSWORD))=(\S+)")


def redact(text: str) -> str:
    """`text` without the credentials of its URLs and the values of *_TOKEN, *_KEY, *_SECRET and *_PASSWORD."""
    return _SECRET.sub(r"\1=***", _CREDENTIALS.sub("***@", text))
