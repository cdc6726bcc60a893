"""The command `lock`: resolve the packages of each line into hashed locks, or check the locks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.core import manifest
from builder.core.command_context import Context, Result
from builder.pipeline import locks
from rosetta.core.errors import UNKNOWN, UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Mapping, Sequence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "lines", nargs="*", metavar="LINE", help="a line of the manifest (default: all)"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="change nothing; list what is out of date, with status 1 if anything is",
    )
    parser.add_argument(
        "--upgrade",
        action="append",
        default=[],
        metavar="NAME",
        help="allow a new version of this project; `all` for every project (may be repeated)",
    )
    parser.add_argument(
        "--tools",
        action="store_true",
        help="lock the tools that build sdists instead: locks/build.txt and te-build.txt",
    )
    parser.add_argument(
        "--builder",
        action="store_true",
        help="lock the builder's own tools instead: locks/builder.txt and docs.txt",
    )
    parser.add_argument(
        "--base",
        action="store_true",
        help="lock today's Debian packages for the bases of these lines instead",
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    loaded = manifest.load(context.manifest_path)
    if arguments.tools or arguments.builder:
        candidates = (
            ("build", arguments.tools),
            ("te-build", arguments.tools and loaded.transformer_engine),
            ("builder", arguments.builder),
            ("docs", arguments.builder),
        )
        names = [name for name, is_chosen in candidates if is_chosen]
        return _report_changes(locks.write_tool_locks(loaded, names, offline=context.offline))
    for line in arguments.lines:
        if line not in loaded.lines:
            raise UserError(
                f"no line {line!r}",
                "lock",
                f"one of: {', '.join(loaded.lines)}",
                kind=UNKNOWN,
                value=line,
            )
    lines = arguments.lines or list(loaded.lines)
    if arguments.base:
        return _report_changes(locks.write_base_locks(loaded, lines, offline=context.offline))
    inputs = locks.read_inputs(context, loaded, lines)
    if arguments.check:
        data = locks.check_locks(inputs)
        return Result(data, _describe_check(data), ok=not data["problems"])
    changes, new_paths = locks.write_locks(inputs, arguments.upgrade, context.cache)
    return _report_changes(changes, new_paths)


def _report_changes(
    changes: Mapping[str, Sequence[str]], new_paths: Collection[str] = ()
) -> Result:
    """List the changes of each lock; for a new lock, only how many packages it has."""
    lines = []
    for path, change in changes.items():
        if path in new_paths:
            lines.append(f"{path}: new, {len(change)} packages")
        elif change:
            lines += [f"{path}: {len(change)} changes", *(f"  {line}" for line in change)]
        else:
            lines.append(f"{path}: unchanged")
    return Result({"locks": dict(changes)}, "\n".join(lines))


def _describe_check(data: dict[str, Any]) -> str:
    problems = data["problems"]
    notes = [f"note: {note}" for note in data["notes"]]
    problem_count = f"{len(problems) or 'no'} problem{'s' * (len(problems) != 1)}"
    summary = f"{len(data['locks'])} locks checked: {problem_count}"
    return "\n".join([*problems, *notes, summary])
