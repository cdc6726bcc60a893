"""`rosetta plan --search`: choose the splits, the batch, microbatches, remat and scan of a run.

The command `plan` calls `run_search`. rosetta.plan.layout_search says how the search goes.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import log, option_types
from rosetta.core.errors import CONFLICT, INVALID, TOO_BIG, UNSUPPORTED, UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from rosetta.core.gpus import Gpu
    from rosetta.plan.layout_search import SearchResult
    from rosetta.plan.search_report import SearchReport
    from rosetta.plan.searched_run import SearchedRun

TRIALS, SECONDS = 10, 900
# Figures of other versions of these packages do not count.
PACKAGES = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "t5x", "paxml", "praxis")
# The options that only a search reads, as in the namespace of the command line.
SEARCH_OPTIONS = ("global_batch", "trials", "seconds", "output", "evidence")
# How many times as many GPUs are considered if nothing fits.
MORE_GPUS = (2, 4, 8, 16, 32, 64)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add --search and the options of a search to the parser of a framework."""
    parser.add_argument(
        "--search",
        action="store_true",
        help=(
            "search the fastest predicted run that fits, over splits, batch, microbatches, remat "
            "and scan, and write it as a preset; what other options set is not searched"
        ),
    )
    parser.add_argument(
        "--global-batch",
        type=option_types.parse_count,
        metavar="N",
        help="with --search: sequences of a step (default: searched, up to the published batch)",
    )
    parser.add_argument(
        "--trials",
        type=option_types.parse_count,
        metavar="N",
        help=f"with --search: the largest number of settings to compile (default: {TRIALS})",
    )
    parser.add_argument(
        "--seconds",
        type=option_types.parse_count,
        metavar="N",
        help=f"with --search: end a compilation after this time (default: {SECONDS})",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="with --search: the file for the preset (default: MODEL-NxGPU.yaml)",
    )
    parser.add_argument(
        "--evidence",
        type=Path,
        metavar="FILE",
        help=(
            "with --search: the file with the figures of each compiled step (default: that of the "
            "preset with .jsonl); a step in this file is not compiled again"
        ),
    )


def check_options(args: argparse.Namespace) -> None:
    """Check that options go with --search, or without it.

    Raises:
      UserError: An option does not, or XLA flags are set.
    """
    if args.search and args.hlo:
        raise UserError(
            "a search compiles many steps",
            f"--hlo {args.hlo}",
            "leave --hlo out, and plan the answer with it",
            kind=CONFLICT,
        )
    if args.search:
        _refuse_flags(os.environ)
    for name in SEARCH_OPTIONS:
        if not args.search and getattr(args, name) is not None:
            raise UserError(
                "only a search has this option",
                f"--{name.replace('_', '-')}",
                "add --search, or leave the option out",
                kind=CONFLICT,
            )


def _refuse_flags(environment: Mapping[str, str]) -> None:
    """Check that no XLA flags are set, because a preset would not have them.

    Raises:
      UserError: Flags are set.
    """
    from rosetta.presets import user_settings

    for name in ("XLA_FLAGS", user_settings.BASE_FLAGS_VARIABLE):
        if environment.get(name):
            raise UserError(
                "a search compiles with the XLA flags of the preset that it extends",
                name,
                "unset it",
                kind=CONFLICT,
            )


@dataclass(frozen=True)
class _Files:
    """The files that a search writes."""

    preset: Path
    evidence: Path
    chart: Path

    @property
    def logs(self) -> Path:
        """The folder for the logs of compilations."""
        return self.evidence.with_suffix(".logs")


