"""Start a run in its place, and record it for `rosetta runs`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from rosetta.core import log, system_queries
from rosetta.core.errors import FAILED, MISSING, UserError
from rosetta.launch import (
    docker,
    jobset,
    node_processes,
    rendering,
    run_records,
    run_states,
    slurm,
)
from rosetta.launch.rendering import Options

if TYPE_CHECKING:
    from rosetta.core.run_description import Run
    from rosetta.launch.node_processes import ProcessLayout
    from rosetta.launch.rendering import Rendering
    from rosetta.launch.run_records import RunRecord

_RENDERERS = {
    "slurm": slurm.render_slurm,
    "pyxis": slurm.render_pyxis,
    "apptainer": slurm.render_apptainer,
    run_records.JOBSET: jobset.render_jobset,
}


def make_layout(run: Run, node: int, coordinator: str) -> ProcessLayout:
    """Return the place of this node's processes among those of a run.

    Args:
      run: The run.
      node: The number of this node.
      coordinator: HOST:PORT of the first process; "" for a run on one node.
    """
    count = rendering.count_processes_per_node(run)
    return node_processes.ProcessLayout(count, run.nodes, node, coordinator)


def render(place: str, run: Run, options: Options) -> Rendering:
    """Return the command that starts a run in a container or submits it.

    Raises:
      UserError: The place cannot run it.
    """
    if place == run_records.DOCKER:
        return docker.render_docker(run, options, os.environ)
    return _RENDERERS[place](run, options)


def start_local(run: Run, layout: ProcessLayout, again: int | None = None) -> int:
    """Run the processes of this node to their end. A single one takes the place of this process.

    Args:
      run: The run.
      layout: The place of the processes among all.
      again: The number of the run that this one repeats.

    Returns:
      The exit status of the processes.

    Raises:
      UserError: The program does not exist.
    """
    variables = rendering.make_variables(run)
    node = {"node": layout.node, "coordinator": layout.coordinator}
    record = _make_record(run_records.LOCAL, run, Options(), node=node, again=again)
    if record:
        record = replace(record, handle=run_states.describe_process(os.getpid()))
        _announce(record)
    try:
        status = node_processes.run_processes(run.entry, layout, {**os.environ, **variables})
    except UserError:
        if record:
            run_records.discard_record(record)
        raise
    if record:
        run_records.update_record(record, status=status)
    return status


def start_docker(run: Run, options: Options, again: int | None = None) -> NoReturn:
    """Replace this process by `docker run`.

    Args:
      run: The run.
      options: The options of the container.
      again: The number of the run that this one repeats.

    Raises:
      UserError: docker is missing, or cannot run it.
    """
    container = render(run_records.DOCKER, run, options)
    check_program(container, run_records.DOCKER)
    record = _make_record(run_records.DOCKER, run, options, again=again)
    if record:
        name = options.name or f"rosetta-{record.number}-{os.urandom(3).hex()}"
        labeled = _label_run(replace(options, name=name))
        container = render(run_records.DOCKER, run, labeled)
        process = run_states.describe_process(os.getpid())
        _announce(replace(record, handle={**process, "container": name, "id": labeled.run_id}))
    log.info("+ " + container.format_command(), prefix=False)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.execvpe(container.argv[0], container.argv, {**os.environ, **container.env})  # noqa: S606


def submit(place: str, run: Run, options: Options, again: int | None = None) -> dict[str, Any]:
    """Submit a run to a scheduler.

    Args:
      place: A value of --on.
      run: The run.
      options: The options of the job.
      again: The number of the run that this one repeats.

    Returns:
      The output of the program, and the number of the run; None if it could not be recorded.

    Raises:
      UserError: The program is missing, or refuses the run.
    """
    labeled = _label_run(options)
    rendered = render(place, run, labeled)
    check_program(rendered, place)
    process = subprocess.run(
        rendered.argv,
        env={**os.environ, **rendered.env},
        input=rendered.stdin,
        text=True,
        stdout=subprocess.PIPE,
        check=False,
    )
    if process.returncode:
        raise UserError(
            f"ended with status {process.returncode}",
            rendered.argv[0],
            "see the message of the program above",
            kind=FAILED,
            value=process.returncode,
        )
    output = process.stdout.strip()
    record = _make_record(place, run, options, again=again)
    if record:
        handle = _read_handle(place, run, labeled, output)
        _announce(replace(record, handle=handle))
    return {"output": output, "run": record.number if record else None}


def check_program(rendered: Rendering, place: str) -> None:
    """Check that the program of a rendering is installed.

    Raises:
      UserError: The program is missing.
    """
    program = rendered.argv[0]
    if shutil.which(program) is None:
        raise UserError(
            "the program is not on PATH",
            f"--on {place}: {program}",
            "install it, or see its command line with --dry-run",
            kind=MISSING,
            value=program,
        )


def _label_run(options: Options) -> Options:
    """Return options with a new id for a run that starts."""
    return replace(options, run_id=os.urandom(8).hex())


def _make_record(place: str, run: Run, options: Options, **extra: Any) -> RunRecord | None:
    """Return the record of a run; None, with a warning, if no record can be written."""
    try:
        name = rendering.choose_job_name(run, options)
        return run_records.make_record(place, run, options, name, **extra)
    except (OSError, UserError) as error:
        log.warn(f"`rosetta runs` will not know this run: {error}")
        return None


def _announce(record: RunRecord) -> None:
    """Write the record of a run, and log its number."""
    run_records.try_write_new_record(record)
    log.info(f"this is run {record.number}; see rosetta runs status {record.number}")


def _read_handle(place: str, run: Run, options: Options, output: str) -> dict[str, Any]:
    """Return what a scheduler calls a run that it has taken; empty if that is not known."""
    if place == run_records.JOBSET:
        name = rendering.choose_job_name(run, options)
        return {"jobset": name, "namespace": options.namespace, "id": options.run_id}
    job = re.search(r"\b\d+\b", output)  # "Submitted batch job 42", or "42;cluster"
    if not job:
        return {}
    shown = system_queries.run_command(
        ["scontrol", "--oneliner", "show", "job", job[0]], run_states.QUERY_SECONDS
    )
    path = re.search(r"\bStdOut=(\S+)", shown.out if shown else "")
    return {"job": job[0], "output": path[1].replace("%j", job[0]) if path else ""}
