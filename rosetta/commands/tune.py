"""The command `rosetta tune`: find the batch and the switches that suit a preset.

A trial is a short run of the preset with one choice of batch and switches. The evidence is the file
with the results of all trials; a later start reuses them.
"""

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

    from rosetta.core.run_description import Run
    from rosetta.core.secrets import Mask
    from rosetta.presets.resolution import ResolvedPreset
    from rosetta.tune.evidence import Evidence
    from rosetta.tune.search import Choice, Outcome, SearchResult
    from rosetta.tune.trial import Trials

# The defaults of the options.
STEPS, REPEATS, SECONDS, TRIALS = 30, 3, 1800, 40
# Trials with other versions of these packages do not count.
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
        "--steps",
        type=option_types.parse_count,
        default=STEPS,
        help=f"steps of a trial (default: {STEPS})",
    )
    entry.add_argument(
        "--repeats",
        type=option_types.parse_count,
        default=REPEATS,
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
        help="GPUs of a trial (default: all of this machine)",
    )


@dataclass(frozen=True)
class _Device:
    """The GPUs on which trials run.

    Attributes:
      accelerator: The short name for presets; None without a known GPU.
      name: The full name.
      gpus_per_node: The number of GPUs of this machine that trials use.
      on_cpu: Whether trials run on the CPU.
    """

    accelerator: str | None
    name: str
    gpus_per_node: int
    on_cpu: bool = False


