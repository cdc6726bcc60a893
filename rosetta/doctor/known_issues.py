"""What is known to go wrong with exactly these versions (rosetta/known_issues.yaml), as far as it
applies to this machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.doctor import slurm_job
from rosetta.doctor.finding import NOTE, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rosetta.doctor.machine import Machine

# Known issues that other checks look into: they say whether it is so here.
CHECKED_ELSEWHERE = (
    "shm-too-small",
    "flag-simplify-fp-conversions",
    "flag-graph-level",
    "flag-pipelined-collectives",
)


def check(machine: Machine) -> Iterator[Finding]:
    """Yield the issues: a warning for what its settings or its cards bring about, a note for what
    comes with the versions.
    """
    for issue in machine.issues:
        if issue["id"] in CHECKED_ELSEWHERE or not _applies_here(machine, issue):
            continue
        here = any(key in issue for key in ("capabilities", "variables", "one_process_per_gpu"))
        what, _, do = issue["line"].partition(": ")
        end = f"; until {issue['end']}" if issue.get("end") else ""
        yield Finding(
            issue["id"],
            WARNING if here else NOTE,
            what,
            "known issue",
            do or "see there",
            f"{issue['see']}{end}",
        )


def _applies_here(machine: Machine, issue: Mapping[str, Any]) -> bool:
    majors = {each.capability[0] for each in machine.cards}
    if "capabilities" in issue and not majors & set(issue["capabilities"]):
        return False
    if any(
        machine.environment.get(name, "").strip() != value
        for name, value in issue.get("variables", {}).items()
    ):
        return False
    return (
        not issue.get("one_process_per_gpu") or slurm_job.count_node_tasks(machine.environment) > 1
    )
