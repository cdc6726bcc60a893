"""The process that measures one row of an acceptance, or compiles one program for it.

Usage: python -m rosetta.accept.row_process FOLDER probe
       python -m rosetta.accept.row_process FOLDER ROW [CASE JOB]

FOLDER is the work folder of the acceptance. The process writes ROW.json there before and after each
case, so that the process that started it knows which case has ended this one, and which are left.
With CASE and JOB, it only compiles a program of a case into JAX's cache.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.accept import records
from rosetta.accept.setup import FILE, Case, Machine, Setup, read_setup
from rosetta.core import acceptance, parent_death
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

MODULE = "rosetta.accept.row_process"
PROBE = "probe"
# Row -> the function that lists its cases.
CASE_LISTS = {
    "attention": "rosetta.accept.attention:list_cases",
    "products": "rosetta.accept.products:list_cases",
    "kernels": "rosetta.accept.kernels:list_cases",
    "steps": "rosetta.accept.steps:list_step_cases",
    "full": "rosetta.accept.steps:list_full_cases",
    "saved": "rosetta.accept.saved_step:list_cases",
    "te": "rosetta.accept.libraries:list_te_cases",
    "nccl": "rosetta.accept.libraries:list_nccl_cases",
    "run": "rosetta.accept.first_run:list_cases",
}
# A case took too long, and the process ended itself.
CASE_TIMED_OUT = 124
# Programs had no time to be compiled. The next process of the row goes on with them.
OUT_OF_TIME = 75
# The share of a row's time in which its programs have to be compiled.
_COMPILE_SHARE = 0.6
_CPU_DEVICES = "--xla_force_host_platform_device_count=2"
_POLL_SECONDS = 0.2


def find_result_path(folder: Path, row: str) -> Path:
    """Return the file in the work folder that the process of a row writes."""
    return folder / f"{row}.json"


def describe_machine() -> Machine:
    """Return the machine as JAX sees it."""
    jax, jaxlib = (importlib.import_module(name) for name in ("jax", "jaxlib"))
    device = jax.devices()[0]
    return Machine(
        gpu=device.device_kind,
        platform=device.platform,
        capability=str(getattr(device, "compute_capability", None) or "0.0"),
        devices=len(jax.devices()),
        jax=jax.__version__,
        jaxlib=jaxlib.__version__,
        python=platform.python_version(),
    )


def read_row_document(path: Path) -> dict[str, Any]:
    """Return what the processes of a row have written; nothing if they did not come so far.

    It has the case that is `running`, the names of the `pending` cases with it, the results of
    `cases`, and `compiled`: a list of a case, a job, and why it was not compiled, "" if it was.
    """
    if not path.exists():
        return {"running": None, "pending": [], "cases": [], "compiled": []}
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def list_cases(setup: Setup, row: str) -> list[Case]:
    """Return the cases of a row. JAX's devices are not used yet."""
    module, _, function = CASE_LISTS[row].partition(":")
    cases: list[Case] = getattr(importlib.import_module(module), function)(setup)
    return cases


def measure_row(folder: Path, row: str) -> None:
    """Measure the cases of a row that have no result yet."""
    setup = read_setup(folder / FILE)
    declared = acceptance.find_row(row)
    cases = list_cases(setup, row)
    path = find_result_path(folder, row)
    document = read_row_document(path)
    done = {result["case"] for result in document["cases"]}
    pending = [case for case in cases if case.name not in done]
    document |= {"running": None, "pending": [case.name for case in pending]}
    records.write_json(path, document)
    case_seconds = declared.case_seconds * setup.patience
    compile_seconds = declared.seconds * setup.patience * _COMPILE_SHARE
    ahead = _CompileAhead(folder, row, document)
    if not ahead.compile(pending, setup.jobs, compile_seconds):
        sys.exit(OUT_OF_TIME)
    for case in pending:
        records.write_json(path, {**document, "running": case.name})
        print(f"== {case.name}", flush=True)
        watchdog = threading.Timer(case_seconds, os._exit, (CASE_TIMED_OUT,))
        watchdog.daemon = True
        watchdog.start()
        result = _measure_case(case, ahead.find_failures(case))
        watchdog.cancel()
        document["cases"].append(asdict(result))
        document["pending"].remove(case.name)
        records.write_json(path, document)


