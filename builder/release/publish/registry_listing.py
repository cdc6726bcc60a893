"""Read lists that a registry returns in pages."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import INVALID, TOO_BIG, UserError

if TYPE_CHECKING:
    from collections.abc import Collection

    from builder.images.registry.transport import Connection

_MAX_PAGES = 1000
_NEXT_PAGE = re.compile(r'\s*<([^>]+)>\s*;\s*rel="?next')  # in the header Link


def read_list(
    connection: Connection,
    path: str,
    key: str,
    *,
    absent_statuses: Collection[int],
    media_type: str = "",
) -> list[Any] | None:
    """Read all pages of a list.

    Args:
        connection: The connection to a repository.
        path: The path of the list in the registry's API, below the repository.
        key: The key of the list in each page.
        absent_statuses: The HTTP statuses which mean that there is no list.
        media_type: The media type that the registry must return; "" accepts any.

    Returns:
        The entries of all pages, or None if there is no list of this media type.

    Raises:
        UserError: a page is not valid, or the list does not end.
    """
    entries: list[Any] = []
    url = connection.url(path)
    for _ in range(_MAX_PAGES):

        def read_page(url: str = url) -> tuple[bytes | None, str]:
            """Return the document of a page, and the URL of the next one."""
            response = connection.request(
                "GET",
                url,
                (200, *absent_statuses),
                headers={"Accept": media_type} if media_type else None,
                follow=True,
                stream=True,
            )
            actual_type = response.headers.get("Content-Type", "").partition(";")[0].strip()
            if response.status_code != 200 or (media_type and actual_type != media_type):
                response.close()
                return None, ""
            link = _NEXT_PAGE.match(response.headers.get("Link", ""))
            next_url = connection.resolve_location(link[1], url) if link else ""
            return connection.read_document(response), next_url

        page, url = connection.retry(f"reading its list of {key}", read_page)
        if page is None:
            return None
        entries += parse_list(connection, page, key)
        if not url:
            return entries
    raise UserError(
        f"its list of {key} does not end",
        str(connection.reference),
        "ask the administrator of the registry to correct that",
        kind=TOO_BIG,
    )


def parse_list(connection: Connection, document: bytes, key: str) -> list[Any]:
    """Return the list that a JSON document has under a key.

    Raises:
        UserError: the document has no such list.
    """
    try:
        return list(json.loads(document)[key] or [])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"its list of {key} is not valid",
            str(connection.reference),
            "check the name and the proxy settings",
            kind=INVALID,
            value=key,
        ) from error
