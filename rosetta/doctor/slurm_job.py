"""Read the hosts and the number of processes of a Slurm job from its variables.

No program of Slurm is run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rosetta.core.errors import INVALID, TOO_BIG, UserError
from rosetta.core.value_parsing import parse_digits

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_HOSTS = 65536  # a list with more is a typing error
_FORMAT_ADVICE = "write a list such as n[1-4,7],m1"
_NODE_LIST_VARIABLES = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")


def parse_hosts(text: str, where: str) -> list[str]:
    """Return the hosts of a list in Slurm's format: `n[1-3,07],gpu-a[1-2]-r[1-2],login`.

    Args:
      text: The list.
      where: The variable or option that has the list, for the error.

    Raises:
      UserError: The list is not valid, or names more than MOST_HOSTS hosts.
    """
    hosts: list[str] = []
    for entry in re.split(r",(?![^\[\]]*\])", text):
        hosts += _expand_entry(entry, MOST_HOSTS - len(hosts), where)
    if not hosts or not all(_HOST_NAME.fullmatch(host) for host in hosts):
        raise _refuse_list(where)
    return list(dict.fromkeys(hosts))


def _expand_entry(entry: str, most: int, where: str) -> list[str]:
    """Return the names that an entry such as `gpu-a[1-2]-r[1-2]` stands for, at most `most`."""
    if not re.fullmatch(r"([^\[\]]|\[[^\[\]]*\])+", entry):
        raise _refuse_list(where)
    names = [""]
    for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", entry):
        parts = [literal] if literal else _expand_ranges(ranges, where)
        if len(names) * len(parts) > most:
            raise UserError(
                f"names more than {MOST_HOSTS} hosts", where, _FORMAT_ADVICE, kind=TOO_BIG
            )
        names = [name + part for name in names for part in parts]
    return names


def _expand_ranges(text: str, where: str) -> list[str]:
    """Return the numbers that ranges such as `1-3,07` stand for, with their leading zeros."""
    numbers: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,12})(?:-(\d{1,12}))?", part)
        if match is None:
            raise _refuse_list(where)
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + MOST_HOSTS:
            raise _refuse_list(where)
        width = len(match[1])
        numbers += [str(number).zfill(width) for number in range(first, last + 1)]
    return numbers


def _refuse_list(where: str) -> UserError:
    """Return the error for a list that is not valid."""
    return UserError("is not a valid list of hosts", where, _FORMAT_ADVICE, kind=INVALID)


def find_node_list_variable(environment: Mapping[str, str]) -> str:
    """Return the variable that lists the nodes of the job; "" outside a job."""
    return next((name for name in _NODE_LIST_VARIABLES if environment.get(name)), "")


def read_job_hosts(environment: Mapping[str, str]) -> list[str]:
    """Return the hosts of the Slurm job; empty outside a job, or if the list is not valid."""
    variable = find_node_list_variable(environment)
    if not variable:
        return []
    try:
        return parse_hosts(environment[variable], variable)
    except UserError:
        return []


def count_node_tasks(environment: Mapping[str, str]) -> int:
    """Return how many processes of the Slurm step run on this node.

    It is the number of the first node if this node's number is not known, and 1 outside a step,
    such as in a batch script.
    """
    counts: list[int] = []
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    for tasks, nodes in re.findall(r"(\d{1,5})(?:\(x(\d{1,5})\))?", text):
        counts += [int(tasks)] * int(nodes or 1)
    node = parse_digits(environment.get("SLURM_NODEID", "")) or 0
    if node < len(counts):
        return counts[node]
    return counts[0] if counts else 1
