"""The JSON document that every command of both programs prints for --json.

Only the standard library is used, and Python 3.9 runs it.
"""

from __future__ import annotations

import json
from typing import Any

SCHEMA = 1


def render_document(
    command: str | None,
    *,
    ok: bool,
    result: Any = None,
    error: Any = None,
    only_ascii: bool = False,
) -> str:
    """Return the text of the document.

    Args:
      command: The command; None or "" if the command line names none.
      ok: Whether everything is fine.
      result: What the command found.
      error: What `UserError.as_json` returns, if the command failed.
      only_ascii: Write other characters as escapes. Text of others may then be shown on any
        terminal.
    """
    document = {"schema": SCHEMA, "command": command, "ok": ok, "result": result, "error": error}
    text = json.dumps(document, indent=2, ensure_ascii=only_ascii)
    # A file's name may hold bytes that are not UTF-8: JSON has them as escapes.
    return text.encode("utf-8", "backslashreplace").decode()
