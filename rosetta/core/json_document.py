"""Format the JSON document that every command of both programs prints for --json.

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
      ok: Whether the command succeeded and found no problem.
      result: The result of the command.
      error: What UserError.as_json returns, if the command failed.
      only_ascii: Whether other characters are written as escapes. Text from other sources can then
        be shown on any terminal.
    """
    document = {"schema": SCHEMA, "command": command, "ok": ok, "result": result, "error": error}
    text = json.dumps(document, indent=2, ensure_ascii=only_ascii)
    # The name of a file may have bytes that are not UTF-8. They become escapes.
    return text.encode("utf-8", "backslashreplace").decode()