@dataclass(frozen=True)
class _Files:
    """The files that the command writes."""

    preset: Path
    evidence: Path

    @property
    def logs(self) -> Path:
        """The folder for the logs of trials."""
        return self.evidence.with_suffix(".logs")


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta tune`; return its result and the text to print."""
    from rosetta.core.secrets import Mask
    from rosetta.core.variables import misspellings
    from rosetta.presets import preset_run
    from rosetta.tune import evidence

    settings = _read_settings(args.settings)
    device = _find_device(args, settings)
    resolved = preset_run.resolve_values(
        args.preset,
        accelerator=device.accelerator,
        settings=settings,
        nodes=1,
        gpus_per_node=device.gpus_per_node,
        environment=os.environ,
    )
    base_run = preset_run.build_run(resolved)
    misspellings.warn_of_unknown_variables(os.environ, "rosetta tune", "tune", base_run.framework)
    names = _choose_candidates(args, base_run, resolved, on_cpu=device.on_cpu)
    files = _choose_files(args)
    trials = _make_trials(args, settings, device, base_run, files.logs)
    mask = Mask({**os.environ, **settings})
    subject = {
        "preset": args.preset,
        "settings": mask.mask_variables(settings),
        **_describe_conditions(args, device, base_run),
        "values": mask.mask_variables(
            {path: str(setting.value) for path, setting in sorted(resolved.values.items())}
        ),
    }
    known_trials = evidence.Evidence(files.evidence, subject)
    best = _search(args, trials, known_trials, names, base_run.batch.get("per_gpu"))
    reason = _describe_measurement(device, base_run)
    title = _make_title(args, best, reason, mask)
    _write_preset(args, best, device, files, title, reason)
    written = f"written: {files.preset}; each trial: {files.evidence}"
    text = "\n".join([title, *_format_gains(best), written])
    return _make_result(best, files), text


def _make_result(best: SearchResult, files: _Files) -> dict[str, Any]:
    """Return the result for --json."""
    return {
        "preset": str(files.preset),
        "evidence": str(files.evidence),
        "kept": dict(best.kept),
        "before": best.before,
        "rate": best.rate,
        "noise": best.noise,
        "settings": best.choice.settings(),
    }


def _choose_candidates(
    args: argparse.Namespace, base_run: Run, resolved: ResolvedPreset, *, on_cpu: bool
) -> list[str]:
    """Return the names of what to try: the batch, and switches that are not on already."""
    if args.tried is None:
        names = candidates.choose_default_candidates(base_run, on_cpu=on_cpu)
    else:
        names = candidates.parse_candidates(args.tried)
    return candidates.drop_active_candidates(names, resolved)


def _make_trials(
    args: argparse.Namespace,
    settings: Mapping[str, str],
    device: _Device,
    base_run: Run,
    logs: Path,
) -> Trials:
    """Return what makes a trial of a choice."""
    from rosetta.tune import trial

    return trial.Trials(
        args.preset,
        device.accelerator,
        base_run.gpus_per_node,
        settings,
        steps=args.steps,
        seconds=args.seconds,
        logs=logs,
    )


def _describe_conditions(
    args: argparse.Namespace, device: _Device, base_run: Run
) -> dict[str, Any]:
    """Return what trials depend on apart from the preset and the settings, for the evidence."""
    from rosetta.presets import resolution

    versions = {package: resolution.find_installed_version(package) for package in PACKAGES}
    return {
        "card": device.name,
        "devices": base_run.nodes * base_run.gpus_per_node,
        "nodes": base_run.nodes,
        "steps": args.steps,
        "versions": {package: version for package, version in versions.items() if version},
    }


def _search(
    args: argparse.Namespace,
    trials: Trials,
    known_trials: Evidence,
    names: Sequence[str],
    batch: object,
) -> SearchResult:
    """Search for the best choice.

    Args:
      args: The command line.
      trials: Makes a trial of a choice.
      known_trials: The evidence.
      names: What to try.
      batch: Sequences for each GPU in the preset; anything but a number cannot be doubled.
    """
    from rosetta.tune import search

    report = _make_reporter(args.json)
    switches = [name for name in names if name != candidates.BATCH]
    return search.Search(
        _reuse_evidence(known_trials, trials, report),
        args.repeats,
        max_trials=args.trials,
        identify=lambda choice: _identify_choice(trials, choice),
        report=report,
    ).run(
        batch if isinstance(batch, int) else None,
        [(name, candidates.make_candidate_choice(name)) for name in switches],
        grow=candidates.BATCH in names,
    )


def _describe_measurement(device: _Device, base_run: Run) -> str:
    """Return how the values of the new preset were found."""
    return f"measured on {base_run.nodes * base_run.gpus_per_node} x {device.name}"


def _make_title(args: argparse.Namespace, best: SearchResult, reason: str, mask: Mask) -> str:
    """Return one line about the new preset."""
    title = f"{args.preset} {reason}"
    if args.settings:
        title += f" with {shlex.join(mask.mask_text(word) for word in args.settings)}"
    return f"{title}: {best.rate / best.before:.3f} times its rate"


def _write_preset(
    args: argparse.Namespace,
    best: SearchResult,
    device: _Device,
    files: _Files,
    title: str,
    reason: str,
) -> None:
    """Write the new preset, which extends the tuned one."""
    from rosetta.core import run_folders
    from rosetta.presets import preset_files
    from rosetta.tune import preset_output

    is_shipped = args.preset in preset_files.load_presets()
    document = preset_output.make_preset(
        best,
        extends=args.preset if is_shipped else str(Path(args.preset).absolute()),
        accelerator=device.accelerator,
        about=title,
        why=reason,
    )
    run_folders.write_file(
        files.preset, preset_output.format_preset_file(document, files.evidence.name)
    )


def _format_gains(best: SearchResult) -> list[str]:
    """Return a line for each change that the new preset makes."""
    lines = [f"{name}: {gain:+.1%}" for name, gain in best.kept]
    return lines or ["no change gains more than the noise: the preset stays as it is"]


def _find_device(args: argparse.Namespace, settings: Mapping[str, str]) -> _Device:
    """Return the GPUs of this machine, or the CPU if the user asks for it.

    Raises:
      UserError: There is no GPU, and nobody asked for the CPU.
    """
    from rosetta.core import gpu_query
    from rosetta.launch import device_selection
    from rosetta.presets import resolution, user_settings

    environment = {**os.environ, **settings}
    detected_gpus = gpu_query.detect_gpus(environment)
    on_cpu = user_settings.is_cpu_requested(settings, os.environ)
    if not on_cpu:
        # This refuses a machine without a GPU.
        gpu_query.select_jax_platforms(detected_gpus, environment)
    count = args.gpus or device_selection.count_devices(detected_gpus, environment, on_cpu=on_cpu)
    if on_cpu:
        return _Device(None, "CPU", count, on_cpu=True)
    name = detected_gpus[0].name if detected_gpus else "GPU"
    return _Device(resolution.find_accelerator(detected_gpus), name, count)


def _choose_files(args: argparse.Namespace) -> _Files:
    """Return the files to write.

    Raises:
      UserError: A file cannot be written, or would replace the preset that is tuned.
    """
    from rosetta.core import run_folders
    from rosetta.core.errors import CONFLICT, INVALID, MISSING, UserError

    preset = args.output or Path(f"{Path(args.preset).stem}-tuned.yaml")
    for option, path in (("--output", preset), ("--evidence", args.evidence)):
        if path is not None and not path.name:
            raise UserError(
                "not the name of a file",
                f"{option} {path}",
                "name a new or an existing file",
                kind=INVALID,
            )
    evidence = args.evidence or preset.with_suffix(".jsonl")
    if preset.resolve() in (Path(args.preset).resolve(), evidence.resolve()):
        raise UserError(
            "the new preset would replace the tuned preset or the evidence",
            f"--output {preset}",
            "name another file",
            kind=CONFLICT,
        )
    for path in (preset, evidence):
        run_folders.check_folder_writable(str(path.resolve().parent))
        if path.exists() and not path.is_file():
            raise UserError("not a regular file", str(path), "name another file", kind=MISSING)
    return _Files(preset, evidence)


def _reuse_evidence(
    known_trials: Evidence,
    make_trial: Callable[[Choice, int], Outcome],
    report: Callable[[str], None],
) -> Callable[[Choice, int], Outcome]:
    """Return a function that makes a trial unless the evidence has its outcome."""
    from rosetta.core.errors import UserError
    from rosetta.tune.search import Outcome

    def measure(choice: Choice, repeat: int) -> Outcome:
        known = known_trials.find_outcome(choice, repeat)
        if known is not None:
            return known
        settings = " ".join(f"{name}={value}" for name, value in choice.settings().items())
        again = f", again ({repeat + 1})" if repeat else ""
        report(f"trying {settings or 'the preset as it is'}{again}")
        try:
            outcome = make_trial(choice, repeat)
        except UserError as error:
            # The unchanged preset is valid, so that this choice is at fault.
            outcome = Outcome("refused", reason=str(error))
        known_trials.add_outcome(choice, repeat, outcome)
        return outcome

    return measure


def _identify_choice(trials: Trials, choice: Choice) -> object:
    """Return what a choice changes in the run: equal for choices that make the same run.

    A choice that is not valid equals no other; its trial reports the error.
    """
    from rosetta.core.errors import UserError
    from rosetta.tune import trial_identity

    try:
        return trial_identity.identify_run(trials.describe(choice))
    except UserError:
        return choice


def _make_reporter(quiet: bool) -> Callable[[str], None]:
    """Return a function that logs a line, or drops it."""
    return (lambda _: None) if quiet else log.info


def _read_settings(words: Sequence[str]) -> dict[str, str]:
    """Return the settings of the command line.

    Raises:
      UserError: A word is not a setting, or sets switches.
    """
    from rosetta.core.errors import CONFLICT, UserError
    from rosetta.presets import resolution, user_settings

    settings = user_settings.parse_settings(words, "rosetta tune")
    if resolution.SWITCHES_VARIABLE in settings:
        raise UserError(
            "rosetta tune chooses the switches itself",
            resolution.SWITCHES_VARIABLE,
            "set switches in the preset instead: switches: [...]",
            kind=CONFLICT,
        )
    return settings


RUN = {"tune": run}
