"""What Slurm says of a job: its hosts and its processes. Nothing of Slurm is run for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rosetta.core.errors import INVALID, TOO_BIG, UserError
from rosetta.core.value_parsing import parse_digits

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_HOSTS = 65536  # hosts; more is a slip of the pen
_FORMAT_ADVICE = "write it as in n[1-4,7],m1"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")


def parse_hosts(text: str, where: str) -> list[str]:
    """Return the hosts of a list as Slurm writes it: `n[1-3,07],gpu-a[1-2]-r[1-2],login`.

    Args:
      text: the list.
      where: its variable or option, for the error.

    Raises:
      UserError: it is none, or names more than MOST.
    """
    found = list[str]()
    for word in re.split(r",(?![^\[\]]*\])", text):
        if not re.fullmatch(r"([^\[\]]|\[[^\[\]]*\])+", word):
            raise UserError("it is no list of hosts", where, _FORMAT_ADVICE, kind=INVALID)
        made = [""]
        for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", word):
            parts = (
                [literal]
                if literal
                else [number for each in ranges.split(",") for number in _expand_range(each, where)]
            )
            if len(made) * len(parts) + len(found) > MOST_HOSTS:
                raise UserError(
                    f"it names more than {MOST_HOSTS} hosts", where, _FORMAT_ADVICE, kind=TOO_BIG
                )
            made = [before + part for before in made for part in parts]
        found += made
    if not found or not all(_NAME.fullmatch(each) for each in found):
        raise UserError("it is no list of hosts", where, _FORMAT_ADVICE, kind=INVALID)
    return list(dict.fromkeys(found))


def _expand_range(text: str, where: str) -> list[str]:
    match = re.fullmatch(r"(\d{1,12})(?:-(\d{1,12}))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if match is None or not first <= last < first + MOST_HOSTS:
        raise UserError("it is no list of hosts", where, _FORMAT_ADVICE, kind=INVALID)
    return [str(number).zfill(len(match[1])) for number in range(first, last + 1)]


def read_job_hosts(environment: Mapping[str, str]) -> list[str]:
    """Return the hosts of the job that this runs in; empty outside of one, or where its variable is
    none that Slurm wrote.
    """
    for name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST"):
        if environment.get(name):
            try:
                return parse_hosts(environment[name], name)
            except UserError:
                return []
    return []


def count_node_tasks(environment: Mapping[str, str]) -> int:
    """Return how many processes of a step run on this node, of the first node where ours is not
    known; 1 outside of a step, as in a batch script.
    """
    counts = list[int]()
    for number, times in re.findall(
        r"(\d{1,5})(?:\(x(\d{1,5})\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    ):
        counts += [int(number)] * int(times or 1)
    here = parse_digits(environment.get("SLURM_NODEID", "")) or 0
    return counts[here] if here < len(counts) else counts[0] if counts else 1
