"""Find the unmet requirements of an environment and the overrides that explain them.

The check corresponds to `pip check`.
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
    """An unmet requirement.

    Attributes:
        package: The package that has the requirement.
        requirement: The requirement, for example "numpy<2".
        installed: The installed version of the required project; empty if there is none.
    """

    package: str
    requirement: str
    installed: str

    @property
    def project(self) -> str:
        """The normalised name of the required project."""
        return str(canonicalize_name(Requirement(self.requirement).name))

    def __str__(self) -> str:
        state = f"{self.installed} is installed" if self.installed else "it is not installed"
        return f"{self.package} requires {self.requirement}, but {state}"


def find_unmet_requirements(site_packages: Path, environment: Mapping[str, str]) -> list[Finding]:
    """Return every requirement of an installed package that is not met.

    Args:
        site_packages: The folder, which may be for another architecture or Python.
        environment: The variables of PEP 508 for the machine that will use the folder.
    """
    requirements: dict[str, list[str]] = {}
    versions: dict[str, str] = {}
    for file in sorted(site_packages.glob("*.dist-info/METADATA")):
        message = email.parser.HeaderParser().parsestr(
            file.read_text(encoding="utf-8", errors="replace")
        )
        name = canonicalize_name(str(message["Name"]))
        versions[name] = str(message["Version"])
        requirements[name] = [str(value) for value in message.get_all("Requires-Dist") or []]
    findings = set()
    for package, texts in requirements.items():
        for text in texts:
            finding = _check_requirement(package, text, versions, environment)
            if finding:
                findings.add(finding)
    return sorted(findings)


def _check_requirement(
    name: str, text: str, versions: Mapping[str, str], environment: Mapping[str, str]
) -> Finding | None:
    """Return the finding for a requirement; None if it is met or does not apply."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None  # pip and uv cannot parse it either, and installed the package
    if requirement.marker and not requirement.marker.evaluate({**environment, "extra": ""}):
        return None
    installed = versions.get(canonicalize_name(requirement.name), "")
    try:
        is_met = bool(installed) and requirement.specifier.contains(
            Version(installed), prereleases=True
        )
    except InvalidVersion:
        is_met = False
    requirement.marker = None
    return None if is_met else Finding(name, str(requirement), installed)


def match_overrides(
    findings: Sequence[Finding], manifest: Manifest, line: str
) -> tuple[dict[Finding, str], list[Finding]]:
    """Match findings with the overrides of a line.

    An override that drops a project explains why the project is missing. An override that pins a
    project explains why the pinned version is installed.

    Returns:
        The reason for each explained finding, and the unexplained findings.
    """
    overrides = {override.project: override for override in manifest.overrides_for_line(line)}
    reasons: dict[Finding, str] = {}
    for finding in findings:
        override = overrides.get(finding.project)
        if override and _explains_finding(override, finding):
            reasons[finding] = override.why
    return reasons, [finding for finding in findings if finding not in reasons]


def _explains_finding(override: Override, finding: Finding) -> bool:
    if override.pin:
        return bool(finding.installed) and Requirement(override.pin).specifier.contains(
            finding.installed, prereleases=True
        )
    return not finding.installed


def require_explained(python: Path, manifest: Manifest, line: str) -> dict[Finding, str]:
    """Return the findings of a finished environment with their reasons.

    Args:
        python: The program of the environment, ENV/bin/python.
        manifest: Has the overrides.
        line: The line of the environment.

    Raises:
        UserError: No override explains a finding.
    """
    folder = python.parents[1]
    sites = sorted(folder.glob("lib/python3.*/site-packages"))
    if len(sites) != 1:
        raise UserError(
            "is not a complete environment", str(folder), "delete it and run again", kind=DAMAGED
        )
    version = sites[0].parent.name.removeprefix("python")
    settings = (folder / "pyvenv.cfg").read_text(encoding="utf-8")
    full_version = re.search(r"(?m)^version(?:_info)? *= *(3\.\d+\.\d+)", settings)
    architecture = machine_architecture.ARCHITECTURES.get(platform.machine(), "amd64")
    environment = marker_environment(
        version, full_version[1] if full_version else f"{version}.0", architecture
    )
    return require_reasons(find_unmet_requirements(sites[0], environment), manifest, line)


def require_reasons(
    findings: Sequence[Finding], manifest: Manifest, line: str
) -> dict[Finding, str]:
    """Return findings with their reasons; raise UserError if no override explains one."""
    reasons, unexplained = match_overrides(findings, manifest, line)
    if unexplained:
        more = f" (and {len(unexplained) - 1} more)" if len(unexplained) > 1 else ""
        do = "change the requirement by a patch or in locks/*.in, or give the reason in an override"
        raise UserError(
            f"{unexplained[0]}{more}", f"line {line}", do, kind=CONFLICT, value=unexplained[0]
        )
    return reasons
