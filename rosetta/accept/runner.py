"""Run the rows of an acceptance, each in a process of its own, and keep what was measured.

The file of results is written after each row, so that a call that was killed loses one row at most.
The next call in the same folder goes on with the cases that have no result.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.accept import records, row_process
from rosetta.accept.predictions import read_plan
from rosetta.accept.setup import FILE, GPU_PLATFORM, Machine, Setup, write_setup
from rosetta.core import acceptance, limited_programs
from rosetta.core.errors import DAMAGED, DIFFERS, FAILED, IN_USE, UNSUPPORTED, UserError
from rosetta.core.limited_programs import LimitedPrograms
from rosetta.plan import autotune_results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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
_CASE_KEYS = {field.name for field in fields(records.CaseResult)}
_LOCK_FILE = "lock"
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
        UserError: The folder has results of another machine, or JAX does not start.
    """

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        self._options, self._say = options, say
        self._deadline = time.monotonic() + options.seconds
        self._folder = options.folder.resolve()
        self._work = self._folder / WORK_FOLDER
        self._result_path = self._folder / acceptance.RESULT_FILE
        earlier = read_results(self._result_path)
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
        self._subject = {
            "machine": asdict(machine),
            "tiny": options.tiny,
            "rosetta": hash_package(),
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
        }
        if earlier:
            _check_subject(earlier, self._subject, str(self._result_path))
        else:
            self._remove_stale_files()
        self._rows: dict[str, dict[str, Any]] = {
            row["row"]: row for row in (earlier["rows"] if earlier else [])
        }
        self._plans = {plan: _hash_file(plan) for plan in self._setup.plans}
        write_setup(self._work / FILE, self._setup)

    def _remove_stale_files(self) -> None:
        """Remove what a call has left whose file of results is gone: it may be of another GPU."""
        (self._folder / acceptance.AUTOTUNE_FILE).unlink(missing_ok=True)
        if (self._work / FILE).exists():
            shutil.rmtree(self._work)
            self._work.mkdir()

    def _make_environment(self, *, dumps: bool, uses_cache: bool) -> dict[str, str]:
        """Return the environment variables of the processes."""
        root = str(Path(__file__).resolve().parents[2])
        variables = {
            "TF_CPP_MIN_LOG_LEVEL": "1",
            **os.environ,
            # The package of this checkout or environment, wherever it is.
            "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
            "JAX_ENABLE_COMPILATION_CACHE": str(uses_cache).lower(),
            "JAX_COMPILATION_CACHE_DIR": str(self._work / "jax-cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        if dumps:
            variables["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DUMP_FLAG}".strip()
        return variables

    def _run_process(
        self, what: str, seconds: float, *, dumps: bool, uses_cache: bool = True
    ) -> ProgramEnd:
        """Run a row's process, or the probe, for at most these seconds."""
        logs = self._folder / acceptance.LOG_FOLDER / what
        environment = self._make_environment(dumps=dumps, uses_cache=uses_cache)
        argv = [sys.executable, "-P", "-m", row_process.MODULE, str(self._work), what]
        return LimitedPrograms(logs, seconds).run(argv, environment)

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
            earlier = self._rows.get(row.name)
            has_result = earlier is not None and earlier["status"] != acceptance.UNFINISHED
            has_plans = self._has_plans(row, earlier)
            if earlier and has_result and has_plans and not self._options.again:
                self._say(f"{row.name}: {earlier['status']} before")
                continue
            if self._count_seconds_left() < _LEAST_SECONDS:
                self._say(f"{row.name}: no time left; call the command again to go on")
                continue
            path = row_process.find_result_path(self._work, row.name)
            if has_result or not has_plans:
                path.unlink(missing_ok=True)
                earlier = None
            self._say(f"{row.name}: {row.measures}")
            result = self._measure_row(row, earlier["seconds"] if earlier else 0.0)
            if row.compares_plans:
                result = replace(result, plans=sorted(self._plans.values()))
            self._rows[row.name] = asdict(result)
            self._say(f"{row.name}: {result.status}, {result.seconds:.0f} s")
            self._write_results()
        document = self._write_results()
        if not self._find_unfinished_rows():
            shutil.rmtree(self._work, ignore_errors=True)
        return document

    def _has_plans(self, row: Row, earlier: Mapping[str, Any] | None) -> bool:
        """Return whether the result of a row was compared with the plans of this call."""
        if not self._plans or not row.compares_plans:
            return True
        return earlier is not None and earlier.get("plans") == sorted(self._plans.values())

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
            end = self._run_process(
                row.name,
                left,
                dumps=self._setup.dumps_autotuning,
                uses_cache=row.uses_compilation_cache,
            )
            document = row_process.read_row_document(path)
            if end.status == 0:
                break
            out_of_time = end.status == row_process.OUT_OF_TIME
            row_was_up = bool(end.limit and left == row_left and document["running"])
            if out_of_time or (end.limit and not row_was_up):
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
            document["pending"].remove(document["running"])
            records.write_json(path, {**document, "running": None})
            if row_was_up:
                finished = not document["pending"]
                reason = None if finished else "the time was up"
                break
        cases = row_process.read_row_document(path)["cases"]
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
            "machine": self._subject["machine"],
            "tiny": self._subject["tiny"],
            "rosetta": self._subject["rosetta"],
            "xla_flags": self._subject["xla_flags"],
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


def run_acceptance(options: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure rows, and return the document of the file of results.

    Args:
        options: The options.
        say: Called with each line about the progress.

    Raises:
        UserError: A plan cannot be read, another call measures in the folder, the folder has
            results of another machine, or JAX does not start.
    """
    for plan in options.plans:
        read_plan(plan)
    with _lock_folder(options.folder):
        return Acceptance(options, say).run()


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Make a folder, and exclude other calls from it.

    Raises:
        UserError: Another call measures in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                "another call of rosetta accept measures in this folder",
                str(folder),
                "wait for it, or name another folder with --folder",
                kind=IN_USE,
            ) from None
        yield


def describe_end(end: ProgramEnd) -> str:
    """Return how a process ended that did not end well, as the end of a sentence."""
    if end.limit or end.status == row_process.CASE_TIMED_OUT:
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
        is_valid = is_valid and all(map(_is_row, document["rows"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        is_valid = False
    if not is_valid:
        raise UserError(
            "not a file of results of rosetta accept",
            str(path),
            "remove it, or name another folder with --folder",
            kind=DAMAGED,
        )
    return document


def _is_row(row: Any) -> bool:
    """Return whether a part of a file of results has what is read of a row."""
    kinds = (("row", str), ("status", str), ("seconds", (int, float)), ("ok", bool))
    return (
        all(isinstance(row[name], kind) for name, kind in kinds)
        and isinstance(row["cases"], list)
        and all(case.keys() >= _CASE_KEYS for case in row["cases"])
    )


def _check_subject(document: dict[str, Any], subject: dict[str, Any], path: str) -> None:
    """Refuse results of something else than what is measured now.

    Raises:
        UserError: The machine, the size, the code of rosetta or XLA_FLAGS differ.
    """
    different = [name for name, value in subject.items() if document.get(name) != value]
    if different:
        raise UserError(
            f"the results in this folder are of other values of: {', '.join(different)}",
            path,
            "name another folder with --folder",
            kind=DIFFERS,
        )


def hash_package() -> str:
    """Return a hash of the code and the presets of rosetta, which has no version in a checkout."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in {".py", ".yaml", ".gin"}:
            digest.update(f"{path.relative_to(package)} {_hash_file(str(path))}\n".encode())
    return digest.hexdigest()


def _hash_file(path: str) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _read_last_line(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")


def _count_jobs() -> int:
    """Return how many programs to compile at a time: XLA itself uses two cores or more for one."""
    cores = len(os.sched_getaffinity(0))
    memory = limited_programs.read_available_memory() or _COMPILER_MEMORY
    return max(1, min(cores // 2, memory // _COMPILER_MEMORY))
