"""`rosetta tune`."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import log, option_types
from rosetta.tune import candidates

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from rosetta.tune.search import Choice, Outcome

STEPS, REPEATS, SECONDS, TRIALS = 30, 3, 1800, 40
PACKAGES = (
    "jax",
    "jaxlib",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "t5x",
    "paxml",
    "praxis",
    "transformer-engine-jax",
)


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    entry = commands.add_parser("tune", parents=[common], options_anywhere=True)
    entry.add_argument(
        "preset",
        metavar="PRESET",
        help="the name of a preset, or a YAML file (docs/how-to/use-presets.md)",
    )
    entry.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings of every trial")
    entry.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the file for the new preset (default: PRESET-tuned.yaml)",
    )
    entry.add_argument(
        "--evidence",
        type=Path,
        metavar="FILE",
        help=(
            "the file with one line for each trial (default: the file of the preset with .jsonl); "
            "a trial in this file is not repeated"
        ),
    )
    entry.add_argument(
        "--try",
        dest="tried",
        metavar="LIST",
        help=(
            f"what to try, separated by commas: {','.join(candidates.ALL_CANDIDATES)} (default: "
            "all that can have an effect here)"
        ),
    )
    entry.add_argument(
        "--trials",
        type=option_types.parse_count,
        default=TRIALS,
        metavar="N",
        help=f"the largest number of trials (default: {TRIALS})",
    )
    entry.add_argument(
        "--steps", type=option_types.parse_count, help=f"steps of a trial (default: {STEPS})"
    )
    entry.add_argument(
        "--repeats",
        type=option_types.parse_count,
        help=f"trials of the unchanged preset, which show the noise (default: {REPEATS})",
    )
    entry.add_argument(
        "--seconds",
        type=option_types.parse_count,
        default=SECONDS,
        help=f"end a trial after this time (default: {SECONDS})",
    )
    entry.add_argument(
        "--gpus",
        type=option_types.parse_count,
        metavar="N",
        help="GPUs of a trial (default: all of this machine); with --card, GPUs of each node",
    )
    entry.add_argument(
        "--card",
        metavar="GPU",
        help="plan for this GPU instead of measuring: short name, see docs/reference/gpus.md",
    )
    entry.add_argument(
        "--nodes",
        type=option_types.parse_count,
        metavar="N",
        help="with --card: nodes (default: the preset's)",
    )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta tune`; return its result and the text to print."""
    from rosetta.core import run_folders
    from rosetta.core.secrets import Mask
    from rosetta.core.variables import misspellings
    from rosetta.presets import preset_files, preset_run, resolution
    from rosetta.tune import evidence, planned_trial, preset_output, search, trial

    settings = _read_settings(args.settings)
    here = _find_planned_device(args, settings) if args.card else _find_local_device(args, settings)
    resolved = preset_run.resolve_values(
        args.preset,
        accelerator=here.accelerator,
        settings=settings,
        nodes=args.nodes or (None if args.card else 1),
        gpus_per_node=here.gpus,
        environment=os.environ,
    )
    run = preset_run.build_run(resolved)
    misspellings.warn_of_unknown_variables(os.environ, "rosetta tune", "tune", run.framework)
    count, batch = run.nodes * run.gpus_per_node, run.batch.get("per_gpu")
    names = candidates.drop_active_candidates(
        candidates.choose_default_candidates(run, planned=bool(args.card), on_cpu=here.on_cpu)
        if args.tried is None
        else candidates.parse_candidates(args.tried, planned=bool(args.card)),
        resolved,
    )
    output, file = _choose_files(args)
    mask, logs, say = (
        Mask({**os.environ, **settings}),
        file.with_suffix(".logs"),
        _make_reporter(args.json),
    )
    make: planned_trial.PlannedTrials | trial.Trials
    if args.card:
        planned_trial.make_plan_arguments(run, args.card)
        make = planned_trial.PlannedTrials(
            args.preset,
            args.card.lower(),
            settings,
            nodes=args.nodes,
            gpus=args.gpus,
            seconds=args.seconds,
            logs=logs,
        )
    else:
        make = trial.Trials(
            args.preset,
            here.accelerator,
            run.gpus_per_node,
            settings,
            steps=args.steps or STEPS,
            seconds=args.seconds,
            logs=logs,
        )
    kept = evidence.Evidence(
        file,
        {
            "preset": args.preset,
            "settings": mask.mask_variables(settings),
            "card": here.card,
            "devices": count,
            "nodes": run.nodes,
            "steps": None if args.card else args.steps or STEPS,
            "planned": bool(args.card),
            "versions": {
                each: version
                for each in PACKAGES
                if (version := resolution.find_installed_version(each))
            },
            "values": mask.mask_variables(
                {path: str(each.value) for path, each in sorted(resolved.values.items())}
            ),
        },
    )
    seeking = search.Search(
        _reuse_evidence(kept, make, say),
        1 if args.card else args.repeats or REPEATS,
        most=args.trials,
        comes_to=lambda choice: _identify_choice(make, choice),
        say=say,
    )
    best = seeking.run(
        batch if isinstance(batch, int) else None,
        [
            (each, candidates.make_candidate_choice(each))
            for each in names
            if each != candidates.BATCH
        ],
        grow=candidates.BATCH in names,
    )
    why = f"{'planned for' if args.card else 'measured on'} {count} x {here.card}"
    about = f"{args.preset} {why}" + (
        f" with {shlex.join(map(mask.mask_text, args.settings))}" if args.settings else ""
    )
    about += ", not measured" if args.card else f": {best.rate / best.before:.3f} times its rate"
    extends = (
        args.preset
        if args.preset in preset_files.load_presets()
        else str(Path(args.preset).absolute())
    )
    run_folders.write_file(
        output,
        preset_output.format_preset_file(
            preset_output.make_preset(
                best,
                extends=extends,
                accelerator=here.accelerator,
                about=about,
                why=why,
                planned=bool(args.card),
            ),
            file.name,
        ),
    )
    result = {
        "preset": str(output),
        "evidence": str(file),
        "kept": dict(best.kept),
        "before": best.before,
        "rate": best.rate,
        "noise": best.noise,
        "settings": best.choice.settings(),
    }
    told = [
        f"{each}: it fits" if args.card and each.startswith("batch ") else f"{each}: {gain:+.1%}"
        for each, gain in best.kept
    ] or ["nothing gains more than the noise: the preset stays as it is"]
    return result, "\n".join([about, *told, f"written: {output}; each trial: {file}"])


