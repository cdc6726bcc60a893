"""From a pin to verified objects in the cache: what was verified before, a mirror, the git server,
a wheel.

Whatever serves a source, its objects are read, hashed by us and copied into `git/<name>.git`, one
file each, the commit last. So a mirror or a server plays no part afterwards, and a kill leaves
nothing that a rerun could take for the whole.
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
    """A source whose pinned commit lies in our cache, every object verified.

    `date` is the committer's, in seconds since 1970. Where `history` is true, `git` also sees the
    commits before the pin, through the mirror in `git.alternates`: those objects were not verified
    by us and are good for explanations only. `transport` is what served it now: cache, mirror, git
    or wheel.
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

    `release_lines` maps a source to a distribution that uses the wheel of the same project.
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
    """Return the source at its pin: from the cache if it was verified there before, else from the
    first that has it.

    Raises UserError naming the source for what cannot be had (with the ways out), is corrupt or is
    hostile; nothing of it is kept then.
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
            "mend that (free space, permissions) and run again",
        ) from error


def check_pin(source: GitSource | WheelSource, access: Access) -> None:
    """UserError if the source's name, URL, ref or pin is not what it says it is, whatever the
    manifest's loader let through.
    """
    where = f"source {source.name!r}"
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", source.name):
        raise UserError(
            "is no name for a source",
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
                f"{source.commit!r} is no full commit",
                where,
                "write all 40 hex digits",
                kind=INVALID,
                value=source.commit,
            )
    elif not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", source.wheel) or not re.fullmatch(
        r"[0-9a-f]{64}", source.sha256
    ):
        raise UserError(
            f"{source.wheel!r} with sha256 {source.sha256!r} is no pin of a wheel",
            where,
            "write project==version and 64 hex digits",
        )


def _stamp_path(source: GitSource | WheelSource, access: Access) -> Path:
    """Return the file that says that the pin was verified without these absent paths."""
    pin = source.commit if isinstance(source, GitSource) else source.sha256
    absent = hashlib.sha256("\0".join(sorted(source.absent)).encode()).hexdigest()
    return (
        access.cache.path("git")
        / f"{source.name}.git"
        / "rosetta-verified"
        / f"{pin}-{absent[:16]}.json"
    )


def _read_stamp(source: GitSource | WheelSource, access: Access) -> Pinned | None:
    """Return what the stamp says, if there is one and its commit is there: no git process, nothing
    read again.
    """
    stamp = _stamp_path(source, access)
    repository = stamp.parent.parent
    try:
        said = json.loads(stamp.read_text(encoding="utf-8"))
        commit, tree, date = str(said["commit"]), str(said["tree"]), int(said["date"])
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
    """Verify and copy what the pin needs, from where it can be had. The source's lock is held."""
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
    said = {
        "schema": 1,
        "commit": commit,
        "tree": header.tree,
        "date": header.date,
        "absent": sorted(source.absent),
        "transport": transport,
    }
    write_atomic(_stamp_path(source, access), json.dumps(said, indent=1, sort_keys=True) + "\n")
    pinned = _read_stamp(source, access)
    if pinned is None:
        raise UserError("changed while it was being written", str(repository), "run again")
    return replace(pinned, transport=transport)


def _fetch_git_commit(source: GitSource, access: Access, repository: Path) -> str:
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
            "--offline was given, and neither the cache nor a mirror has it", source, access
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
    """Verify the whole pin in `view`, then write it to our repository; False if `view` does not
    have the commit.
    """
    kept: dict[str, tuple[str, bytes]] = {}
    with Reader(view, where, kept) as reader:
        try:
            reader.read(source.commit, "commit")
        except MissingObjectError:
            return False
        verify_commit(reader, source.commit, source.absent, source.name)
    for sha, (kind, data) in kept.items():
        if sha != source.commit:
            write_object(repository, kind, data)
    write_object(repository, *kept[source.commit])
    return True


def _cut_history(repository: Path, commit: str) -> None:
    """Tell git that our copy of `commit` has no parents here."""
    shallow = repository / "shallow"
    known = set(shallow.read_text().split()) if shallow.exists() else set()
    if commit not in known:
        write_atomic(shallow, "".join(f"{sha}\n" for sha in sorted(known | {commit})))


def _fetch_wheel(source: WheelSource, access: Access, repository: Path) -> str:
    project, _, version = source.wheel.partition("==")
    wheel = package_index.fetch_file(
        project, version, source.sha256, access.cache.path("wheels"), offline=access.offline
    )
    files = wheel_source.read_wheel_files(wheel)
    info = f"{project.replace('-', '_')}-{version}.dist-info/METADATA"
    if info not in files:
        raise UserError(
            f"{wheel.name} is no wheel of {source.wheel}: it lacks {info}",
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
    """`pinned` with the commits before it readable through the first mirror that has them."""
    for root in access.mirrors:
        for mirror in find_mirrors(root, repository_name(source.git)):
            if _has_parents(pinned, mirror):
                git = Git(pinned.git.git_dir, alternates=(mirror.objects,))
                return replace(pinned, git=git, history=True)
    return pinned


def _has_parents(pinned: Pinned, mirror: Mirror) -> bool:
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
    """Yield a folder for a repository that lives for one step; what killed runs left is thrown
    away, as far as no child of theirs still writes.
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


def _unavailable_error(why: str, source: GitSource, access: Access) -> UserError:
    ways = [
        f"--mirror DIR with a clone of {source.git}",
        f"a network that reaches {source.git}, without --offline",
    ]
    if line := access.release_lines.get(source.name):
        ways.append(f"--distribution {line}, which is made from release wheels")
    if access.mirrors and "mirror" not in why:
        why += f"; {', '.join(map(str, access.mirrors))} has no clone with it"
    return UserError(
        f"commit {source.commit} cannot be had: {why}",
        f"source {source.name}",
        "; or ".join(ways),
        kind=MISSING,
        value=source.commit,
    )