def run_search(
    args: argparse.Namespace, nodes: int, per_node: int, values: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Search; return the result of the command and the text to print.

    Args:
      args: The command line.
      nodes: The number of nodes.
      per_node: GPUs of each node.
      values: What --with sets, parsed.
    """
    from rosetta.core import gpus
    from rosetta.plan import (
        compile_trials,
        layout_estimate,
        layout_search,
        progress,
        search_report,
    )

    gpu = gpus.get_gpu(args.card, "--card")
    describe = _describe_t5x_search if args.framework == "t5x" else _describe_pax_search
    searched = describe(args, gpu, nodes, per_node, values)
    candidates = searched.list_candidates()
    published = searched.find_published()
    usable = searched.find_usable_memory(gpu.memory)
    files = _choose_files(args, searched)
    _require_compiler(args.framework, gpu)
    trials = compile_trials.CompileTrials(
        searched.model,
        searched.describe_run,
        gpu.short_name,
        evidence=files.evidence,
        versions=_list_versions(),
        logs=files.logs,
        seconds=args.seconds or SECONDS,
        layer_step=2 if "GLaM" in searched.model.name else 1,
    )
    most_trials = args.trials or TRIALS
    search = layout_search.LayoutSearch(
        candidates,
        [published] if published else [],
        estimate=lambda candidate: layout_estimate.estimate(
            searched.model, candidate, gpu, per_node
        ),
        usable=usable,
        measure=trials.measure,
        compile_whole=trials.compile_whole,
        most_trials=most_trials,
        report=lambda line: log.info(f"search: {line}"),
        finish_trial=progress.finish_part,
    )
    with progress.show_parts("search", most_trials):
        result = search.run()
    if result.best is None:
        raise _make_fit_error(searched, gpu, usable, result)
    report = search_report.SearchReport(result.best, result, searched, usable, published, trials)
    lines = [report.format_text(gpu.name), *_write_files(files, report, gpu)]
    document = report.as_json()
    document["files"] = {
        "preset": str(files.preset),
        "evidence": str(files.evidence),
        "chart": str(files.chart) if files.chart.exists() else None,
    }
    return document, "\n".join(lines)


def _describe_t5x_search(
    args: argparse.Namespace, gpu: Gpu, nodes: int, per_node: int, switches: Mapping[str, Any]
) -> SearchedRun:
    """Return what a search for a T5 is about.

    Raises:
      UserError: Something cannot be searched.
    """
    from rosetta.plan import searched_run
    from rosetta.plan.search_space import Fixed

    unsearched = (("--family", args.family, "t5_1_1"), ("--dropout", args.dropout, 0.0))
    for option, value, only in unsearched:
        if value != only:
            raise UserError(
                "a search cannot set this, because its answer is a preset",
                f"{option} {value}",
                f"leave {option} out, or plan single settings without --search",
                kind=UNSUPPORTED,
                value=value,
            )
    settings, fixed = searched_run.make_t5x_settings(switches, args.inputs, args.targets)
    preset = searched_run.find_preset("t5x", args.size)
    model = searched_run.read_t5x_model(args.size, args.inputs, args.targets)
    return searched_run.SearchedRun(
        model,
        preset,
        gpu.short_name,
        nodes,
        per_node,
        settings,
        Fixed(
            tensor=args.tp,
            fsdp=True if args.fsdp else None,
            microbatches=args.microbatches,
            batch_per_gpu=args.batch_per_gpu,
            sequences=args.global_batch,
            **fixed,
        ),
    )


def _describe_pax_search(
    args: argparse.Namespace, gpu: Gpu, nodes: int, per_node: int, hyper: Mapping[str, Any]
) -> SearchedRun:
    """Return what a search for an experiment of Pax is about.

    Raises:
      UserError: Something cannot be searched.
    """
    from rosetta.plan import searched_run
    from rosetta.plan.search_space import Fixed

    settings, fixed = searched_run.make_pax_settings(args.config, hyper)
    meshes = [hyper[name] for name in ("ICI_MESH_SHAPE", "DCN_MESH_SHAPE") if name in hyper]
    if meshes:
        raise UserError(
            "a search chooses the mesh itself",
            "--with ICI_MESH_SHAPE, DCN_MESH_SHAPE",
            "leave the meshes out, or plan single settings without --search",
            kind=CONFLICT,
        )
    return searched_run.SearchedRun(
        searched_run.read_pax_model(args.config, hyper),
        searched_run.find_preset("pax", args.config),
        gpu.short_name,
        nodes,
        per_node,
        settings,
        Fixed(sequences=args.global_batch, **fixed),
    )


def _require_compiler(framework: str, gpu: Gpu) -> None:
    """Check that this environment can compile for a GPU.

    Raises:
      UserError: It cannot.
    """
    from rosetta.plan import pax_step, t5x_step

    t5x_step.require_compiler(gpu)
    if framework == "pax":
        pax_step.require_pax()


def _list_versions() -> dict[str, str]:
    """Return the versions of the packages that figures depend on, with a hash of rosetta's files.

    The commit of rosetta would not do: a checkout has changes that no commit has.
    """
    import rosetta
    from rosetta.core import folder_fingerprint
    from rosetta.presets import resolution

    fingerprint = folder_fingerprint.compute_content_fingerprint(Path(*rosetta.__path__))
    versions = {package: resolution.find_installed_version(package) for package in PACKAGES}
    installed = {package: version for package, version in versions.items() if version}
    return {**installed, "rosetta": fingerprint}


def _choose_files(args: argparse.Namespace, searched: SearchedRun) -> _Files:
    """Return the files to write.

    Raises:
      UserError: A file cannot be written.
    """
    from rosetta.core import run_folders

    name = f"{searched.preset}-{searched.gpus}x{searched.card}.yaml"
    preset = args.output or Path(name)
    base = preset if preset.name else Path(name)
    evidence = args.evidence or base.with_suffix(".jsonl")
    chart = args.chart or base.with_suffix(".png")
    files = {"--output": preset, "--evidence": evidence, "--chart": chart}
    for option, path in files.items():
        if not path.name or (path.exists() and not path.is_file()):
            raise UserError(
                "not the name of a file",
                f"{option} {path}",
                "name a new or an existing file",
                kind=INVALID,
            )
        run_folders.check_folder_writable(str(path.resolve().parent))
    if len({path.resolve() for path in files.values()}) < len(files):
        raise UserError(
            "two of the files have the same name",
            "--output, --evidence, --chart",
            "name three files",
            kind=CONFLICT,
        )
    return _Files(preset, evidence, chart)


def _write_files(files: _Files, report: SearchReport, gpu: Gpu) -> list[str]:
    """Write the preset and the picture; return a line for each file."""
    from rosetta.plan import search_preset, search_report

    best, searched, usable = report.best, report.searched, report.usable
    rate = best.rate / searched.gpus
    about = (
        f"{searched.model.name} on {searched.gpus} x {gpu.name}, found by rosetta plan --search; "
        "nothing was measured"
    )
    reason = (
        f"predicted: {rate:.4g} sequences/s/GPU, {best.peak / 1e9:.1f} of {usable / 1e9:.1f} GB"
    )
    document = search_preset.make_preset(searched, best, reason, about)
    search_preset.write_preset(document, searched, best, files.preset, files.evidence.name)
    lines = [f"written: {files.preset}; each compiled step: {files.evidence}"]
    if importlib.util.find_spec("PIL") is None:
        return [*lines, "no picture: this environment has no Pillow"]
    from rosetta.curves import png_chart

    groups = search_report.list_front(report.result.trials, searched, usable)
    png_chart.write_scatter(
        [png_chart.Points(name, points, joined=name == "front") for name, points in groups.items()],
        about,
        ("GB of a GPU; the line is what JAX takes", "GPU milliseconds of a sequence"),
        usable / 1e9,
        files.chart,
    )
    return [*lines, f"picture: {files.chart}"]


def _make_fit_error(
    searched: SearchedRun, gpu: Gpu, usable: float, result: SearchResult
) -> UserError:
    """Return the error that nothing fits, with the smallest change that does."""
    compiled = [trial for trial in result.trials if not trial.problem]
    if result.trials and not compiled:
        return UserError(
            f"no step could be compiled: {result.trials[0].problem}",
            "rosetta plan --search",
            "read the logs beside the evidence",
            kind=UNSUPPORTED,
        )
    least = min([trial.peak for trial in compiled] or list(result.pruned.values()), default=0.0)
    return UserError(
        f"{searched.model.name} does not fit on {searched.gpus} x {gpu.name}: it needs at least "
        f"{least / 1e9:.1f} GB of each, and JAX takes {usable / 1e9:.1f}",
        f"--gpus {searched.gpus}",
        _suggest_more_gpus(searched, gpu, usable),
        kind=TOO_BIG,
        value=searched.gpus,
    )


def _suggest_more_gpus(searched: SearchedRun, gpu: Gpu, usable: float) -> str:
    """Return the smallest number of GPUs on which the model is estimated to fit, as a remedy."""
    from rosetta.plan import layout_estimate

    per_node = max(searched.per_node, gpu.gpus_per_node or 1)
    for factor in MORE_GPUS:
        count = searched.gpus * factor
        if count > per_node and count % per_node:
            continue
        larger = replace(searched, nodes=max(count // per_node, 1), per_node=min(count, per_node))
        try:
            candidates = larger.list_candidates()
        except UserError:
            continue
        estimates = (
            layout_estimate.estimate(searched.model, candidate, gpu, larger.per_node)
            for candidate in candidates
        )
        if any(entry.state + entry.activations <= usable for entry in estimates):
            return f"use --gpus {count}, where it is estimated to fit, or a GPU with more memory"
    return "choose a smaller model, or a GPU with more memory"
