"""The command `rosetta plan`: compile a training step for a GPU that this machine does not have.

The compiled step shows the memory, the communication and the kernels of a run.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.commands import plan_search
from rosetta.core import log, option_types
from rosetta.core.errors import CONFLICT, INVALID, MISSING, UserError
from rosetta.core.value_parsing import (
    parse_list,
    parse_number,
    parse_truth_value,
    parse_whole_number,
)

if TYPE_CHECKING:
    import argparse

    from rosetta.plan import fit_advice
    from rosetta.plan.search_space import Candidate

DEFAULT_GPU = "h100"
PHASES = 3  # of a plan: tracing the step, compiling it, and reading what was compiled
# What the options of T5 have that a search leaves open.
DEFAULT_BATCH, DEFAULT_TENSOR_PARALLEL, DEFAULT_MICROBATCHES = 32, 1, 1


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
        help=f"sequences for each GPU, or for each group of --tp GPUs (default: {DEFAULT_BATCH})",
    )
    t5x.add_argument(
        "--tp",
        type=option_types.parse_count,
        help=f"GPUs that share one copy of the model (default: {DEFAULT_TENSOR_PARALLEL})",
    )
    t5x.add_argument(
        "--fsdp",
        action="store_true",
        help="shard parameters and the optimizer's state over the data axis",
    )
    t5x.add_argument(
        "--microbatches",
        type=option_types.parse_count,
        help=f"microbatches of a step (default: {DEFAULT_MICROBATCHES})",
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
        framework.add_argument(
            "--autotune-results",
            type=Path,
            metavar="FILE",
            help="what XLA's autotuning chose in a run of this step on this GPU",
        )
        framework.add_argument(
            "--chart",
            type=Path,
            metavar="FILE",
            help=(
                "also draw where the predicted time goes, as a PNG; with --search, memory against "
                "time"
            ),
        )
        plan_search.add_options(framework)


def split_into_nodes(gpus: int, per_node: int) -> tuple[int, int]:
    """Return the number of nodes, and the GPUs of each.

    Args:
      gpus: GPUs of all nodes.
      per_node: GPUs of a full node.

    Raises:
      UserError: The nodes would not be full.
    """
    if gpus <= per_node:
        return 1, gpus
    if gpus % per_node:
        raise UserError(
            f"not a multiple of the {per_node} GPUs of a node",
            f"--gpus {gpus}",
            f"give a multiple of {per_node}, or --gpus-per-node",
            kind=INVALID,
            value=gpus,
        )
    return gpus // per_node, per_node


def parse_switches(words: list[str]) -> dict[str, Any]:
    """Return the fields of T5Config that words such as "remat=full" set.

    Raises:
      UserError: A word does not name a field that a text can express, its value is not valid, or
        two fields do not go together.
    """
    from rosetta.plan.t5x_step import VOCABULARY_ROWS
    from rosetta.t5x.run.model_config import T5Config

    defaults = {field.name: field.default for field in dataclasses.fields(T5Config)}
    defaults["vocab_size"] = VOCABULARY_ROWS  # T5Config has no default for it
    # A default of None is that of a truth value that may be left open, or no text can express it.
    annotations = typing.get_type_hints(T5Config)
    for name in [name for name, default in defaults.items() if default is None]:
        if annotations[name] != (bool | None):
            del defaults[name]
    switches: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in defaults or not text:
            raise UserError(
                f"{word!r} is not a valid switch",
                "--with",
                f"write SWITCH=VALUE, with one of: {', '.join(defaults)}",
                kind=INVALID,
                value=word,
            )
        switches[name] = _parse_switch(f"--with {name}", text, defaults[name])
    T5Config(**{"vocab_size": VOCABULARY_ROWS, **switches})  # refuses fields that do not fit
    return switches


def _parse_switch(name: str, text: str, default: Any) -> bool | int | float | str | tuple[str, ...]:
    """Return a text as a value of the type that the default of its field has.

    A field whose default is None is a truth value that may be left open.
    """
    if default is None or isinstance(default, bool):
        return parse_truth_value(name, text)
    if isinstance(default, int):
        return parse_whole_number(name, text, minimum=0)
    if isinstance(default, tuple):
        return tuple(parse_list(name, text))
    return parse_number(name, text) if isinstance(default, float) else text


def parse_hyper_parameters(words: list[str]) -> dict[str, object]:
    """Return the hyper-parameters that words such as "NUM_LAYERS=2" set.

    Raises:
      UserError: A word does not have the form NAME=VALUE.
    """
    from rosetta.pax.run import fiddle_arguments

    hyper_parameters: dict[str, object] = {}
    for word in words:
        name, _, text = word.partition("=")
        if not name.isidentifier() or not text:
            raise UserError(
                f"{word!r} is not a valid hyper-parameter",
                "--with",
                "write NAME=VALUE; see docs/reference/pax-experiments.md for the names",
                kind=INVALID,
                value=word,
            )
        hyper_parameters[name] = fiddle_arguments.parse_literal(text)
    return hyper_parameters


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta plan`; return its result and the text to print."""
    from rosetta.core import gpus
    from rosetta.plan import progress

    gpus.get_gpu(args.card, "--card")  # refuses an unknown GPU
    plan_search.check_options(args)
    plan_step = {"t5x": _plan_t5x, "pax": _plan_pax}[args.framework]
    files = _OutputFiles(_check_file(args.hlo, "--hlo"), _check_file(args.chart, "--chart"))
    if files.chart:
        _check_drawing()
    if args.autotune_results:
        _load_autotune_results(args)
    if args.search:
        return _search(args)
    with progress.show_parts("plan", PHASES, are_phases=True):
        return plan_step(args, files)


