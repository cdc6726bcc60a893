"""`rosetta run`, `rosetta submit` and `rosetta spawn`: a preset on this machine, in a container, or
by a scheduler.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from rosetta.core import log, option_types
from rosetta.core.errors import CONFLICT, FAILED, INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.core.value_parsing import parse_whole_number

if TYPE_CHECKING:
    import argparse

    from rosetta.core.run_description import Run
    from rosetta.launch.rendering import Options, Rendering

PLACES_TO_RUN, PLACES_TO_SUBMIT = ("local", "docker"), ("slurm", "pyxis", "apptainer", "jobset")
_CONTAINERS, _SBATCH = ("docker", "pyxis", "apptainer", "jobset"), ("slurm", "pyxis", "apptainer")
# Options that not every place has a use for.
_PLACES_OF_OPTION = {
    **dict.fromkeys(("image", "mount"), _CONTAINERS),
    **dict.fromkeys(("node", "coordinator"), ("local",)),
    **dict.fromkeys(("secret", "namespace"), ("jobset",)),
    **dict.fromkeys(("account", "partition", "time", "output", "sbatch", "shared"), _SBATCH),
}


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands to a parser's subcommands."""
    run = commands.add_parser("run", parents=[common], options_anywhere=True)
    _add_preset_options(run)
    run.add_argument(
        "--on",
        choices=PLACES_TO_RUN,
        default=PLACES_TO_RUN[0],
        help="where to run the preset (default: local)",
    )
    run.add_argument("--name", default="", help="the name of the container")
    _add_node_options(run)
    submit = commands.add_parser("submit", parents=[common], options_anywhere=True)
    _add_preset_options(submit)
    submit.add_argument(
        "--on",
        choices=PLACES_TO_SUBMIT,
        required=True,
        help=(
            "slurm: Slurm without containers; pyxis and apptainer: Slurm with containers; jobset: "
            "Kubernetes"
        ),
    )
    submit.add_argument(
        "--job-name",
        dest="name",
        default="",
        metavar="NAME",
        help="the name of the job (default: made from the framework and the model)",
    )
    for name in ("account", "partition", "time", "output"):
        submit.add_argument(
            f"--{name}", default="", metavar=name.upper(), help=f"--{name} of sbatch"
        )
    submit.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="any other option of sbatch, as in --sbatch=--qos=high (may be repeated)",
    )
    submit.add_argument(
        "--requeue",
        action="store_true",
        help="start the job again from its checkpoint if a node fails or its time is over",
    )
    submit.add_argument(
        "--warning",
        type=option_types.parse_count,
        default=120,
        metavar="SECONDS",
        help="how long before its time limit the job is told to end (default: 120)",
    )
    submit.add_argument(
        "--shared",
        action="store_true",
        help="share the nodes with other jobs, for a job on part of a node",
    )
    submit.add_argument(
        "--secret",
        default="",
        metavar="NAME",
        help="jobset: the Kubernetes secret with *_TOKEN, *_KEY, ... (default: rosetta)",
    )
    submit.add_argument("--namespace", default="", help="jobset: the namespace in Kubernetes")
    spawn = commands.add_parser("spawn")
    log.add_level_option(spawn)
    spawn.add_argument(
        "--per-node",
        type=option_types.parse_count,
        default=1,
        metavar="N",
        help="processes of each node (default: 1)",
    )
    spawn.add_argument(
        "--nodes",
        type=option_types.parse_count,
        default=1,
        metavar="N",
        help="nodes on which you start `rosetta spawn` (default: 1)",
    )
    _add_node_options(spawn)
    spawn.add_argument(
        "words", nargs="...", metavar="-- COMMAND", help="the command that each process runs"
    )


def _add_node_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--node",
        type=option_types.make_whole_number_type(minimum=0),
        metavar="I",
        help=(
            "the number of this node, from 0, if you start the command on several nodes (default: "
            "JOB_COMPLETION_INDEX, or 0)"
        ),
    )
    parser.add_argument(
        "--coordinator",
        default="",
        metavar="HOST:PORT",
        help="the first of several nodes, and a free port on it",
    )


