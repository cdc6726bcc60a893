"""The checks of `rosetta doctor`: problems of a machine, an environment and a job before a run.

Each module of checks has a function `check`, which reads a Machine and yields findings. The package
needs Python 3.9 and no other package, so that it also works on a login node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.doctor import (
    container,
    disk,
    gpu,
    known_issues,
    machine,
    nccl_network,
    nodes,
    package_versions,
    resource_limits,
    variables,
)
from rosetta.doctor.finding import LEVELS, NOTE, Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.core.gpu_query import DetectedGpu
    from rosetta.doctor.machine import Machine

# Findings of one level are listed in this order.
_CHECK_MODULES = (
    gpu,
    package_versions,
    container,
    resource_limits,
    nccl_network,
    variables,
    known_issues,
)


def examine_machine(
    inspected: Machine, *, hosts: Sequence[str] = (), folders: Sequence[str] = ()
) -> list[Finding]:
    """Return the findings about a machine, the most serious first.

    Args:
      inspected: The machine. If it is `quick`, the findings have no notes.
      hosts: Nodes whose names must resolve, instead of those of the Slurm job.
      folders: More folders that the run writes.
    """
    findings: list[Finding] = []
    for module in _CHECK_MODULES:
        findings.extend(module.check(inspected))
    findings.extend(nodes.check(inspected, hosts))
    findings.extend(disk.check(inspected, folders))
    if inspected.quick:
        findings = [finding for finding in findings if finding.level != NOTE]
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def quick(
    environment: Mapping[str, str], cards: Sequence[DetectedGpu] | None = None
) -> list[Finding]:
    """Return the blockers and warnings of this machine that a launcher can find at once.

    No command is run, no name server is asked, and no file is written.

    Args:
      environment: The variables of the run.
      cards: The GPUs that the launcher has detected. Without them, the checks that need the compute
        capability are left out.

    Raises:
      UserError: The lock record of this environment cannot be read.
    """
    return examine_machine(machine.inspect_machine(environment, quick=True, gpus=cards))
