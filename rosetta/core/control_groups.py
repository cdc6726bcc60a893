"""Read the limits of the control groups (cgroups) that this process is in.

Containers and jobs limit memory and cores through them. Each function takes a function that reads a
file, so that the doctor can check another machine's files. Python 3.9 runs this module.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def read_file(path: str) -> str:
    """Return the text of a file without white space around it; "" if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def read_memory_limits(read_text: Callable[[str], str]) -> list[int]:
    """Return the limits of memory of this process's control groups, in bytes; often none.

    Args:
      read_text: Returns the text of a file, "" if it cannot be read.
    """
    texts = [
        *_read_group_files(read_text, "memory", "memory.max"),
        *_read_group_files(read_text, "memory", "memory.limit_in_bytes"),
    ]
    return [int(text) for text in texts if text.isdecimal()]


def read_core_quotas(read_text: Callable[[str], str]) -> list[float]:
    """Return the quotas of this process's control groups, in cores; often none.

    Args:
      read_text: Returns the text of a file, "" if it cannot be read.
    """
    quotas = []
    for text in _read_group_files(read_text, "cpu", "cpu.max"):
        match = re.fullmatch(r"(\d+) (\d+)", text)
        if match and int(match[2]):
            quotas.append(int(match[1]) / int(match[2]))
    old_quotas = _read_group_files(read_text, "cpu", "cpu.cfs_quota_us")
    old_periods = _read_group_files(read_text, "cpu", "cpu.cfs_period_us")
    for quota, period in zip(old_quotas, old_periods):  # noqa: B905 (Python 3.9 has no strict=)
        if quota.isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(quota) / int(period))
    return quotas


def _read_group_files(read_text: Callable[[str], str], controller: str, name: str) -> list[str]:
    """Return the texts of a control group's file for this process, of version 2 or 1.

    A limit of each group above the process's own applies too, so that their files are included.

    Args:
      read_text: Returns the text of a file, "" if it cannot be read.
      controller: The controller, such as "memory".
      name: The name of the file, such as "memory.max".
    """
    groups = re.findall(
        rf"^\d+:(?:[\w,]*\b{controller}\b[\w,]*)?:(/.*)$",
        read_text("/proc/self/cgroup"),
        re.MULTILINE,
    )
    texts: list[str] = []
    for root in ("/sys/fs/cgroup", f"/sys/fs/cgroup/{controller}"):
        for group in [*groups, "/"]:
            parts = [part for part in group.split("/") if part not in ("", "..")]
            folders = ["/".join([root, *parts[:depth]]) for depth in range(len(parts) + 1)]
            texts.extend(read_text(f"{folder}/{name}") for folder in folders)
    return [text for text in texts if text]
