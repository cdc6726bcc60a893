"""Fetch the pinned commit of a source, verify it and keep it in the cache.

A source is an upstream repository or a release wheel that the manifest pins. It comes from the
cache, from a mirror, from its git server or from a package index. In each case all objects are
hashed and copied into the repository `git/NAME.git` of the cache, one file per object, the commit
last. Later steps therefore read only the cache. If a build is killed, the commit is missing, so the
next build does not take an incomplete copy for a complete one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from builder.core import cache as caching
from builder.core import log, package_index
from builder.core.manifest import GitSource, WheelSource
from builder.upstream import git_server, wheel_source
from builder.upstream.git import Git
from builder.upstream.git_objects import (
    Entry,
    MissingObjectError,
    Reader,
    loose_object_path,
    write_object,
    write_trees,
)
from builder.upstream.local_mirror import find_mirrors, repository_name
from builder.upstream.path_rules import check_path
from builder.upstream.pinned_commit import check_absent, read_commit, verify_commit
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import INVALID, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.upstream.local_mirror import Mirror


@dataclass(frozen=True)
class Pinned:
    """A source whose pinned commit is in the cache, with every object verified.

    Attributes:
        name: The name of the source in the manifest.
        url: The URL of the repository, or the requirement of the wheel.
        commit: The pinned commit. For a wheel, the builder makes a commit of the wheel's files.
        tree: The root tree of the commit.
        date: The committer's date, in seconds since 1970.
        git: The repository in the cache.
        absent: The paths that the manifest lists as absent.
        transport: Where the objects came from: "cache", "mirror", "git" or "wheel".
        history: Whether `git` can also read the commits before the pin, through a mirror in
            `git.alternates`. Those objects are not verified, so use them for messages only.
    """

    name: str
    url: str
    commit: str
    tree: str
    date: int
    git: Git
    absent: tuple[str, ...]
    transport: str
    history: bool


@dataclass(frozen=True)
class Access:
    """Where sources can be fetched.

    Attributes:
        cache: The builder's cache.
        offline: Do not use the network.
        mirrors: Folders with clones of upstream repositories.
        protocols: The protocols that git may use.
        release_lines: For a source, a distribution that uses the wheel of the same project.
    """

    cache: Cache
    offline: bool = False
    mirrors: tuple[Path, ...] = ()
    protocols: tuple[str, ...] = ("https", "ssh")
    release_lines: Mapping[str, str] = field(default_factory=dict)


def configure_access(context: Context, manifest: Manifest) -> Access:
    """Return where the sources of a command can be fetched.

    If another distribution uses the wheel of a source, an error about that source suggests it.
    """
    wheels = {
        entry.wheel.partition("==")[0]: name
        for name, entry in manifest.sources.items()
        if entry.wheel
    }
    shipped = {
        project: line
        for line, distribution in manifest.distributions.items()
        for project, name in wheels.items()
        if name in distribution.sources
    }
    return Access(
        context.cache,
        context.offline,
        context.mirrors,
        context.protocols,
        {name: shipped[name] for name in manifest.sources if name in shipped},
    )


def acquire_source(source: GitSource | WheelSource, access: Access) -> Pinned:
    """Return a source at its pin, from the cache or from the first place that has it.

    The order is: the cache, the mirrors, the git server; a wheel comes from the package index.

    Raises:
        UserError: The source is not available (the error suggests what to do), corrupt or unsafe.
            The cache keeps nothing of it then.
    """
    check_pin(source, access)
    try:
        pinned = _read_stamp(source, access)
        if pinned is None:
            with access.cache.lock(f"git-{source.name}"):
                pinned = _read_stamp(source, access) or _fetch_source(source, access)
        return _join_history(pinned, source, access) if isinstance(source, GitSource) else pinned
    except OSError as error:
        place = f"source {source.name}, {error.filename or access.cache.root}"
        raise UserError(
            f"reading or writing failed ({error.strerror})",
            place,
            "correct that (free space, permissions) and run again",
        ) from error


def check_pin(source: GitSource | WheelSource, access: Access) -> None:
    """Check the name, the URL, the branch and the pin of a source.

    Raises:
        UserError: One of them is not valid.
    """
    where = f"source {source.name!r}"
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", source.name):
        raise UserError(
            "is not a valid name of a source",
            where,
            "use lower-case letters, digits, dashes and dots",
            kind=INVALID,
            value=source.name,
        )
    for path in source.absent:
        check_path(path, f"{where}, absent")
    if isinstance(source, GitSource):
        git_server.check_url(source.git, access.protocols, where)
        git_server.check_ref(source.track, where)
        if not re.fullmatch(r"[0-9a-f]{40}", source.commit):
            raise UserError(
                f"{source.commit!r} is not a full commit hash",
                where,
                "write all 40 hexadecimal digits",
                kind=INVALID,
                value=source.commit,
            )
    elif not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", source.wheel) or not re.fullmatch(
        r"[0-9a-f]{64}", source.sha256
    ):
        raise UserError(
            f"{source.wheel!r} with sha256 {source.sha256!r} is not a valid pin of a wheel",
            where,
            "write PROJECT==VERSION and 64 hexadecimal digits",
        )


def _stamp_path(source: GitSource | WheelSource, access: Access) -> Path:
    """Return the path of the file that exists once the pin was verified without these paths."""
    pin = source.commit if isinstance(source, GitSource) else source.sha256
    absent = hashlib.sha256("\0".join(sorted(source.absent)).encode()).hexdigest()
    return (
        access.cache.path("git")
        / f"{source.name}.git"
        / "rosetta-verified"
        / f"{pin}-{absent[:16]}.json"
    )


def _read_stamp(source: GitSource | WheelSource, access: Access) -> Pinned | None:
    """Return the source that was verified before, or None if it has to be fetched.

    The record of the verification ("stamp") is enough; no git process runs.
    """
    stamp = _stamp_path(source, access)
    repository = stamp.parent.parent
    try:
        record = json.loads(stamp.read_text(encoding="utf-8"))
        commit, tree, date = str(record["commit"]), str(record["tree"]), int(record["date"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if (isinstance(source, GitSource) and commit != source.commit) or not loose_object_path(
        repository, commit
    ).exists():
        return None
    url = source.git if isinstance(source, GitSource) else source.wheel
    return Pinned(
        source.name, url, commit, tree, date, Git(repository), source.absent, "cache", history=False
    )


def _fetch_source(source: GitSource | WheelSource, access: Access) -> Pinned:
    """Fetch, verify and copy what the pin needs. The caller holds the lock of the source."""
    repository = access.cache.ensure_folder(
        "git", f"{source.name}.git", lambda folder: Git(folder).init(), grows=True
    )
    if isinstance(source, WheelSource):
        commit, transport = _fetch_wheel(source, access, repository), "wheel"
    else:
        commit, transport = source.commit, _fetch_git_commit(source, access, repository)
    with Reader(Git(repository)) as reader:
        header = read_commit(reader, commit)
    if header.parents:
        _cut_history(repository, commit)
    record = {
        "schema": 1,
        "commit": commit,
        "tree": header.tree,
        "date": header.date,
        "absent": sorted(source.absent),
        "transport": transport,
    }
    write_atomic(_stamp_path(source, access), json.dumps(record, indent=1, sort_keys=True) + "\n")
    pinned = _read_stamp(source, access)
    if pinned is None:
        raise UserError("changed while it was being written", str(repository), "run again")
    return replace(pinned, transport=transport)


def _fetch_git_commit(source: GitSource, access: Access, repository: Path) -> str:
    """Copy the pinned commit into the cache, and return where it came from."""
    if loose_object_path(repository, source.commit).exists():
        with contextlib.suppress(MissingObjectError), Reader(Git(repository)) as reader:
            verify_commit(reader, source.commit, source.absent, source.name)
            return "cache"
    for root in access.mirrors:
        for mirror in find_mirrors(root, repository_name(source.git)):
            with _scratch_folder(access, source.name) as folder:
                view = Git(folder, alternates=(mirror.objects,))
                view.init()
                if _copy_commit(source, view, f"mirror {mirror.path}", repository):
                    return "mirror"
    if access.offline:
        raise _unavailable_error(
            "--offline is set, and neither the cache nor a mirror has the commit", source, access
        )
    log.info(f"{source.name}: fetching {source.commit[:12]} from {source.git}")
    with _scratch_folder(access, source.name) as folder:
        try:
            view = git_server.fetch_commit(
                folder,
                source.git,
                source.commit,
                source.track,
                protocols=access.protocols,
                where=f"source {source.name}",
            )
        except git_server.UnreachableError as error:
            raise _unavailable_error(error.what, source, access) from error
        if not _copy_commit(source, view, source.git, repository):
            raise UserError(
                f"{source.git} did not send commit {source.commit}",
                f"source {source.name}",
                "run again",
            )
    return "git"


def _copy_commit(source: GitSource, view: Git, where: str, repository: Path) -> bool:
    """Verify the pinned commit in another repository, and copy it into the cache.

    Args:
        source: The source.
        view: Reads the other repository.
        where: The name of the other repository in errors.
        repository: The repository in the cache.

    Returns:
        False if the other repository does not have the commit.
    """
    objects: dict[str, tuple[str, bytes]] = {}
    with Reader(view, where, objects) as reader:
        try:
            reader.read(source.commit, "commit")
        except MissingObjectError:
            return False
        verify_commit(reader, source.commit, source.absent, source.name)
    for sha, (kind, data) in objects.items():
        if sha != source.commit:
            write_object(repository, kind, data)
    write_object(repository, *objects[source.commit])
    return True


def _cut_history(repository: Path, commit: str) -> None:
    """Record that the copy of a commit has no parents, so that git does not look for them."""
    shallow = repository / "shallow"
    known = set(shallow.read_text().split()) if shallow.exists() else set()
    if commit not in known:
        write_atomic(shallow, "".join(f"{sha}\n" for sha in sorted(known | {commit})))


def _fetch_wheel(source: WheelSource, access: Access, repository: Path) -> str:
    """Fetch a wheel, write its files into the repository, and return the commit made of them."""
    project, _, version = source.wheel.partition("==")
    wheel = package_index.fetch_file(
        project, version, source.sha256, access.cache.path("wheels"), offline=access.offline
    )
    files = wheel_source.read_wheel_files(wheel)
    info = f"{project.replace('-', '_')}-{version}.dist-info/METADATA"
    if info not in files:
        raise UserError(
            f"{wheel.name} is not a wheel of {source.wheel}: {info} is missing",
            f"source {source.name}",
            "correct the pin",
        )
    check_absent(source.absent, files, source.name)
    entries = [
        Entry(path, mode, write_object(repository, "blob", data))
        for path, (mode, data) in files.items()
    ]
    return write_object(
        repository,
        "commit",
        wheel_source.render_commit(write_trees(repository, entries), source.wheel, source.sha256),
    )


def _join_history(pinned: Pinned, source: GitSource, access: Access) -> Pinned:
    """Return the source with access to earlier commits, if a mirror has them."""
    for root in access.mirrors:
        for mirror in find_mirrors(root, repository_name(source.git)):
            if _has_parents(pinned, mirror):
                git = Git(pinned.git.git_dir, alternates=(mirror.objects,))
                return replace(pinned, git=git, history=True)
    return pinned


def _has_parents(pinned: Pinned, mirror: Mirror) -> bool:
    """Return whether a mirror has the parents of the pinned commit."""
    if (mirror.path / "shallow").exists():
        return False
    with Reader(
        Git(pinned.git.git_dir, alternates=(mirror.objects,)), f"mirror {mirror.path}"
    ) as reader:
        try:
            parents = read_commit(reader, pinned.commit).parents
            for parent in parents:
                reader.read(parent, "commit")
        except MissingObjectError:
            return False
    return bool(parents)


@contextlib.contextmanager
def _scratch_folder(access: Access, name: str) -> Iterator[Path]:
    """Yield a folder for a temporary repository, and remove it at the end.

    Folders that killed runs left behind are removed first, unless a process still writes to them.
    """
    for left in access.cache.path("git").glob(f".tmp-scratch-{name}-*"):
        with contextlib.suppress(OSError):
            caching.remove_path(left)
    folder = access.cache.path("git", f".tmp-scratch-{name}-{os.getpid()}")
    folder.mkdir(exist_ok=True)
    try:
        yield folder
    finally:
        caching.remove_path(folder)


def _unavailable_error(reason: str, source: GitSource, access: Access) -> UserError:
    """Return the error for a commit that is nowhere, with all ways to get it."""
    remedies = [
        f"--mirror DIR with a clone of {source.git}",
        f"a network that reaches {source.git}, without --offline",
    ]
    if line := access.release_lines.get(source.name):
        remedies.append(f"--distribution {line}, which is made from release wheels")
    if access.mirrors and "mirror" not in reason:
        reason += f"; {', '.join(map(str, access.mirrors))} has no clone with the commit"
    return UserError(
        f"commit {source.commit} is not available: {reason}",
        f"source {source.name}",
        "; or ".join(remedies),
        kind=MISSING,
        value=source.commit,
    )
