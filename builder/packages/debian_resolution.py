"""Make the package list of a base with apt: a private root, the Debian mirror of this machine,
signatures checked.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import log, subprocesses
from builder.packages import debian_lock, debian_mirrors
from builder.packages.debian_lock import BaseLock, Deb
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import CONFLICT, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.core.manifest import Manifest

_KEYRINGS = (
    "/usr/share/keyrings/debian-archive-keyring.pgp",
    "/usr/share/keyrings/debian-archive-keyring.gpg",
)


def resolve_packages(manifest: Manifest, base: str, architecture: str, scratch: Path) -> BaseLock:
    """Return the packages that a minimal system of the base's Debian release and docker/packages
    need today. `scratch` is an empty folder.
    """
    suite = manifest.bases[base].bootstrap
    with log.stage(f"choose the Debian packages of {suite} for {architecture}"):
        env = _prepare_apt(scratch, suite, architecture)
        archives = _read_indexes(env)
        essential = sorted(
            {
                fields["Package"]
                for fields in archives
                if fields.get("Essential") == "yes" or fields.get("Priority") == "required"
            }
            | {"apt"}
        )
        minimal = _simulate_installation(env, essential)
        everything = _simulate_installation(env, [*essential, *debian_lock.read_package_names()])
    if changed := set(minimal) - set(everything):
        raise UserError(
            (
                f"the packages of {debian_lock.PACKAGES} do not go with "
                f"{' '.join(sorted(name for name, *_ in changed))}"
            ),
            suite,
            f"change {debian_lock.PACKAGES}",
        )
    by_name: dict[tuple[str, str, str], Deb] = {}
    for fields in archives:
        chosen = (fields["Package"], fields["Version"], fields["Architecture"])
        # The archive proper before the one of security updates: it keeps its files longer.
        if chosen in everything and (
            chosen not in by_name or by_name[chosen].filename.startswith("pool/updates/")
        ):
            layer = "base" if chosen in minimal else "os"
            by_name[chosen] = Deb(
                *chosen, fields["Filename"], fields["SHA256"], int(fields["Size"]), layer
            )
    if lost := set(everything) - set(by_name):
        raise UserError(
            f"apt's lists name no file of {' '.join(sorted(name for name, *_ in lost))}",
            suite,
            "check the Debian mirror, then run again",
        )
    packages = tuple(sorted(by_name.values(), key=lambda deb: deb.name))
    return BaseLock(
        base,
        suite,
        architecture,
        debian_lock.compute_inputs_key(manifest, base, architecture),
        (),
        packages,
        current_date(),
    )


def current_date() -> str:
    """Return the date that a lock made now gets: where superseded packages are looked for later."""
    return datetime.now(tz=UTC).date().isoformat()


@dataclass(frozen=True)
class Replacement:
    """A locked package of which a local build took another version; "" where there is none."""

    name: str
    locked: str
    taken: str


def resolve_current(
    manifest: Manifest, locked: BaseLock
) -> tuple[BaseLock, tuple[Replacement, ...]]:
    """Choose today's packages of a lock's suite, because Debian superseded a locked one.

    All packages are chosen anew, from lists with Debian's signature: a newer version may need
    newer versions of others.

    Returns:
        The packages, and where they differ from the lock.

    Raises:
        UserError: The mirror is older than the lock.
    """
    with tempfile.TemporaryDirectory(prefix="rosetta-apt-") as scratch:
        current = resolve_packages(manifest, locked.base, locked.architecture, Path(scratch))
    old, new = (
        {deb.name: deb.version for deb in packages}
        for packages in (locked.packages, current.packages)
    )
    replaced = tuple(
        Replacement(name, old.get(name, ""), new.get(name, ""))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    )
    for package in replaced:
        refuse_older(package, f"Debian {locked.suite} for {locked.architecture}")
    return current, replaced


def refuse_older(package: Replacement, where: str) -> None:
    """Raise UserError if the mirror has an older version than the lock: it is out of date, or
    lacks security updates.
    """
    if not (package.locked and package.taken):
        return
    if (
        subprocess.run(
            ["dpkg", "--compare-versions", package.taken, "lt", package.locked], check=False
        ).returncode
        == 0
    ):
        raise UserError(
            (
                f"the Debian mirror has {package.name} {package.taken}, which is older than the "
                f"locked {package.locked}"
            ),
            where,
            f"set {debian_mirrors.MIRROR} and {debian_mirrors.SECURITY} to current mirrors",
            kind=CONFLICT,
            value=package.taken,
        )


def find_newest_package(suite: str, architecture: str, name: str, scratch: Path) -> Deb | None:
    """Return the package `name` that `suite` has today; None where it has none.

    `scratch` is an empty folder.
    """
    with log.stage(f"look {name} up in {suite} for {architecture}"):
        env = _prepare_apt(scratch, suite, architecture)
        candidate = (
            re.search(
                r"(?m)^Version: (.+)$",
                _run_apt(env, "apt-cache", "show", "--no-all-versions", "--", name),
            )
            if name in _run_apt(env, "apt-cache", "pkgnames", name).split()
            else None
        )
        found = [
            fields
            for fields in _read_indexes(env)
            if candidate and (fields["Package"], fields["Version"]) == (name, candidate[1])
        ]
    # The archive proper before the one of security updates, as above.
    found.sort(key=lambda fields: fields["Filename"].startswith("pool/updates/"))
    return next(
        (
            Deb(
                name,
                each["Version"],
                each["Architecture"],
                each["Filename"],
                each["SHA256"],
                int(each["Size"]),
                "os",
            )
            for each in found
        ),
        None,
    )


def update_lock(
    manifest: Manifest, base: str, architecture: str, *, offline: bool = False
) -> BaseLock:
    """Make the list anew and write it to locks/, the digests of images that stand there kept."""
    if offline:
        raise UserError(
            f"Debian's packages are not locked yet for {base} on {architecture}",
            debian_lock.lock_path(manifest, base, architecture).name,
            "python build.py lock --base, without --offline",
            kind=MISSING,
        )
    with tempfile.TemporaryDirectory(prefix="rosetta-apt-") as scratch:
        made = resolve_packages(manifest, base, architecture, Path(scratch))
    before = debian_lock.load_lock(manifest, base, architecture, current=False)
    date = before.date if before.digest == made.digest and before.date else made.date
    return write_lock(manifest, replace(made, images=tuple(sorted(before.images)), date=date))


def write_lock(manifest: Manifest, made: BaseLock) -> BaseLock:
    """Write a lock, if it says something new."""
    file, text = (
        debian_lock.lock_path(manifest, made.base, made.architecture),
        debian_lock.render_lock(made),
    )
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        write_atomic(file, text)
    return made


def list_bases(manifest: Manifest, lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return base and architecture of every lock that these lines need."""
    wanted = {
        (base, architecture)
        for each in manifest.distributions.values()
        if each.line in lines and (base := manifest.lines[each.line].base)
        for architecture in each.architectures
    }
    return sorted(wanted)


