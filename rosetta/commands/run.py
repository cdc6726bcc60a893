"""The commands `rosetta run`, `submit` and `spawn`: start a preset, or processes of a command.

`run` starts a preset on this machine, with or without a container. `submit` gives a preset to Slurm
or Kubernetes. A place is what --on names. A rendering is the command line, the variables and the
standard input with which a place starts the run.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from rosetta.core import log, option_types
from rosetta.core.errors import (
    CONFLICT,
    DENIED,
    EXISTS,
    INVALID,
    MISSING,
    UNSUPPORTED,
    UserError,
)
from rosetta.core.value_parsing import parse_whole_number

if TYPE_CHECKING:
    import argparse

    from rosetta.core.run_description import Run
    from rosetta.launch.node_processes import ProcessLayout
    from rosetta.launch.rendering import Options, Rendering

PLACES_TO_RUN, PLACES_TO_SUBMIT = ("local", "docker"), ("slurm", "pyxis", "apptainer", "jobset")
_CONTAINERS, _SBATCH = ("docker", "pyxis", "apptainer", "jobset"), ("slurm", "pyxis", "apptainer")
# The options that only some places use.
_PLACES_OF_OPTION = {
    **dict.fromkeys(("image", "mount"), _CONTAINERS),
    **dict.fromkeys(("node", "coordinator"), ("local",)),
    **dict.fromkeys(("secret", "namespace"), ("jobset",)),
    **dict.fromkeys(("account", "partition", "time", "output", "sbatch", "shared"), _SBATCH),
    "write": _SBATCH,
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
        "--write",
        default="",
        metavar="FILE.sub",
        help="write the job as a file for sbatch, and submit nothing",
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
    """Add the options for a run that is started on each of several nodes."""
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
    """Add the options that say what to run, which `run` and `submit` share."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="PRESET [NAME=VALUE ...]",
        help="a preset or its YAML file, and settings on top of it (docs/how-to/use-presets.md)",
    )
    parser.add_argument(
        "--gin",
        action="append",
        default=[],
        metavar="FILE",
        help="a gin file of T5X instead of a preset, with NAME=VALUE as bindings (may be repeated)",
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
      UserError: An option does not fit the place, or the preset, the settings or the run
        description are not valid.
    """
    from dataclasses import replace

    _check_options(args)
    if args.description:
        described = _read_description(args)
    elif args.gin:
        described = _describe_gin_files(args)
    else:
        described = _describe_preset(args)
    mounts = tuple(_parse_mount(text) for text in args.mount)
    described = replace(
        described,
        mounts=(*described.mounts, *mounts),
        processes_per_node=args.processes or described.processes_per_node,
    )
    if (
        described.framework == "t5x"
        and described.processes_per_node == "node"
        and described.nodes > 1
        and described.gpus_per_node > 1
    ):
        raise UserError(
            "on several nodes, T5X needs one process for each GPU",
            "--processes node",
            "give --processes gpu",
            kind=UNSUPPORTED,
        )
    return described


def _warn_about_placement(args: argparse.Namespace, run: Run) -> None:
    """Log what the run lacks in the place where it will run.

    Raises:
      UserError: The run cannot work there.
    """
    from rosetta.core.secrets import Mask
    from rosetta.core.variables import misspellings
    from rosetta.launch import placement_checks

    if args.on != "local" or args.dry_run:
        # A local run warns by itself.
        misspellings.warn_of_unknown_variables(
            os.environ, f"rosetta {args.command}", args.command, run.framework
        )
    _check_flags(args, run)
    lines = [
        *placement_checks.check_folders(run, args.on),
        *placement_checks.describe_platform(run, args.on, os.environ),
    ]
    has_preset = not args.description and not args.gin
    names_gpu = not has_preset or args.accelerator or "accelerator" in run.origin
    if args.on in PLACES_TO_SUBMIT and not names_gpu:
        from rosetta.presets import resolution

        fields = resolution.find_gpu_dependent_fields(args.words[0])
        lines += placement_checks.describe_missing_accelerator(run, fields)
    image = _make_options(args).image if args.on in _CONTAINERS else ""
    if image:
        from rosetta.launch import image_reference

        reference = image_reference.read_image(image, "--image=")
        dropped_tag = image_reference.describe_dropped_tag(reference, args.on)
        lines += [dropped_tag] if dropped_tag else []
    mask = Mask(run.env)
    for line in lines:
        log.warn(mask.mask_text(line))


def _check_options(args: argparse.Namespace) -> None:
    """Refuse an option that the place does not use."""
    command_places = PLACES_TO_RUN if args.on in PLACES_TO_RUN else PLACES_TO_SUBMIT
    name_places = ("docker",) if command_places == PLACES_TO_RUN else PLACES_TO_SUBMIT
    for option, places in {**_PLACES_OF_OPTION, "name": name_places}.items():
        value = getattr(args, option, None)
        is_given = value not in (None, "", []) and value is not False
        if is_given and args.on not in places:
            others = [place for place in places if place in command_places]
            alternative = f", or choose one of --on {', '.join(others)}" if others else ""
            raise UserError(
                f"does not use --{option}",
                f"--on {args.on}",
                f"leave the option out{alternative}",
                kind=CONFLICT,
                value=option,
            )


def _describe_preset(args: argparse.Namespace) -> Run:
    """Return the run of a preset and its settings."""
    try:
        from rosetta.presets import user_settings
        from rosetta.presets.preset_run import describe_run
    except ModuleNotFoundError as error:
        raise UserError(
            f"reading presets needs PyYAML, but {error.name} is not installed",
            sys.executable,
            "install it: pip install pyyaml; or give a --description",
            kind=MISSING,
            value=error.name,
        ) from None

    if not args.words:
        raise UserError(
            "no preset is named",
            f"rosetta {args.command}",
            "name one, such as t5x-large, or give a --description",
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


def _describe_gin_files(args: argparse.Namespace) -> Run:
    """Return the run of the gin files that --gin names, and of the settings on top of them.

    On this machine, one process has all GPUs by default. A job has one process for each GPU.
    """
    from rosetta.launch import gin_run

    if args.accelerator:
        raise UserError(
            "the settings for an accelerator come from presets",
            "--accelerator",
            "leave the option out, or name a preset instead of --gin",
            kind=CONFLICT,
            value=args.accelerator,
        )
    nodes = args.nodes or 1
    default = "node" if args.on in PLACES_TO_RUN and nodes == 1 else "gpu"
    return gin_run.describe_gin_run(
        args.gin,
        args.words,
        nodes=nodes,
        gpus_per_node=args.gpus_per_node or 8,
        processes_per_node=args.processes or default,
        environment=os.environ,
        in_container=args.on in _CONTAINERS,
    )


def _find_accelerator(args: argparse.Namespace, settings: dict[str, str]) -> str | None:
    """Return the short name of this machine's GPU if the run will be on this machine."""
    from rosetta.core import gpu_query
    from rosetta.presets import resolution, user_settings

    if args.on not in PLACES_TO_RUN or user_settings.is_cpu_requested(settings, os.environ):
        return None
    return resolution.find_accelerator(gpu_query.detect_gpus({**os.environ, **settings}))


def _read_description(args: argparse.Namespace) -> Run:
    """Return the run of the file that --description names."""
    import json
    from pathlib import Path

    from rosetta.core import bounded_read, run_description

    if args.words or args.gin or args.nodes or args.gpus_per_node or args.accelerator:
        raise UserError(
            "a run description sets everything except the place",
            f"--description {args.description}",
            "leave out preset, settings, --gin, --nodes, --gpus-per-node and --accelerator, or "
            "edit the file",
            kind=CONFLICT,
        )
    if args.description == "-":
        text = sys.stdin.read()
    else:
        text = bounded_read.read_text(Path(args.description), "--description")
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UserError(
            f"not valid JSON: {error}",
            args.description,
            "write the file with --json of rosetta explain",
            kind=INVALID,
        ) from None
    return run_description.parse_run(document)


def _parse_mount(text: str) -> tuple[str, str]:
    """Return the two folders of a --mount, the outer one as an absolute path."""
    outside, colon, inside = text.rpartition(":")
    if not (colon and outside and inside):
        raise UserError(
            "is not a valid mount",
            f"--mount={text}",
            "write OUTSIDE:INSIDE",
            kind=INVALID,
            value=text,
        )
    return outside if outside.startswith(("/", "pvc:")) else os.path.abspath(outside), inside


def _make_options(args: argparse.Namespace) -> Options:
    """Return the options of a rendering."""
    from dataclasses import fields

    from rosetta.launch.rendering import Options

    extra = tuple(getattr(args, "sbatch", ()))
    for word in extra:
        if not word.startswith("--"):
            raise UserError(
                "is not a valid option",
                f"--sbatch={word}",
                "write the option with its dashes, as in --sbatch=--qos=high",
                kind=INVALID,
                value=word,
            )
    values = {option.name: getattr(args, option.name, "") for option in fields(Options)}
    options: dict[str, Any] = {name: value for name, value in values.items() if value}
    options.setdefault("image", os.environ.get("CONTAINER", ""))
    options["extra"] = extra
    return Options(**options)


def _check_flags(args: argparse.Namespace, run: Run) -> None:
    """Check that the XLA of this Python has the flags that the user set.

    A run on this machine checks the flags itself when it starts, so only its dry run is checked.
    Elsewhere, another version of XLA may run, so a flag that is not known here is a warning.

    Raises:
      UserError: The run is for this machine, and XLA does not take a flag.
    """
    from rosetta.core import xla_flags
    from rosetta.presets import user_settings

    origins = (user_settings.COMMAND_LINE, user_settings.BASE_FLAGS_VARIABLE, "XLA_FLAGS")
    flags = {
        name: value
        for name, value in run.xla_flags.items()
        if run.origin.get(f"xla_flags.{name}") in origins
    }
    if args.on == "local" and not args.dry_run:
        return
    try:
        xla_flags.check_flags_known(xla_flags.format_flags(flags), sys.executable)
    except UserError as error:
        if args.on == "local":
            raise
        log.warn(f"{error.what} (checked with the XLA of this Python); {error.do}")


def run_preset(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta run`; return its result and the text to print."""
    from rosetta.launch import rendering, run_start

    run, options = read_run(args), _make_options(args)
    if args.on == "docker":
        container = run_start.render(args.on, run, options)
        _warn_about_placement(args, run)
        if args.dry_run:
            return _format_rendering(container)
        _refuse_json(args)
        run_start.start_docker(run, options)
    _check_coordinator(args, run)
    _warn_about_placement(args, run)
    layout = run_start.make_layout(run, _read_node_number(args), args.coordinator)
    if args.dry_run:
        variables = rendering.make_variables(run)
        spawn_command = _make_spawn_command(layout, list(run.entry))
        return _format_rendering(rendering.Rendering(spawn_command, variables))
    _refuse_json(args)
    sys.exit(run_start.start_local(run, layout))


def _check_coordinator(args: argparse.Namespace, run: Run) -> None:
    """Refuse a run on several nodes without a coordinator, if a preset chose the nodes.

    If the user chose the nodes, the processes themselves report the missing coordinator.
    """
    origin = run.origin.get("nodes", "")
    if run.nodes > 1 and not args.coordinator and ".yaml:" in origin:
        raise UserError(
            f"the preset is for {run.nodes} nodes ({origin}), which need a meeting point",
            "--coordinator",
            "give --nodes 1 to run on this machine only; or start the command on every node with "
            "the first node and a free port of it: --coordinator HOST:PORT",
            kind=MISSING,
        )


def _make_spawn_command(layout: ProcessLayout, entry: list[str]) -> list[str]:
    """Return the command line that starts the same processes as `rosetta run`."""
    if layout.nodes * layout.per_node == 1:
        return entry
    words = ["rosetta", "spawn", f"--per-node={layout.per_node}"]
    if layout.nodes > 1:
        words += [
            f"--nodes={layout.nodes}",
            f"--node={layout.node}",
            f"--coordinator={layout.coordinator}",
        ]
    return [*words, "--", *entry]


def _read_node_number(args: argparse.Namespace) -> int:
    """Return the number of this node: --node, or the number that Kubernetes sets."""
    if args.node is not None:
        return int(args.node)
    text = os.environ.get("JOB_COMPLETION_INDEX") or "0"
    return parse_whole_number("JOB_COMPLETION_INDEX", text, minimum=0)


def _refuse_json(args: argparse.Namespace) -> None:
    """Refuse --json for a run, whose own output goes to stdout."""
    if args.json:
        raise UserError(
            "stdout has the output of the run",
            "--json",
            "add --dry-run to see what would run",
            kind=CONFLICT,
        )


def _format_rendering(rendering: Rendering) -> tuple[dict[str, Any], str]:
    """Return a rendering as the result of a dry run, and as text."""
    return rendering.as_json(), rendering.format_command()


def submit_preset(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta submit`; return its result and the text to print."""
    from rosetta.launch import run_start

    run, options = read_run(args), _make_options(args)
    rendering = run_start.render(args.on, run, options)
    _warn_about_placement(args, run)
    if args.dry_run:
        return _format_rendering(rendering)
    if args.write:
        return _write_batch_file(args.write, rendering)
    result = run_start.submit(args.on, run, options)
    return result, result["output"]


def _write_batch_file(file: str, rendering: Rendering) -> tuple[dict[str, Any], str]:
    """Write a job as a Slurm file; return the result and the text to print.

    Raises:
      UserError: The file exists, or cannot be written.
    """
    from pathlib import Path

    from rosetta.core.atomic_files import write_atomic
    from rosetta.launch import slurm

    path = Path(file)
    text = slurm.format_batch_file(rendering)
    if path.exists():
        raise UserError(
            "the file exists already",
            f"--write {file}",
            "name another, or remove it yourself",
            kind=EXISTS,
        )
    try:
        write_atomic(path, text, None)
    except OSError as error:
        raise UserError(
            f"the file cannot be written ({error.strerror})",
            f"--write {file}",
            "name a file in a folder of yours",
            kind=DENIED,
        ) from None
    return {"file": str(path.absolute())}, f"{file}: submit it with sbatch {file}"


def spawn_processes(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta spawn`; it ends with the exit status of the processes."""
    from rosetta.launch import node_processes

    words = args.words[args.words[:1] == ["--"] :]
    if not words:
        raise UserError(
            "no command is given", "rosetta spawn", "write the command after --", kind=MISSING
        )
    layout = node_processes.ProcessLayout(
        args.per_node, args.nodes, _read_node_number(args), args.coordinator
    )
    sys.exit(node_processes.run_processes(words, layout, os.environ))


RUN = {"run": run_preset, "submit": submit_preset, "spawn": spawn_processes}
