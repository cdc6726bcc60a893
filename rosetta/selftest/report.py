"""Format the result of the self-test as text."""

from __future__ import annotations

from typing import Any


def _describe_run(run: dict[str, Any]) -> list[str]:
    """Return the lines about one training run; the keys are those of TrainingRun.as_json."""
    losses = {**run["losses"], **run["resumed_losses"]}
    loss_text = "  ".join(f"{step}: {loss:.3f}" for step, loss in losses.items())
    rate = f", {run['steps_per_second']:.1f} steps/s" if run["steps_per_second"] else ""
    resumed = "not resumed"
    if run["resumed_from"] is not None:
        resumed = f"resumed from step {run['resumed_from']}"
    return [
        f"{run['devices']} device(s), mesh {run['mesh']}: {resumed}{rate}, {run['wall_s']:.0f} s",
        f"  loss at step  {loss_text}",
    ]


def _describe_check(check: dict[str, Any]) -> str:
    """Return the line about one check of a feature; the keys are those of FeatureCheck.as_json."""
    if check["reason"]:
        return f"{check['name']}: {check['outcome']}: {check['reason']}"
    return (
        f"{check['name']}: {check['outcome']} on {check['devices']} {check['platform']} device(s), "
        f"{check['wall_s']:.0f} s"
    )


def format_result(result: dict[str, Any]) -> str:
    """Return the text for the document that `rosetta.selftest.runner.run_selftest` returns."""
    imports, presets = result["imports"], result["presets"]
    lines = []
    if imports["modules"]:
        counts = f"{len(imports['failed'])} failed, {len(imports['skipped'])} skipped"
        lines.append(f"{result['framework']}: {imports['modules']} modules, {counts}")
    lines += [f"  skipped {name}: {reason}" for name, reason in imports["skipped"].items()]
    if presets["flags"]:
        lines.append(
            f"presets: {presets['flags']} XLA flags, {len(presets['refused'])} refused by XLA"
        )
    for run in result["runs"]:
        lines += _describe_run(run)
    lines += [_describe_check(check) for check in result["checks"]]
    lines += [f"PROBLEM {problem}" for problem in result["problems"]]
    if result["workdir"]:
        lines.append(f"the files are in {result['workdir']}")
    lines.append("ok" if result["ok"] else "FAILED")
    return "\n".join(lines)
