"""Evaluate and shorten environment markers, and choose the wheel for each environment.

An environment is here a Python version and an architecture. A line is locked for a few of them.
"""

from __future__ import annotations

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

# The newest glibc that a wheel may require is 2.28 (this is the minor version), because the oldest
# supported systems have that one.
GLIBC = 28
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_LAST_MICRO = 99  # higher than any micro version of Python


@dataclass(frozen=True, order=True)
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


def bounding_marker(environments: Sequence[Environment]) -> str:
    """Return a marker that selects these environments.

    It also selects Python versions between the oldest and the newest, and every combination of a
    Python version and an architecture.
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
        micro: The micro version of its Python.
    """
    full = f"{environment.python}.{micro}"
    return not marker or _parse_marker(marker).evaluate(
        marker_environment(environment.python, full, environment.architecture)
    )


@cache
def _parse_marker(marker: str) -> Marker:
    return Marker(marker)


def matching_environments(
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

    # Markers compare versions with < and >=: the first and the last micro version suffice.
    first, last = select(0), select(_LAST_MICRO)
    return first if first == last else None


def simplify_marker(marker: str, environments: Sequence[Environment]) -> str | None:
    """Return a short marker that selects the same environments.

    Returns:
        The marker: empty if it selects all environments, None if it selects none of them. A marker
        that depends on the micro version, too, is returned unchanged.
    """
    matching = matching_environments(marker, environments)
    if matching is None:
        return marker
    if not matching:
        return None
    text = marker_for(matching, environments)
    return str(_parse_marker(text)) if text else ""


def marker_for(selected: Iterable[Environment], environments: Sequence[Environment]) -> str:
    """Return a marker that selects exactly `selected`, which has at least one environment.

    The marker is empty if `selected` has all of `environments`.
    """
    pythons = sorted({environment.python for environment in environments})
    machines = sorted({environment.machine for environment in environments})
    selected_pairs = {(environment.python, environment.machine) for environment in selected}
    pythons_by_machine = {
        machine: tuple(python for python in pythons if (python, machine) in selected_pairs)
        for machine in machines
    }
    terms = {
        machine: _python_term(machine_pythons, pythons)
        for machine, machine_pythons in pythons_by_machine.items()
        if machine_pythons
    }
    # If every architecture has the same Python versions, the marker need not name one.
    if len(set(pythons_by_machine.values())) == 1:
        return next(iter(terms.values()))
    parts = []
    for machine, python_term in terms.items():
        machine_term = f"platform_machine == '{machine}'"
        parts.append(f"{python_term} and {machine_term}" if python_term else machine_term)
    return parts[0] if len(parts) == 1 else " or ".join(f"({part})" for part in parts)


def _python_term(selected: Sequence[str], pythons: Sequence[str]) -> str:
    """Return the part of a marker that selects some of these Python versions."""
    count = len(selected)
    if list(selected) == list(pythons):
        return ""
    if list(selected) == list(pythons[:count]):
        return f"python_version < '{pythons[count]}'"
    if list(selected) == list(pythons[-count:]):
        return f"python_version >= '{selected[0]}'"
    versions = " or ".join(f"python_version == '{python}'" for python in selected)
    return versions if count == 1 else f"({versions})"


@cache
def _rank_tags(environment: Environment) -> dict[Tag, int]:
    """Return every wheel tag that works in an environment, with its rank: 0 is the best."""
    version, interpreter = (3, environment.minor), f"cp3{environment.minor}"
    oldest_glibc = 17 if environment.machine == "aarch64" else 5
    aliases = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    platforms = []
    for minor in range(GLIBC, oldest_glibc - 1, -1):
        platforms.append(f"manylinux_2_{minor}_{environment.machine}")
        if minor in aliases:
            platforms.append(f"{aliases[minor]}_{environment.machine}")
    platforms.append(f"linux_{environment.machine}")
    ranked = [
        *tags.cpython_tags(version, [interpreter], platforms),
        *tags.compatible_tags(version, interpreter, platforms),
    ]
    return {tag: rank for rank, tag in reversed(list(enumerate(ranked)))}


def choose_wheel(names: Iterable[str], environment: Environment) -> str | None:
    """Return the file name of the wheel that an installer takes in an environment, or None if no
    wheel works there.
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
            candidates.append((min(ranks), -build[0] if build else 1, name))
    return min(candidates)[2] if candidates else None
