"""`rosetta plan`: what a training step would do on a GPU that is not here."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import log, option_types
from rosetta.core.errors import INVALID, UserError
from rosetta.core.value_parsing import (
    parse_list,
    parse_number,
    parse_truth_value,
    parse_whole_number,
)

if TYPE_CHECKING:
    import argparse

DEFAULT_GPU = "h100"
VOCABULARY_ROWS = 32128  # of the embedding of T5 1.1


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    entry = commands.add_parser("plan", parents=[common])
    frameworks = entry.add_subparsers(dest="framework", metavar="FRAMEWORK")
    t5x = frameworks.add_parser("t5x", help="plan a step of a T5 model")
    t5x.add_argument("--family", default="t5_1_1", help="the family of the model (default: t5_1_1)")
    option_types.add_shape_options(t5x, size="large")
    t5x.add_argument(
        "--gpus", type=option_types.parse_count, default=8, help="GPUs of all nodes (default: 8)"
    )
    t5x.add_argument(
        "--batch-per-gpu",
        type=option_types.parse_count,
        default=32,
        help="sequences for each GPU, or for each group of --tp GPUs (default: 32)",
    )
    t5x.add_argument(
        "--tp",
        type=option_types.parse_count,
        default=1,
        help="GPUs that share one copy of the model (default: 1)",
    )
    t5x.add_argument(
        "--fsdp",
        action="store_true",
        help="shard the optimizer's state over the data axis",
    )
    t5x.add_argument(
        "--microbatches",
        type=option_types.parse_count,
        default=1,
        help="microbatches of a step (default: 1)",
    )
    t5x.add_argument(
        "--with",
        dest="switches",
        nargs="+",
        action="extend",
        default=[],
        metavar="SWITCH=VALUE",
        help="fields of T5Config, such as fp8=xla fuse_qkv=true attention=cudnn remat=minimal",
    )
    pax = frameworks.add_parser("pax", help="plan a step of a Paxml experiment")
    pax.add_argument(
        "config",
        metavar="CONFIG",
        help="an experiment (docs/reference/pax-experiments.md), or MODULE.CLASS",
    )
    pax.add_argument(
        "--gpus",
        type=option_types.parse_count,
        help="GPUs of all nodes (default: as many as the meshes of the experiment have)",
    )
    pax.add_argument(
        "--with",
        dest="hyper",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="hyper-parameters, such as ATTENTION=cudnn USE_FP8=True DCN_MESH_SHAPE=[32,1,1]",
    )
    for framework in (t5x, pax):
        framework.add_argument(
            "--card",
            default=DEFAULT_GPU,
            metavar="GPU",
            help=f"short name, see docs/reference/gpus.md (default: {DEFAULT_GPU})",
        )
        framework.add_argument(
            "--gpus-per-node",
            type=option_types.parse_count,
            default=8,
            help="GPUs of each node (default: 8)",
        )
        framework.add_argument(
            "--hlo", type=Path, metavar="FILE", help="also write the optimised HLO to this file"
        )


def split_into_nodes(gpus: int, per_node: int) -> tuple[int, int]:
    """Return how many nodes a cluster has, and GPUs of each; UserError where its nodes are not
    full.
    """
    if gpus <= per_node:
        return 1, gpus
    if gpus % per_node:
        raise UserError(
            f"it does not fill nodes of {per_node}",
            f"--gpus {gpus}",
            f"give a multiple of {per_node}, or --gpus-per-node",
            kind=INVALID,
            value=gpus,
        )
    return gpus // per_node, per_node


def parse_switches(words: list[str]) -> dict[str, Any]:
    """Return the fields of T5Config that are set by words such as "remat=full"; UserError where one
    is none, or they do not go together.
    """
    from rosetta.t5x.run.model_config import T5Config

    known = {field.name: field.default for field in dataclasses.fields(T5Config)}
    known["vocab_size"] = VOCABULARY_ROWS  # which has no default
    found: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in known or not text:
            raise UserError(
                f"{word!r} is no switch",
                "--with",
                f"write SWITCH=VALUE, of {', '.join(known)}",
                kind=INVALID,
                value=word,
            )
        found[name] = _parse_switch(f"--with {name}", text, known[name])
    T5Config(**{"vocab_size": VOCABULARY_ROWS, **found})
    return found


def _parse_switch(name: str, text: str, default: Any) -> bool | int | float | str | tuple[str, ...]:
    """Return a text as a value of the type that the default of its field has."""
    if isinstance(default, bool):
        return parse_truth_value(name, text)
    if isinstance(default, int):
        return parse_whole_number(name, text, minimum=0)
    if isinstance(default, tuple):
        return tuple(parse_list(name, text))
    return parse_number(name, text) if isinstance(default, float) else text


def parse_hyper_parameters(words: list[str]) -> dict[str, object]:
    """Return the hyper-parameters that are set by words such as "NUM_LAYERS=2"; UserError where one
    is none.
    """
    from rosetta.pax.run import fiddle_arguments

    found: dict[str, object] = {}
    for word in words:
        name, _, text = word.partition("=")
        if not name.isidentifier() or not text:
            raise UserError(
                f"{word!r} is no hyper-parameter",
                "--with",
                "write NAME=VALUE; see docs/reference/pax-experiments.md for the names",
                kind=INVALID,
                value=word,
            )
        found[name] = fiddle_arguments.parse_literal(text)
    return found


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta plan`; return its result and the text to print."""
    from rosetta.core import gpus

    gpus.get_gpu(args.card, "--card")
    return {"t5x": _plan_t5x, "pax": _plan_pax}[args.framework](args, _check_hlo_file(args.hlo))


