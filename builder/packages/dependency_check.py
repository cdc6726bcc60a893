"""What `pip check` would say of an environment, and whether the manifest's overrides say why it is
so.
"""

from __future__ import annotations

import email.parser
import platform
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builder.core import machine_architecture
from builder.packages.lock_file import marker_environment
from rosetta.core.errors import CONFLICT, DAMAGED, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from builder.core.manifest import Manifest, Override


@dataclass(frozen=True, order=True)
class Finding:
    """`package` requires `requirement`, but `installed` is there (empty: nothing is)."""

    package: str
    requirement: str
    installed: str

    @property
    def project(self) -> str:
        """The normalised name of the required project."""
        return str(canonicalize_name(Requirement(self.requirement).name))

    def __str__(self) -> str:
        there = f"{self.installed} is installed" if self.installed else "it is not installed"
        return f"{self.package} requires {self.requirement}, but {there}"


def find_unmet_requirements(site_packages: Path, environment: Mapping[str, str]) -> list[Finding]:
    """Every requirement of an installed package that does not hold.

    Args:
        site_packages: the folder; need not be of this machine's architecture or Python.
        environment: PEP 508's variables for where it will run.
    """
    needs: dict[str, list[str]] = {}
    versions: dict[str, str] = {}
    for file in sorted(site_packages.glob("*.dist-info/METADATA")):
        message = email.parser.HeaderParser().parsestr(
            file.read_text(encoding="utf-8", errors="replace")
        )
        name = canonicalize_name(str(message["Name"]))
        versions[name] = str(message["Version"])
        needs[name] = [str(value) for value in message.get_all("Requires-Dist") or []]
    found = [
        finding
        for name, theirs in needs.items()
        for text in theirs
        if (finding := _check_requirement(name, text, versions, environment))
    ]
    return sorted(set(found))


def _check_requirement(
    name: str, text: str, versions: Mapping[str, str], environment: Mapping[str, str]
) -> Finding | None:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None  # pip and uv cannot read it either, and did install the package
    if requirement.marker and not requirement.marker.evaluate({**environment, "extra": ""}):
        return None
    installed = versions.get(canonicalize_name(requirement.name), "")
    try:
        holds = bool(installed) and requirement.specifier.contains(
            Version(installed), prereleases=True
        )
    except InvalidVersion:
        holds = False
    requirement.marker = None
    return None if holds else Finding(name, str(requirement), installed)


def match_overrides(
    found: Sequence[Finding], manifest: Manifest, line: str
) -> tuple[dict[Finding, str], list[Finding]]:
    """Return the reason that an override of `line` gives for each finding, and the findings that
    none explains.

    A dropped project explains that it is missing; a pinned one that the pinned version is there.
    """
    overrides = {override.project: override for override in manifest.overrides_for_line(line)}
    reasons: dict[Finding, str] = {}
    for finding in found:
        override = overrides.get(finding.project)
        if override and _explains_finding(override, finding):
            reasons[finding] = override.why
    return reasons, [finding for finding in found if finding not in reasons]


def _explains_finding(override: Override, finding: Finding) -> bool:
    if override.pin:
        return bool(finding.installed) and Requirement(override.pin).specifier.contains(
            finding.installed, prereleases=True
        )
    return not finding.installed


def require_explained(python: Path, manifest: Manifest, line: str) -> dict[Finding, str]:
    """Return the findings of a finished environment with their reasons; UserError if there is one
    without.

    Args:
        python: the environment's own program, ENV/bin/python.
        manifest: has the overrides.
        line: the line that the environment is of.
    """
    folder = python.parents[1]
    sites = sorted(folder.glob("lib/python3.*/site-packages"))
    if len(sites) != 1:
        raise UserError(
            "is not a whole environment", str(folder), "delete it and run again", kind=DAMAGED
        )
    version = sites[0].parent.name.removeprefix("python")
    settings = (folder / "pyvenv.cfg").read_text(encoding="utf-8")
    full = re.search(r"(?m)^version(?:_info)? *= *(3\.\d+\.\d+)", settings)
    architecture = machine_architecture.ARCHITECTURES.get(platform.machine(), "amd64")
    return require_reasons(
        find_unmet_requirements(
            sites[0], marker_environment(version, full[1] if full else f"{version}.0", architecture)
        ),
        manifest,
        line,
    )


def require_reasons(found: Sequence[Finding], manifest: Manifest, line: str) -> dict[Finding, str]:
    """Return these findings with their reasons; UserError if there is one without."""
    reasons, unexplained = match_overrides(found, manifest, line)
    if unexplained:
        more = f" (and {len(unexplained) - 1} more)" if len(unexplained) > 1 else ""
        do = (
            "mend the requirement by a patch or locks/*.in, or say why it may stay so in an "
            "override"
        )
        raise UserError(
            f"{unexplained[0]}{more}", f"line {line}", do, kind=CONFLICT, value=unexplained[0]
        )
    return reasons
