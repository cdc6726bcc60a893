"""The command `rosetta runs`: list, watch, cancel and repeat what run and submit have started."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from rosetta.core import log, option_types
from rosetta.core.errors import CONFLICT, MISSING, UserError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from rosetta.launch.run_records import RunRecord
    from rosetta.launch.run_states import RunState

_LISTED = 20  # runs that `list` shows without --all
_QUERIES = 8  # places that `list` asks at the same time
_DEFAULT_LINES = 20
_PROGRESS_BYTES = 64 << 10  # of the end of progress.jsonl, which has the newest reports
_POLL_SECONDS = 0.5
_NO_RUNS = (
    "no runs yet: the list has what `rosetta run` and `rosetta submit` start, and not what "
    "`rosetta t5x`, `rosetta pax` and the scripts start"
)
_STATE_SECONDS = 5.0  # between questions whether a followed run is over


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    runs = commands.add_parser("runs", options_anywhere=True)
    subcommands = runs.add_subparsers(dest="what", metavar="COMMAND")
    listing = subcommands.add_parser(
        "list", parents=[common], help="list the runs, with their states"
    )
    listing.add_argument("--all", action="store_true", help=f"more than the newest {_LISTED}")
    summaries = {
        "status": "show where a run is, its state, its folder and its progress",
        "logs": "print the last lines of a run's output",
        "cancel": "end a run, and wait until it has ended",
        "resubmit": "start a run again; it continues from its newest checkpoint",
    }
    for name, summary in summaries.items():
        shows_run = name in ("logs", "resubmit")  # stdout has the output of the run
        parents = [] if shows_run else [common]
        parser = subcommands.add_parser(name, parents=parents, help=summary, options_anywhere=True)
        if shows_run:
            log.add_level_option(parser)
        parser.add_argument(
            "run", metavar="RUN", help="the number of the run, or its folder on this machine"
        )
        if name == "logs":
            parser.add_argument("--follow", action="store_true", help="print what is added, too")
            parser.add_argument(
                "--lines",
                type=option_types.parse_count,
                default=_DEFAULT_LINES,
                metavar="N",
                help=f"how many lines (default: {_DEFAULT_LINES})",
            )
        if name == "resubmit":
            parser.add_argument(
                "--force",
                action="store_true",
                help="also if the state of the run is not known",
            )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta runs`; return its result and the text to print."""
    from rosetta.launch import run_records, run_states

    if args.what == "list":
        return _list_runs(show_all=args.all)
    record = run_records.find_record(args.run)
    if args.what == "status":
        return _describe_run(record, run_states.query_state(record))
    if args.what == "cancel":
        state = run_states.cancel(record)
        return _make_result(record, state), f"run {record.number} is over: {_format_state(state)}"
    if args.what == "logs":
        _show_log(record, args.lines, follow=args.follow)
    _resubmit(record, force=args.force)
    return {}, ""


def _list_runs(*, show_all: bool) -> tuple[dict[str, Any], str]:
    """Return the runs with their states, as a result and as a table."""
    from concurrent.futures import ThreadPoolExecutor

    from rosetta.launch import run_records, run_states

    records = run_records.list_records()
    shown = records if show_all else records[-_LISTED:]
    # Each place may take a while to answer.
    with ThreadPoolExecutor(max_workers=_QUERIES) as pool:
        answers = pool.map(run_states.query_state, shown)
        states = {record.number: state for record, state in zip(shown, answers)}  # noqa: B905 (Python 3.9, which a login node may have)
    rows = [("RUN", "STATE", "PLACE", "STARTED", "NAME", "FOLDER")]
    rows += [
        (
            str(record.number),
            states[record.number].name,
            record.place,
            time.strftime("%m-%d %H:%M", time.localtime(record.started)),
            record.name,
            record.folder,
        )
        for record in shown
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip()  # noqa: B905 (Python 3.9, which a login node may have)
        for row in rows
    ]
    if len(shown) < len(records):
        lines.append(f"{len(records) - len(shown)} older runs: rosetta runs list --all")
    result = {"runs": [_make_result(record, states[record.number]) for record in shown]}
    return result, "\n".join(lines) if records else _NO_RUNS


def _make_result(record: RunRecord, state: RunState) -> dict[str, Any]:
    """Return a run and its state as JSON."""
    return {
        "number": record.number,
        "place": record.place,
        "name": record.name,
        "started": record.started,
        "folder": record.folder,
        "handle": record.handle,
        "status": record.status,
        "again": record.again,
        "state": state.name,
        "detail": state.detail,
        "progress": _read_progress(record),
    }


def _format_state(state: RunState) -> str:
    """Return a state with its detail."""
    return f"{state.name} ({state.detail})" if state.detail else state.name


def _describe_run(record: RunRecord, state: RunState) -> tuple[dict[str, Any], str]:
    """Return what is known of a run, as a result and as lines."""
    result = _make_result(record, state)
    started = time.strftime("%F %H:%M:%S", time.localtime(record.started))
    lines = [
        f"run {record.number}: {_format_state(state)}",
        f"name: {record.name}, on {record.place}",
        f"started: {started} in {record.work_folder}",
    ]
    if record.folder:
        lines.append(f"folder: {record.folder}")
    if record.again:
        lines.append(f"repeats: run {record.again}")
    if result["progress"]:
        lines.append(f"progress: {result['progress']}")
    return result, "\n".join(lines)


