"""Run the rows of an acceptance, each in a process of its own, and keep what was measured.

The file of results is written after each row, so that a call that was killed loses one row at most.
The next call in the same folder goes on with the cases that have no result.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.accept import records, row_process
from rosetta.accept.predictions import read_plan
from rosetta.accept.setup import FILE, GPU_PLATFORM, Machine, Setup, write_setup
from rosetta.core import acceptance, limited_programs
from rosetta.core.errors import DAMAGED, DIFFERS, FAILED, UNSUPPORTED, UserError
from rosetta.core.limited_programs import LimitedPrograms
from rosetta.plan import autotune_results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rosetta.core.acceptance import Row
    from rosetta.core.limited_programs import ProgramEnd

WORK_FOLDER = "work"
_WHERE = "accept"
_PROBE_SECONDS = 120.0
# Less time than this is not enough to start a row.
_LEAST_SECONDS = 15.0
_SHOWN_LINES = 12
# What a process that compiles a step may take.
_COMPILER_MEMORY = 6 * 2**30
# XLA takes a relative name: the processes have folders of their own.
_DUMP_FLAG = f"--xla_gpu_dump_autotune_results_to={acceptance.AUTOTUNE_FILE}"


@dataclass(frozen=True)
class Options:
    """The options of `rosetta accept`.

    Attributes:
        folder: The folder of the results.
        rows: The rows to measure.
        seconds: The time for all rows.
        tiny: Whether all shapes are tiny.
        again: Whether rows are measured again that have a result.
        plans: Files with plans to compare with.
    """

    folder: Path
    rows: Sequence[Row]
    seconds: float
    tiny: bool
    again: bool
    plans: tuple[str, ...]


class Acceptance:
    """One call of `rosetta accept`.

    Args:
        options: The options.
        say: Called with each line about the progress.

    Raises:
        UserError: The folder has results of another machine, a plan cannot be read, or JAX does not
            start.
    """

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        for plan in options.plans:
            read_plan(plan)
        self._options, self._say = options, say
        self._deadline = time.monotonic() + options.seconds
        self._folder = options.folder.resolve()
        self._work = self._folder / WORK_FOLDER
        self._result_path = self._folder / acceptance.RESULT_FILE
        kept = read_results(self._result_path)
        self._work.mkdir(parents=True, exist_ok=True)
        machine, dumps = self._probe()
        if not options.tiny and machine.platform != GPU_PLATFORM:
            raise UserError(
                "JAX sees no GPU",
                _WHERE,
                "run the command on a machine with a GPU; --tiny runs on a CPU",
                kind=UNSUPPORTED,
            )
        self._setup = Setup(
            machine,
            options.tiny,
            tuple(str(Path(plan).resolve()) for plan in options.plans),
            _count_jobs(),
            dumps,
        )
        subject = {"machine": asdict(machine), "tiny": options.tiny}
        if kept and {name: kept[name] for name in subject} != subject:
            raise UserError(
                "the results in this folder are of another machine, version or size",
                str(self._result_path),
                "name another folder with --folder",
                kind=DIFFERS,
            )
        self._rows: dict[str, dict[str, Any]] = {
            row["row"]: row for row in (kept["rows"] if kept else [])
        }
        write_setup(self._work / FILE, self._setup)

    def _make_environment(self, *, dumps: bool) -> dict[str, str]:
        """Return the environment variables of the processes."""
        root = str(Path(__file__).resolve().parents[2])
        variables = {
            "TF_CPP_MIN_LOG_LEVEL": "1",
            **os.environ,
            # The package of this checkout or environment, wherever it is.
            "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
            "JAX_COMPILATION_CACHE_DIR": str(self._work / "jax-cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        if dumps:
            variables["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DUMP_FLAG}".strip()
        return variables

    def _run_process(self, what: str, seconds: float, *, dumps: bool) -> ProgramEnd:
        """Run a row's process, or the probe, for at most these seconds."""
        logs = self._folder / acceptance.LOG_FOLDER / what
        argv = [sys.executable, "-P", "-m", row_process.MODULE, str(self._work), what]
        return LimitedPrograms(logs, seconds).run(argv, self._make_environment(dumps=dumps))

    def _probe(self) -> tuple[Machine, bool]:
        """Return the machine, and whether XLA takes the flag for results of autotuning.

        Raises:
            UserError: JAX does not start.
        """
        path = row_process.find_result_path(self._work, row_process.PROBE)
        for dumps in (True, False):
            end = self._run_process(row_process.PROBE, _PROBE_SECONDS, dumps=dumps)
            if end.status == 0:
                return Machine(**json.loads(path.read_text(encoding="utf-8"))), dumps
        raise UserError(
            f"JAX does not start here: {_read_last_line(end.log)}",
            _WHERE,
            f"read {end.log}",
            kind=FAILED,
        )

    def run(self) -> dict[str, Any]:
        """Measure the rows, and return the document of the file of results."""
        self._write_results()  # the next call then refuses another machine
        for row in self._options.rows:
            kept = self._rows.get(row.name)
            if kept and kept["status"] != acceptance.UNFINISHED and not self._options.again:
                self._say(f"{row.name}: {kept['status']} before")
                continue
            if self._count_seconds_left() < _LEAST_SECONDS:
                self._say(f"{row.name}: no time left; call the command again to go on")
                continue
            path = row_process.find_result_path(self._work, row.name)
            if kept and kept["status"] != acceptance.UNFINISHED:  # --again
                path.unlink(missing_ok=True)
                kept = None
            self._say(f"{row.name}: {row.measures}")
            result = self._measure_row(row, kept["seconds"] if kept else 0.0)
            self._rows[row.name] = asdict(result)
            self._say(f"{row.name}: {result.status}, {result.seconds:.0f} s")
            self._write_results()
        document = self._write_results()
        if not self._find_unfinished_rows():
            shutil.rmtree(self._work, ignore_errors=True)
        return document

    def _find_unfinished_rows(self) -> list[str]:
        """Return the rows that have cases without a result."""
        return [name for name, row in self._rows.items() if row["status"] == acceptance.UNFINISHED]

    def _count_seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def _measure_row(self, row: Row, earlier_seconds: float) -> records.RowResult:
        """Run the process of a row, again after each case that ended it."""
        start = time.monotonic()
        path = row_process.find_result_path(self._work, row.name)
        reason, finished = None, True
        while True:
            row_left = row.seconds * self._setup.patience - (time.monotonic() - start)
            left = min(row_left, self._count_seconds_left())
            if left < 1:
                finished, reason = False, "the time was up"
                break
            end = self._run_process(row.name, left, dumps=self._setup.dumps_autotuning)
            document = _read_row_document(path)
            if end.status == 0:
                break
            if end.limit:
                finished, reason = False, "the time was up"
                break
            ended_by = describe_end(end)
            if document["running"] is None:
                reason = f"the process {ended_by}: {_read_last_line(end.log)}"
                break
            failed = records.CaseResult(
                document["running"],
                acceptance.FAILED,
                f"{ended_by}; the log ends with: {_read_last_line(end.log)}",
            )
            document["cases"].append(asdict(failed))
            records.write_json(path, {**document, "running": None})
        cases = _read_row_document(path)["cases"]
        seconds = earlier_seconds + time.monotonic() - start
        return records.summarize_row(
            row.name, cases, reason=reason, finished=finished, seconds=seconds
        )

    def _write_results(self) -> dict[str, Any]:
        """Write the file of results and that of autotuning, and return the document."""
        self._collect_autotune_results()
        autotune = self._folder / acceptance.AUTOTUNE_FILE
        rows = [self._rows[row.name] for row in acceptance.ROWS if row.name in self._rows]
        document = {
            "schema": acceptance.SCHEMA,
            "machine": asdict(self._setup.machine),
            "tiny": self._options.tiny,
            "rows": rows,
            "missing": [row.name for row in acceptance.ROWS if row.name not in self._rows],
            "autotune_results": str(autotune) if autotune.exists() else None,
            "ok": all(row["ok"] for row in rows),
        }
        records.write_json(self._result_path, document)
        return document

    def _collect_autotune_results(self) -> None:
        """Merge what the processes have dumped into one file, which `rosetta plan` takes."""
        merged = self._folder / acceptance.AUTOTUNE_FILE
        dumped = sorted(self._work.glob(f"*/{acceptance.AUTOTUNE_FILE}"))
        if dumped:
            files = [merged, *dumped] if merged.exists() else dumped
            autotune_results.merge_results_files(files, merged)


