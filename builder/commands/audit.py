"""`build.py audit`: list the known vulnerabilities of the locked packages, as OSV has them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import manifest
from builder.core.command_context import Context, Result
from builder.release.audit import lock_audit, osv
from builder.release.counted_nouns import format_count
from rosetta.core.errors import CONFLICT, MISSING, UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "locks",
        metavar="LOCK",
        nargs="*",
        help="a lock file (default: all locks of Python packages)",
    )
    parser.add_argument(
        "--service",
        metavar="URL",
        default=osv.SERVICE,
        help=f"the service to ask, with the API of OSV (default: {osv.SERVICE})",
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    service = osv.parse_service(arguments.service)
    if context.offline:
        raise UserError(
            "cannot be asked with --offline", "audit", "leave --offline out", kind=CONFLICT
        )
    files = _choose_locks(context, arguments.locks)
    today = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d")
    locks = lock_audit.audit_locks(osv.OsvClient(service), files)
    data = {"date": today, "service": service, "locks": locks}
    return Result(data, _format_audit(data))


def _choose_locks(context: Context, names: Sequence[str]) -> list[Path]:
    """Return the given locks, or all locks of Python packages beside the manifest."""
    if names:
        files = [Path(name).absolute() for name in names]
        if len({file.name for file in files}) < len(files):
            raise UserError(
                "two files have the same name", "audit", "audit them one by one", kind=CONFLICT
            )
        return files
    folder = manifest.load(context.manifest_path).root / "locks"
    files = [*sorted(folder.glob("*.txt")), *sorted(folder.glob("projects/*.txt"))]
    if not files:
        raise UserError("has no locks", str(folder), "make them: build.py lock", kind=MISSING)
    return files


def _format_audit(data: Mapping[str, Any]) -> str:
    lines = []
    for name, lock in data["locks"].items():
        count = format_count(
            len(lock["vulnerabilities"]), "known vulnerability", "known vulnerabilities"
        )
        lines.append(f"{name}: {count} in {format_count(lock['packages'], 'package', 'packages')}")
        lines += [f"  {_format_vulnerability(entry)}" for entry in lock["vulnerabilities"]]
    lines.append(f"as {data['service']} lists them on {data['date']}")
    return "\n".join(lines)


def _format_vulnerability(entry: Mapping[str, Any]) -> str:
    names = ", ".join([entry["id"], *entry["aliases"]])
    fixed = f"fixed in {', '.join(entry['fixed'])}" if entry["fixed"] else "no fix is listed"
    summary = f": {entry['summary']}" if entry["summary"] else ""
    return f"{entry['package']} {entry['version']}: {names}; {fixed}{summary}"
