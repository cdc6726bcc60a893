"""The process that measures one row of an acceptance, or compiles one program for it.

Usage: python -m rosetta.accept.row_process FOLDER probe
       python -m rosetta.accept.row_process FOLDER ROW [CASE JOB]

FOLDER is the work folder of the acceptance. The process writes ROW.json there before and after each
case, so that the process that started it knows which case has ended this one. With CASE and JOB,
it only compiles a program of a case into JAX's cache.
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
    "te": "rosetta.accept.libraries:list_te_cases",
    "nccl": "rosetta.accept.libraries:list_nccl_cases",
    "run": "rosetta.accept.first_run:list_cases",
}
# A case took too long, and the process ended itself.
CASE_TIMED_OUT = 124
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
    earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"cases": []}
    document: dict[str, Any] = {"running": None, "cases": earlier["cases"]}
    done = {result["case"] for result in document["cases"]}
    pending = [case for case in cases if case.name not in done]
    records.write_json(path, document)
    case_seconds = declared.case_seconds * setup.patience
    compile_seconds = declared.seconds * setup.patience * _COMPILE_SHARE
    failures = _compile_ahead(folder, row, pending, setup.jobs, compile_seconds)
    for case in pending:
        records.write_json(path, {**document, "running": case.name})
        print(f"== {case.name}", flush=True)
        watchdog = threading.Timer(case_seconds, os._exit, (CASE_TIMED_OUT,))
        watchdog.daemon = True
        watchdog.start()
        result = _measure_case(case, failures.get(case.name, {}))
        watchdog.cancel()
        document["cases"].append(asdict(result))
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
        lines = str(error).strip().splitlines() or [""]
        return records.CaseResult(
            case.name,
            acceptance.FAILED,
            f"{type(error).__name__}: {lines[0]}",
            round(time.monotonic() - start, 2),
        )
    return records.make_case_result(case.name, measurement, time.monotonic() - start)


def _compile_ahead(
    folder: Path, row: str, cases: list[Case], jobs: int, seconds: float
) -> dict[str, dict[str, str]]:
    """Compile the programs of the cases in processes, several at a time.

    Each process is in the process group of this one, which is killed as a whole.

    Returns:
        Case -> job -> why the program was not compiled.
    """
    waiting = [(case.name, job) for case in cases for job in case.compile_jobs]
    running: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
    failures: dict[str, dict[str, str]] = {}
    deadline = time.monotonic() + seconds
    tie = partial(parent_death.die_with_parent, os.getpid(), signal.SIGKILL)
    while waiting or running:
        while waiting and len(running) < jobs:
            case, job = waiting.pop(0)
            running[case, job] = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(folder), row, case, job],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
                # The function only calls prctl, and this process has no other threads yet.
                preexec_fn=tie,  # noqa: PLW1509
            )
        for (case, job), process in list(running.items()):
            status = process.poll()
            if status is None and time.monotonic() < deadline:
                continue
            del running[case, job]
            if status is None:
                process.kill()
                process.wait()
                reason = f"not compiled within {seconds:.0f} s"
            elif status < 0:
                reason = f"the compiler was killed by {signal.Signals(-status).name}"
            else:
                reason = f"the compiler ended with status {status}, see the log of the row"
            if status != 0:
                failures.setdefault(case, {})[job] = reason
        time.sleep(_POLL_SECONDS if running else 0)
    return failures


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
