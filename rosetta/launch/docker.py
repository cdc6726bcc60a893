"""Render a run as `docker run`."""

from __future__ import annotations

import csv
import io
import os
from typing import TYPE_CHECKING

from rosetta.core import run_description
from rosetta.core.errors import CONFLICT, INVALID, UNSUPPORTED, UserError
from rosetta.core.value_parsing import parse_list
from rosetta.launch import rendering
from rosetta.launch.rendering import Options, Rendering

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.core.run_description import Run


def render_docker(
    run: Run, options: Options, environment: Mapping[str, str], *, program: str = "docker"
) -> Rendering:
    """Return the command that runs a run in a container on this machine, as the current user.

    The command only names the variables. Docker takes their values from its environment, so that a
    list of processes shows no value.

    Args:
      run: of one node.
      options: with an image.
      environment: ours; CUDA_VISIBLE_DEVICES chooses the GPUs.
      program: docker, or a program with the same options.

    Raises:
      UserError: the run has several nodes, no image, or a mount that is not valid.
    """
    if run.nodes > 1:
        raise UserError(
            f"the run has {run.nodes} nodes, and docker starts one",
            "--on docker",
            "give --nodes 1, or submit it to a scheduler: rosetta submit",
            kind=UNSUPPORTED,
            value=run.nodes,
        )
    env = rendering.make_variables(run)
    argv = [
        program,
        "run",
        "--rm",
        "--init",
        "--ipc=host",
        "--ulimit=memlock=-1",
        "--ulimit=stack=67108864",
        f"--user={os.getuid()}:{os.getgid()}",
    ]
    if options.name:
        argv.append(f"--name={options.name}")
    if options.run_id:
        argv.append(f"--label={rendering.RUN_LABEL}={options.run_id}")
    if not run_description.runs_on_cpu(run):
        argv.append(f"--gpus={_select_gpus(run, environment)}")
    argv += [f"--mount={_format_mount(*mount)}" for mount in run.mounts] + [
        f"--env={name}" for name in env
    ]
    return Rendering(
        [*argv, rendering.format_image(options, "docker"), *make_node_command(run)], env
    )


def make_node_command(run: Run) -> list[str]:
    """Return the command line for the one node of a run.

    It is the run's entry, or the command that starts the entry once for each process.
    """
    count = rendering.count_processes_per_node(run)
    return (
        list(run.entry)
        if count == 1
        else ["rosetta", "spawn", f"--per-node={count}", "--", *run.entry]
    )


def _select_gpus(run: Run, environment: Mapping[str, str]) -> str:
    """Return the first of the visible GPUs, as many as the run has."""
    visible = parse_list("CUDA_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES", ""))
    if not visible:
        return str(run.gpus_per_node)
    if len(visible) < run.gpus_per_node:
        raise UserError(
            f"only {len(visible)} of the {run.gpus_per_node} GPUs of the run are visible",
            "CUDA_VISIBLE_DEVICES",
            f"unset it, or give --gpus-per-node {len(visible)}",
            kind=CONFLICT,
            value=len(visible),
        )
    # In quotes, because docker reads the value as CSV, and the list has commas.
    return f'"device={",".join(visible[: run.gpus_per_node])}"'


def _format_mount(outside: str, inside: str) -> str:
    """Return a mount in docker's form: a line of CSV, in which a path may have any character."""
    if not (outside.startswith("/") and inside.startswith("/")):
        raise UserError(
            "not a pair of absolute paths",
            f"mount {outside}:{inside}",
            "write /OUTSIDE:/INSIDE",
            kind=INVALID,
        )
    text = io.StringIO()
    csv.writer(text).writerow(["type=bind", f"source={outside}", f"target={inside}"])
    return text.getvalue().removesuffix("\r\n")
