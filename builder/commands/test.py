"""The command `test`: check this repository with linters, a type checker and its tests."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import log
from builder.core.command_context import Context, Result
from builder.packages import package_installation
from builder.pipeline import environment_build, project_checks
from builder.pipeline.step_plans import comparison, goldens, plan_runs
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import CONFLICT, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.pipeline.step_plans.goldens import Golden
    from builder.pipeline.step_plans.plan_runs import PlanEnvironment
# The tests that `--fast` runs; pyproject.toml says what each mark means.
FAST_MARKS = (
    "not slow and not long and not engine and not registry and not slurm and not shell "
    "and not upstream"
)
# The tests that run by default. Only `--all`, or a TEST on the command line, runs the long ones.
SHORT_MARKS = "not long"
# The tests that need a Python other than the builder's own, by the value of `--inside`.
# `--all` runs all of them; `--inside` without a TEST runs those of its value.
INSIDE_TESTS = {
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
        "tests/unit/rosetta/accept",
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
        "tests/unit/rosetta/presets/test_t5x_model_options.py",
    ),
    "env:build/quickstart/t5x": (
        "tests/unit/rosetta/accept",
        "tests/unit/rosetta/t5x",
        "tests/upstream/test_convert_t5.py",
        "tests/upstream/test_documentation_blocks.py",
        "tests/upstream/test_glue_training.py",
        "tests/upstream/test_health.py",
        "tests/upstream/test_launch.py",
        "tests/upstream/test_partial_training.py",
        "tests/upstream/test_slurm.py",
        "tests/upstream/test_written_slurm_files.py",
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
    "env:build/quickstart/t5x-next": (
        "tests/unit/rosetta/core/test_xla_flags.py",
        "tests/unit/rosetta/presets/test_flag_check.py",
        "tests/upstream/test_t5x_scripts.py",
    ),
    "env:build/quickstart/pax-next": ("tests/upstream/test_pax_scripts.py",),
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
    tier.add_argument(
        "--plans",
        action="store_true",
        help=(
            "compile the steps whose plans are recorded, and compare their figures; TEST is then "
            f"the name of a plan, {goldens.CHEAP} or {goldens.ALL} (default: {goldens.ALL})"
        ),
    )
    tier.add_argument(
        "--projects",
        action="store_true",
        help=(
            "import the projects of the manifest, and train a tiny model of each for a few steps; "
            f"TEST is then the name of a project (default: all, in {project_checks.FOLDER})"
        ),
    )
    parser.add_argument(
        "--renew",
        action="store_true",
        help=(
            "plans: record the figures, and show what moved; projects: record the table that the "
            "documentation shows"
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
            "distribution, without its sources; plans: compile in this environment (default: bake "
            f"one for {plan_runs.ACCELERATOR} in {plan_runs.FOLDER})"
        ),
    )
    parser.add_argument(
        "tests",
        nargs="*",
        metavar="TEST",
        help="files, folders or tests (default: tests); words after -- go to pytest",
    )


def list_shell_scripts(root: Path) -> list[str]:
    """List the shell scripts of the repository, known by their suffix or their first line."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
        text=True,
    )
    names = filter(None, listing.stdout.split("\0"))
    return [name for name in names if _is_shell_script(root / name)]


def _is_shell_script(path: Path) -> bool:
    if not path.is_file() or path.is_symlink():
        return False
    if path.name.endswith((".sh", ".sub")):
        return True
    with open(path, "rb") as file:
        first_line = file.readline(80)
    return first_line.startswith(b"#!") and b"sh" in first_line and b"python" not in first_line


# Run a module with another Python, which finds its own packages before the builder's.
_RUN_MODULE = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); sys.argv.pop(1); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def _make_python_command(context: Context, inside: str) -> list[str]:
    """Return the start of a command that `-m MODULE` completes.

    Args:
        context: The checkout and the cache.
        inside: The value of --inside: env:DIR, lock:NAME, or empty for the builder's own Python.
            Another Python also sees the builder's packages.

    Raises:
        UserError: `inside` does not name an environment that exists.
    """
    if not inside:
        return [sys.executable]
    kind, _, name = inside.partition(":")
    if kind == "lock":
        python = _ensure_locked_packages(context, name) / "bin/python"
    else:
        python = Path(name).absolute() / "bin/python"
        if kind != "env" or not python.is_file():
            raise UserError(
                "is not a baked environment",
                f"--inside {inside}",
                "give env:DIR, or lock:NAME",
                kind=MISSING,
            )
    return [str(python), "-c", _RUN_MODULE, sysconfig.get_path("purelib")]


