"""Report the known issues of the installed versions that apply to this machine and its settings.

rosetta/known_issues.yaml lists the issues of all versions. A baked environment has those of its own
versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.doctor import slurm_job
from rosetta.doctor.finding import NOTE, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rosetta.doctor.machine import Machine

# Other checks test for these issues on this machine.
CHECKED_ELSEWHERE = (
    "shm-too-small",
    "flag-simplify-fp-conversions",
    "flag-graph-level",
    "flag-pipelined-collectives",
)
# With one of these keys, an issue applies only to some GPUs or settings.
_CONDITIONS = ("capabilities", "variables", "one_process_per_gpu")


def check(machine: Machine) -> Iterator[Finding]:
    """Yield the known issues that apply here.

    An issue of the GPUs or settings of this machine is a warning. An issue of the versions alone is
    a note.
    """
    for issue in machine.issues:
        if issue["id"] in CHECKED_ELSEWHERE or not _applies_here(machine, issue):
            continue
        is_specific = any(condition in issue for condition in _CONDITIONS)
        problem, _, remedy = issue["line"].partition(": ")
        end = f"; until {issue['end']}" if issue.get("end") else ""
        yield Finding(
            issue["id"],
            WARNING if is_specific else NOTE,
            problem,
            "known issue",
            remedy or "read the report",
            f"{issue['see']}{end}",
        )


def _applies_here(machine: Machine, issue: Mapping[str, Any]) -> bool:
    """Return whether this machine meets all conditions of an issue."""
    major_capabilities = {detected.capability[0] for detected in machine.gpus}
    if "capabilities" in issue and major_capabilities.isdisjoint(issue["capabilities"]):
        return False
    for name, value in issue.get("variables", {}).items():
        if machine.environment.get(name, "").strip() != value:
            return False
    if issue.get("one_process_per_gpu"):
        return slurm_job.count_node_tasks(machine.environment) > 1
    return True
