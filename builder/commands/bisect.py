"""`build.py bisect`: find the change that broke something, by a command that tells builds apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builder.core.accelerators import ACCELERATORS
from builder.core.cache import remove_path
from builder.core.command_context import Context, Result
from builder.pipeline.step_plans import figures, goldens, plan_runs
from builder.release.bisect import endpoints
from builder.release.bisect.bisection import run_bisect
from builder.release.bisect.build_trials import check_work_folder
from builder.release.bisect.journal import Journal, Request, journal_path, load_journal
from builder.release.bisect.report import report_as_text
from rosetta.core import option_types
from rosetta.core.errors import CONFLICT, INVALID, MISSING, UserError

if TYPE_CHECKING:
    import argparse

    from builder.pipeline.step_plans.goldens import Golden


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "--good",
        metavar="END",
        default="",
        help=f"a build in which COMMAND succeeds: {endpoints.FORMS}",
    )
    parser.add_argument(
        "--bad",
        metavar="END",
        default="",
        help="a build in which COMMAND fails; it may be older or newer",
    )
    parser.add_argument(
        "--distribution",
        metavar="NAME",
        default="",
        help=(
            "the distribution to build (default: the one of the environment or image, or the only "
            "one in the manifest)"
        ),
    )
    parser.add_argument(
        "--accelerator",
        default="",
        choices=ACCELERATORS,
        help="the accelerator (default: the one of the environment or image, or cpu)",
    )
    parser.add_argument(
        "--stage",
        default="env",
        choices=["env", "tree"],
        help="env builds a whole environment, tree only the patched sources (default: env)",
    )
    parser.add_argument(
        "--python",
        metavar="VERSION|PATH",
        default="",
        help="the Python of the environments (default: as for a build)",
    )
    parser.add_argument(
        "--repeat",
        type=option_types.make_whole_number_type(maximum=100),
        default=1,
        metavar="N",
        help="run COMMAND N times in each build, and stop if the results differ (default: 1)",
    )
    parser.add_argument(
        "--work",
        metavar="DIR",
        default="build/bisect",
        help="the folder in which the builds are made (default: build/bisect)",
    )
    parser.add_argument(
        "--metric",
        choices=figures.COMMON_FIGURES,
        default="",
        help=(
            "instead of COMMAND: find what moved this figure of a recorded plan by more than "
            f"{figures.TOLERANCE:.0%}".replace("%", "%%")
        ),
    )
    parser.add_argument(
        "--plan",
        metavar="NAME",
        default="",
        help=f"the recorded plan of --metric, see {goldens.FOLDER}",
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--status", action="store_true", help="show how far the search is")
    action.add_argument("--log", action="store_true", help="show the result of every build")
    action.add_argument("--abort", action="store_true", help="end the search and remove its builds")
    parser.add_argument(
        "command",
        nargs="*",
        metavar="COMMAND",
        help=(
            "after --: the command to run in each build; status 0 is good, 1 to 124 is bad, 125 "
            "skips the build, and more ends the search"
        ),
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    file = journal_path(context.cache, context.manifest_path)
    if arguments.status or arguments.log:
        return _show_progress(_load_existing_journal(file), show_all_trials=arguments.log)
    with context.cache.lock(f"bisect-{file.stem}"):
        if arguments.abort:
            return _abort_bisect(_load_existing_journal(file))
        journal = _choose_journal(context, file, arguments)
        data = run_bisect(context, journal)
    return Result(data, report_as_text(data), ok=data["certain"])


def _load_existing_journal(file: Path) -> Journal:
    journal = load_journal(file)
    if journal is None:
        raise UserError(
            "there is no bisect of this manifest",
            "bisect",
            "start one: build.py bisect --good END --bad END -- COMMAND",
        )
    return journal


def _show_progress(journal: Journal, *, show_all_trials: bool) -> Result:
    state = "done" if journal.done else "not done"
    summary = (
        f"{journal.request.good} (good) to {journal.request.bad} (bad): {state}, "
        f"{journal.build_count} builds beside the two ends; {journal.progress}"
    )
    lines = [summary]
    for trial in journal.trials if show_all_trials else journal.trials[-1:]:
        line = f"  {trial.answer:<5}{trial.seconds:>8.1f} s  {trial.description}"
        lines.append(f"{line}: {trial.reason}" if trial.reason else line)
    return Result(journal.as_json(), "\n".join(lines))


def _abort_bisect(journal: Journal) -> Result:
    work = Path(journal.request.work)
    check_work_folder(work)
    remove_path(work)
    journal.delete()
    return Result({"removed": str(work)}, f"the bisect has ended; {work} is removed")


def _choose_journal(context: Context, file: Path, arguments: argparse.Namespace) -> Journal:
    """Return the journal to continue: the existing one, or a new one for a new request.

    Raises:
        UserError: an option is missing, or another bisect of this manifest is not done.
    """
    judge = arguments.command or arguments.metric
    if not (arguments.good or arguments.bad or judge or arguments.plan):
        return _load_existing_journal(file)
    if not (arguments.good and arguments.bad and judge):
        raise UserError(
            "needs --good, --bad, and a command or --metric",
            "bisect",
            "build.py bisect --good END --bad END -- COMMAND; to continue: build.py bisect",
            kind=MISSING,
        )
    request = _read_request(context, arguments)
    journal = load_journal(file)
    if journal and journal.request == request:
        return journal
    if journal and not journal.done:
        raise UserError(
            f"the bisect from {journal.request.good} to {journal.request.bad} is not done",
            "bisect",
            "continue it: build.py bisect; or give it up: build.py bisect --abort",
        )
    return Journal(file, request)


def _read_request(context: Context, arguments: argparse.Namespace) -> Request:
    """Return what is asked for.

    Raises:
        UserError: two options contradict each other, or the plan is unknown.
    """
    golden = _choose_golden(context, arguments)
    return Request(
        good=arguments.good,
        bad=arguments.bad,
        distribution=arguments.distribution or (golden.distribution if golden else ""),
        accelerator=arguments.accelerator or (plan_runs.ACCELERATOR if golden else ""),
        stage=arguments.stage,
        python=arguments.python,
        repeat=arguments.repeat,
        command=tuple(arguments.command),
        work=str(Path(arguments.work).absolute()),
        metric=arguments.metric,
        plan=golden.plan if golden else "",
    )


def _choose_golden(context: Context, arguments: argparse.Namespace) -> Golden | None:
    """Return the recorded plan whose figure is compared, None if a command tells builds apart."""
    if not (arguments.metric or arguments.plan):
        return None
    if not (arguments.metric and arguments.plan):
        raise UserError(
            "--metric needs --plan, and --plan needs --metric",
            "bisect --metric",
            f"give both: --metric {figures.LAUNCHES} --plan NAME",
            kind=MISSING,
        )
    if arguments.command or arguments.stage != "env" or arguments.repeat != 1:
        raise UserError(
            "a figure is compared without COMMAND, --stage tree and --repeat",
            "bisect --metric",
            "leave them out, or --metric",
            kind=CONFLICT,
        )
    if arguments.plan in (goldens.ALL, goldens.CHEAP):
        raise UserError(
            f"{arguments.plan!r} stands for several plans",
            "--plan",
            f"name one of {goldens.FOLDER}",
            kind=INVALID,
            value=arguments.plan,
        )
    (golden,) = goldens.choose_goldens(context.root / goldens.FOLDER, [arguments.plan])
    return golden
