"""Format the results of an acceptance as a table for the terminal."""

from __future__ import annotations

from typing import Any

from rosetta.core import acceptance


def format_results(document: dict[str, Any], path: str) -> str:
    """Return the results as text: the machine, the rows, their numbers and their failed checks.

    Args:
        document: The document of the file of results.
        path: The file of results.
    """
    machine = document["machine"]
    versions = f"JAX {machine['jax']}, jaxlib {machine['jaxlib']}, Python {machine['python']}"
    lines = [f"{machine['devices']} x {machine['gpu']}, {versions}"]
    for row in document["rows"]:
        lines += _format_row(row)
    lines += [f"{name:<10} not measured" for name in document["missing"]]
    if document["autotune_results"]:
        lines.append(f"autotuning {document['autotune_results']}")
    lines.append(f"results    {path}")
    return "\n".join(lines)


def _format_row(row: dict[str, Any]) -> list[str]:
    """Return the lines of a row."""
    checks = [check for case in row["cases"] for check in case["checks"]]
    failed = sum(not check["ok"] for check in checks)
    verdict = f"{len(checks)} checks" if not failed else f"{failed} of {len(checks)} checks FAILED"
    reason = f", {row['reason']}" if row["reason"] else ""
    lines = [f"{row['row']:<10} {row['status']}, {row['seconds']:.0f} s, {verdict}{reason}"]
    for case in row["cases"]:
        lines += _format_case(case)
    return lines


def _format_case(case: dict[str, Any]) -> list[str]:
    """Return the lines of a case."""
    if case["status"] != acceptance.MEASURED:
        return [f"  {case['case']}: {case['status']}, {case['reason']}"]
    lines = [f"  {case['case']}", *map(_format_number, case["numbers"])]
    failed = [check for check in case["checks"] if not check["ok"]]
    lines += [
        f"    FAILED: {check['name']} is {format_value(check['value']).strip()}, and the limit is "
        f"{format_value(check['limit']).strip()}"
        for check in failed
    ]
    return [*lines, *(f"    {note}" for note in case["notes"])]


def _format_number(number: dict[str, Any]) -> str:
    """Return the line of a number."""
    spread = "" if number["spread"] is None else f"  +- {number['spread']:.1%}"
    return f"    {number['name']:<52} {format_value(number['value'])} {number['unit']}{spread}"


def format_value(value: float | str) -> str:
    """Return a number with four digits, right-aligned; a number that is not finite is a text."""
    return f"{value:>10}" if isinstance(value, str) else f"{value:>10,.4g}"
