"""The selftest's result as a few lines for people."""

from __future__ import annotations

from typing import Any


def _describe_run(run: dict[str, Any]) -> list[str]:
    losses = "  ".join(
        f"{step}: {loss:.3f}" for step, loss in {**run["losses"], **run["resumed_losses"]}.items()
    )
    rate = f", {run['steps_per_second']:.1f} steps/s" if run["steps_per_second"] else ""
    resumed = (
        "not resumed" if run["resumed_from"] is None else f"resumed from step {run['resumed_from']}"
    )
    return [
        f"{run['devices']} device(s), mesh {run['mesh']}: {resumed}{rate}, {run['wall_s']:.0f} s",
        f"  loss at step  {losses}",
    ]


def format_result(result: dict[str, Any]) -> str:
    """Return the lines."""
    imports = result["imports"]
    lines = []
    if imports["modules"]:
        counts = f"{len(imports['failed'])} failed, {len(imports['skipped'])} skipped"
        lines.append(f"{result['framework']}: {imports['modules']} modules, {counts}")
    lines += [f"  skipped {name}: {reason}" for name, reason in imports["skipped"].items()]
    if result["presets"]["flags"]:
        lines.append(
            f"presets: {result['presets']['flags']} flags of XLA, "
            f"{len(result['presets']['refused'])} refused"
        )
    for run in result["runs"]:
        lines += _describe_run(run)
    lines += [f"PROBLEM {problem}" for problem in result["problems"]]
    if result["workdir"]:
        lines.append(f"kept in {result['workdir']}")
    lines.append("ok" if result["ok"] else "FAILED")
    return "\n".join(lines)
