"""Run this repository's own checks: lint, types, shell scripts, tests."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from builder.core import log
from builder.core.command_context import Context, Result
from builder.packages import package_installation
from builder.pipeline import environment_build
from rosetta.core.errors import CONFLICT, MISSING, UserError

# What `--fast` leaves out; pyproject.toml says what each mark means.
FAST = (
    "not slow and not long and not engine and not registry and not slurm and not shell "
    "and not upstream"
)
# What only `--all`, or a TEST that is named, runs.
SHORT = "not long"
# What `--all` runs besides: a Python that is not the builder's own, and the tests that need it.
# `--inside` with one of these names and without a TEST runs the same tests.
INSIDE = {
    "env:build/quickstart/pax-1.4": (
        "tests/unit/rosetta/pax/test_inputs.py",
        "tests/unit/rosetta/pax/test_data.py",
        "tests/unit/rosetta/pax/test_softmax.py",
        "tests/unit/rosetta/pax/test_restore.py",
        "tests/unit/rosetta/pax/test_programs.py",
        "tests/unit/rosetta/pax/run/test_fiddle_arguments.py",
        "tests/unit/rosetta/pax/run/test_hyper_parameters.py",
        "tests/unit/rosetta/convert",
        "tests/unit/rosetta/commands/test_convert.py",
        "tests/unit/rosetta/presets/test_flag_check.py",
        "tests/unit/rosetta/core/test_xla_flags.py",
        "tests/upstream/test_documentation_blocks.py",
    ),
    "lock:t5x": (
        "tests/unit/rosetta/nn",
        "tests/unit/rosetta/t5x",
        "tests/unit/rosetta/data",
        "tests/unit/rosetta/plan",
        "tests/unit/rosetta/bench",
        "tests/unit/rosetta/convert",
        "tests/unit/rosetta/commands/test_bench.py",
        "tests/unit/rosetta/commands/test_convert.py",
        "tests/unit/rosetta/commands/test_data.py",
        "tests/unit/rosetta/commands/test_new.py",
        "tests/unit/rosetta/commands/test_plan.py",
        "tests/unit/rosetta/commands/test_t5x.py",
        "tests/unit/rosetta/core/test_xla_flags.py",
        "tests/unit/rosetta/health/test_checkpoint_files.py",
        "tests/unit/rosetta/presets/test_flag_check.py",
        "tests/unit/rosetta/presets/test_t5x_switches.py",
    ),
    "env:build/quickstart/t5x": (
        "tests/unit/rosetta/t5x",
        "tests/upstream/test_documentation_blocks.py",
        "tests/upstream/test_health.py",
        "tests/upstream/test_launch.py",
        "tests/upstream/test_slurm.py",
        "tests/upstream/test_t5x_scripts.py",
    ),
    "env:build/quickstart/pax": (
        "tests/unit/rosetta/pax",
        "tests/upstream/test_documentation_blocks.py",
        "tests/upstream/test_health.py",
        "tests/upstream/test_launch.py",
        "tests/upstream/test_pax_data.py",
        "tests/upstream/test_pax_experiments.py",
        "tests/upstream/test_pax_scripts.py",
        "tests/upstream/test_pax_switches.py",
        "tests/upstream/test_slurm.py",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    tier = parser.add_mutually_exclusive_group()
    tier.add_argument(
        "--fast",
        action="store_true",
        help="run ruff, and only the tests that are quick and need no service",
    )
    tier.add_argument(
        "--all",
        action="store_true",
        help=(
            "also run the tests that need a baked environment, in each one that quickstart baked; "
            "list what could not be checked"
        ),
    )
    parser.add_argument("--no-lint", action="store_true", help="run only the tests")
    parser.add_argument("--only-lint", action="store_true", help="run no tests")
    parser.add_argument(
        "--inside",
        metavar="env:DIR|lock:NAME",
        default="",
        help=(
            "run each TEST in a baked environment, or with the locked CPU packages of a "
            "distribution, without its sources"
        ),
    )
    parser.add_argument(
        "tests",
        nargs="*",
        metavar="TEST",
        help="files, folders or tests (default: tests); words after -- go to pytest",
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
        wanted = environment_build.plan_environment(
            context, name, "cpu", context.root / "build"
        ).packages
        program = (
            package_installation.ensure_environment(context.cache, wanted, offline=context.offline)
            / "bin/python"
        )
    else:
        program = Path(name).absolute() / "bin/python"
        if kind != "env" or not program.is_file():
            raise UserError(
                "is no baked environment",
                f"--inside {inside}",
                "give env:DIR, or lock:NAME",
                kind=MISSING,
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


def _lint(context: Context, here: Path, *, fast: bool) -> dict[str, list[str]]:
    """Return the command of each linter by its name."""
    ruff = str(here / "ruff")
    jobs = {"ruff": [ruff, "check", "."], "ruff format": [ruff, "format", "--check", "."]}
    if fast:
        return jobs
    jobs["mypy"] = [str(here / "mypy")]
    jobs["lint-imports"] = [str(here / "lint-imports"), "--no-logo", "--no-cache"]
    if scripts := shell_scripts(context.root):
        jobs["shellcheck"] = [
            _shellcheck(here),
            "--external-sources",
            "--source-path=SCRIPTDIR",
            "--",
            *scripts,
        ]
    return jobs


def _pytest(context: Context, arguments: argparse.Namespace) -> list[str]:
    """Return the command that runs the tests."""
    tests = arguments.tests or INSIDE.get(arguments.inside, ())
    words = list[str]()
    if arguments.fast:
        # Why something was not checked is of no use at every save.
        words = ["-m", FAST, "-rfE"]
    elif not tests and not arguments.all:
        words = ["-m", SHORT]
    if arguments.inside:
        words += ["-o", "filterwarnings=default"]  # a framework's own warnings are not our fault
    elif not tests:
        # The tests of a file share fixtures and the storage of engines, so that a file stays in
        # one process. Many wait for other programs: there is one process more than processors.
        # The order in which tests/conftest.py puts the files is kept.
        workers = min(len(os.sched_getaffinity(0)) + 1, 6)
        words += ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    python = _python(context, arguments.inside)
    return [*python, "-m", "pytest", "-q", *words, *tests, *arguments.pytest]


def _inside(
    context: Context, arguments: argparse.Namespace
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the commands of the tests that need another Python, and what cannot run, with why."""
    jobs, missing = {}, []
    for name, tests in INSIDE.items():
        kind, _, where = name.partition(":")
        inside = f"env:{context.root / where}" if kind == "env" else name
        own = argparse.Namespace(inside=inside, tests=tests, fast=False, pytest=arguments.pytest)
        try:
            jobs[f"pytest --inside {name}"] = _pytest(context, own)
        except UserError as error:
            remedy = f"python build.py quickstart --distribution {Path(where).name}"
            missing.append(
                f"{name}: it is not baked -> {remedy}" if kind == "env" else f"{name}: {error}"
            )
    return jobs, missing


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if arguments.no_lint and arguments.only_lint:
        raise UserError(
            "with both there is nothing to do",
            "test --no-lint --only-lint",
            "give one of them, or neither",
            kind=CONFLICT,
        )
    if arguments.all and (arguments.inside or arguments.tests):
        raise UserError(
            "--all chooses the tests and their Pythons itself",
            "test --all",
            "leave out --inside and TEST, or --all",
            kind=CONFLICT,
        )
    here = Path(sys.executable).parent
    env = {
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    jobs: dict[str, list[str]] = {}
    missing: list[str] = []
    if not arguments.no_lint:
        jobs |= _lint(context, here, fast=arguments.fast)
    if not arguments.only_lint:
        jobs["pytest"] = _pytest(context, arguments)
        if arguments.all:
            inside, missing = _inside(context, arguments)
            jobs |= inside
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
    for line in missing:
        log.info(f"!!! NOT CHECKED: {line}")
    return Result({"status": status}, "", ok=not any(status.values()))