def _add_preset_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="PRESET [NAME=VALUE ...]",
        help="a preset or its YAML file, and settings on top of it (docs/how-to/use-presets.md)",
    )
    parser.add_argument(
        "--description",
        metavar="FILE",
        help="a JSON file with a run description instead of a preset; - is standard input",
    )
    parser.add_argument(
        "--accelerator",
        metavar="GPU",
        help=(
            "short name, see docs/reference/gpus.md (default: the GPU of this machine or of the "
            "site)"
        ),
    )
    parser.add_argument(
        "--nodes", type=option_types.parse_count, metavar="N", help="nodes (default: the preset's)"
    )
    parser.add_argument(
        "--gpus-per-node",
        type=option_types.parse_count,
        metavar="N",
        help="GPUs of each node (default: the preset's)",
    )
    parser.add_argument(
        "--processes",
        choices=("node", "gpu"),
        help="start one process for each node, or for each GPU (default: the preset's)",
    )
    parser.add_argument(
        "--image",
        default="",
        metavar="IMAGE",
        help="the image of the container (default: CONTAINER)",
    )
    parser.add_argument(
        "--mount",
        action="append",
        default=[],
        metavar="OUTSIDE:INSIDE",
        help="a folder that the container sees (may be repeated)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what would run, without secrets, but run nothing",
    )


def read_run(args: argparse.Namespace) -> Run:
    """Return the run that a command line describes.

    Raises:
      UserError: see rosetta.presets.preset_run and rosetta.core.run_description.
    """
    from dataclasses import replace

    _check_options(args)
    found = _read_description(args) if args.description else _describe_preset(args)
    mounts = tuple(_parse_mount(each) for each in args.mount)
    found = replace(
        found,
        mounts=(*found.mounts, *mounts),
        processes_per_node=args.processes or found.processes_per_node,
    )
    if (
        found.framework == "t5x"
        and found.processes_per_node == "node"
        and found.nodes > 1
        and found.gpus_per_node > 1
    ):
        raise UserError(
            "T5X takes one process a GPU where there are several nodes",
            "--processes node",
            "give --processes gpu",
            kind=UNSUPPORTED,
        )
    return found


def _warn_about_placement(args: argparse.Namespace, run: Run) -> None:
    """Say on stderr what the run goes without where it will be; UserError where that cannot be
    meant.
    """
    from rosetta.core.secrets import Mask
    from rosetta.core.variables import misspellings
    from rosetta.launch import placement_checks

    if args.on != "local" or args.dry_run:  # else the run itself warns
        misspellings.warn_of_unknown_variables(
            os.environ, f"rosetta {args.command}", args.command, run.framework
        )
    mask = Mask(run.env)
    lines = placement_checks.check_folders(run, args.on) + placement_checks.describe_platform(
        run, args.on, os.environ
    )
    if args.on in PLACES_TO_SUBMIT and not (
        args.description or args.accelerator or "accelerator" in run.origin
    ):
        from rosetta.presets import resolution

        lines += placement_checks.describe_missing_accelerator(
            run, resolution.find_gpu_dependent_fields(args.words[0])
        )
    if args.on in _CONTAINERS and (name := _make_options(args).image):
        from rosetta.launch import image_reference

        dropped = image_reference.describe_dropped_tag(
            image_reference.read_image(name, "--image="), args.on
        )
        lines += (dropped,) if dropped else ()
    for line in lines:
        log.warn(mask.mask_text(line))


def _check_options(args: argparse.Namespace) -> None:
    """UserError for an option that the place where it runs has no use for."""
    wanted = {
        **_PLACES_OF_OPTION,
        "name": ("docker",) if args.on in PLACES_TO_RUN else PLACES_TO_SUBMIT,
    }
    for option, places in wanted.items():
        value = getattr(args, option, None)
        if value not in (None, "", []) and value is not False and args.on not in places:
            others = [
                each
                for each in places
                if each in (PLACES_TO_RUN if args.on in PLACES_TO_RUN else PLACES_TO_SUBMIT)
            ]
            raise UserError(
                f"it has no use for --{option}",
                f"--on {args.on}",
                "leave it out" + (f", or choose of --on {', '.join(others)}" if others else ""),
                kind=CONFLICT,
                value=option,
            )


