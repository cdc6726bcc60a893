"""Lists that a registry gives page by page."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import INVALID, TOO_BIG, UserError

if TYPE_CHECKING:
    from collections.abc import Collection

    from builder.images.registry.transport import Connection

_PAGES = 1000


def rows(
    connection: Connection, path: str, key: str, *, absent: Collection[int], kind: str = ""
) -> list[Any] | None:
    """Return what all pages of the list at `path` have under `key`; None where the registry answers
    one of `absent`, or with `kind` with another media type.
    """
    found: list[Any] = []
    address = connection.url(path)
    for _ in range(_PAGES):

        def ask(address: str = address) -> tuple[bytes | None, str]:
            answer = connection.request(
                "GET",
                address,
                (200, *absent),
                headers={"Accept": kind} if kind else None,
                follow=True,
                stream=True,
            )
            came = answer.headers.get("Content-Type", "").partition(";")[0].strip()
            if answer.status_code != 200 or (kind and came != kind):
                answer.close()
                return None, ""
            link = re.match(r'\s*<([^>]+)>\s*;\s*rel="?next', answer.headers.get("Link", ""))
            return connection.read_document(answer), connection.resolve_location(
                link[1], address
            ) if link else ""

        raw, address = connection.retry(f"reading its list of {key}", ask)
        if raw is None:
            return None
        found += read(connection, raw, key)
        if not address:
            return found
    raise UserError(
        f"its list of {key} does not end",
        str(connection.reference),
        "its administrator can mend that",
        kind=TOO_BIG,
    )


def read(connection: Connection, raw: bytes, key: str) -> list[Any]:
    """Return the list that a document has under `key`; UserError where it has none."""
    try:
        return list(json.loads(raw)[key] or [])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"its list of {key} is none",
            str(connection.reference),
            "check the name and the proxy settings",
            kind=INVALID,
            value=key,
        ) from error
