"""`rosetta doctor`: what of this machine, its environment and its job stands in the way of a run.

Python 3.9 and no package will do.
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


def examine_machine(
    seen: Machine, *, hosts: Sequence[str] = (), folders: Sequence[str] = ()
) -> list[Finding]:
    """Return what is found on a machine, the gravest first; also for these hosts and folders.

    The quick form leaves notes out.
    """
    found = [
        each
        for part in (
            gpu,
            package_versions,
            container,
            resource_limits,
            nccl_network,
            variables,
            known_issues,
        )
        for each in part.check(seen)
    ]
    found += [*nodes.check(seen, hosts), *disk.check(seen, folders)]
    return sorted(
        (each for each in found if not (seen.quick and each.level == NOTE)),
        key=lambda each: LEVELS.index(each.level),
    )


def quick(
    environment: Mapping[str, str], cards: Sequence[DetectedGpu] | None = None
) -> list[Finding]:
    """Return the blockers and warnings that take no command, no name server and no file to see, for
    a launcher.

    Args:
      environment: the run's.
      cards: those that the launcher has found; without, what needs their compute capability is left
        out.

    Raises:
      UserError: what was baked here cannot be read any more.
    """
    return examine_machine(machine.inspect_machine(environment, quick=True, cards=cards))
