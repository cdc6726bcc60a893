"""The command `quickstart`: bake an environment, train a tiny model in it and draw its loss.

The default is the first distribution whose sources can be reached.
"""

from __future__ import annotations

import io
import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import cache, log, manifest
from builder.core.command_context import Context, Result
from builder.packages import python_interpreter
from builder.pipeline import environment_build, verification
from builder.upstream import source, source_tree
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import UNSUPPORTED, UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

# The distributions to try, in this order; pax-1.4 needs nothing but a package index.
DISTRIBUTIONS = ("t5x", "pax-1.4")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "--distribution",
        metavar="NAME",
        default="",
        help="such as t5x or pax-1.4 (default: the first one whose sources can be reached)",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        default="build/quickstart",
        help="the folder for everything (default: build/quickstart)",
    )
    parser.add_argument(
        "--python", metavar="VERSION|PATH", default="", help="the Python of the environment"
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    start = time.monotonic()
    folder = Path(arguments.output).absolute()
    name, reason = arguments.distribution, ""
    if not name:
        name, reason = choose_distribution(context, arguments.python)
    plan = environment_build.plan_environment(context, name, "cpu", folder / name, arguments.python)
    built = environment_build.bake_environment(plan)
    baked = time.monotonic()
    run_folder = folder / f"{name}-run"
    _remove_earlier_runs(run_folder)
    report = verification.verify_environment(
        plan.output, steps=20, devices="1,4", workdir=str(run_folder), root=context.root
    )
    loss_curve = folder / f"{name}-loss.png"
    draw_loss_curves(report, loss_curve, f"{name}: a tiny model on text made for it")
    data = {
        "distribution": name,
        "reason": reason,
        "environment": str(plan.output),
        "loss_curve": str(loss_curve),
        "run": report.get("workdir", str(run_folder)),
        "bake_s": round(baked - start, 1),
        "train_s": round(time.monotonic() - baked, 1),
        "built": built,
        "report": report,
    }
    return Result(data, _format_summary(data), ok=bool(report["ok"]))


def _remove_earlier_runs(folder: Path) -> None:
    """Remove the checkpoints and logs of earlier quick starts."""
    for earlier_run in folder.glob("rosetta-selftest-*"):
        cache.remove_path(earlier_run)


def choose_distribution(context: Context, requested_python: str = "") -> tuple[str, str]:
    """Choose the first distribution that can be built on this machine.

    That needs a supported Python, and its sources in the cache, in a mirror or on the network.

    Args:
        context: The manifest, the cache and the mirrors.
        requested_python: The value of --python; empty for the default of each line.

    Returns:
        The name of the distribution, and why the earlier ones of DISTRIBUTIONS cannot be built.

    Raises:
        UserError: No distribution can be built; the error says for each what to do.
    """
    loaded = manifest.load(context.manifest_path)
    access = source.configure_access(context, loaded)
    errors: dict[str, UserError] = {}
    for name in DISTRIBUTIONS:
        distribution = loaded.distribution(name)
        line = loaded.lines[distribution.line]
        try:
            python_interpreter.find_interpreter(line.pythons, line.python, requested_python)
            for source_name in distribution.sources:
                source_tree.patch_source(loaded.source(source_name), access)
        except UserError as error:
            errors[name] = error
        else:
            for earlier, problem in errors.items():
                log.info(f"{earlier} cannot be built here: {problem}")
            return name, _join_problems(errors)
    raise UserError(
        _join_problems(errors),
        "no distribution can be built here",
        "; or ".join(f"for {name}: {problem.do}" for name, problem in errors.items()),
        kind=UNSUPPORTED,
    )


def _join_problems(errors: Mapping[str, UserError]) -> str:
    """Return one line that says for each distribution why it cannot be built."""
    return "; ".join(f"{name}: {problem.what}" for name, problem in errors.items())


def draw_loss_curves(report: dict[str, Any], path: Path, title: str) -> None:
    """Draw the loss curve of each run of a self-test into one PNG.

    Args:
        report: The report of the self-test.
        path: The file to write.
        title: The title of the drawing.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for training, style in zip(report["runs"], itertools.cycle(("-o", "--x", ":s"))):
        _draw_training(axes, training, style)
    axes.set(
        title=title,
        xlabel="step (dotted: restored from the checkpoint)",
        ylabel="training loss (nats per token)",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120, metadata={"Software": None})
    write_atomic(path, image.getvalue(), None)
    plt.close(figure)


def _draw_training(axes: Any, training: dict[str, Any], style: str) -> None:
    """Draw the losses of one run, before and after its restore, and a line at the restored step."""
    reported = {**training["losses"], **training["resumed_losses"]}
    losses = {int(step): loss for step, loss in reported.items()}
    plural = "s" if training["devices"] > 1 else ""
    label = f"{training['devices']} device{plural}, mesh {training['mesh']}"
    axes.plot(list(losses), list(losses.values()), style, label=label)
    # A run that failed early has not restored a checkpoint.
    if training["resumed_from"] is not None:
        axes.axvline(training["resumed_from"], color="grey", linestyle=":", linewidth=1)


def _format_summary(data: dict[str, Any]) -> str:
    """Return the result of the command for people."""
    built = data["built"]
    sources = ", ".join(_describe_source(entry) for entry in built["sources"])
    lines = [f"built       {data['distribution']} (cpu, Python {built['python']}): {sources}"]
    if data["reason"]:
        lines.append(f"because     {data['reason']}")
    lines += [
        verification.format_report(data["report"]),
        f"environment {data['environment']}",
        f"run         {data['run']}",
        f"loss curve  {data['loss_curve']}",
        f"time        {data['bake_s']} s to bake, {data['train_s']} s to train and check",
    ]
    return "\n".join(lines)


def _describe_source(entry: dict[str, Any]) -> str:
    patch_count = len(entry["patches"])
    plural = "" if patch_count == 1 else "es"
    return f"{entry['name']} {entry['commit'][:12]} with {patch_count} patch{plural}"
