"""Choose the Debian packages of a base with apt, and write them to its lock.

A base is the Debian system that images are built on (`bases` in the manifest).

apt gets a private root, so it sees nothing of what this machine has installed. It uses the Debian
mirror of this machine and checks Debian's signatures.
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
    from collections.abc import Iterable, Iterator, Sequence

    from builder.core.manifest import Manifest

_KEYRINGS = (
    "/usr/share/keyrings/debian-archive-keyring.pgp",
    "/usr/share/keyrings/debian-archive-keyring.gpg",
)


def resolve_packages(manifest: Manifest, base: str, architecture: str, scratch: Path) -> BaseLock:
    """Choose the current versions of a base's packages.

    The packages are those of a minimal Debian system, for the layer "base", and those that
    docker/packages names with their dependencies, for the layer "os".

    Args:
        manifest: The manifest with the base.
        base: The name of the base.
        architecture: "amd64" or "arm64".
        scratch: An empty folder, for the private root of apt.

    Returns:
        A lock without images.

    Raises:
        UserError: apt cannot choose the packages, or the mirror does not have their files.
    """
    suite = manifest.bases[base].bootstrap
    with log.stage(f"choose the Debian packages of {suite} for {architecture}"):
        env = _prepare_apt(scratch, suite, architecture)
        available = _read_indexes(env)
        minimal_names = _list_minimal_names(available)
        minimal = _simulate_installation(env, minimal_names)
        chosen = _simulate_installation(env, [*minimal_names, *debian_lock.read_package_names()])
    # Packages that apt would leave out, or take in another version, because of docker/packages.
    displaced = minimal - chosen
    if displaced:
        raise UserError(
            f"the packages of {debian_lock.PACKAGES} conflict with {_join_names(displaced)}",
            suite,
            f"change {debian_lock.PACKAGES}",
        )
    packages = _select_debs(available, chosen, minimal)
    without_file = chosen - {(deb.name, deb.version, deb.architecture) for deb in packages}
    if without_file:
        raise UserError(
            f"the Debian mirror's package lists have no file for {_join_names(without_file)}",
            suite,
            "check the Debian mirror, then run again",
        )
    return BaseLock(
        base,
        suite,
        architecture,
        debian_lock.compute_inputs_key(manifest, base, architecture),
        packages=tuple(packages),
        date=current_date(),
    )


def _list_minimal_names(available: Sequence[dict[str, str]]) -> list[str]:
    """Return the names of the essential and the required packages, and of apt."""
    names = {
        fields["Package"]
        for fields in available
        if fields.get("Essential") == "yes" or fields.get("Priority") == "required"
    }
    return sorted(names | {"apt"})


def _select_debs(
    available: Sequence[dict[str, str]],
    chosen: set[tuple[str, str, str]],
    minimal: set[tuple[str, str, str]],
) -> list[Deb]:
    """Return the chosen packages with their files, sorted by name.

    Args:
        available: The fields of every package of the archives.
        chosen: Name, version and architecture of every chosen package.
        minimal: The same for the packages of a minimal system.
    """
    files: dict[tuple[str, str, str], Deb] = {}
    for fields in available:
        package = (fields["Package"], fields["Version"], fields["Architecture"])
        if package not in chosen:
            continue
        # If both archives have the package, its file in the main archive is used.
        if package in files and not _is_security_file(files[package]):
            continue
        files[package] = _make_deb(fields, "base" if package in minimal else "os")
    return sorted(files.values(), key=lambda deb: deb.name)


def _is_security_file(deb: Deb) -> bool:
    """Return whether a file is in the archive of security updates.

    That archive keeps old files for a shorter time than the main archive.
    """
    return deb.filename.startswith("pool/updates/")


def _make_deb(fields: dict[str, str], layer: str) -> Deb:
    return Deb(
        fields["Package"],
        fields["Version"],
        fields["Architecture"],
        fields["Filename"],
        fields["SHA256"],
        int(fields["Size"]),
        layer,
    )


def _join_names(packages: Iterable[tuple[str, str, str]]) -> str:
    return " ".join(sorted(name for name, _, _ in packages))


def current_date() -> str:
    """Return today's date, for a new lock.

    Debian's snapshot service has the packages of that day after the mirrors delete them.
    """
    return datetime.now(tz=UTC).date().isoformat()


@dataclass(frozen=True)
class Replacement:
    """A locked package that a local build replaced by another version.

    Attributes:
        name: The name of the package.
        locked: The version of the lock, or "" if the lock does not have the package.
        taken: The version that the build uses, or "" if it does not use the package.
    """

    name: str
    locked: str
    taken: str


def resolve_current(
    manifest: Manifest, locked: BaseLock
) -> tuple[BaseLock, tuple[Replacement, ...]]:
    """Choose current versions of all packages of a lock, because Debian superseded a locked one.

    All packages are chosen again, because a newer version may need newer versions of others.

    Returns:
        The new lock, which is not written, and the packages in which it differs from the old one.

    Raises:
        UserError: The mirror has an older package than the lock, or see `resolve_packages`.
    """
    with tempfile.TemporaryDirectory(prefix="rosetta-apt-") as scratch:
        current = resolve_packages(manifest, locked.base, locked.architecture, Path(scratch))
    old = {deb.name: deb.version for deb in locked.packages}
    new = {deb.name: deb.version for deb in current.packages}
    replaced = tuple(
        Replacement(name, old.get(name, ""), new.get(name, ""))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    )
    for package in replaced:
        refuse_older(package, f"Debian {locked.suite} for {locked.architecture}")
    return current, replaced


def refuse_older(package: Replacement, where: str) -> None:
    """Raise UserError if the mirror has an older version than the lock.

    Such a mirror is out of date or lacks security updates.

    Args:
        package: The package.
        where: The suite and the architecture, for the message.
    """
    if not (package.locked and package.taken):
        return
    comparison = subprocess.run(
        ["dpkg", "--compare-versions", package.taken, "lt", package.locked], check=False
    )
    if comparison.returncode == 0:
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
    """Return the version of a package that apt would install, or None if the suite has none.

    Args:
        suite: The Debian release.
        architecture: "amd64" or "arm64".
        name: The name of the package.
        scratch: An empty folder, for the private root of apt.
    """
    with log.stage(f"look {name} up in {suite} for {architecture}"):
        env = _prepare_apt(scratch, suite, architecture)
        if name not in _run_apt(env, "apt-cache", "pkgnames", name).split():
            return None
        description = _run_apt(env, "apt-cache", "show", "--no-all-versions", "--", name)
        version = re.search(r"(?m)^Version: (.+)$", description)
        available = _read_indexes(env)
    candidates = [
        _make_deb(fields, "os")
        for fields in available
        if version and (fields["Package"], fields["Version"]) == (name, version[1])
    ]
    # The main archive comes first, as in _select_debs.
    candidates.sort(key=_is_security_file)
    return candidates[0] if candidates else None


def update_lock(
    manifest: Manifest, base: str, architecture: str, *, offline: bool = False
) -> BaseLock:
    """Choose the packages of a base again and write its lock.

    The new lock keeps the image digests of the old one, and its date if no package changed.

    Raises:
        UserError: `offline` is set, or apt cannot choose the packages.
    """
    if offline:
        raise UserError(
            f"choosing Debian packages for {base} on {architecture} needs the network",
            debian_lock.lock_path(manifest, base, architecture).name,
            "run python build.py lock --base without --offline",
            kind=MISSING,
        )
    with tempfile.TemporaryDirectory(prefix="rosetta-apt-") as scratch:
        lock = resolve_packages(manifest, base, architecture, Path(scratch))
    before = debian_lock.load_lock(manifest, base, architecture, current=False)
    date = before.date if before.digest == lock.digest and before.date else lock.date
    return write_lock(manifest, replace(lock, images=tuple(sorted(before.images)), date=date))


def write_lock(manifest: Manifest, lock: BaseLock) -> BaseLock:
    """Write a lock if its text differs from the file, and return it."""
    file = debian_lock.lock_path(manifest, lock.base, lock.architecture)
    text = debian_lock.render_lock(lock)
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        write_atomic(file, text)
    return lock


def list_bases(manifest: Manifest, lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return the (base, architecture) pairs that the distributions of some lines need."""
    bases = set()
    for distribution in manifest.distributions.values():
        base = manifest.lines[distribution.line].base
        if distribution.line in lines and base:
            bases |= {(base, architecture) for architecture in distribution.architectures}
    return sorted(bases)


