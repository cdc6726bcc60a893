"""Resolve requirements with uv: first all of a line together, then each lock as a part of the
result, with the hash of every file that is installed.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.packages import environment_markers, resolution_failure, uv
from builder.packages.environment_markers import Environment
from builder.packages.lock_file import Pin
from rosetta.core.errors import UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from builder.core.manifest import Manifest, Override


@dataclass(frozen=True)
class Rules:
    """What the manifest says about how a line is resolved.

    Attributes:
        drops: The projects that are never installed.
        overrides: The requirements that replace what packages require.
        sdists: The projects that may be built from source.
        strips: Pairs of a project and an architecture that uses the project's amd64 wheel, without
            its compiled parts.
    """

    drops: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    sdists: tuple[str, ...] = ()
    strips: tuple[tuple[str, str], ...] = ()


def rules_for_line(manifest: Manifest, line: str, *, without: Override | None = None) -> Rules:
    """Return the rules of a line. `without` is an override to leave out."""
    entries = [entry for entry in manifest.overrides_for_line(line) if entry is not without]
    drops = [entry.drop for entry in entries if entry.drop and not entry.unless]
    conditional = [entry for entry in entries if entry.drop and entry.unless]
    overrides = [f"{entry.drop} ; {entry.unless}" for entry in conditional]
    overrides += [entry.pin for entry in entries if entry.pin]
    strips = [
        (entry.name, architecture)
        for entry in manifest.strips_for_line(line)
        if not entry.files
        for architecture in entry.architectures or ()
    ]
    return Rules(
        tuple(sorted(drops)),
        tuple(sorted(overrides)),
        tuple(sorted(entry.name for entry in manifest.sdists)),
        tuple(sorted(strips)),
    )


@dataclass(frozen=True)
class Request:
    """What is resolved.

    Attributes:
        requirements: The requirements, as PEP 508 writes them.
        rules: The rules of the line.
        environments: The environments that the result is for.
        where: What messages name: the path of a lock, or a line.
    """

    requirements: tuple[str, ...]
    rules: Rules
    environments: tuple[Environment, ...]
    where: str

    def key_inputs(self) -> dict[str, Any]:
        """Return everything that decides the result, except what the index has, for a stage key."""
        environments = [
            [environment.python, environment.architecture] for environment in self.environments
        ]
        rules = [
            list(self.rules.drops),
            list(self.rules.overrides),
            list(self.rules.sdists),
            [list(strip) for strip in self.rules.strips],
        ]
        return {
            "requirements": sorted(self.requirements),
            "rules": rules,
            "environments": environments,
            "glibc": environment_markers.NEWEST_GLIBC_MINOR,
        }


def resolve_jointly(
    request: Request,
    preferred: Iterable[Pin],
    *,
    constraints: Sequence[str] = (),
    offline: bool = False,
) -> list[str]:
    """Return one version of every package, as lines `name==version ; marker`.

    Args:
        request: What is resolved.
        preferred: Versions to keep if they still fit.
        constraints: Versions that are binding.
        offline: Use only what uv has in its cache.
    """
    with tempfile.TemporaryDirectory(prefix="rosetta-lock-") as scratch:
        out = Path(scratch, "joint.txt")
        out.write_text("".join(f"{pin.text}\n" for pin in preferred), encoding="utf-8")
        _run_uv_compile(request, Path(scratch), out, constraints, offline=offline)
        lines = (
            line.partition("#")[0].strip() for line in out.read_text(encoding="utf-8").splitlines()
        )
        return [line for line in lines if line]


def resolve_lock(
    request: Request, constraints: Sequence[str], *, offline: bool = False
) -> list[Pin]:
    """Return the packages of a request, each with the hashes of the files that are used.

    Args:
        request: What is resolved.
        constraints: The version of every package.
        offline: Use only what uv has in its cache.

    Raises:
        UserError: The request does not resolve, packages have no file for an environment, or an
            environment gets two versions of a package.
    """
    with tempfile.TemporaryDirectory(prefix="rosetta-lock-") as scratch:
        out = Path(scratch, "pylock.toml")
        _run_uv_compile(request, Path(scratch), out, constraints, offline=offline)
        document = tomllib.loads(out.read_text(encoding="utf-8"))
    missing: list[str] = []
    packages = document.get("packages", [])
    pins = [pin for package in packages if (pin := _pin_from_package(package, request, missing))]
    if missing:
        raise UserError(
            "; ".join(missing),
            request.where,
            (
                "drop it there by an override with `unless`, pin another version, or list it "
                "under `sdists:` in the manifest"
            ),
            kind=UNSUPPORTED,
        )
    _refuse_second_versions(pins, request)
    return sorted(pins, key=lambda pin: (pin.name, pin.marker))


def _refuse_second_versions(pins: Sequence[Pin], request: Request) -> None:
    """Raise UserError if an environment gets two versions of a package."""
    for environment in request.environments:
        counts = Counter(
            pin.name for pin in pins if environment_markers.marker_applies(pin.marker, environment)
        )
        repeated = sorted(name for name, count in counts.items() if count > 1)
        if repeated:
            raise UserError(
                f"two versions of {repeated[0]} for {environment}", request.where, "pin one of them"
            )


def _run_uv_compile(
    request: Request, scratch: Path, out: Path, constraints: Sequence[str], *, offline: bool
) -> None:
    """Resolve a request with `uv pip compile`.

    Args:
        request: What is resolved.
        scratch: The folder for uv's input files.
        out: The file that uv writes, in `scratch`: requirements, or a pylock if it is a `.toml`.
        constraints: Versions that are binding.
        offline: Use only what uv has in its cache.

    Raises:
        UserError: The request does not resolve.
    """
    _write_inputs(request, scratch, constraints)
    sdist_options = [part for name in request.rules.sdists for part in ("--no-binary", name)]
    oldest_minor = min(environment.minor for environment in request.environments)
    completed = uv.run(
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--python-version",
        f"3.{oldest_minor}",
        "--fork-strategy",
        "fewest",
        "--no-header",
        "--no-annotate",
        "--only-binary",
        ":all:",
        *sdist_options,
        "--constraints",
        "constraints.txt",
        "--overrides",
        "overrides.txt",
        "--excludes",
        "excludes.txt",
        *(("--format", "pylock.toml") if out.suffix == ".toml" else ()),
        "--output-file",
        out.name,
        "requirements.in",
        offline=offline,
        cwd=scratch,
        where=request.where,
        check=False,
    )
    if completed.returncode:
        failure = None if offline else resolution_failure.explain_no_solution(completed.stderr)
        what, do, kind = failure or uv.explain_failure(completed.stderr, offline=offline)
        raise UserError(what, request.where, do, kind=kind)


def _write_inputs(request: Request, scratch: Path, constraints: Sequence[str]) -> None:
    """Write the files of requirements, constraints, overrides and excluded projects for uv."""
    # A marker on each requirement keeps the resolution to the supported systems. uv's own setting
    # for that needs a configuration file, and uv would then read the user's configuration too.
    bounds = environment_markers.build_bounding_marker(request.environments)
    # A conditional drop is an override, which also replaces the request's own requirement of the
    # project. That requirement binds as a constraint instead.
    dropped_projects = {
        canonicalize_name(requirement.name)
        for requirement in map(Requirement, request.rules.overrides)
        if not requirement.specifier
    }
    replaced_requirements = [
        line
        for line in request.requirements
        if canonicalize_name(Requirement(line).name) in dropped_projects
    ]
    files = {
        "requirements.in": [_add_marker(line, bounds) for line in request.requirements],
        "constraints.txt": [*constraints, *replaced_requirements],
        "overrides.txt": [_add_marker(line, bounds) for line in request.rules.overrides],
        "excludes.txt": request.rules.drops,
    }
    for name, lines in files.items():
        (scratch / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _add_marker(line: str, marker: str) -> str:
    """Return a requirement that applies only where a marker does."""
    requirement = Requirement(line)
    own_term = f"({requirement.marker}) and " if requirement.marker else ""
    requirement.marker = None
    return f"{requirement} ; {own_term}{marker}"


def _pin_from_package(package: dict[str, Any], request: Request, missing: list[str]) -> Pin | None:
    """Return a pin with the hashes of the files that some environment installs.

    Args:
        package: A package of the pylock that uv wrote.
        request: What was resolved.
        missing: Gets a message if an environment has no wheel.

    Returns:
        The pin, or None if no environment of the request has the package.
    """
    name, version, uv_marker = package["name"], package["version"], package.get("marker", "")
    matching = environment_markers.find_matching_environments(uv_marker, request.environments)
    environments = request.environments if matching is None else sorted(matching)
    marker = environment_markers.simplify_marker(uv_marker, request.environments)
    if not environments or marker is None:
        return None
    wheels = {_file_name(wheel): wheel["hashes"]["sha256"] for wheel in package.get("wheels", [])}
    chosen_wheels = {
        environment: _choose_wheel(name, wheels, environment, request.rules)
        for environment in environments
    }
    hashes = {wheels[file] for file in chosen_wheels.values() if file}
    without_wheel = [str(environment) for environment, file in chosen_wheels.items() if not file]
    if name in request.rules.sdists and "sdist" in package:
        hashes = {package["sdist"]["hashes"]["sha256"]}
    elif without_wheel:
        missing.append(f"{name} {version} has no wheel for {', '.join(without_wheel)}")
    return Pin(name, version, marker, tuple(sorted(hashes)))


def _choose_wheel(
    name: str, wheels: Iterable[str], environment: Environment, rules: Rules
) -> str | None:
    if (name, environment.architecture) in rules.strips:
        environment = Environment(environment.python, "amd64")
    return environment_markers.choose_wheel(wheels, environment)


def _file_name(file: dict[str, Any]) -> str:
    """Return the name of a file of a pylock, which has a name or a URL."""
    return str(file.get("name") or file["url"].partition("#")[0].rpartition("/")[2])