def _load_autotune_results(args: argparse.Namespace) -> None:
    """Set XLA_FLAGS so that the compilation loads a file, after checking the file.

    Raises:
      UserError: The file does not exist, or has no results for this GPU; or steps are searched,
        which are not those of the file.
    """
    from rosetta.core import gpus
    from rosetta.plan import autotune_results

    if args.search:
        raise UserError(
            "the results are those of one step, and a search compiles several",
            autotune_results.OPTION,
            "leave it out, or --search",
            kind=CONFLICT,
        )
    file = str(args.autotune_results.resolve())
    autotune_results.read_dnn_version(file, gpus.get_gpu(args.card, "--card"))
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --{autotune_results.FLAG}={file}".strip()


def _search(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Search the settings that are not set."""
    if args.framework == "t5x":
        nodes, per_node = split_into_nodes(args.gpus, args.gpus_per_node)
        return plan_search.run_search(args, nodes, per_node, parse_switches(args.switches))
    from rosetta.pax.run import preflight
    from rosetta.plan import searched_run

    preflight.resolve_experiment(args.config)
    hyper_parameters = parse_hyper_parameters(args.hyper)
    preflight.check_hyper_parameter_names(args.config, hyper_parameters)
    gpu_count = args.gpus or searched_run.count_mesh_devices(args.config)
    nodes, per_node = split_into_nodes(gpu_count, args.gpus_per_node)
    return plan_search.run_search(args, nodes, per_node, hyper_parameters)


@dataclasses.dataclass(frozen=True)
class _OutputFiles:
    """The files that a plan also writes; None for those that are not wanted.

    Attributes:
      hlo: The file for the optimised HLO.
      chart: The file for the chart of the time.
    """

    hlo: Path | None
    chart: Path | None

    def write(self, text: str, result: dict[str, Any]) -> None:
        """Write the files that are wanted."""
        from rosetta.core import run_folders

        if self.hlo:
            run_folders.write_file(self.hlo, text)
        if self.chart:
            from rosetta.plan import step_chart

            step_chart.draw_chart(result, self.chart)


def _check_drawing() -> None:
    """Check that this environment can draw.

    Raises:
      UserError: Pillow is not installed.
    """
    if importlib.util.find_spec("PIL") is None:
        raise UserError(
            "this environment cannot draw: it has no Pillow",
            "--chart",
            "leave --chart out, or install the package pillow",
            kind=MISSING,
        )


def _check_file(path: Path | None, option: str) -> Path | None:
    """Return the absolute path of a file that an option names; None if none is wanted.

    Raises:
      UserError: The file cannot be written.
    """
    from rosetta.core import run_folders

    if path is None:
        return None
    if path.exists() and not path.is_file():
        raise UserError(
            "not a regular file", f"{option} {path}", "name a new or an existing file", kind=INVALID
        )
    run_folders.check_folder_writable(str(path.resolve().parent))
    return path.resolve()


def _plan_pax(args: argparse.Namespace, files: _OutputFiles) -> tuple[dict[str, Any], str]:
    """Plan a step of a Paxml experiment."""
    from rosetta.core import gpus
    from rosetta.pax.run import experiment_checks, preflight
    from rosetta.plan import fit_advice, pax_step, progress, step_report, step_time

    preflight.resolve_experiment(args.config)
    hyper_parameters = parse_hyper_parameters(args.hyper)
    preflight.check_hyper_parameter_names(args.config, hyper_parameters)
    pax_step.prepare_pax_compilation(args.config, args.card, hyper_parameters)
    experiment = pax_step.make_experiment(args.config, hyper_parameters)
    nodes, per_node = split_into_nodes(
        args.gpus or pax_step.count_devices(experiment), args.gpus_per_node
    )
    gpu_count = nodes * per_node
    gpu = gpus.get_gpu(args.card, "--card")
    rows = experiment_checks.compute_batch(experiment.PERCORE_BATCH_SIZE, gpu_count)
    description = f"{args.config}, a global batch of {rows:,} rows of {experiment.MAX_SEQ_LEN:,}"
    log.info(f"plan: {description}, on {gpu_count} x {gpu.name}")
    step = pax_step.compile_pax_step(experiment, gpu_name=args.card, nodes=nodes, per_node=per_node)
    with progress.show_phase("reading the compiled step"):
        result = step.report()
        workload = step_time.Workload(rows, experiment.MAX_SEQ_LEN, gpu_count, per_node)
        result["time"] = step_time.report_time(
            step.compiled.text, gpu, workload, tuned=step.compiled.tuned
        )
    run = step_report.describe_fit(result["memory"]["peak"], gpu, description, gpu_count)
    if not run["fits"]:
        candidate = fit_advice.read_pax_candidate(experiment)
        run["change"] = fit_advice.report_change(
            _make_pax_step(args, hyper_parameters, candidate, nodes, per_node, result),
            run["usable"],
        )
    result["run"] = run
    files.write(step.compiled.text, result)
    return result, pax_step.format_pax_report(result)


def _plan_t5x(args: argparse.Namespace, files: _OutputFiles) -> tuple[dict[str, Any], str]:
    """Plan a step of a T5 model."""
    from rosetta.core import gpus
    from rosetta.plan import fit_advice, progress, step_report, step_time, t5x_step
    from rosetta.t5x.run import gin_files, settings

    nodes, per_node = split_into_nodes(args.gpus, args.gpus_per_node)
    args.tp = args.tp or DEFAULT_TENSOR_PARALLEL
    args.batch_per_gpu = args.batch_per_gpu or DEFAULT_BATCH
    args.microbatches = args.microbatches or DEFAULT_MICROBATCHES
    gins = [
        gin_files.find_model_file(args.family, args.size, "--family, --size"),
        f"{gin_files.GIN_FOLDER}/runs/pretrain.gin",
    ]
    settings.check_batch_split(
        args.gpus, args.tp, args.batch_per_gpu, args.microbatches, ("--tp ", "--microbatches ")
    )
    switches = parse_switches(args.switches)
    batch = args.gpus // args.tp * args.batch_per_gpu
    bindings = _bind_gin_files(args, gins, switches, batch)
    t5x_step.prepare_t5x_compilation(str(switches.get("fp8", "off")), args.size, args.card)
    description = (
        f"{args.family} {args.size}, a global batch of {batch:,} sequences, {args.batch_per_gpu} "
        f"for each {args.tp} GPU(s)"
    )
    gpu = gpus.get_gpu(args.card, "--card")
    log.info(f"plan: {description}, on {args.gpus} x {gpu.name}")
    compiled = t5x_step.compile_t5x_step(
        gins,
        bindings,
        gpu_name=args.card,
        nodes=nodes,
        per_node=per_node,
        tensor_parallel=args.tp,
        batch_size=batch,
        lengths={"inputs": args.inputs, "targets": args.targets},
        fsdp=args.fsdp,
    )
    with progress.show_phase("reading the compiled step"):
        result = step_report.summarize_step(compiled)
        workload = step_time.Workload(batch, args.inputs + args.targets, args.gpus, per_node)
        result["time"] = step_time.report_time(compiled.text, gpu, workload, tuned=compiled.tuned)
    run = step_report.describe_fit(result["memory"]["peak"], gpu, description, args.gpus)
    run["step"] = {
        "family": args.family,
        "size": args.size,
        "batch": batch,
        "inputs": args.inputs,
        "targets": args.targets,
        "switches": list(switches),
    }
    if not run["fits"]:
        step = _make_t5x_step(args, switches, nodes, per_node, result)
        run["change"] = fit_advice.report_change(step, run["usable"])
    result["run"] = run
    files.write(compiled.text, result)
    return result, step_report.format_step_report(result)


def _make_t5x_step(
    args: argparse.Namespace,
    switches: dict[str, Any],
    nodes: int,
    per_node: int,
    result: dict[str, Any],
) -> fit_advice.PlannedStep:
    """Return a step of a T5 that was compiled, for the advice about its memory."""
    from rosetta.core import gpus
    from rosetta.plan import fit_advice, searched_run

    candidate = fit_advice.read_t5x_candidate(
        args.gpus,
        per_node,
        args.tp,
        args.batch_per_gpu,
        args.microbatches,
        fsdp=args.fsdp,
        remat=switches.get("remat", "none"),
        scanned=switches.get("scan_layers", False),
    )
    model = searched_run.read_t5x_model(args.size, args.inputs, args.targets, args.family, switches)
    gpu = gpus.get_gpu(args.card, "--card")
    return fit_advice.PlannedStep(model, candidate, gpu, nodes, per_node, result["memory"]["peak"])


def _make_pax_step(
    args: argparse.Namespace,
    hyper_parameters: dict[str, object],
    candidate: Candidate,
    nodes: int,
    per_node: int,
    result: dict[str, Any],
) -> fit_advice.PlannedStep | None:
    """Return a step of Pax that was compiled; None if the sizes of its model are not known."""
    from rosetta.core import gpus
    from rosetta.plan import fit_advice, searched_run

    try:
        model = searched_run.read_pax_model(args.config, hyper_parameters)
    except UserError:
        return None
    gpu = gpus.get_gpu(args.card, "--card")
    return fit_advice.PlannedStep(model, candidate, gpu, nodes, per_node, result["memory"]["peak"])


def _bind_gin_files(
    args: argparse.Namespace, files: list[str], switches: dict[str, Any], batch: int
) -> list[str]:
    """Return the gin bindings of the command line.

    Args:
      args: The command line.
      files: The gin files of the model and the run.
      switches: The fields of T5Config that --with sets.
      batch: Sequences of a step.

    Raises:
      UserError: The model cannot be split over --tp GPUs.
    """
    from rosetta.plan.t5x_step import VOCABULARY_ROWS
    from rosetta.t5x.run import gin_files, gin_reader, gin_text, preflight

    values = {
        "MODEL_DIR": "",
        "TRAIN_STEPS": 1,
        "DATA": "synthetic",
        "VOCAB": f"ids:{VOCABULARY_ROWS}",
        "DROPOUT_RATE": args.dropout,
        "BATCH_SIZE": batch,
        "trainer.Trainer.num_microbatches": args.microbatches,
        **{f"network.T5Config.{name}": value for name, value in switches.items()},
    }
    paths = [gin_files.ROOT / name for name in files]
    configuration = gin_reader.read_configuration(paths, [gin_files.ROOT]).bind(values)
    preflight.check_split(configuration, args.tp, args.gpus, size=args.size, name="--tp ")
    return [f"{name} = {gin_text.format_literal(value)}" for name, value in values.items()]


RUN = {"plan": run}