def relock_bases(
    manifest: Manifest, lines: Sequence[str], *, offline: bool
) -> dict[str, list[str]]:
    """Update the lock of every base that some lines need, for `build.py lock --base`.

    Returns:
        The changes of each lock, by its path: `- NAME VERSION` for each removed package, then
        `+ NAME VERSION` for each added one.
    """
    changes = {}
    for base, architecture in list_bases(manifest, lines):
        old_lock = debian_lock.load_lock(manifest, base, architecture, current=False)
        new_lock = update_lock(manifest, base, architecture, offline=offline)
        old = {f"{deb.name} {deb.version}" for deb in old_lock.packages}
        new = {f"{deb.name} {deb.version}" for deb in new_lock.packages}
        path = f"locks/{debian_lock.lock_path(manifest, base, architecture).name}"
        removed = [f"- {package}" for package in sorted(old - new)]
        added = [f"+ {package}" for package in sorted(new - old)]
        changes[path] = removed + added
    return changes


def find_problems(manifest: Manifest, lines: Sequence[str]) -> list[str]:
    """Return the problems of some lines' base locks that can be found without the network."""
    problems = []
    for base, architecture in list_bases(manifest, lines):
        try:
            lock = debian_lock.load_lock(manifest, base, architecture)
        except UserError as error:
            problems.append(str(error))
        else:
            if not lock.packages and not lock.images:
                file = debian_lock.lock_path(manifest, base, architecture)
                problems.append(f"locks/{file.name}: is missing -> python build.py lock --base")
    return problems


