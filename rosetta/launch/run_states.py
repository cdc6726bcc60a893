"""Ask where a run is: running, waiting or ended. Ask its place to cancel it, and confirm that."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core import process_identity, system_queries
from rosetta.core.errors import CONFLICT, FAILED, MISSING, UNREACHABLE, UserError
from rosetta.launch import rendering, run_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.core.system_queries import CommandResult
    from rosetta.launch.run_records import RunRecord

WAITING, RUNNING, COMPLETED = "waiting", "running", "completed"
FAILED_STATE, CANCELLED, ENDED, UNKNOWN = "failed", "cancelled", "ended", "unknown"
QUERY_SECONDS = 30.0  # for the answer of a place
CANCEL_SECONDS = 150.0  # a run may write a checkpoint first
_POLL_SECONDS = 0.5
# States of Slurm that are not those of a job that failed.
_SLURM_STATES = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED"), WAITING),
    **dict.fromkeys(("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED"), RUNNING),
    "COMPLETED": COMPLETED,
    "CANCELLED": CANCELLED,
}


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    Attributes:
      name: One of the states of this module.
      detail: What the place says about it; "" for nothing.
    """

    name: str
    detail: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the run has certainly ended."""
        return self.name not in (WAITING, RUNNING, UNKNOWN)


def query_state(record: RunRecord) -> RunState:
    """Return the state of a run, as its place reports it."""
    if record.cancelled:
        return RunState(CANCELLED)  # `cancel` records that after the run has ended.
    try:
        return _query_place(record)
    except (KeyError, TypeError, ValueError):
        return RunState(UNKNOWN, "its record, or the answer of its place, cannot be read")


def _query_place(record: RunRecord) -> RunState:
    """Return the state that the place of a run reports."""
    if not record.handle:
        return RunState(UNKNOWN, "it was never started in full")
    if record.place == run_records.LOCAL:
        return _query_process(record)
    if record.place == run_records.DOCKER:
        return _query_container(record)
    if record.place == run_records.JOBSET:
        return _query_jobset(record)
    return _query_slurm(str(record.handle["job"]))


def describe_process(pid: int) -> dict[str, Any]:
    """Return the handle of a process of this machine."""
    return {
        "pid": pid,
        "started": process_identity.read_start_time(pid),
        "boot": process_identity.read_boot_id(),
        "namespace": process_identity.read_pid_namespace(),
        "host": socket.gethostname(),
    }


def _is_alive(handle: dict[str, Any]) -> bool:
    """Return whether the process of a handle still runs, on this machine."""
    pid = int(handle["pid"])
    is_same = bool(handle["started"]) and process_identity.read_start_time(pid) == handle["started"]
    return is_same and not process_identity.is_zombie(pid)


def _query_process(record: RunRecord) -> RunState:
    """Return the state of a process. Its start time tells it from a later one with its id."""
    handle = record.handle
    is_here = handle["host"] == socket.gethostname()
    if is_here and handle["boot"] != process_identity.read_boot_id():
        return RunState(ENDED, "the machine was started again since")
    if not is_here or handle["namespace"] != process_identity.read_pid_namespace():
        return RunState(UNKNOWN, f"it is a process of {handle['host']}, in another container")
    if _is_alive(handle):
        return RunState(RUNNING, f"process {handle['pid']}")
    if record.status is None:
        return RunState(ENDED)
    name = FAILED_STATE if record.status else COMPLETED
    return RunState(name, f"exit status {record.status}")


def _query_container(record: RunRecord) -> RunState:
    """Return the state of a container, which Docker removes when it ends."""
    name = str(record.handle["container"])
    result = _ask("docker", "container", "inspect", "--format={{json .}}", name)
    if result is None:
        return RunState(UNKNOWN, "docker does not answer")
    if result.status and "no such container" not in result.err.lower():
        return RunState(UNKNOWN, _shorten(result.err))
    container = None if result.status else json.loads(result.out)
    if container is None or not _has_label(record, container["Config"].get("Labels")):
        process = _query_process(record)
        if process.name == UNKNOWN:
            return process
        is_starting = process.name == RUNNING
        return RunState(WAITING, "the container starts") if is_starting else RunState(ENDED)
    state = container["State"]
    if state["Status"] in ("running", "paused", "restarting", "removing"):
        return RunState(RUNNING, f"container {name}")
    if state["Status"] == "created":
        return RunState(WAITING, "the container starts")
    code = state.get("ExitCode", 0)
    return RunState(FAILED_STATE if code else COMPLETED, f"exit status {code}")


def _has_label(record: RunRecord, labels: dict[str, str] | None) -> bool:
    """Return whether labels are those of a run, and not of a later one with its name."""
    return (labels or {}).get(rendering.RUN_LABEL, "") == _get_run_id(record)


def _get_run_id(record: RunRecord) -> str:
    """Return the id of a run, which its container or its JobSet has as a label."""
    return str(record.handle.get("id", ""))


def _query_slurm(job: str) -> RunState:
    """Return the state of a Slurm job: of the queue, else of the accounting, else of the daemon."""
    queue = _ask("squeue", "--noheader", f"--jobs={job}", "--format=%T %r")
    if queue is None:
        return RunState(UNKNOWN, "squeue does not answer")
    if not queue.status and queue.out.strip():
        return _convert_slurm_state(queue.out.split("\n", 1)[0])
    accounting = _ask(
        "sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}", "--format=State"
    )
    if accounting and not accounting.status and accounting.out.strip():
        return _convert_slurm_state(accounting.out.split("\n", 1)[0])
    shown = _ask("scontrol", "--oneliner", "show", "job", job)
    if shown and not shown.status:
        fields = dict(word.partition("=")[::2] for word in shown.out.split())
        reason = fields.get("Reason", "None")
        extra = reason if reason != "None" else f"exit code {fields.get('ExitCode', '?')}"
        return _convert_slurm_state(f"{fields.get('JobState', '')} {extra}")
    answers = [result.err for result in (queue, shown) if result]
    if any("invalid job id" in answer.lower() for answer in answers):
        return RunState(ENDED, "Slurm does not list the job any more")
    return RunState(UNKNOWN, next(filter(None, map(_shorten, answers)), "Slurm does not answer"))


def _convert_slurm_state(line: str) -> RunState:
    """Return the state for a line "STATE details" of Slurm."""
    state, _, extra = line.strip().partition(" ")
    name = _SLURM_STATES.get(state.rstrip("+"), FAILED_STATE)
    shows_extra = extra.strip() not in ("", "None")
    return RunState(name, f"{state} {extra.strip()}" if shows_extra else state)


def _make_kubectl(record: RunRecord, *words: str) -> list[str]:
    """Return a kubectl command for the namespace of a run."""
    namespace = record.handle.get("namespace")
    return ["kubectl", *words, *([f"--namespace={namespace}"] if namespace else [])]


def _query_jobset(record: RunRecord) -> RunState:
    """Return the state of a JobSet."""
    name = str(record.handle["jobset"])
    result = _ask(*_make_kubectl(record, "get", "jobset", name, "--output=json"))
    if result is None:
        return RunState(UNKNOWN, "kubectl does not answer")
    if result.status:
        if "(notfound)" in result.err.lower():
            return RunState(ENDED, "the JobSet does not exist any more")
        return RunState(UNKNOWN, _shorten(result.err))
    document = json.loads(result.out)
    if not _has_label(record, document["metadata"].get("labels")):
        return RunState(ENDED, "its name belongs to another JobSet now")
    status = document.get("status", {})
    conditions = {
        condition["type"]: condition.get("message", "")
        for condition in status.get("conditions", [])
        if condition.get("status") == "True"
    }
    if "Completed" in conditions:
        return RunState(COMPLETED, f"JobSet {name}")
    if "Failed" in conditions:
        return RunState(FAILED_STATE, _shorten(conditions["Failed"]) or f"JobSet {name}")
    jobs = status.get("replicatedJobsStatus", [])
    is_running = any(job.get("active", 0) or job.get("ready", 0) for job in jobs)
    restarts = f", restarted {status['restarts']} times" if status.get("restarts") else ""
    return RunState(RUNNING if is_running else WAITING, f"JobSet {name}{restarts}")


def _ask(*argv: str) -> CommandResult | None:
    """Run a query of a place; None if the program does not exist or does not answer in time."""
    return system_queries.run_command(argv, QUERY_SECONDS)


def _shorten(text: str) -> str:
    """Return the first line of a message."""
    return text.strip().split("\n", 1)[0]


def cancel(record: RunRecord, seconds: float = CANCEL_SECONDS) -> RunState:
    """Ask the place of a run to end it, wait until it has ended, and record that.

    Args:
      record: The run.
      seconds: How long to wait.

    Returns:
      The last state.

    Raises:
      UserError: The run has ended already, its place does not answer, or it does not end.
    """
    where = f"run {record.number}"
    state = query_state(record)
    if state.is_over:
        raise UserError(
            f"the run is over: {state.name}", where, "there is nothing to cancel", kind=CONFLICT
        )
    if state.name == UNKNOWN:
        raise UserError(
            f"the state of the run is not known: {state.detail}",
            where,
            "cancel it where it runs",
            kind=UNREACHABLE,
        )
    if record.place == run_records.LOCAL:
        _end_process(record)
    else:
        _run_cancel_command(_make_cancel_command(record, seconds), seconds)
    deadline = time.monotonic() + seconds
    while not (state := query_state(record)).is_over:
        if time.monotonic() > deadline:
            raise UserError(
                f"the run was told to end, and still is {state.name} after {seconds:.0f} s",
                where,
                "ask again, or end it where it runs",
                kind=FAILED,
            )
        time.sleep(_POLL_SECONDS)
    run_records.update_record(record, cancelled=True)
    return RunState(CANCELLED)


def _end_process(record: RunRecord) -> None:
    """Send SIGTERM to a process of this machine. A new process with its id gets no signal."""
    pid = int(record.handle["pid"])
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # a kernel before Linux 5.3
        if _is_alive(record.handle):
            os.kill(pid, signal.SIGTERM)
        return
    try:
        # The descriptor stands for the process that was there when it was opened.
        if _is_alive(record.handle):
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    finally:
        os.close(descriptor)


def _make_cancel_command(record: RunRecord, seconds: float) -> list[str]:
    """Return the command that ends a run in its place."""
    if record.place == run_records.DOCKER:
        return ["docker", "stop", f"--time={int(seconds)}", str(record.handle["container"])]
    if record.place == run_records.JOBSET:
        return _make_kubectl(record, "delete", "jobset", _make_selector(record), "--wait=true")
    return ["scancel", str(record.handle["job"])]


def _make_selector(record: RunRecord) -> str:
    """Return the option of kubectl that selects the JobSet or the pods of a run."""
    return f"--selector={rendering.RUN_LABEL}={_get_run_id(record)}"


def _run_cancel_command(argv: Sequence[str], seconds: float) -> None:
    """Run the command that ends a run.

    Raises:
      UserError: The program is missing, or refuses.
    """
    result = system_queries.run_command(argv, seconds + QUERY_SECONDS)
    if result is None:
        raise UserError(
            "the program is not on PATH, or does not end",
            argv[0],
            "run it by hand: " + " ".join(argv),
            kind=MISSING,
        )
    if result.status:
        raise UserError(
            _shorten(result.err) or f"ended with status {result.status}",
            argv[0],
            "see rosetta runs status",
            kind=FAILED,
        )


def make_log_command(record: RunRecord, lines: int, *, follow: bool) -> list[str]:
    """Return the command that prints the output of a container or of the pods of a JobSet."""
    words = [f"--tail={lines}", *(["--follow"] if follow else [])]
    if record.place == run_records.DOCKER:
        return ["docker", "logs", *words, str(record.handle["container"])]
    if follow:
        words.append(f"--max-log-requests={record.run['nodes']}")  # kubectl follows five by default
    return _make_kubectl(record, "logs", _make_selector(record), "--container=rosetta", *words)
