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

    from builder.core.manifest import Manifest


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
        names = _list_tool_locks(loaded, tools=arguments.tools, builder=arguments.builder)
        return _report_changes(locks.write_tool_locks(loaded, names, offline=context.offline))
    lines = arguments.lines or list(loaded.lines)
    _require_lines(loaded, lines)
    if arguments.base:
        return _report_changes(locks.write_base_locks(loaded, lines, offline=context.offline))
    inputs = locks.read_inputs(context, loaded, lines)
    if arguments.check:
        data = locks.check_locks(inputs)
        return Result(data, _describe_check(data), ok=not data["problems"])
    changes, new_paths, held_paths = locks.write_locks(inputs, arguments.upgrade, context.cache)
    return _report_changes(changes, new_paths, held_paths)


def _list_tool_locks(loaded: Manifest, *, tools: bool, builder: bool) -> list[str]:
    """Return the names of the locks that --tools and --builder write."""
    names = []
    if tools:
        names.append("build")
        if loaded.transformer_engine:
            names.append("te-build")
    if builder:
        names += ["builder", "docs"]
    return names


def _require_lines(loaded: Manifest, lines: Sequence[str]) -> None:
    """Raise UserError if the manifest does not have one of the lines."""
    for line in lines:
        if line not in loaded.lines:
            raise UserError(
                f"no line {line!r}",
                "lock",
                f"one of: {', '.join(loaded.lines)}",
                kind=UNKNOWN,
                value=line,
            )


def _report_changes(
    changes: Mapping[str, Sequence[str]],
    new_paths: Collection[str] = (),
    held_paths: Collection[str] = (),
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
    lines += [f"{path}: held, because its packages do not resolve" for path in held_paths]
    held = {"held": list(held_paths)} if held_paths else {}
    return Result({"locks": dict(changes), **held}, "\n".join(lines))


def _describe_check(data: dict[str, Any]) -> str:
    """Return for people the problems and notes of a check, and how many problems there are."""
    problems = data["problems"]
    notes = [f"note: {note}" for note in data["notes"]]
    plural = "" if len(problems) == 1 else "s"
    problem_count = f"{len(problems) or 'no'} problem{plural}"
    summary = f"{len(data['locks'])} locks checked: {problem_count}"
    return "\n".join([*problems, *notes, summary])