def _ensure_locked_packages(context: Context, distribution: str) -> Path:
    """Return an environment with the locked CPU packages of a distribution."""
    plan = environment_build.plan_environment(context, distribution, "cpu", context.root / "build")
    return package_installation.ensure_environment(
        context.cache, plan.packages, offline=context.offline
    )


def _find_shellcheck(tools: Path) -> str:
    """Return shellcheck: the builder's, or the machine's where no wheel of shellcheck exists."""
    program = shutil.which("shellcheck", path=_put_on_path(tools))
    if not program:
        raise UserError(
            "shellcheck is not installed", "test", "apt-get install shellcheck, or give --no-lint"
        )
    return program


def _put_on_path(folder: Path) -> str:
    """Return PATH with the folder in front."""
    return f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"


def _list_lint_commands(context: Context, tools: Path, *, fast: bool) -> dict[str, list[str]]:
    """Return the command of each linter by its name.

    Args:
        context: The checkout.
        tools: The folder of the linters.
        fast: Whether to run only ruff.
    """
    ruff = str(tools / "ruff")
    commands = {"ruff": [ruff, "check", "."], "ruff format": [ruff, "format", "--check", "."]}
    if fast:
        return commands
    commands["mypy"] = [str(tools / "mypy")]
    commands["lint-imports"] = [str(tools / "lint-imports"), "--no-logo", "--no-cache"]
    if scripts := list_shell_scripts(context.root):
        commands["shellcheck"] = [
            _find_shellcheck(tools),
            "--external-sources",
            "--source-path=SCRIPTDIR",
            "--",
            *scripts,
        ]
    return commands


def _make_pytest_command(context: Context, arguments: argparse.Namespace) -> list[str]:
    """Return the command that runs the tests."""
    tests = arguments.tests or INSIDE_TESTS.get(arguments.inside, ())
    options = list[str]()
    if arguments.fast:
        # The reasons for skipped tests are of no use at every save of a file.
        options = ["-m", FAST_MARKS, "-rfE"]
    elif not tests and not arguments.all:
        options = ["-m", SHORT_MARKS]
    if arguments.inside:
        # The warnings of a framework are not faults of this repository.
        options += ["-o", "filterwarnings=default"]
    if not arguments.tests:
        # The tests of a file share fixtures and the storage of engines, so a file stays in one
        # process. Many tests wait for other programs, so there is one process more than CPUs; those
        # of a framework compute. The order in which tests/conftest.py puts the files is kept.
        processors = len(os.sched_getaffinity(0))
        workers = min(processors if arguments.inside else processors + 1, 6)
        options += ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    python = _make_python_command(context, arguments.inside)
    return [*python, "-m", "pytest", "-q", *options, *tests, *arguments.pytest]