def _describe_preset(args: argparse.Namespace) -> Run:
    try:
        from rosetta.presets import user_settings
        from rosetta.presets.preset_run import describe_run
    except ModuleNotFoundError as error:
        raise UserError(
            f"presets are read by PyYAML, and there is no {error.name}",
            sys.executable,
            "install it: pip install pyyaml; or give a --description",
            kind=MISSING,
            value=error.name,
        ) from None

    if not args.words:
        raise UserError(
            "no preset is named",
            f"rosetta {args.command}",
            "name one, as in t5x-large, or give a --description",
            kind=MISSING,
        )
    name, *words = args.words
    settings = user_settings.override_cpu_platform(
        user_settings.parse_settings(words, f"rosetta {args.command}"), os.environ, args.accelerator
    )
    return describe_run(
        name,
        accelerator=args.accelerator or _find_accelerator(args, settings),
        settings=settings,
        nodes=args.nodes,
        gpus_per_node=args.gpus_per_node,
        environment=os.environ,
    )


def _find_accelerator(args: argparse.Namespace, settings: dict[str, str]) -> str | None:
    """Return this machine's accelerator, if the run is to be here."""
    from rosetta.core import gpu_query
    from rosetta.presets import resolution, user_settings

    return (
        resolution.find_accelerator(gpu_query.detect_gpus({**os.environ, **settings}))
        if args.on in PLACES_TO_RUN and not user_settings.is_cpu_requested(settings, os.environ)
        else None
    )


def _read_description(args: argparse.Namespace) -> Run:
    import json
    from pathlib import Path

    from rosetta.core import bounded_read, run_description

    if args.words or args.nodes or args.gpus_per_node or args.accelerator:
        raise UserError(
            "it says everything but where",
            f"--description {args.description}",
            "leave out preset, settings, --nodes, --gpus-per-node and --accelerator, or mend it",
            kind=CONFLICT,
        )
    try:
        document = json.loads(
            sys.stdin.read()
            if args.description == "-"
            else bounded_read.read_text(Path(args.description), "--description")
        )
    except ValueError as error:
        raise UserError(
            f"it is no JSON: {error}",
            args.description,
            "write it with --json of rosetta explain",
            kind=INVALID,
        ) from None
    return run_description.parse_run(document)


def _parse_mount(text: str) -> tuple[str, str]:
    outside, colon, inside = text.rpartition(":")
    if not (colon and outside and inside):
        raise UserError(
            "it is no mount", f"--mount={text}", "write OUTSIDE:INSIDE", kind=INVALID, value=text
        )
    return outside if outside.startswith(("/", "pvc:")) else os.path.abspath(outside), inside


def _make_options(args: argparse.Namespace) -> Options:
    from dataclasses import fields

    from rosetta.launch.rendering import Options

    extra = tuple(getattr(args, "sbatch", ()))
    if odd := [each for each in extra if not each.startswith("--")]:
        raise UserError(
            "it is no option",
            f"--sbatch={odd[0]}",
            "write it whole, as in --sbatch=--qos=high",
            kind=INVALID,
            value=odd[0],
        )
    given: dict[str, Any] = {
        each.name: value for each in fields(Options) if (value := getattr(args, each.name, ""))
    }
    given.setdefault("image", os.environ.get("CONTAINER", ""))
    return Options(**{**given, "extra": extra})