def relock_bases(
    manifest: Manifest, lines: Sequence[str], *, offline: bool
) -> dict[str, list[str]]:
    """`build.py lock --base`: what changed in each lock, a line a package."""
    changes = {}
    for base, architecture in list_bases(manifest, lines):
        before = {
            f"{deb.name} {deb.version}"
            for deb in debian_lock.load_lock(manifest, base, architecture, current=False).packages
        }
        after = {
            f"{deb.name} {deb.version}"
            for deb in update_lock(manifest, base, architecture, offline=offline).packages
        }
        changes[f"locks/{debian_lock.lock_path(manifest, base, architecture).name}"] = [
            *(f"- {each}" for each in sorted(before - after)),
            *(f"+ {each}" for each in sorted(after - before)),
        ]
    return changes


def find_problems(manifest: Manifest, lines: Sequence[str]) -> list[str]:
    """Return what is wrong with the locks of the bases of these lines, as far as it can be told
    without asking anyone.
    """
    found = []
    for base, architecture in list_bases(manifest, lines):
        try:
            known = debian_lock.load_lock(manifest, base, architecture)
        except UserError as error:
            found.append(str(error))
        else:
            if not known.packages and not known.images:
                found.append(
                    f"locks/{debian_lock.lock_path(manifest, base, architecture).name}: is missing "
                    "-> python build.py lock --base"
                )
    return found