def _measure_case(case: Case, failures: dict[str, str]) -> records.CaseResult:
    """Return the result of a case, whatever happens in it."""
    start = time.monotonic()
    try:
        measurement = case.measure(failures)
    except records.SkipCase as reason:
        return records.CaseResult(case.name, acceptance.SKIPPED, str(reason))
    except Exception as error:  # noqa: BLE001 (a case that fails must not end the others)
        traceback.print_exc()
        return records.CaseResult(
            case.name,
            acceptance.FAILED,
            describe_error(error),
            round(time.monotonic() - start, 2),
        )
    return records.make_case_result(case.name, measurement, time.monotonic() - start)


def describe_error(error: Exception) -> str:
    """Return an error as one line: a UserError as its own text, another with its class."""
    if isinstance(error, UserError):
        return str(error)
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


class _CompileAhead:
    """The programs of a row, compiled in processes, several at a time.

    Each process is in the process group of this one, which is killed as a whole. How each program
    ended is in the row's document, so that no process of the row compiles one again.

    Args:
        folder: The work folder.
        row: The row.
        document: The row's document.
    """

    def __init__(self, folder: Path, row: str, document: dict[str, Any]) -> None:
        self._folder, self._row, self._document = folder, row, document

    def find_failures(self, case: Case) -> dict[str, str]:
        """Return job -> why it was not compiled, for the jobs of a case that were not."""
        return {
            job: reason
            for name, job, reason in self._document["compiled"]
            if name == case.name and reason
        }

    def compile(self, cases: list[Case], jobs: int, seconds: float) -> bool:
        """Compile the programs of the cases that were not compiled before.

        Args:
            cases: The cases.
            jobs: How many processes run at a time.
            seconds: The time for all programs. A program that has the whole time and does not end
                has failed.

        Returns:
            Whether each program was compiled or has failed; otherwise the time was too short.
        """
        done = {(case, job) for case, job, _ in self._document["compiled"]}
        waiting = [(case.name, job) for case in cases for job in case.compile_jobs]
        waiting = [names for names in waiting if names not in done]
        first, waiting = waiting[:jobs], waiting[jobs:]
        running = {names: self._start(*names) for names in first}
        deadline = time.monotonic() + seconds
        while running and time.monotonic() < deadline:
            for names, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[names]
                self._record(*names, _describe_compiler_end(process.returncode))
                if waiting:
                    following = waiting.pop(0)
                    running[following] = self._start(*following)
            time.sleep(_POLL_SECONDS if running else 0)
        for names, process in running.items():
            process.kill()
            if process.wait() == 0:
                self._record(*names, "")
            elif names in first:
                self._record(*names, f"not compiled within {seconds:.0f} s")
            else:
                waiting.append(names)
        return not waiting

    def _start(self, case: str, job: str) -> subprocess.Popen[bytes]:
        """Start the process that compiles a program."""
        tie = partial(parent_death.die_with_parent, os.getpid(), signal.SIGKILL)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(self._folder), self._row, case, job],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
            # The function only calls prctl, and this process has no other threads yet.
            preexec_fn=tie,  # noqa: PLW1509
        )

    def _record(self, case: str, job: str, reason: str) -> None:
        """Write how a program ended."""
        self._document["compiled"].append([case, job, reason])
        records.write_json(find_result_path(self._folder, self._row), self._document)


def _describe_compiler_end(status: int) -> str:
    """Return why a process did not compile its program; "" if it did."""
    if status < 0:
        return f"the compiler was killed by {signal.Signals(-status).name}"
    return f"the compiler ended with status {status}, see the log of the row" if status else ""


def compile_job(folder: Path, row: str, case_name: str, job: str) -> None:
    """Compile one program of a case. A case that does not apply here compiles nothing."""
    setup = read_setup(folder / FILE)
    case = next(case for case in list_cases(setup, row) if case.name == case_name)
    compile_program: Callable[[], None] = case.compile_jobs[job]
    try:
        compile_program()
    except records.SkipCase as reason:
        print(f"{case_name}, {job}: {reason}")


def main(words: list[str]) -> None:
    """Run one of the programs of the usage."""
    folder, what, *job = words
    work_folder = Path(folder)
    own_folder = work_folder / "-".join([what, str(os.getpid())])
    own_folder.mkdir(parents=True, exist_ok=True)
    # XLA writes the results of autotuning here: the flag has a relative name, because JAX's cache
    # takes a program only if the flags of both processes are equal.
    os.chdir(own_folder)
    if what == "nccl" and os.environ.get("JAX_PLATFORMS") == "cpu":
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_CPU_DEVICES}"
    if what == PROBE:
        records.write_json(find_result_path(work_folder, PROBE), asdict(describe_machine()))
    elif job:
        compile_job(work_folder, what, *job)
    else:
        measure_row(work_folder, what)


if __name__ == "__main__":
    main(sys.argv[1:])
