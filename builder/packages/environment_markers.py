"""Environment markers over the few environments that a line is locked for, and the wheel that each
of them takes.
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

# 2.28: wheels that need a newer one would not load on all the systems that a bare environment is
# made for.
GLIBC = 28
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_LAST_MICRO = 99


@dataclass(frozen=True, order=True)
class Environment:
    """One Python on one architecture: "3.11" and amd64 or arm64."""

    python: str
    architecture: str

    @property
    def machine(self) -> str:
        return _MACHINES[self.architecture]

    @property
    def minor(self) -> int:
        return int(self.python.partition(".")[2])

    def __str__(self) -> str:
        return f"Python {self.python} on {self.machine}"


def list_environments(
    pythons: Iterable[str], architectures: Iterable[str]
) -> tuple[Environment, ...]:
    """Every Python on every architecture, sorted."""
    return tuple(
        sorted(
            Environment(python, architecture)
            for python in pythons
            for architecture in architectures
        )
    )


def bounding_marker(environments: Sequence[Environment]) -> str:
    """Return the marker that holds in these environments and (nearly) nowhere else."""
    minors = [environment.minor for environment in environments]
    machines = sorted({environment.machine for environment in environments})
    either = " or ".join(f"platform_machine == '{machine}'" for machine in machines)
    return (
        f"sys_platform == 'linux' and python_full_version >= '3.{min(minors)}' and "
        f"python_full_version < '3.{max(minors) + 1}' and ({either})"
    )


def marker_applies(marker: str, environment: Environment, micro: int = 0) -> bool:
    """Return whether `marker` holds there. An empty one always does."""
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
    """Return the environments in which `marker` holds; None where that depends on more than
    Python's minor version and architecture.
    """
    found = frozenset(each for each in environments if marker_applies(marker, each))
    return (
        found
        if found
        == frozenset(each for each in environments if marker_applies(marker, each, _LAST_MICRO))
        else None
    )


def simplify_marker(marker: str, environments: Sequence[Environment]) -> str | None:
    """Return the shortest marker that says the same of these environments: empty for all, None for
    none of them.
    """
    found = matching_environments(marker, environments)
    if found is None:
        return marker
    if not found:
        return None
    text = marker_for(found, environments)
    return str(_parse_marker(text)) if text else ""


def marker_for(chosen: Iterable[Environment], environments: Sequence[Environment]) -> str:
    """Return the marker for some of these environments; empty for all of them."""
    pythons = sorted({each.python for each in environments})
    by_machine = {
        machine: tuple(
            python
            for python in pythons
            if any(each.python == python and each.machine == machine for each in chosen)
        )
        for machine in sorted({each.machine for each in environments})
    }
    terms = {machine: _python_term(some, pythons) for machine, some in by_machine.items() if some}
    if len(set(by_machine.values())) == 1:
        return next(iter(terms.values()))
    parts = [
        " and ".join(filter(None, (term, f"platform_machine == '{machine}'")))
        for machine, term in terms.items()
    ]
    return parts[0] if len(parts) == 1 else " or ".join(f"({part})" for part in parts)


def _python_term(some: Sequence[str], pythons: Sequence[str]) -> str:
    if list(some) == list(pythons):
        return ""
    if list(some) == list(pythons[: len(some)]):
        return f"python_version < '{pythons[len(some)]}'"
    if list(some) == list(pythons[-len(some) :]):
        return f"python_version >= '{some[0]}'"
    either = " or ".join(f"python_version == '{python}'" for python in some)
    return either if len(some) == 1 else f"({either})"


@cache
def _rank_tags(environment: Environment) -> dict[Tag, int]:
    """Every wheel tag that works there, with its rank (0 is best)."""
    version, interpreter = (3, environment.minor), f"cp3{environment.minor}"
    oldest = 17 if environment.machine == "aarch64" else 5
    aliases = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    platforms = []
    for minor in range(GLIBC, oldest - 1, -1):
        platforms.append(f"manylinux_2_{minor}_{environment.machine}")
        platforms += [f"{aliases[minor]}_{environment.machine}"] if minor in aliases else []
    platforms.append(f"linux_{environment.machine}")
    ranked = [
        *tags.cpython_tags(version, [interpreter], platforms),
        *tags.compatible_tags(version, interpreter, platforms),
    ]
    return {tag: rank for rank, tag in reversed(list(enumerate(ranked)))}


def choose_wheel(names: Iterable[str], environment: Environment) -> str | None:
    """Return the wheel, by file name, that an installer takes in this environment; None where none
    works.
    """
    known, found = _rank_tags(environment), []
    for name in names:
        try:
            _, _, build, its_tags = parse_wheel_filename(name)
        except InvalidWheelFilename:
            continue
        ranks = [known[tag] for tag in its_tags if tag in known]
        if ranks:
            found.append((min(ranks), -build[0] if build else 1, name))
    return min(found)[2] if found else None