def _check_hlo_file(given: Path | None) -> Path | None:
    """Where the HLO is to go; UserError where it cannot."""
    from rosetta.core import run_folders

    if given is None:
        return None
    if given.exists() and not given.is_file():
        raise UserError("it is no file", f"--hlo {given}", "name a file, new or old", kind=INVALID)
    run_folders.check_folder_writable(str(given.resolve().parent))
    return given.resolve()


def _plan_pax(args: argparse.Namespace, hlo: Path | None) -> tuple[dict[str, Any], str]:
    from rosetta.core import gpus, run_folders
    from rosetta.pax.run import preflight
    from rosetta.plan import pax_step, step_report

    preflight.resolve_experiment(args.config)
    chosen = parse_hyper_parameters(args.hyper)
    preflight.check_hyper_parameter_names(args.config, chosen)
    pax_step.prepare_pax_compilation(args.config, args.card, chosen)
    made = pax_step.make_experiment(args.config, chosen)
    count, per_node = split_into_nodes(
        args.gpus or pax_step.count_devices(made), args.gpus_per_node
    )
    log.info(
        f"plan: compiling the step of {args.config} for {count * per_node} x {args.card}: one to "
        "ten minutes"
    )
    planned = pax_step.compile_pax_step(made, card=args.card, nodes=count, per_node=per_node)
    if hlo:
        run_folders.write_file(hlo, planned.compiled.text)
    found = planned.report()
    gpu = gpus.get_gpu(args.card, "--card")
    found["run"] = step_report.describe_fit(
        found["memory"]["peak"], gpu, args.config, count * per_node
    )
    return found, pax_step.format_pax_report(found)


def _plan_t5x(args: argparse.Namespace, hlo: Path | None) -> tuple[dict[str, Any], str]:
    from rosetta.core import gpus, run_folders
    from rosetta.plan import step_report, t5x_step
    from rosetta.t5x.run import gin_files, gin_reader, gin_text, preflight, settings

    count, per_node = split_into_nodes(args.gpus, args.gpus_per_node)
    files = [
        gin_files.find_model_file(args.family, args.size, "--family, --size"),
        f"{gin_files.GIN_FOLDER}/runs/pretrain.gin",
    ]
    settings.check_batch_split(
        args.gpus, args.tp, args.batch_per_gpu, args.microbatches, ("--tp ", "--microbatches ")
    )
    chosen = parse_switches(args.switches)
    batch = args.gpus // args.tp * args.batch_per_gpu
    bound = {
        "MODEL_DIR": "",
        "TRAIN_STEPS": 1,
        "DATA": "synthetic",
        "VOCAB": f"ids:{VOCABULARY_ROWS}",
        "DROPOUT_RATE": args.dropout,
        "BATCH_SIZE": batch,
        "trainer.Trainer.num_microbatches": args.microbatches,
        **{f"network.T5Config.{name}": value for name, value in chosen.items()},
    }
    paths = [gin_files.ROOT / name for name in files]
    configuration = gin_reader.read_configuration(paths, [gin_files.ROOT]).bind(bound)
    preflight.check_split(configuration, args.tp, args.gpus, size=args.size, name="--tp ")
    t5x_step.prepare_t5x_compilation(str(chosen.get("fp8", "off")), args.size, args.card)
    what = (
        f"{args.family} {args.size}, a global batch of {batch:,} sequences, {args.batch_per_gpu} "
        f"for each {args.tp} GPU(s)"
    )
    log.info(
        f"plan: compiling the step of {what}, for {args.gpus} x {args.card}: one to ten minutes"
    )
    compiled = t5x_step.compile_t5x_step(
        files,
        [f"{name} = {gin_text.format_literal(value)}" for name, value in bound.items()],
        card=args.card,
        nodes=count,
        per_node=per_node,
        tensor_parallel=args.tp,
        batch=batch,
        lengths={"inputs": args.inputs, "targets": args.targets},
        fsdp=args.fsdp,
    )
    if hlo:
        run_folders.write_file(hlo, compiled.text)
    log.info("plan: reading the compiled step")
    found = step_report.summarize_step(compiled)
    gpu = gpus.get_gpu(args.card, "--card")
    found["run"] = step_report.describe_fit(found["memory"]["peak"], gpu, what, args.gpus)
    return found, step_report.format_step_report(found)


RUN = {"plan": run}
