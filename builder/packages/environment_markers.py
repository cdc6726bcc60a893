"""Evaluate and shorten environment markers, and choose the wheel for each environment.

In this module, an environment is a Python version and an architecture. A line is locked for several
environments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from packaging import tags
from packaging.markers import Marker
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builder.packages.lock_file import marker_environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from packaging.tags import Tag

# A wheel may require glibc 2.28 at most, because the oldest supported systems have glibc 2.28.
NEWEST_GLIBC_MINOR = 28
# The oldest glibc that a manylinux tag names: 2.17 for aarch64 (manylinux2014), 2.5 for x86_64
# (manylinux1).
_OLDEST_GLIBC_MINORS = {"aarch64": 17, "x86_64": 5}
_MANYLINUX_ALIASES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_HIGHEST_MICRO = 99  # higher than the micro version of any Python release
_FULL_VERSION = re.compile(r"3\.[0-9]+\.([0-9]+)")


@dataclass(frozen=True)
class Environment:
    """A Python version, as "3.11", on an architecture, "amd64" or "arm64"."""

    python: str
    architecture: str

    @property
    def machine(self) -> str:
        """The architecture as `platform_machine` names it: "x86_64" or "aarch64"."""
        return _MACHINES[self.architecture]

    @property
    def minor(self) -> int:
        """The minor version of Python: 11 for "3.11"."""
        return int(self.python.partition(".")[2])

    def __lt__(self, other: Environment) -> bool:
        """Return whether an environment is sorted before another one: 3.9 is before 3.11."""
        return (self.minor, self.architecture) < (other.minor, other.architecture)

    def __str__(self) -> str:
        return f"Python {self.python} on {self.machine}"


def list_environments(
    pythons: Iterable[str], architectures: Iterable[str]
) -> tuple[Environment, ...]:
    """Return every Python version on every architecture, sorted."""
    return tuple(
        sorted(
            Environment(python, architecture)
            for python in pythons
            for architecture in architectures
        )
    )


def build_bounding_marker(environments: Sequence[Environment]) -> str:
    """Return a marker that selects at least these environments.

    The marker selects every Python version from the oldest to the newest, on every architecture
    that is among the environments.
    """
    minors = [environment.minor for environment in environments]
    machines = sorted({environment.machine for environment in environments})
    machine_term = " or ".join(f"platform_machine == '{machine}'" for machine in machines)
    return (
        f"sys_platform == 'linux' and python_full_version >= '3.{min(minors)}' and "
        f"python_full_version < '3.{max(minors) + 1}' and ({machine_term})"
    )


def marker_applies(marker: str, environment: Environment, micro: int = 0) -> bool:
    """Return whether a marker selects an environment. An empty marker selects all.

    Args:
        marker: The marker.
        environment: The environment.
        micro: The micro version of the environment's Python: 4 for Python 3.11.4.
    """
    if not marker:
        return True
    full_version = f"{environment.python}.{micro}"
    return _parse_marker(marker).evaluate(
        marker_environment(environment.python, full_version, environment.architecture)
    )


@cache
def _parse_marker(marker: str) -> Marker:
    return Marker(marker)


def find_matching_environments(
    marker: str, environments: Sequence[Environment]
) -> frozenset[Environment] | None:
    """Return the environments that a marker selects.

    Returns:
        The environments, or None if the answer depends on more than the minor version of Python
        and the architecture.
    """

    def select(micro: int) -> frozenset[Environment]:
        return frozenset(
            environment
            for environment in environments
            if marker_applies(marker, environment, micro)
        )

    # The answer can change only at the micro versions that the marker names.
    micros = {0, _HIGHEST_MICRO}
    for text in _FULL_VERSION.findall(marker):
        micros |= {max(int(text) - 1, 0), int(text), int(text) + 1}
    selections = {select(micro) for micro in micros}
    return selections.pop() if len(selections) == 1 else None


def simplify_marker(marker: str, environments: Sequence[Environment]) -> str | None:
    """Return a short marker that selects the same environments.

    Returns:
        The short marker, "" if the marker selects all environments, or None if it selects none. A
        marker that also depends on the micro version of Python is returned unchanged.
    """
    matching = find_matching_environments(marker, environments)
    if matching is None:
        return marker
    if not matching:
        return None
    text = build_marker(matching, environments)
    return str(_parse_marker(text)) if text else ""


def build_marker(selected: Iterable[Environment], environments: Sequence[Environment]) -> str:
    """Return a marker that selects some of the environments, and no others.

    Args:
        selected: The environments to select, at least one.
        environments: All environments.

    Returns:
        The marker, or "" if all environments are selected.
    """
    pythons = list(dict.fromkeys(environment.python for environment in sorted(environments)))
    machines = sorted({environment.machine for environment in environments})
    selected_pairs = {(environment.python, environment.machine) for environment in selected}
    pythons_by_machine = {
        machine: tuple(python for python in pythons if (python, machine) in selected_pairs)
        for machine in machines
    }
    terms = {
        machine: _build_python_term(machine_pythons, pythons)
        for machine, machine_pythons in pythons_by_machine.items()
        if machine_pythons
    }
    # If the same Python versions are selected on every architecture, no architecture is named.
    if len(set(pythons_by_machine.values())) == 1:
        return next(iter(terms.values()))
    parts = []
    for machine, python_term in terms.items():
        machine_term = f"platform_machine == '{machine}'"
        parts.append(f"{python_term} and {machine_term}" if python_term else machine_term)
    return parts[0] if len(parts) == 1 else " or ".join(f"({part})" for part in parts)


def _build_python_term(selected: Sequence[str], pythons: Sequence[str]) -> str:
    """Return the part of a marker that selects some of these Python versions; "" for all.

    Args:
        selected: The Python versions to select, at least one, sorted.
        pythons: All Python versions, sorted.
    """
    count = len(selected)
    if list(selected) == list(pythons):
        return ""
    are_oldest = list(selected) == list(pythons[:count])
    if are_oldest:
        return f"python_version < '{pythons[count]}'"
    are_newest = list(selected) == list(pythons[-count:])
    if are_newest:
        return f"python_version >= '{selected[0]}'"
    versions = " or ".join(f"python_version == '{python}'" for python in selected)
    return versions if count == 1 else f"({versions})"


@cache
def _rank_tags(environment: Environment) -> dict[Tag, int]:
    """Return every wheel tag that works in an environment, with its rank: 0 is the best."""
    version, interpreter = (3, environment.minor), f"cp3{environment.minor}"
    oldest_minor = _OLDEST_GLIBC_MINORS[environment.machine]
    platforms = []
    for minor in range(NEWEST_GLIBC_MINOR, oldest_minor - 1, -1):
        platforms.append(f"manylinux_2_{minor}_{environment.machine}")
        if minor in _MANYLINUX_ALIASES:
            platforms.append(f"{_MANYLINUX_ALIASES[minor]}_{environment.machine}")
    platforms.append(f"linux_{environment.machine}")
    ranked = [
        *tags.cpython_tags(version, [interpreter], platforms),
        *tags.compatible_tags(version, interpreter, platforms),
    ]
    # If a tag is listed twice, its first and better rank counts: it is set last.
    return {tag: rank for rank, tag in reversed(list(enumerate(ranked)))}


def choose_wheel(names: Iterable[str], environment: Environment) -> str | None:
    """Return the file name of the wheel that an installer takes, or None if no wheel works.

    The wheel with the best tag is taken. Among equal tags, the highest build number wins.

    Args:
        names: The file names of the wheels of one release.
        environment: The environment to install in.
    """
    tag_ranks = _rank_tags(environment)
    candidates = []
    for name in names:
        try:
            _, _, build, wheel_tags = parse_wheel_filename(name)
        except InvalidWheelFilename:
            continue
        ranks = [tag_ranks[tag] for tag in wheel_tags if tag in tag_ranks]
        if ranks:
            build_order = -build[0] if build else 1  # a wheel without a build number comes last
            candidates.append((min(ranks), build_order, name))
    if not candidates:
        return None
    _, _, best_name = min(candidates)
    return best_name
