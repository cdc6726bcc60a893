"""Tell a process from a later one with the same id: by the machine's boot and the start time."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def read_boot_id() -> str:
    """Return the id of this machine's last boot, or its host name if there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def read_pid_namespace() -> str:
    """Return the namespace of this process's id; "" if it is not known."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def read_start_time(pid: int) -> str:
    """Return when a process began, by the kernel's clock; "" if there is no such process."""
    return _read_stat_field(pid, 19)


def is_zombie(pid: int) -> bool:
    """Return whether a process has ended, and its parent has not noticed yet."""
    return _read_stat_field(pid, 0) == "Z"


def _read_stat_field(pid: int, index: int) -> str:
    """Return a field of /proc/PID/stat after the name of the process; "" without the process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[index]
    except (OSError, IndexError):
        return ""
