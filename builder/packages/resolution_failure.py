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
    """Return what is wrong, what to do and the kind of error.

    None where uv did not look for a solution in vain.

    Args:
        stderr: What `uv pip compile` printed.
    """
    if "No solution found" not in stderr:
        return None
    if refused := uv.explain_refusal(stderr):
        return refused
    plain = re.sub(r"[{][^}]*[}]", "", stderr)  # the environments that each requirement is bound to
    before, _, hints = plain.partition("hint:")
    cause = " ".join(before.partition("cause:")[2].split())
    reason = _shorten(output_end(cause, longest=max(len(cause) * 10, _LONGEST)))
    if hints.strip():
        reason += f" hint: {_shorten(' '.join(output_end(hints, longest=len(hints) * 10).split()))}"
    if sources := sorted(set(re.findall(r"Wheels are required for `([^`]+)`", plain))):
        names = ", ".join(sources)
        do = (
            f"list {names} under `sdists:` in the manifest (pure Python only), pin another "
            "version, "
            "or drop it by an override"
        )
        return f"{names} has no usable wheel, only an sdist: {reason}", do, UNSUPPORTED
    for kind, pattern in _ABSENT:
        if absent := re.search(pattern, cause):
            do = (
                "correct the name or the version where it is asked for (a locks/*.in or an "
                "override), "
                "or check the index settings"
            )
            return f"the package index has no {kind} '{absent[1]}': {reason}", do, MISSING
    do = "change a locks/*.in, an override, or the line's Pythons in the manifest"
    return f"its requirements contradict each other: {reason}", do, CONFLICT


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
