"""`rosetta tune`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta import arguments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from rosetta.presets.layers import Settings
    from rosetta.tune.search import Choice, Outcome

BATCH = "batch"
# What is tried by itself, in this order; the latter only between several GPUs. A profile (pgle) takes longer than a trial.
ALONE = ("command-buffers", "no-command-buffers")
TOGETHER = ("user-buffers", "pipelined-collectives", "double-buffering", "windowed-einsum", "combine")
TRIED = (BATCH, *ALONE, *TOGETHER)
PACKAGES = ("jax", "jaxlib", "t5x", "paxml", "praxis", "transformer-engine-jax")


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    entry = commands.add_parser("tune", parents=[common], help="find the batch and the switches that suit a preset here, and write them as a preset of its own")
    entry.add_argument("preset", metavar="PRESET", help="a name, or a YAML file (docs/presets.md)")
    entry.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="what is set on top of it in each trial")
    entry.add_argument("--output", type=Path, metavar="FILE", help="the preset that is written (default PRESET-tuned.yaml)")
    entry.add_argument("--evidence", type=Path, metavar="FILE", help="a line for each trial (default: the preset's file with .jsonl); what is in it is not tried again")
    entry.add_argument("--try", dest="tried", metavar="LIST", help=f"of {','.join(TRIED)} (default: those that mean something here)")
    entry.add_argument("--steps", type=arguments.positive, default=30, help="of a trial (default 30)")
    entry.add_argument("--repeats", type=arguments.positive, default=3, help="of the preset as it is, by which noise is known (default 3)")
    entry.add_argument("--seconds", type=arguments.positive, default=1800, help="after which a trial is ended (default 1800)")
    entry.add_argument("--gpus", type=arguments.positive, metavar="N", help="devices of a trial (default: all that are here); with --card, of a node")
    entry.add_argument("--card", metavar="CARD", help="plan for this card instead, which need not be here: a100, h100, h200, gh200, b200")
    entry.add_argument("--nodes", type=arguments.positive, metavar="N", help="with --card: default the preset's")
    entry.set_defaults(flags_first=True)


def _tune(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from rosetta.errors import UserError  # noqa: PLC0415 (each command loads what it needs)
    from rosetta.launch import card, devices, folders  # noqa: PLC0415
    from rosetta.launch.secrets import Mask  # noqa: PLC0415
    from rosetta.plan import cards as planned_cards  # noqa: PLC0415
    from rosetta.presets import describe, layers  # noqa: PLC0415
    from rosetta.tune import evidence, planned, search, trial, written  # noqa: PLC0415

    settings = _settings(args.settings)
    if args.nodes and not args.card:
        raise UserError("a trial is made on this machine", f"--nodes {args.nodes}", "leave it out, or plan: --card CARD")
    found = [] if args.card else card.cards()
    if args.card:
        planned_cards.named(args.card)
        accelerator: str | None = args.card.lower()
        gpus, name = args.gpus, planned_cards.named(args.card).name
    else:
        on_cpu = card.platform(found).split(",")[0] == "cpu"
        accelerator = None if on_cpu else layers.accelerator(found)
        gpus = args.gpus or devices.devices(found, os.environ, on_cpu=on_cpu)
        name = "CPU" if on_cpu else found[0].name if found else "GPU"
    resolved = describe.resolved(args.preset, accelerator=accelerator, settings=settings, nodes=args.nodes or (None if args.card else 1), gpus_per_node=gpus, environment=os.environ)
    count = resolved.get("nodes") * resolved.get("gpus_per_node")
    tried = _tried(args.tried, count, resolved)
    output = args.output or Path(f"{Path(args.preset).stem}-tuned.yaml")
    file = args.evidence or output.with_suffix(".jsonl")
    if output.resolve() == Path(args.preset).resolve() or output.resolve() == file.resolve():
        raise UserError("it would be written over what it is made from", f"--output {output}", "name another file")
    for each in (output, file):
        folders.writable(str(each.resolve().parent))
        if each.exists() and not each.is_file():
            raise UserError("it is no file", str(each), "name another")
    mask = Mask({**os.environ, **settings})
    about = {
        "preset": args.preset, "settings": mask.variables(settings), "card": name, "devices": count, "nodes": resolved.get("nodes"), "steps": None if args.card else args.steps,
        "planned": bool(args.card), "versions": {each: version for each in PACKAGES if (version := layers.installed(each))},
    }  # fmt: skip
    make = (
        planned.Plans(args.preset, args.card.lower(), settings, nodes=args.nodes, gpus=args.gpus)
        if args.card
        else trial.Trials(args.preset, accelerator, gpus, settings, steps=args.steps, seconds=args.seconds, logs=file.with_suffix(".logs"))
    )
    kept = evidence.Evidence(file, about)
    batch = resolved.get("batch.per_gpu")
    say = _say(args.json)
    best = search.Search(_measured(kept, make, say), 1 if args.card else args.repeats, say).run(
        batch if isinstance(batch, int) else None, [(each, _part(each)) for each in tried if each != BATCH], grow=BATCH in tried
    )
    verb = "planned for" if args.card else "measured on"
    line = f"{args.preset} {verb} {count} x {name}" + (f" with {shlex.join(map(mask.word, args.settings))}" if args.settings else "") + f": {best.rate / best.before:.3f} times its rate"
    extends = str(Path(args.preset).absolute()) if args.preset not in _shipped() else args.preset
    document = written.preset(best, extends=extends, accelerator=accelerator, about=line, why=f"{verb} {count} x {name}")
    folders.write(output, written.text(document, file.name))
    result = {"preset": str(output), "evidence": str(file), "kept": dict(best.kept), "before": best.before, "rate": best.rate, "noise": best.noise, "settings": best.choice.settings()}
    told = [f"{each}: {gain:+.1%}" for each, gain in best.kept] or ["nothing gains more than the noise: the preset stays as it is"]
    return result, "\n".join([line, *told, f"written: {output}; each trial: {file}"])


def _measured(kept: Any, make: Callable[[Choice, int], Outcome], say: Callable[[str], None]) -> Callable[[Choice, int], Outcome]:
    """Trials that are looked up in the evidence, and made where they are not in it."""

    def measure(choice: Choice, repeat: int) -> Outcome:
        known = kept.known(choice, repeat)
        if known is not None:
            return known  # type: ignore[no-any-return]
        say(f"trying {' '.join(f'{name}={value}' for name, value in choice.settings().items()) or 'the preset as it is'}" + (f", again ({repeat + 1})" if repeat else ""))
        outcome = make(choice, repeat)
        kept.add(choice, repeat, outcome)
        return outcome

    return measure


def _say(quiet: bool) -> Callable[[str], None]:
    return (lambda _: None) if quiet else lambda line: print(f"rosetta: {line}", file=sys.stderr, flush=True)


def _settings(words: Sequence[str]) -> dict[str, str]:
    from rosetta.errors import UserError  # noqa: PLC0415

    for word in words:
        if "=" not in word:
            raise UserError(f"{word!r} is no setting", "rosetta tune", "write NAME=VALUE, after the preset's name")
    found = dict(word.split("=", 1) for word in words)
    if "ROSETTA_WITH" in found:
        raise UserError("switches are what is tried", "ROSETTA_WITH", "set them in the preset: switches: [...]")
    return found


def _tried(asked: str | None, devices: int, resolved: Settings) -> list[str]:
    """What is tried: what was asked for, else what means something on so many devices and is not on already."""
    from rosetta.errors import UserError  # noqa: PLC0415

    names = [each.strip() for each in asked.split(",")] if asked is not None else [BATCH, *ALONE, *(TOGETHER if devices > 1 else ())]
    for each in names:
        if each not in TRIED:
            raise UserError(f"{each!r} cannot be tried", "--try", f"choose of {', '.join(TRIED)}")
    on = {*(resolved.get("switches") or ()), *(("combine",) if resolved.get("combine") == "layers" else ())}
    return [each for each in names if each not in on]


def _part(name: str) -> Choice:
    from rosetta.tune.search import Choice  # noqa: PLC0415

    return Choice(fields=(("combine", "layers"),)) if name == "combine" else Choice(switches=(name,))


def _shipped() -> Mapping[str, object]:
    from rosetta.presets import files  # noqa: PLC0415

    return files.presets()


RUN = {"tune": _tune}
