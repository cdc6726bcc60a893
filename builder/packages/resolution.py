"""Resolution with uv: one joint one for a line, then each lock as a part of it, with the hash of
every file that will be installed.
"""

from __future__ import annotations

import tempfile
import tomllib
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
    """What the manifest lays down for a line: whole drops, replaced requirements, projects that may
    be built from source.

    `strips` are (project, architecture): there its amd64 wheel is used, without the compiled parts.
    """

    drops: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    sdists: tuple[str, ...] = ()
    strips: tuple[tuple[str, str], ...] = ()


def rules_for_line(manifest: Manifest, line: str, *, without: Override | None = None) -> Rules:
    """Return the rules of `line`; `without` leaves one override out, to see what it is good for."""
    entries = [entry for entry in manifest.overrides_for_line(line) if entry is not without]
    drops = [entry.drop for entry in entries if entry.drop and not entry.unless]
    overrides = [
        f"{entry.drop} ; {entry.unless}" for entry in entries if entry.drop and entry.unless
    ] + [entry.pin for entry in entries if entry.pin]
    strips = [
        (entry.name, architecture)
        for entry in manifest.strip
        for architecture in entry.architectures
    ]
    return Rules(
        tuple(sorted(drops)),
        tuple(sorted(overrides)),
        tuple(sorted(entry.name for entry in manifest.sdists)),
        tuple(sorted(strips)),
    )


@dataclass(frozen=True)
class Request:
    """What is to be resolved: PEP 508 lines, under rules, for some environments.

    `where` names it in messages.
    """

    requirements: tuple[str, ...]
    rules: Rules
    environments: tuple[Environment, ...]
    where: str

    def key_inputs(self) -> dict[str, Any]:
        """All that decides the result, apart from what the index has: ready for a stage key."""
        places = [[each.python, each.architecture] for each in self.environments]
        said = [
            list(self.rules.drops),
            list(self.rules.overrides),
            list(self.rules.sdists),
            [list(each) for each in self.rules.strips],
        ]
        return {
            "requirements": sorted(self.requirements),
            "rules": said,
            "environments": places,
            "glibc": environment_markers.GLIBC,
        }


def resolve_jointly(
    request: Request,
    preferred: Iterable[Pin],
    *,
    constraints: Sequence[str] = (),
    offline: bool = False,
) -> list[str]:
    """One version of everything: lines `name==version ; marker`.

    Versions in `preferred` are kept where they still fit, `constraints` in any case.
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
    """Return the packages of `request`, in the versions that `constraints` name, each with the
    hashes of the files that are used.

    Raises:
        UserError: it does not resolve, or a package has no file for one of the environments (all
          such are named).
    """
    with tempfile.TemporaryDirectory(prefix="rosetta-lock-") as scratch:
        out = Path(scratch, "pylock.toml")
        _run_uv_compile(request, Path(scratch), out, constraints, offline=offline)
        document = tomllib.loads(out.read_text(encoding="utf-8"))
    missing: list[str] = []
    pins = [
        pin
        for package in document.get("packages", [])
        if (pin := _pin_from_package(package, request, missing))
    ]
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
    for environment in request.environments:
        names = [
            pin.name for pin in pins if environment_markers.marker_applies(pin.marker, environment)
        ]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UserError(
                f"two versions of {twice[0]} for {environment}", request.where, "pin one of them"
            )
    return sorted(pins, key=lambda pin: (pin.name, pin.marker))


def _run_uv_compile(
    request: Request, scratch: Path, out: Path, constraints: Sequence[str], *, offline: bool
) -> None:
    # A marker on each requirement keeps the resolution to our systems: uv's own setting for that
    # needs its configuration files, which are shut out since the user's would be read as well.
    bounds = environment_markers.bounding_marker(request.environments)
    # A conditional drop stands for what others ask of the project, not for what is asked here: that
    # binds as a constraint.
    conditional = {
        canonicalize_name(each.name)
        for each in map(Requirement, request.rules.overrides)
        if not each.specifier
    }
    ours = [
        line
        for line in request.requirements
        if canonicalize_name(Requirement(line).name) in conditional
    ]
    files = {
        "requirements.in": [_add_marker(line, bounds) for line in request.requirements],
        "constraints.txt": [*constraints, *ours],
        "overrides.txt": [_add_marker(line, bounds) for line in request.rules.overrides],
        "excludes.txt": request.rules.drops,
    }
    for name, lines in files.items():
        (scratch / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    built = [part for name in request.rules.sdists for part in ("--no-binary", name)]
    minor = min(environment.minor for environment in request.environments)
    done = uv.run(
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--python-version",
        f"3.{minor}",
        "--fork-strategy",
        "fewest",
        "--no-header",
        "--no-annotate",
        "--only-binary",
        ":all:",
        *built,
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
    if done.returncode:
        unsolved = None if offline else resolution_failure.explain_no_solution(done.stderr)
        what, do, kind = unsolved or uv.explain_failure(done.stderr, offline=offline)
        raise UserError(what, request.where, do, kind=kind)


def _add_marker(line: str, bounds: str) -> str:
    requirement = Requirement(line)
    own = f"({requirement.marker}) and " if requirement.marker else ""
    requirement.marker = None
    return f"{requirement} ; {own}{bounds}"


def _pin_from_package(package: dict[str, Any], request: Request, missing: list[str]) -> Pin | None:
    """Return a package of uv's answer as a pin with only the hashes of files that some environment
    installs; gaps are added to `missing`.
    """
    name, version = package["name"], package["version"]
    found = environment_markers.matching_environments(
        package.get("marker", ""), request.environments
    )
    chosen = request.environments if found is None else tuple(sorted(found))
    simplest = environment_markers.simplify_marker(package.get("marker", ""), request.environments)
    if not chosen or simplest is None:
        return None
    wheels = {_file_name(wheel): wheel["hashes"]["sha256"] for wheel in package.get("wheels", [])}
    best = {
        environment: _choose_wheel(name, wheels, environment, request.rules)
        for environment in chosen
    }
    hashes = {wheels[file] for file in best.values() if file}
    if name in request.rules.sdists and "sdist" in package:
        hashes = {package["sdist"]["hashes"]["sha256"]}
    elif gaps := [str(environment) for environment, file in best.items() if not file]:
        missing.append(f"{name} {version} has no wheel for {', '.join(gaps)}")
    return Pin(name, version, simplest, tuple(sorted(hashes)))


def _choose_wheel(
    name: str, wheels: Iterable[str], environment: Environment, rules_: Rules
) -> str | None:
    if (name, environment.architecture) in rules_.strips:
        environment = Environment(environment.python, "amd64")
    return environment_markers.choose_wheel(wheels, environment)


def _file_name(file: dict[str, Any]) -> str:
    return str(file.get("name") or file["url"].partition("#")[0].rpartition("/")[2])
