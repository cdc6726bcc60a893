"""Run this repository's own checks: lint, types, shell scripts, tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from builder.commands import build
from builder.core import log
from builder.core.command_context import Context, Result
from builder.packages import package_installation
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument("--no-lint", action="store_true", help="tests only")
    parser.add_argument("--only-lint", action="store_true", help="no tests")
    parser.add_argument(
        "--inside",
        metavar="env:DIR|lock:NAME",
        default="",
        help=(
            "run TESTs by another Python, with our pytest: that of a baked environment, or one "
            "with the locked packages of a distribution for the CPU, without its sources"
        ),
    )
    parser.add_argument(
        "tests", nargs="*", metavar="TEST", help="files, folders or node ids (default: tests)"
    )


def shell_scripts(root: Path) -> list[str]:
    """Every shell script of the repository, by suffix or by its first line."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
        text=True,
    )
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = root / name
        if path.is_file() and not path.is_symlink():
            with open(path, "rb") as file:
                first = file.readline(80)
            if name.endswith((".sh", ".sub")) or (
                first.startswith(b"#!") and b"sh" in first and b"python" not in first
            ):
                found.append(name)
    return found


def has_import_contracts(root: Path) -> bool:
    """Return whether pyproject.toml holds contracts for lint-imports, which fails without any."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return "importlinter" in settings["tool"]


_INSIDE = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); sys.argv.pop(1); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def _python(context: Context, inside: str) -> list[str]:
    """Return the Python that takes `-m MODULE`: ours, or another that has our packages too."""
    if not inside:
        return [sys.executable]
    kind, _, name = inside.partition(":")
    if kind == "lock":
        wanted = build.plan(context, name, "cpu", context.root / "build").packages
        program = (
            package_installation.environment(context.cache, wanted, offline=context.offline)
            / "bin/python"
        )
    else:
        program = Path(name).absolute() / "bin/python"
        if kind != "env" or not program.is_file():
            raise UserError(
                "is no baked environment", f"--inside {inside}", "give env:DIR, or lock:NAME"
            )
    return [str(program), "-c", _INSIDE, sysconfig.get_path("purelib")]


def _shellcheck(here: Path) -> str:
    """Ours, or on an architecture its publisher has no wheel for, the machine's."""
    found = shutil.which("shellcheck", path=f"{here}{os.pathsep}{os.environ.get('PATH', '')}")
    if not found:
        raise UserError(
            "shellcheck is not installed", "test", "apt-get install shellcheck, or give --no-lint"
        )
    return found


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if arguments.no_lint and arguments.only_lint:
        raise UserError(
            "with both there is nothing to do",
            "test --no-lint --only-lint",
            "give one of them, or neither",
        )
    here = Path(sys.executable).parent
    env = {
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    jobs: dict[str, list[str]] = {}
    if not arguments.no_lint:
        jobs |= {"ruff": [str(here / "ruff"), "check", "."], "mypy": [str(here / "mypy")]}
        if has_import_contracts(context.root):
            jobs["lint-imports"] = [str(here / "lint-imports"), "--no-logo", "--no-cache"]
        if scripts := shell_scripts(context.root):
            jobs["shellcheck"] = [
                _shellcheck(here),
                "--external-sources",
                "--source-path=SCRIPTDIR",
                "--",
                *scripts,
            ]
    if not arguments.only_lint:
        # A framework's own deprecation warnings are no fault of ours.
        lenient = ["-o", "filterwarnings=default"] if arguments.inside else []
        # A file's tests share fixtures and engines' storage, so that it stays in one process; many
        # wait for other programs, so that there is one process more than processors.
        together = (
            []
            if arguments.inside or arguments.tests
            else ["-n", str(min(len(os.sched_getaffinity(0)) + 1, 6)), "--dist", "loadfile"]
        )
        jobs["pytest"] = [
            *_python(context, arguments.inside),
            "-m",
            "pytest",
            "-q",
            *together,
            *lenient,
            *(arguments.tests or ["tests"]),
        ]
    status = {}
    for name, argv in jobs.items():
        log.info(f"== {name}")
        start = time.monotonic()
        done = subprocess.run(
            argv,
            cwd=context.root,
            env=env,
            check=False,
            stdout=sys.stderr if context.json else None,
        )
        status[name] = done.returncode
        log.info(
            f"== {name}: {'ok' if not done.returncode else f'status {done.returncode}'}, "
            f"{time.monotonic() - start:.1f} s"
        )
    return Result({"status": status}, "", ok=not any(status.values()))
