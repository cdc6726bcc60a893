"""Say why uv found no solution: a package is not in the index, has no wheel, or conflicts."""

from __future__ import annotations

import re

from builder.core.subprocesses import output_end
from builder.packages import uv
from rosetta.core.errors import CONFLICT, MISSING, UNSUPPORTED

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*+"
_ABSENT = (
    ("package", rf"({_NAME}) was not found in the package registry"),
    (
        "version",
        rf"there (?:is no version|are no versions) of ({_NAME}(?:\[[^\]]*\])?[=<>!~][^ ]*)",
    ),
    ("package", rf"there are no versions of ({_NAME})"),
)
_LONGEST = 600  # characters of uv's reason, and of its hints, that an error shows


def explain_no_solution(stderr: str) -> tuple[str, str, str] | None:
    """Explain why uv found no solution.

    Args:
        stderr: What `uv pip compile` printed.

    Returns:
        The problem, the remedy and the kind of error; None if uv did not say that there is no
        solution.
    """
    if "No solution found" not in stderr:
        return None
    refusal = uv.explain_refusal(stderr)
    if refusal:
        return refusal
    # uv puts environment markers in braces; the error does not show them.
    plain = re.sub(r"[{][^}]*[}]", "", stderr)
    explanation, _, hints = plain.partition("hint:")
    cause = " ".join(explanation.partition("cause:")[2].split())
    reason = _shorten(output_end(cause, longest=max(len(cause) * 10, _LONGEST)))
    if hints.strip():
        hint = " ".join(output_end(hints, longest=len(hints) * 10).split())
        reason += f" hint: {_shorten(hint)}"
    projects = sorted(set(re.findall(r"Wheels are required for `([^`]+)`", plain)))
    if projects:
        names = ", ".join(projects)
        do = (
            f"list {names} under `sdists:` in the manifest (pure Python only), pin another "
            "version, or exclude the package with an override"
        )
        return f"{names} has no usable wheel, only an sdist: {reason}", do, UNSUPPORTED
    for missing_item, pattern in _ABSENT:
        if absent := re.search(pattern, cause):
            do = (
                "correct the name or the version in a locks/*.in file or an override, or check the "
                "index settings"
            )
            return f"the package index has no {missing_item} '{absent[1]}': {reason}", do, MISSING
    do = "change a locks/*.in file, an override, or the Python versions of the line"
    return f"the requirements contradict each other: {reason}", do, CONFLICT


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