def _prepare_apt(scratch: Path, suite: str, architecture: str) -> dict[str, str]:
    """Update the package lists of an apt with a private, empty root.

    Of this machine's apt settings, only those about downloads are used, such as proxies.

    Args:
        scratch: An empty folder, for the private root.
        suite: The Debian release.
        architecture: "amd64" or "arm64".

    Returns:
        The environment in which apt uses that root.
    """
    for folder in ("lists/partial", "cache/archives/partial"):
        (scratch / folder).mkdir(parents=True)
    sources = "".join(f"{line}\n" for line in _list_source_lines(suite))
    (scratch / "sources.list").write_text(sources, encoding="utf-8")
    config = scratch / "apt.conf"
    config.touch(mode=0o600)
    config.write_text(_format_apt_config(scratch, architecture), encoding="utf-8")
    env = {**os.environ, "APT_CONFIG": str(config), "LC_ALL": "C.UTF-8"}
    # With "Error-Mode=any", an index that cannot be fetched is an error, not a warning.
    _run_apt(env, "apt-get", "update", "-q", "-o", "APT::Update::Error-Mode=any")
    return env


def _list_source_lines(suite: str) -> list[str]:
    """Return the lines of sources.list for a suite, its updates and its security updates."""
    keyring = next((path for path in _KEYRINGS if Path(path).is_file()), "")
    if not keyring:
        raise UserError(
            "Debian's keys are not installed, so Debian's signatures cannot be checked",
            _KEYRINGS[1],
            "apt-get install apt debian-archive-keyring",
        )
    mirrors = debian_mirrors.find_mirrors()
    lines = [
        f"deb [signed-by={keyring}] {mirrors['debian']} {name} main"
        for name in (suite, f"{suite}-updates")
    ]
    if "security" in mirrors:
        lines.append(f"deb [signed-by={keyring}] {mirrors['security']} {suite}-security main")
    else:
        log.warn(
            "no mirror of Debian's security updates is known (set "
            f"{debian_mirrors.SECURITY}): the packages are chosen without them"
        )
    return lines


def _format_apt_config(scratch: Path, architecture: str) -> str:
    """Return the text of apt.conf for an apt whose root is `scratch`."""
    machine_config = subprocess.run(
        ["apt-config", "dump"], capture_output=True, text=True, check=False
    ).stdout
    fetch_settings = "".join(
        f"{line}\n"
        for line in machine_config.splitlines()
        if re.match(r"Acquire::(?!Languages|IndexTargets)", line)
    )
    # /dev/null in place of a file hides the file of this machine, such as its installed packages.
    settings = {
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
    root_settings = "".join(f'{name} "{value}";\n' for name, value in settings.items())
    architectures = f'APT::Architectures {{ "{architecture}"; }};\n'
    return fetch_settings + root_settings + architectures


def _run_apt(env: dict[str, str], *argv: str) -> str:
    if not shutil.which(argv[0], path=env.get("PATH")):
        raise UserError(
            f"{argv[0]} is not installed",
            argv[0],
            "run this command on Debian or Ubuntu: it chooses Debian packages with apt",
        )
    remedy = f"check the Debian mirror ({debian_mirrors.MIRROR}) and the network"
    where = f"{os.path.basename(argv[0])} {argv[1]}"
    return subprocesses.run_program(
        argv, where=where, what="apt failed", do=remedy, prefer=("E: ",), env=env
    )


def _read_indexes(env: dict[str, str]) -> list[dict[str, str]]:
    """Return the fields of every package in the archives, as `_parse_stanzas` yields them."""
    files = _run_apt(
        env, "apt-get", "indextargets", "--format", "$(FILENAME)", "Created-By: Packages"
    ).split()
    return [
        fields
        for file in files
        for fields in _parse_stanzas(_run_apt(env, "/usr/lib/apt/apt-helper", "cat-file", file))
    ]


def _parse_stanzas(text: str) -> Iterator[dict[str, str]]:
    """Yield the needed fields of each package of a Packages file."""
    names = "Package|Version|Architecture|Essential|Priority|Filename|Size|SHA256"
    for stanza in text.split("\n\n"):
        fields = dict(re.findall(rf"(?m)^({names}): (.+)$", stanza))
        if fields:
            yield fields


def _simulate_installation(env: dict[str, str], names: Sequence[str]) -> set[tuple[str, str, str]]:
    """Return the packages that apt would install on an empty system for some names.

    Returns:
        The name, the version and the architecture of each package, dependencies included.
    """
    output = _run_apt(
        env, "apt-get", "install", "--simulate", "--yes", "--no-install-recommends", "--", *names
    )
    # For example: Inst bash (5.2.37-2+b5 Debian:13.1/stable [amd64])
    return set(re.findall(r"(?m)^Inst (\S+) \((\S+) .*\[(\w+)\]\)", output))
