"""Render a run as a Slurm job: without containers, with pyxis, or with apptainer.

sbatch gets job.sh, which is the same for all runs, and the arguments of srun as the arguments of
this script. Variables are passed in the environment.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import run_description
from rosetta.core.errors import INVALID, UNSUPPORTED, UserError
from rosetta.launch import rendering
from rosetta.launch.rendering import Options, Rendering

if TYPE_CHECKING:
    from rosetta.core.run_description import Run

SCRIPT = Path(__file__).with_name("job.sh")
REQUEUE_VARIABLE = "REQUEUE"  # read by job.sh
# Not --kill-on-bad-exit: of processes that end early with a checkpoint, the first would have Slurm
# end the others before they are done.
# Seconds from the first process that ends to the end of those that do not end by themselves.
WAIT_SECONDS = 120


def render_slurm(run: Run, options: Options) -> Rendering:
    """Return the command that submits a run to nodes that have the baked environment."""
    return _render_job(run, options, [], rendering.make_variables(run))


def render_pyxis(run: Run, options: Options) -> Rendering:
    """Return the command that submits a run in an image, with pyxis.

    The command names each variable, or else the image's own value would win (pyxis'
    --container-env).

    Raises:
      UserError: there is no image, or a mount's path has a comma or a colon.
    """
    env = rendering.make_variables(run)
    words = [f"--container-image={rendering.format_image(options, 'pyxis')}"]
    if env:
        words.append(f"--container-env={','.join(env)}")
    if run.mounts:
        words.append(f"--container-mounts={','.join(rendering.format_mounts(run, '--on pyxis'))}")
    return _render_job(run, options, words, env)


def render_apptainer(run: Run, options: Options) -> Rendering:
    """Return the command that submits a run in an image, with apptainer.

    --no-eval stops apptainer's shell in the container from evaluating variables and arguments.

    Raises:
      UserError: there is no image, or a mount's path has a comma or a colon.
    """
    env = rendering.make_variables(run)
    words = [
        "apptainer",
        "exec",
        "--no-eval",
        *([] if run_description.runs_on_cpu(run) else ["--nv"]),
    ]
    words += [f"--bind={mount}" for mount in rendering.format_mounts(run, "--on apptainer")]
    inside = {f"APPTAINERENV_{name}": value for name, value in env.items()}
    return _render_job(
        run, options, [*words, rendering.format_image(options, "apptainer")], {**env, **inside}
    )


def _render_job(run: Run, options: Options, words: list[str], env: dict[str, str]) -> Rendering:
    """Return the sbatch command: job options, job.sh, step options, these words and the entry."""
    count = rendering.count_processes_per_node(run)
    if run.entry[0].startswith("-"):
        raise UserError(
            "srun would read the entry as an option",
            f"entry {run.entry[0]}",
            "name a program",
            kind=INVALID,
            value=run.entry[0],
        )
    batch = [
        "sbatch",
        f"--job-name={rendering.choose_job_name(run, options)}",
        f"--nodes={run.nodes}",
        f"--ntasks-per-node={count}",
        "--export=ALL",
        "--open-mode=append",
        f"--signal=B:USR1@{options.warning}",
    ]
    batch += ["--requeue" if options.requeue else "--no-requeue"]
    batch += [] if run_description.runs_on_cpu(run) else [f"--gres=gpu:{run.gpus_per_node}"]
    batch += [] if options.shared else ["--exclusive", "--mem=0"]
    batch += [
        f"--{name}={value}"
        for name in ("account", "partition", "time", "output")
        if (value := getattr(options, name))
    ]
    step = [
        f"--nodes={run.nodes}",
        f"--ntasks={run.processes}",
        f"--ntasks-per-node={count}",
        "--kill-on-bad-exit=0",
        f"--wait={WAIT_SECONDS}",
        "--export=ALL",
        "--cpu-bind=none",
    ]
    return Rendering(
        [*batch, *options.extra, str(SCRIPT), *step, *words, *run.entry],
        {**env, REQUEUE_VARIABLE: str(int(options.requeue))},
    )


def format_batch_file(rendered: Rendering) -> str:
    """Return a job as a file that sbatch takes without arguments.

    The file has the options of sbatch, the variables, the arguments of srun, and then job.sh. It
    has no values of secrets: sbatch passes on the variables of its own environment.

    Args:
      rendered: what one of the functions above returns.

    Raises:
      UserError: an argument has a secret, or an option has more than one line.
    """
    shown = rendered.as_json()
    if shown["argv"] != rendered.argv:
        raise UserError(
            "an argument of the job has a secret, which a file must not have",
            "--write",
            "give the secret in a variable of the environment",
            kind=UNSUPPORTED,
        )
    place = rendered.argv.index(str(SCRIPT))
    options, step = rendered.argv[1:place], rendered.argv[place + 1 :]
    for option in options:
        if "\n" in option:
            raise UserError(
                "an option of a Slurm file is one line", option, "leave it out", kind=INVALID
            )
    lines = ["#!/bin/bash", *(f"#SBATCH {shlex.quote(option)}" for option in options)]
    for name, value in rendered.env.items():
        if shown["env"][name] == value:
            lines.append(f"export {name}={shlex.quote(value)}")
        else:
            lines.append(f": ${{{name}:?set this secret where you call sbatch}}")
    lines.append("set -- " + shlex.join(step))
    _, body = SCRIPT.read_text(encoding="utf-8").split("\n", 1)
    return "\n".join(lines) + f"\n\n{body}"