def _list_inside_commands(
    context: Context, arguments: argparse.Namespace
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the commands of the tests that need another Python.

    Returns:
        The commands by name, and a line for each Python that is missing: which, and what to do.
    """
    commands, missing = {}, []
    for name, tests in INSIDE_TESTS.items():
        kind, _, folder = name.partition(":")
        inside = f"env:{context.root / folder}" if kind == "env" else name
        inside_arguments = argparse.Namespace(
            inside=inside, tests=tests, fast=False, pytest=arguments.pytest
        )
        try:
            commands[f"pytest --inside {name}"] = _make_pytest_command(context, inside_arguments)
        except UserError as error:
            remedy = f"python build.py quickstart --distribution {Path(folder).name}"
            missing.append(
                f"{name}: it is not baked -> {remedy}" if kind == "env" else f"{name}: {error}"
            )
    return commands, missing


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    _refuse_conflicts(arguments)
    if arguments.plans:
        return _check_plans(context, arguments)
    if arguments.projects:
        return _check_projects(context, arguments)
    tools = Path(sys.executable).parent
    commands: dict[str, list[str]] = {}
    missing: list[str] = []
    if not arguments.no_lint:
        commands |= _list_lint_commands(context, tools, fast=arguments.fast)
    if not arguments.only_lint:
        commands["pytest"] = _make_pytest_command(context, arguments)
        if arguments.all:
            inside_commands, missing = _list_inside_commands(context, arguments)
            commands |= inside_commands
    environment = {**os.environ, "PATH": _put_on_path(tools), "PYTHONDONTWRITEBYTECODE": "1"}
    statuses = {
        name: _run_check(context, name, command, environment) for name, command in commands.items()
    }
    for line in missing:
        log.info(f"!!! NOT CHECKED: {line}")
    return Result({"status": statuses}, "", ok=not any(statuses.values()))


def _refuse_conflicts(arguments: argparse.Namespace) -> None:
    """Raise UserError if two options contradict each other."""
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
    if arguments.renew and not (arguments.plans or arguments.projects):
        raise UserError(
            "needs --plans or --projects", "test --renew", "give one of them", kind=CONFLICT
        )
    if arguments.renew and arguments.projects and arguments.tests:
        raise UserError(
            "the table has all projects",
            "test --projects --renew",
            "leave out the names of projects, or --renew",
            kind=CONFLICT,
        )
    if (arguments.plans or arguments.projects) and (arguments.no_lint or arguments.only_lint):
        what = "plans are compared" if arguments.plans else "projects are checked"
        raise UserError(
            f"{what} without linters and tests",
            "test --plans" if arguments.plans else "test --projects",
            "leave out --no-lint and --only-lint",
            kind=CONFLICT,
        )


def _check_projects(context: Context, arguments: argparse.Namespace) -> Result:
    """Import and train the projects of the manifest, and record the table with --renew."""
    results = project_checks.check_projects(context, arguments.tests, arguments.inside)
    if arguments.renew:
        text = json.dumps({"schema": 1, **results}, indent=1) + "\n"
        write_atomic(context.root / project_checks.RECORD, text)
    return Result(results, project_checks.format_table(results), ok=results["ok"])


def _check_plans(context: Context, arguments: argparse.Namespace) -> Result:
    """Compare recorded plans with what their steps compile to now, or record them again."""
    folder = context.root / goldens.FOLDER
    names = arguments.tests
    selection = goldens.choose_goldens(folder, names)
    comparisons = []
    for environment, group in _assign_environments(context, arguments.inside, selection, names):
        if arguments.renew:
            comparisons += comparison.renew_goldens(group, environment, context.root, folder)
        else:
            unrecorded = comparison.check_recorded(group, names, environment)
            for entry in unrecorded:
                log.info("\n".join(comparison.format_comparison(entry)))
            recorded = [golden for golden in group if golden.record]
            comparisons += unrecorded
            comparisons += comparison.compare_goldens(recorded, environment, context.root)
    counts = Counter(entry.state for entry in comparisons)
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    return Result(
        {"plans": [entry.as_json() for entry in comparisons]},
        f"plans: {summary}",
        ok=all(entry.ok for entry in comparisons),
    )


def _assign_environments(
    context: Context, inside: str, selection: list[Golden], names: Sequence[str]
) -> Iterator[tuple[PlanEnvironment, list[Golden]]]:
    """Yield environments, each with the goldens that it compiles.

    Args:
        context: The checkout and the cache.
        inside: The value of --inside. If it is empty, an environment is baked for each
            distribution.
        selection: The goldens.
        names: What the user gave, which may be the names of goldens.

    Raises:
        UserError: The environment does not exist, cannot be baked, or cannot compile a golden that
            the user named.
    """
    if inside:
        folder = Path(inside.removeprefix("env:")).absolute()
        environment = plan_runs.read_environment(folder, f"--inside {inside}")
        yield environment, comparison.select_for_environment(selection, names, environment)
        return
    for distribution in dict.fromkeys(golden.distribution for golden in selection):
        environment = plan_runs.bake_environment(
            context, distribution, context.root / plan_runs.FOLDER
        )
        yield environment, [entry for entry in selection if entry.distribution == distribution]


def _run_check(context: Context, name: str, command: list[str], environment: dict[str, str]) -> int:
    """Run a linter or the tests, log the outcome and return the exit status."""
    log.info(f"== {name}")
    start = time.monotonic()
    status = subprocess.run(
        command,
        cwd=context.root,
        env=environment,
        check=False,
        stdout=sys.stderr if context.json else None,
    ).returncode
    outcome = f"status {status}" if status else "ok"
    log.info(f"== {name}: {outcome}, {time.monotonic() - start:.1f} s")
    return status
