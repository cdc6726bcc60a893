"""What an environment or an image was made of, by its own lock.json: written down as a manifest
with all it names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import re
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import machine_architecture, manifest
from builder.core.manifest import folder_of
from builder.images import inspection
from builder.images.oci import blob_compression, layer, layout
from builder.images.registry import download
from builder.release.bisect import repository
from builder.upstream import git_objects, patch_path_rules, patch_series
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import DAMAGED, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from typing import IO

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.images.inspection import Found
    from builder.images.oci.oci_documents import Image

    Files = Mapping[str, tuple[bytes, bool]]  # path -> (content, whether it may be executed)

_HOME = "opt/rosetta"
_NOT_OURS = "it is nothing that this builder made"


def write(kind: str, place: str, context: Context, into: Path) -> dict[str, Any]:
    """Write into the new folder `into` the manifest, patches, overlay and locks of an environment
    or image; returns its lock.json.

    A wheel's hash, the branch that is tracked and the rules for packages come from the manifest
    here; the lock, by its hash, from the locks here as they are or ever were. Raises UserError for
    what cannot be had in this way.
    """
    into.mkdir(parents=True)
    where = f"{kind}:{place}"
    with _files(kind, place, into / "image") as take:
        try:
            record: dict[str, Any] = json.loads(
                take([f"{_HOME}/lock.json"])[f"{_HOME}/lock.json"][0]
            )
            states: dict[str, dict[str, Any]] = dict(record["sources"])
            document = _manifest(record, states, manifest.load(context.manifest_path), where)
            file, digest = (
                str(record["requirements"]["file"]),
                str(record["requirements"]["sha256"]),
            )
            patches = {
                (name, each["name"]): (
                    f"{_HOME}/sources/{name}/{each['name']}.patch",
                    each["sha256"],
                )
                for name, state in states.items()
                for each in state["patches"]
            }
            laid = {
                (name, path): (f"opt/{folder_of(state['url'])}/{path}", blob)
                for name, state in states.items()
                for path, blob in state["overlay"]
            }
            plain = [bool(re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name)) for name in (*states, file)]
            plain += [patch_series.name_problem(name) is None for _, name in patches] + [
                patch_path_rules.problem(path) is None for _, path in laid
            ]
            if not all(plain):
                raise ValueError(plain)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                "its lock.json cannot be read", where, _NOT_OURS, kind=DAMAGED
            ) from error
        found = take([path for path, _ in (*patches.values(), *laid.values())])
    for (name, patch), (path, sha256) in patches.items():
        _same(hashlib.sha256(found[path][0]).hexdigest(), sha256, path, where)
        write_atomic(into / "patches" / name / f"{patch}.patch", found[path][0])
    for (name, relative), (path, blob) in laid.items():
        _same(git_objects.name("blob", found[path][0]), blob, path, where)
        write_atomic(
            into / "overlay" / name / relative, found[path][0], 0o755 if found[path][1] else 0o644
        )
    for name, state in states.items():
        write_atomic(
            into / "patches" / name / "series",
            "".join(f"{each['name']}\n" for each in state["patches"]),
        )
        if state["overlay"]:  # what each file replaces is not recorded, and a bisect does not ask
            write_atomic(
                into / "overlay" / name / "REPLACES",
                "".join(f"{path} new\n" for path in sorted(path for path, _ in state["overlay"])),
            )
    write_atomic(into / "locks" / file, _lock(context, file, digest, where))
    tools = context.manifest_path.parent / "locks/build.txt"
    write_atomic(into / "locks/build.txt", tools.read_bytes() if tools.is_file() else b"")
    write_atomic(into / "manifest.yaml", json.dumps(document, indent=1) + "\n")
    return record


def _same(found: str, recorded: str, path: str, where: str) -> None:
    if found != recorded:
        raise UserError(
            f"{path} is not what its lock.json says",
            where,
            "name one that is as it was made",
            kind=DAMAGED,
            value=path,
        )


def _manifest(
    record: Mapping[str, Any], states: Mapping[str, Mapping[str, Any]], here: Manifest, where: str
) -> dict[str, Any]:
    """Return the manifest that such an environment would have; what no lock.json says is taken from
    the one here.
    """
    line = str(record["line"])
    if line not in here.lines:
        raise UserError(
            f"is of the line {line}, which the manifest does not have",
            where,
            "give the --manifest of a checkout that has it",
        )
    whole = here.model_dump(mode="json", by_alias=True, exclude_none=True)
    sources = {}
    for name, state in states.items():
        known, address = whole["sources"].get(name, {}), str(state["url"])
        if "==" in address and known.get("wheel") != address:
            raise UserError(
                f"is made from the wheel {address}, whose hash the manifest does not have",
                where,
                "give the --manifest of a checkout that has it",
            )
        pin = (
            {"wheel": address, "sha256": known["sha256"]}
            if "==" in address
            else {"git": address, "track": known.get("track", "main"), "commit": state["commit"]}
        )
        sources[name] = {
            **pin,
            "absent": list(state["absent"]),
            "patches": f"patches/{name}",
            **({"overlay": f"overlay/{name}"} if state["overlay"] else {}),
        }
    rules = {
        "sdists": whole["sdists"],
        "strip": whole["strip"],
        "overrides": [
            {**each, "lines": [line]}
            for each in whole["overrides"]
            if line in each.get("lines", [line])
        ],
    }
    shipped = {
        "line": line,
        "sources": list(sources),
        "accelerators": [record["accelerator"]],
        "architectures": ["amd64", "arm64"],
    }
    lines = {
        line: {
            "python": here.lines[line].python,
            "pythons": list(here.lines[line].pythons),
            "common": "locks/common.in",
        }
    }
    return {
        "version": 1,
        "sources": sources,
        "lines": lines,
        "distributions": {record["distribution"]: shipped},
        **rules,
    }


def _lock(context: Context, name: str, digest: str, where: str) -> bytes:
    """Return the lock with this hash."""
    root = context.manifest_path.parent
    ours = repository.around(root)
    file = root / "locks" / name
    data: bytes
    for data in (
        *([file.read_bytes()] if file.is_file() else []),
        *(ours.versions(f"locks/{name}") if ours else ()),
    ):
        if hashlib.sha256(data).hexdigest() == digest:
            return data
    raise UserError(
        f"its locks/{name} ({digest[:12]}) is neither here nor in the history of this repository",
        where,
        "give the --manifest of a checkout that has it",
        kind=MISSING,
        value=digest,
    )


@contextlib.contextmanager
def _files(kind: str, place: str, scratch: Path) -> Iterator[Callable[[Collection[str]], Files]]:
    """Read files by their paths. Raises UserError for one that is not there."""
    if kind == "env":
        yield lambda paths: {path: _file(Path(place), path) for path in paths}
        return
    scratch.mkdir()
    with _image(kind, place, scratch) as found:
        own = machine_architecture.ARCHITECTURES.get(platform.machine(), "")
        image = next((each for each in found.images if each.architecture == own), found.images[0])
        yield lambda paths: _members(found, image, paths, f"{kind}:{place}")


def _file(root: Path, path: str) -> tuple[bytes, bool]:
    try:
        return (root / path).read_bytes(), bool((root / path).stat().st_mode & 0o100)
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})", str(root / path), _NOT_OURS
        ) from error


def _members(found: Found, image: Image, paths: Collection[str], where: str) -> Files:
    """Files of an image, from the highest layer that has each; no layer below the last one needed
    is opened.
    """
    files: dict[str, tuple[bytes, bool]] = {}
    for one in reversed(image.layers):
        left = set(paths) - files.keys()
        if not left:
            return files
        with (
            found.open(image, one) as packed,
            blob_compression.reader(packed) as plain,
            tarfile.open(fileobj=plain, mode="r|") as archive,
        ):
            for member in archive:
                if member.name in left and (content := archive.extractfile(member)):
                    files[member.name] = content.read(), bool(member.mode & 0o100)
    if missing := sorted(set(paths) - files.keys()):
        raise UserError(f"has no {missing[0]}", where, _NOT_OURS)
    return files


@contextlib.contextmanager
def _image(kind: str, place: str, scratch: Path) -> Iterator[Found]:
    """Yield the image; of a registry's only the layers that are opened come here."""
    if kind != "registry":
        with inspection.find(place if kind == "image" else f"{kind}:{place}", "", scratch) as found:
            yield found
        return
    folder = scratch / "pulled"
    download.pull(place, folder, layers=False)
    read = layout.read(folder, blobs=False)

    def opened(_: Image, one: layer.Layer) -> IO[bytes]:
        target = layout.blob(folder, one)
        if not target.is_file():
            download.fetch_blob(place, one.digest, one.size, target)
        return open(target, "rb")

    yield inspection.Found(read.index.images, read.index.digest, opened)
