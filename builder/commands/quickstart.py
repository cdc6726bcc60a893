"""From nothing to a trained model: bake the first distribution whose sources can be reached, train
in it, show what happened.
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

ORDER = ("t5x", "pax-1.4")  # pax-1.4 needs nothing but a package index


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "--distribution",
        metavar="NAME",
        default="",
        help="t5x, pax or pax-1.4 (default: the first one whose sources can be reached)",
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
    name, reason = (
        (arguments.distribution, "")
        if arguments.distribution
        else choose(context, arguments.python)
    )
    plan = environment_build.plan_environment(context, name, "cpu", folder / name, arguments.python)
    built = environment_build.bake_environment(plan)
    ready = time.monotonic()
    for old in (folder / f"{name}-run").glob("rosetta-selftest-*"):
        cache.remove_path(old)  # the runs of earlier quick starts
    report = verification.verify_environment(
        plan.output, steps=20, devices="1,4", workdir=str(folder / f"{name}-run"), root=context.root
    )
    curve = folder / f"{name}-loss.png"
    draw(report, curve, f"{name}: a tiny model on text made for it")
    data = {
        "distribution": name,
        "reason": reason,
        "environment": str(plan.output),
        "loss_curve": str(curve),
        "run": report.get("workdir", str(folder / f"{name}-run")),
        "bake_s": round(ready - start, 1),
        "train_s": round(time.monotonic() - ready, 1),
        "built": built,
        "report": report,
    }
    return Result(data, _table(data), ok=bool(report["ok"]))


def choose(context: Context, asked_python: str = "") -> tuple[str, str]:
    """Choose the first distribution that has a Python here and sources in the cache, in a mirror or
    on the network.

    Returns:
        Its name, and why not an earlier one.

    Raises:
        UserError: There is none; the error names the way out for each.
    """
    loaded = manifest.load(context.manifest_path)
    access = source.configure_access(context, loaded)
    errors: dict[str, UserError] = {}
    for name in ORDER:
        entry = loaded.distribution(name)
        line = loaded.lines[entry.line]
        try:
            python_interpreter.find_interpreter(line.pythons, line.python, asked_python)
            for source_name in entry.sources:
                source_tree.patch_source(loaded.source(source_name), access)
        except UserError as error:
            errors[name] = error
        else:
            for earlier, problem in errors.items():
                log.info(f"{earlier} cannot be built here: {problem}")
            return name, "; ".join(
                f"{earlier}: {problem.what}" for earlier, problem in errors.items()
            )
    raise UserError(
        "; ".join(f"{name}: {problem.what}" for name, problem in errors.items()),
        "no distribution can be built here",
        "; or ".join(f"for {name}: {problem.do}" for name, problem in errors.items()),
        kind=UNSUPPORTED,
    )


def draw(report: dict[str, Any], path: Path, title: str) -> None:
    """Draw the loss curves of a self-test as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for run_, style in zip(report["runs"], itertools.cycle(("-o", "--x", ":s"))):
        losses = {
            int(step): loss for step, loss in {**run_["losses"], **run_["resumed_losses"]}.items()
        }
        axes.plot(
            list(losses),
            list(losses.values()),
            style,
            label=(
                f"{run_['devices']} device{'s' if run_['devices'] > 1 else ''}, mesh {run_['mesh']}"
            ),
        )
        if run_["resumed_from"] is not None:  # a run that failed may not have come to it
            axes.axvline(run_["resumed_from"], color="grey", linestyle=":", linewidth=1)
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


def _table(data: dict[str, Any]) -> str:
    report, built = data["report"], data["built"]
    sources = ", ".join(
        (
            f"{each['name']} {each['commit'][:12]} with {len(each['patches'])} "
            f"patch{'es' * (len(each['patches']) != 1)}"
        )
        for each in built["sources"]
    )
    lines = [
        f"built       {data['distribution']} (cpu, Python {built['python']}): {sources}",
        *([f"because     {data['reason']}"] if data["reason"] else []),
        verification.format_report(report),
        f"environment {data['environment']}",
        f"run         {data['run']}",
        f"loss curve  {data['loss_curve']}",
        f"time        {data['bake_s']} s to bake, {data['train_s']} s to train and check",
    ]
    return "\n".join(lines)