def _read_progress(record: RunRecord) -> str:
    """Return the newest step and loss in the folder of a run; "" if they cannot be read."""
    import json
    from pathlib import Path

    if not record.folder:
        return ""
    try:
        with Path(record.work_folder, record.folder, "progress.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _PROGRESS_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        try:
            values = json.loads(line)
        except ValueError:
            continue  # the first and the last line may be half there
        if isinstance(values, dict) and "loss" in values and "step" in values:
            return f"step {values['step']:,}, loss {values['loss']}"
    return ""


def _find_log_file(record: RunRecord) -> Path | None:
    """Return the file with the output of a run; None if the place keeps the output itself."""
    from pathlib import Path

    from rosetta.launch import run_records

    if record.place in run_records.SLURM_PLACES:
        output = record.handle.get("output") or f"slurm-{record.handle.get('job')}.out"
        return Path(record.work_folder, output)
    folder = record.run["env"].get("LOGDIR", "")
    if not folder and record.folder:
        folder = os.path.join(record.folder, "logs")
    paths = list(Path(record.work_folder, folder).glob("*.log")) if folder else []
    # Other programs, such as the evaluation, write their logs beside that of the training.
    training = [path for path in paths if path.name == "train.log"]
    return max(training or paths, key=lambda path: path.stat().st_mtime, default=None)


def _show_log(record: RunRecord, lines: int, *, follow: bool) -> NoReturn:
    """Print the output of a run; end this process.

    Raises:
      UserError: There is no output that can be read.
    """
    import signal

    from rosetta.launch import run_records, run_states

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    path = _find_log_file(record)
    if record.place == run_records.JOBSET or (
        # Docker removes a container that has ended.
        record.place == run_records.DOCKER
        and run_states.query_state(record).name == run_states.RUNNING
    ):
        argv = run_states.make_log_command(record, lines, follow=follow)
        try:
            os.execvp(argv[0], argv)  # noqa: S606
        except OSError:
            raise UserError(
                "the program is not on PATH",
                argv[0],
                "run where it is installed: " + " ".join(argv),
                kind=MISSING,
                value=argv[0],
            ) from None
    if path is None or not path.is_file():
        is_file_known = path is not None
        raise UserError(
            "has not written any output yet" if is_file_known else "has no log file here",
            f"run {record.number}",
            f"see {path}" if is_file_known else "its output went to the terminal of the run",
            kind=MISSING,
            value=record.number,
        )
    log.info(f"the output of run {record.number}: {path}")
    with path.open("rb") as file:
        sys.stdout.buffer.write(b"".join(file.readlines()[-lines:]))
        sys.stdout.buffer.flush()
        if follow:
            _follow(file, record)
    sys.exit(0)


def _follow(file: Any, record: RunRecord) -> None:
    """Print what is added to a file until the run is over."""
    from rosetta.launch import run_states

    asked, is_over = 0.0, False
    while True:
        added = file.read()
        if added:
            sys.stdout.buffer.write(added)
            sys.stdout.buffer.flush()
        elif is_over:
            return
        else:
            time.sleep(_POLL_SECONDS)
        if time.monotonic() - asked > _STATE_SECONDS:
            asked = time.monotonic()
            is_over = run_states.query_state(record).is_over


def _resubmit(record: RunRecord, *, force: bool) -> None:
    """Start a run again with the same description, in the folder where it was started.

    Raises:
      UserError: The run is not over, or the folder does not exist any more.
    """
    from dataclasses import replace

    from rosetta.launch import run_records, run_start, run_states

    where = f"run {record.number}"
    state = run_states.query_state(record)
    if not state.is_over and not (force and state.name == run_states.UNKNOWN):
        remedy = f"cancel it first: rosetta runs cancel {record.number}"
        if state.name == run_states.UNKNOWN:
            remedy = "look where it runs; if it is over, add --force"
        raise UserError(
            f"the run is not over: {_format_state(state)}", where, remedy, kind=CONFLICT
        )
    if not os.path.isdir(record.work_folder):
        raise UserError(
            "the folder in which it was started does not exist any more",
            f"{where}: {record.work_folder}",
            "make the folder, or start the run with rosetta run or submit",
            kind=MISSING,
        )
    again, options = record.read_run(os.environ), record.read_options()
    os.chdir(record.work_folder)
    if record.place == run_records.LOCAL:
        node = record.node
        layout = run_start.make_layout(again, node["node"], node["coordinator"])
        sys.exit(run_start.start_local(again, layout, record.number))
    if record.place == run_records.DOCKER:
        run_start.start_docker(again, options, record.number)
    if record.place == run_records.JOBSET:
        # The JobSet that is over keeps its name.
        name = f"{record.handle['jobset'][:30].rstrip('-')}-{os.urandom(3).hex()}"
        options = replace(options, name=name)
    print(run_start.submit(record.place, again, options, record.number)["output"])


RUN = {"runs": run}
