"""The command `rosetta selftest`: train a tiny model to prove that this environment works."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import option_types
from rosetta.core.errors import CONFLICT, MISSING, UserError
from rosetta.core.value_parsing import parse_whole_number, read_truth_value

if TYPE_CHECKING:
    import argparse

_DEFAULT_STEPS = 20
_DEFAULT_DEVICES = (1, 4)


def _parse_steps(text: str) -> int:
    """Return the value of --steps: a multiple of 5, and at least 15."""
    steps = parse_whole_number("", text, minimum=15)
    if steps % 5:
        raise UserError(f"{text!r} is not a multiple of 5", do="the loss is reported every 5 steps")
    return steps


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    test = commands.add_parser("selftest", parents=[common])
    test.add_argument(
        "--framework",
        choices=("t5x", "pax"),
        help="the framework to test (default: the one of this environment)",
    )
    test.add_argument(
        "--project",
        metavar="NAME",
        action="append",
        default=[],
        help=(
            "instead of the framework, test this project, which `build.py --with NAME` added (may "
            "be repeated)"
        ),
    )
    test.add_argument(
        "--steps",
        type=_parse_steps,
        help=f"steps before the restore (default: {_DEFAULT_STEPS})",
    )
    test.add_argument(
        "--devices",
        type=option_types.parse_device_counts,
        help="numbers of virtual CPU devices, with one run for each (default: 1,4)",
    )
    test.add_argument(
        "--workdir",
        type=Path,
        help="keep checkpoints and logs in this folder (default: a temporary folder)",
    )
    part = test.add_mutually_exclusive_group()
    part.add_argument(
        "--imports-only", action="store_true", help="import every module, but train nothing"
    )
    part.add_argument("--no-imports", action="store_true", help="train, but skip the imports")
    test.add_argument(
        "--keep", action="store_true", help="keep the temporary folder if all is well"
    )
    test.add_argument(
        "--jobs",
        type=option_types.parse_count,
        help="processes at a time (default: at most 3, as cores and memory of the container allow)",
    )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta selftest`; return its result and the text to print."""
    import os

    from rosetta.core import transformer_engine
    from rosetta.selftest import report, runner

    if read_truth_value(os.environ, "ENABLE_TE"):
        transformer_engine.require_transformer_engine()
    if args.project:
        _refuse_options_of_frameworks(args)
    distribution, framework = _choose_framework(args.framework)
    options = runner.Options(
        framework=framework,
        distribution=distribution,
        steps=args.steps or _DEFAULT_STEPS,
        devices=args.devices or _DEFAULT_DEVICES,
        workdir=args.workdir,
        with_imports=not args.no_imports,
        with_training=not args.imports_only,
        keep=args.keep,
        jobs=args.jobs or runner.choose_job_count(),
    )
    if args.project:
        from rosetta.selftest import project_checks

        result = project_checks.check_projects(args.project, options)
        return result, project_checks.format_result(result)
    result = runner.run_selftest(options)
    return result, report.format_result(result)


def _refuse_options_of_frameworks(args: argparse.Namespace) -> None:
    """Raise UserError for an option that the check of a project does not read."""
    values = {"--steps": args.steps, "--devices": args.devices}
    given = [option for option, value in values.items() if value is not None]
    if args.framework == "pax":
        given.append("--framework pax")
    if given:
        raise UserError(
            f"{' and '.join(given)} cannot be used with --project",
            "selftest --project",
            "leave out --project, or the other options",
            kind=CONFLICT,
        )


def _choose_framework(wanted: str | None) -> tuple[str | None, str]:
    """Return the distribution of this environment, if it is known, and the framework to test.

    Args:
      wanted: The value of --framework.

    Raises:
      UserError: The framework is not known, or the environment does not have it.
    """
    from rosetta.core import lock_record

    path = lock_record.get_lock_path()
    distribution = None
    if wanted is None or path.exists():
        distribution = lock_record.read_lock().get("distribution")
    installed = lock_record.get_framework(distribution) if distribution else None
    framework = wanted or installed
    if framework is None:
        raise UserError(
            "the lock does not name a distribution",
            str(path),
            "name the framework with --framework",
            kind=MISSING,
        )
    if installed and installed != framework:
        raise UserError(
            f"this environment has {distribution}, not {framework}",
            "selftest --framework",
            "leave the option out",
            kind=CONFLICT,
            value=framework,
        )
    return distribution, framework


RUN = {"selftest": run}