def run_preset(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta run`; return its result and the text to print."""
    from rosetta.launch import docker, node_processes, rendering

    run = read_run(args)
    if args.on == "docker":
        wanted = docker.render_docker(run, _make_options(args), os.environ)
        _warn_about_placement(args, run)
        return _format_rendering(wanted) if args.dry_run else _replace_process(args, wanted)
    origin = run.origin.get("nodes", "")
    if run.nodes > 1 and not args.coordinator and ".yaml:" in origin:
        what = f"{run.nodes} nodes, which the preset brings ({origin}), have to meet somewhere"
        raise UserError(
            what,
            "--coordinator",
            (
                "give --nodes 1 for this machine alone; or name the first node, and a free port "
                "of it, to all of them: HOST:PORT"
            ),
            kind=MISSING,
        )
    _warn_about_placement(args, run)
    layout = node_processes.ProcessLayout(
        rendering.count_processes_per_node(run),
        run.nodes,
        _read_node_number(args),
        args.coordinator,
    )
    env = rendering.make_variables(run)
    if args.dry_run:
        return _format_rendering(
            rendering.Rendering(_make_spawn_command(layout, list(run.entry)), env)
        )
    _refuse_json(args)
    sys.exit(node_processes.run_processes(run.entry, layout, {**os.environ, **env}))


def _make_spawn_command(layout: Any, entry: list[str]) -> list[str]:
    """Return the command line that does the same."""
    if layout.nodes * layout.per_node == 1:
        return entry
    several = (
        [f"--nodes={layout.nodes}", f"--node={layout.node}", f"--coordinator={layout.coordinator}"]
        if layout.nodes > 1
        else []
    )
    return ["rosetta", "spawn", f"--per-node={layout.per_node}", *several, "--", *entry]


def _read_node_number(args: argparse.Namespace) -> int:
    """Return the number of this node."""
    if args.node is not None:
        return int(args.node)
    given = os.environ.get("JOB_COMPLETION_INDEX") or "0"
    return parse_whole_number("JOB_COMPLETION_INDEX", given, minimum=0)


def _replace_process(args: argparse.Namespace, wanted: Rendering) -> NoReturn:
    import shutil
    import signal

    _refuse_json(args)
    _check_program(shutil.which(wanted.argv[0]), wanted, args.on)
    log.info("+ " + wanted.text(), prefix=False)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.execvpe(wanted.argv[0], wanted.argv, {**os.environ, **wanted.env})  # noqa: S606


def _refuse_json(args: argparse.Namespace) -> None:
    if args.json:
        raise UserError(
            "the run's own output is on stdout",
            "--json",
            "add --dry-run, for what would run",
            kind=CONFLICT,
        )


def _check_program(found: str | None, wanted: Rendering, on: str) -> None:
    if found is None:
        raise UserError(
            "there is no such program on PATH",
            f"--on {on}: {wanted.argv[0]}",
            "install it, or see what it would be given: --dry-run",
            kind=MISSING,
            value=wanted.argv[0],
        )


def _format_rendering(wanted: Rendering) -> tuple[dict[str, Any], str]:
    return wanted.shown(), wanted.text()


def submit_preset(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta submit`; return its result and the text to print."""
    import shutil
    import subprocess

    from rosetta.launch import jobset, slurm

    renderings = {
        "slurm": slurm.render_slurm,
        "pyxis": slurm.render_pyxis,
        "apptainer": slurm.render_apptainer,
        "jobset": jobset.render_jobset,
    }
    run = read_run(args)
    wanted = renderings[args.on](run, _make_options(args))
    _warn_about_placement(args, run)
    if args.dry_run:
        return _format_rendering(wanted)
    _check_program(shutil.which(wanted.argv[0]), wanted, args.on)
    done = subprocess.run(
        wanted.argv,
        env={**os.environ, **wanted.env},
        input=wanted.stdin,
        text=True,
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise UserError(
            f"it ended with status {done.returncode}",
            wanted.argv[0],
            "see what it said",
            kind=FAILED,
            value=done.returncode,
        )
    return {"said": done.stdout.strip()}, done.stdout.strip()


def spawn_processes(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta spawn`; return its result and the text to print."""
    from rosetta.launch import node_processes

    words = args.words[args.words[:1] == ["--"] :]
    if not words:
        raise UserError(
            "there is nothing to start", "rosetta spawn", "write the command after --", kind=MISSING
        )
    sys.exit(
        node_processes.run_processes(
            words,
            node_processes.ProcessLayout(
                args.per_node, args.nodes, _read_node_number(args), args.coordinator
            ),
            os.environ,
        )
    )


RUN = {"run": run_preset, "submit": submit_preset, "spawn": spawn_processes}