def _prepare_apt(scratch: Path, suite: str, architecture: str) -> dict[str, str]:
    """Return the environment of an apt with an empty system of its own, after an update.

    Of the machine's settings it has those of how to fetch.
    """
    keyring = next((path for path in _KEYRINGS if Path(path).is_file()), "")
    if not keyring:
        raise UserError(
            "Debian's keys are not here, so nothing of it can be checked",
            _KEYRINGS[1],
            "apt-get install apt debian-archive-keyring",
        )
    known = debian_mirrors.find_mirrors()
    lines = [
        f"deb [signed-by={keyring}] {known['debian']} {name} main"
        for name in (suite, f"{suite}-updates")
    ]
    if "security" in known:
        lines.append(f"deb [signed-by={keyring}] {known['security']} {suite}-security main")
    else:
        log.warn(
            "no mirror of Debian's security updates is known here (set "
            f"{debian_mirrors.SECURITY}): the list is made without them"
        )
    for folder in ("lists/partial", "cache/archives/partial"):
        (scratch / folder).mkdir(parents=True)
    (scratch / "sources.list").write_text("\n".join(lines) + "\n", encoding="utf-8")
    asked = subprocess.run(
        ["apt-config", "dump"], capture_output=True, text=True, check=False
    ).stdout
    fetching = "\n".join(
        line
        for line in asked.splitlines()
        if line.startswith("Acquire::")
        and not line.startswith(("Acquire::Languages", "Acquire::IndexTargets"))
    )
    own = {
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": "/dev/null",
        "Dir::Etc::sourcelist": scratch / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State::lists": scratch / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::State::extended_states": "/dev/null",
        "Dir::Cache": scratch / "cache",
        "APT::Architecture": architecture,
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "APT::Install-Recommends": "false",
    }
    config = scratch / "apt.conf"
    config.touch(mode=0o600)
    config.write_text(
        fetching
        + "\n"
        + "".join(f'{name} "{value}";\n' for name, value in own.items())
        + f'APT::Architectures {{ "{architecture}"; }};\n',
        encoding="utf-8",
    )
    env = {**os.environ, "APT_CONFIG": str(config), "LC_ALL": "C.UTF-8"}
    # "Error-Mode=any": an index that cannot be had is an error, not a warning.
    _run_apt(env, "apt-get", "update", "-q", "-o", "APT::Update::Error-Mode=any")
    return env


def _run_apt(env: dict[str, str], *argv: str) -> str:
    if not shutil.which(argv[0], path=env.get("PATH")):
        raise UserError(
            f"{argv[0]} is not here", argv[0], "make the lists of a base on Debian or Ubuntu"
        )
    do = f"check the Debian mirror ({debian_mirrors.MIRROR}) and the network"
    return subprocesses.run_program(
        argv, where="lock --base", what="apt failed", do=do, prefer=("E: ",), env=env
    )


def _read_indexes(env: dict[str, str]) -> list[dict[str, str]]:
    """Return the fields of every package that the indexes name."""
    files = _run_apt(
        env, "apt-get", "indextargets", "--format", "$(FILENAME)", "Created-By: Packages"
    ).split()
    return [
        fields
        for file in files
        for fields in _parse_stanzas(_run_apt(env, "/usr/lib/apt/apt-helper", "cat-file", file))
    ]


def _parse_stanzas(text: str) -> Iterator[dict[str, str]]:
    for stanza in text.split("\n\n"):
        if fields := dict(
            re.findall(
                (
                    r"(?m)^(Package|Version|Architecture|Essential|Priority|Filename|Size|SHA256): "
                    r"(.+)$"
                ),
                stanza,
            )
        ):
            yield fields


def _simulate_installation(env: dict[str, str], names: Sequence[str]) -> set[tuple[str, str, str]]:
    """Name, version and architecture of all that apt would install for these names on an empty
    system.
    """
    shown = _run_apt(
        env, "apt-get", "install", "--simulate", "--yes", "--no-install-recommends", "--", *names
    )
    return set(re.findall(r"(?m)^Inst (\S+) \((\S+) .*\[(\w+)\]\)", shown))