def describe_end(end: ProgramEnd) -> str:
    """Return how a process ended that did not end well, as the end of a sentence."""
    if end.status == row_process.CASE_TIMED_OUT:
        return "did not end in time"
    if end.status is not None and end.status < 0:
        return f"was killed by {signal.Signals(-end.status).name}"
    return f"ended with status {end.status}"


def read_results(path: Path) -> dict[str, Any] | None:
    """Return the document of a file of results; None if there is no file.

    Raises:
        UserError: The file is damaged, or another version of rosetta wrote it.
    """
    if not path.exists():
        return None
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        is_valid = document["schema"] == acceptance.SCHEMA and all(
            isinstance(document[name], kind)
            for name, kind in (("machine", dict), ("tiny", bool), ("rows", list))
        )
        is_valid = is_valid and all("row" in row and "status" in row for row in document["rows"])
    except (ValueError, KeyError, TypeError):
        is_valid = False
    if not is_valid:
        raise UserError(
            "not a file of results of rosetta accept",
            str(path),
            "remove it, or name another folder with --folder",
            kind=DAMAGED,
        )
    return document


def _read_row_document(path: Path) -> dict[str, Any]:
    """Return what the process of a row has written; nothing if it did not come so far."""
    if not path.exists():
        return {"running": None, "cases": []}
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def _read_last_line(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")


def _count_jobs() -> int:
    """Return how many programs to compile at a time: XLA itself uses two cores or more for one."""
    cores = len(os.sched_getaffinity(0))
    memory = limited_programs.read_available_memory() or _COMPILER_MEMORY
    return max(1, min(cores // 2, memory // _COMPILER_MEMORY))