@dataclass(frozen=True)
class _Device:
    """Where trials are made, or planned for: the GPUs' short name for presets and their full name,
    and how many of a node (None: the preset's).
    """

    accelerator: str | None
    card: str
    gpus: int | None
    on_cpu: bool = False


def _find_planned_device(args: argparse.Namespace, settings: Mapping[str, str]) -> _Device:
    from rosetta.core import gpus
    from rosetta.core.errors import CONFLICT, UserError
    from rosetta.plan import t5x_step
    from rosetta.presets import user_settings

    if settings.get(user_settings.BASE_FLAGS_VARIABLE) or os.environ.get(
        user_settings.BASE_FLAGS_VARIABLE
    ):
        raise UserError(
            "a plan has the flags of the model's preset below all others",
            user_settings.BASE_FLAGS_VARIABLE,
            "unset it, and give what is to differ: XLA_FLAGS, or xla_...=VALUE words",
            kind=CONFLICT,
        )
    if args.steps or args.repeats:
        raise UserError(
            "a plan is of one step, and always the same",
            "--steps" if args.steps else "--repeats",
            "leave it out with --card",
            kind=CONFLICT,
        )
    gpu = gpus.get_gpu(args.card, "--card")
    t5x_step.require_compiler(gpu)
    return _Device(gpu.short_name, gpu.name, args.gpus)


