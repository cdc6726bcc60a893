"""A run as `docker run`."""

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
    run: Run, options: Options, around: Mapping[str, str], *, program: str = "docker"
) -> Rendering:
    """Return the command that runs it in a container of this machine, as the user who starts it.

    Variables are named only, and their values taken from the client's environment: no value can be
    seen in a list of processes.

    Args:
      run: of one node.
      options: image is needed.
      around: our environment; CUDA_VISIBLE_DEVICES chooses the cards.
      program: docker, or what takes its words.

    Raises:
      UserError: it has more nodes, no image, or a mount that cannot be.
    """
    if run.nodes > 1:
        raise UserError(
            f"it has {run.nodes} nodes",
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
    if not run_description.runs_on_cpu(run):
        argv.append(f"--gpus={_select_gpus(run, around)}")
    argv += [f"--mount={_format_mount(*each)}" for each in run.mounts] + [
        f"--env={name}" for name in env
    ]
    return Rendering(
        [*argv, rendering.format_image(options, "docker"), *make_node_command(run)], env
    )


def make_node_command(run: Run) -> list[str]:
    """Return what is executed on the one node of a run: its entry, or what starts that once a
    GPU.
    """
    count = rendering.count_processes_per_node(run)
    return (
        list(run.entry)
        if count == 1
        else ["rosetta", "spawn", f"--per-node={count}", "--", *run.entry]
    )


def _select_gpus(run: Run, around: Mapping[str, str]) -> str:
    """Return the first of the visible GPUs, as many as the run has."""
    named = parse_list("CUDA_VISIBLE_DEVICES", around.get("CUDA_VISIBLE_DEVICES", ""))
    if not named:
        return str(run.gpus_per_node)
    if len(named) < run.gpus_per_node:
        raise UserError(
            f"it leaves {len(named)} of the {run.gpus_per_node} GPUs that the run has",
            "CUDA_VISIBLE_DEVICES",
            f"unset it, or give --gpus-per-node {len(named)}",
            kind=CONFLICT,
            value=len(named),
        )
    # In quotes: a field of its list, which has commas itself.
    return f'"device={",".join(named[: run.gpus_per_node])}"'


def _format_mount(outside: str, inside: str) -> str:
    """Return a mount as docker reads it: a line of CSV, so that a path may hold anything."""
    if not (outside.startswith("/") and inside.startswith("/")):
        raise UserError(
            "it is no pair of absolute paths",
            f"mount {outside}:{inside}",
            "write /OUTSIDE:/INSIDE",
            kind=INVALID,
        )
    text = io.StringIO()
    csv.writer(text).writerow(["type=bind", f"source={outside}", f"target={inside}"])
    return text.getvalue().removesuffix("\r\n")