def _find_local_device(args: argparse.Namespace, settings: Mapping[str, str]) -> _Device:
    from rosetta.core import gpu_query
    from rosetta.core.errors import UNSUPPORTED, UserError
    from rosetta.launch import device_selection
    from rosetta.presets import resolution, user_settings

    if args.nodes:
        raise UserError(
            "a trial is made on this machine",
            f"--nodes {args.nodes}",
            "leave it out, or plan: --card GPU",
            kind=UNSUPPORTED,
            value=args.nodes,
        )
    environment = {**os.environ, **settings}
    found = gpu_query.detect_gpus(environment)
    on_cpu = user_settings.is_cpu_requested(settings, os.environ)
    if not on_cpu:
        gpu_query.select_jax_platforms(found, environment)  # refuses what would be the CPU unasked
    gpus = args.gpus or device_selection.count_devices(found, environment, on_cpu=on_cpu)
    return (
        _Device(None, "CPU", gpus, on_cpu=True)
        if on_cpu
        else _Device(resolution.find_accelerator(found), found[0].name if found else "GPU", gpus)
    )


def _choose_files(args: argparse.Namespace) -> tuple[Path, Path]:
    """Return the paths of the preset and the evidence; UserError if they cannot be written."""
    from rosetta.core import run_folders
    from rosetta.core.errors import CONFLICT, INVALID, MISSING, UserError

    output = args.output or Path(f"{Path(args.preset).stem}-tuned.yaml")
    for option, path in (("--output", output), ("--evidence", args.evidence)):
        if path is not None and not path.name:
            raise UserError(
                "not a file's name", f"{option} {path}", "name a file, new or old", kind=INVALID
            )
    file = args.evidence or output.with_suffix(".jsonl")
    if output.resolve() == Path(args.preset).resolve() or output.resolve() == file.resolve():
        raise UserError(
            "it would be written over what it is made from",
            f"--output {output}",
            "name another file",
            kind=CONFLICT,
        )
    for each in (output, file):
        run_folders.check_folder_writable(str(each.resolve().parent))
        if each.exists() and not each.is_file():
            raise UserError("it is no file", str(each), "name another", kind=MISSING)
    return output, file


def _reuse_evidence(
    kept: Any, make: Callable[[Choice, int], Outcome], say: Callable[[str], None]
) -> Callable[[Choice, int], Outcome]:
    """Trials that are looked up in the evidence, and made where they are not in it."""
    from rosetta.core.errors import UserError
    from rosetta.tune.search import Outcome

    def measure(choice: Choice, repeat: int) -> Outcome:
        known = kept.known(choice, repeat)
        if known is not None:
            return known  # type: ignore[no-any-return]
        settings = " ".join(f"{name}={value}" for name, value in choice.settings().items())
        again = f", again ({repeat + 1})" if repeat else ""
        say(f"trying {settings or 'the preset as it is'}{again}")
        try:
            outcome = make(choice, repeat)
        except UserError as error:  # of this choice: what it starts from can be described
            outcome = Outcome("refused", reason=str(error))
        kept.add(choice, repeat, outcome)
        return outcome

    return measure


def _identify_choice(make: Any, choice: Choice) -> object:
    """Return what a choice comes to; an invalid one is unlike all others, and its trial says
    why.
    """
    from rosetta.core.errors import UserError
    from rosetta.tune import trial_identity

    try:
        return trial_identity.identify_run(make.describe(choice))
    except UserError:
        return choice


def _make_reporter(quiet: bool) -> Callable[[str], None]:
    return (lambda _: None) if quiet else log.info


def _read_settings(words: Sequence[str]) -> dict[str, str]:
    from rosetta.core.errors import CONFLICT, UserError
    from rosetta.presets import resolution, user_settings

    found = user_settings.parse_settings(words, "rosetta tune")
    if resolution.SWITCHES_VARIABLE in found:
        raise UserError(
            "switches are what is tried",
            resolution.SWITCHES_VARIABLE,
            "set them in the preset: switches: [...]",
            kind=CONFLICT,
        )
    return found


RUN = {"tune": run}
