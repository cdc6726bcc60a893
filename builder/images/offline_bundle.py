"""An image for a site without internet: a folder with an OCI layout, the sums of all its files, and
the script that takes it in there.

contracts.md names the shape of the layout; beside it stand bundle.json (for programs), contents.tsv
(the same for the script, which has no JSON), SHA256SUMS, README.txt and import.sh. The script is a
constant: what it is told comes as data.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.images.oci import layout, oci_documents
from builder.images.oci.reference import is_digest
from builder.packages import environment_assembly
from rosetta.core.errors import EXISTS, TOO_BIG, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.core.cache import Cache
    from builder.images.oci.layer import Layer
    from builder.images.oci.oci_documents import Index
    from builder.images.oci.tar_entry import Entry

SCHEMA = 1
_TEMPLATES = Path(__file__).parent
_BUNDLE_FILES = frozenset(
    {"image", "bundle.json", "contents.tsv", "SHA256SUMS", "README.txt", "import.sh"}
)
_IMAGE_NAME = re.compile(r"[a-z0-9][a-z0-9._/:-]*")
_CHOOSE_ANOTHER_PLACE = "give a new or an empty place; nothing was touched"


@dataclass(frozen=True)
class KnownLayers:
    """What a site has already: digests of layers, and how we know."""

    digests: frozenset[str]
    told: dict[str, str]


def write_bundle(
    cache: Cache,
    index: Index,
    folder: Path,
    *,
    name: str,
    records: Mapping[str, Any] | None = None,
    since: KnownLayers | None = None,
) -> dict[str, Any]:
    """Write the bundle of an image whose blobs are in the cache; a bundle that is there is
    replaced, whole or not at all.

    `records` are the lock.json of each architecture, `since` what the site has. Returns what --json
    says of it: path, bytes written, layers left out, and what to do next. Raises UserError, before
    anything is touched, where something else is there or space is short.
    """
    if not _IMAGE_NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is no name of an image",
            str(folder),
            "give lower-case letters, digits, and . _ - / : between them",
        )
    has = since or KnownLayers(frozenset(), {})
    with environment_assembly.lock_output(folder) as place:
        require_replaceable(place)
        out = {
            each.digest: each
            for image in index.images
            for each in image.layers
            if each.digest in has.digests
        }
        if since and not out:
            log.warn("no layer of this image is among those that the site has: the bundle is whole")
        blobs = [
            each
            for each in layout.list_entries(cache, index, name)
            if f"sha256:{each.path.rpartition('/')[2]}" not in out
        ]
        texts = _make_documents(index, name, records or {}, has, out)
        texts["SHA256SUMS"] = _format_checksums(blobs, texts)
        if not _is_current(place, blobs, texts):
            _require_space(place, blobs)
            _write_files(place, blobs, texts)
    size, left = sum(each.size for each in blobs), sum(each.size for each in out.values())
    rest = (
        f"; {len(out)} layers that the site has ({left / 1e6:,.1f} MB) are left out" if out else ""
    )
    return {
        "path": str(place),
        "written": size,
        "left_out": [
            {"name": each.name, "digest": each.digest, "size": each.size} for each in out.values()
        ],
        "next": [
            f"{place} holds {size / 1e6:,.1f} MB{rest}; take it there and run ./import.sh check"
        ],
    }


def _write_files(place: Path, blobs: Iterable[Entry], texts: Mapping[str, bytes]) -> None:
    with environment_assembly.replace_path(place) as new:
        (new / "image/blobs/sha256").mkdir(parents=True)
        _write_layout_files(blobs, new / "image")
        for file, text in texts.items():
            (new / file).write_bytes(text)
            os.chmod(new / file, 0o755 if file.endswith(".sh") else 0o644)
        for each in ("image/blobs/sha256", "image/blobs", "image", ""):
            os.chmod(new / each, 0o755)  # noqa: S103 - others may read it, whatever the umask


def _format_checksums(blobs: Iterable[Entry], texts: Mapping[str, bytes]) -> bytes:
    """SHA256SUMS: a blob's name is its sum, and `_bring` sees to it that this is true."""
    sums = {
        f"image/{each.path}": hashlib.sha256(each.data).hexdigest()
        if each.data is not None
        else each.path.rpartition("/")[2]
        for each in blobs
    }
    sums |= {file: hashlib.sha256(text).hexdigest() for file, text in texts.items()}
    return "".join(f"{sums[file]}  {file}\n" for file in sorted(sums)).encode()


def _is_current(place: Path, blobs: Iterable[Entry], texts: Mapping[str, bytes]) -> bool:
    """Is the bundle at `place` this one, every blob there with its size?"""
    try:
        return all((place / file).read_bytes() == text for file, text in texts.items()) and all(
            os.stat(place / "image" / each.path).st_size == each.size for each in blobs
        )
    except OSError:
        return False


def require_replaceable(place: Path) -> None:
    """UserError where `place` is neither free nor a bundle of ours."""
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise UserError("is not a folder", str(place), _CHOOSE_ANOTHER_PLACE, kind=EXISTS)
    if not place.exists() or not any(place.iterdir()):
        return
    try:
        ours = json.loads((place / "bundle.json").read_bytes())["bundle"] == "rosetta"
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    if not ours or not {each.name for each in place.iterdir()} <= _BUNDLE_FILES:
        raise UserError(
            "holds files that are not a bundle of rosetta's",
            str(place),
            _CHOOSE_ANOTHER_PLACE,
            kind=EXISTS,
        )


def read_known_layers(name: str) -> KnownLayers:
    """Return what a site has, by a lock.json, a bundle or its bundle.json, or an OCI layout.

    Raises UserError for anything else.
    """
    path = Path(name).absolute()
    if path.is_dir() and (path / "index.json").is_file():
        found = layout.read_layout(path, blobs=False)
        return KnownLayers(
            frozenset(each.digest for image in found.index.images for each in image.layers),
            {"kind": "layout", "index": found.index.digest},
        )
    file = path / "bundle.json" if path.is_dir() else path
    try:
        raw = file.read_bytes()
        document = json.loads(raw)
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})",
            str(file),
            "give the lock.json or bundle.json of what the site has, or an image layout",
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            "is not JSON",
            str(file),
            "give the lock.json or bundle.json of what the site has, or an image layout",
        ) from error
    listed = _list_layers(document)
    digests = frozenset(str(each.get("digest")) for each in listed)
    if not digests or not all(map(is_digest, digests)):
        raise UserError(
            "lists no layers",
            str(file),
            "give the lock.json or bundle.json of what the site has, or an image layout",
        )
    return KnownLayers(
        digests,
        {
            "kind": "bundle" if "bundle" in document else "lock",
            "sha256": hashlib.sha256(raw).hexdigest(),
        },
    )


def _list_layers(document: Any) -> list[dict[str, Any]]:
    if not isinstance(document, dict):
        return []
    images = document.get("images") if "bundle" in document else [document]
    lists = (
        [each.get("layers") for each in images if isinstance(each, dict)]
        if isinstance(images, list)
        else []
    )
    return [
        each
        for listed in lists
        if isinstance(listed, list)
        for each in listed
        if isinstance(each, dict)
    ]


def _require_space(place: Path, entries: Iterable[Entry]) -> None:
    """UserError if the blobs do not fit."""
    at = next(each for each in (place, *place.parents) if each.exists())
    needed = sum(each.size for each in entries)
    if needed > (free := shutil.disk_usage(at).free):
        raise UserError(
            f"the bundle needs {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free",
            str(place),
            "make room; nothing was touched",
            kind=TOO_BIG,
        )


def _write_layout_files(entries: Iterable[Entry], folder: Path) -> None:
    """Write the layout's files into `folder`, each blob compared with its digest."""

    def one(each: Entry) -> None:
        target = folder / each.path
        if each.data is not None:
            target.write_bytes(each.data)
            os.chmod(target, 0o644)
            return
        layout.copy_blob(each, target)

    with concurrent.futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        list(pool.map(one, entries))


def _make_documents(
    index: Index, name: str, records: Mapping[str, Any], has: KnownLayers, out: Mapping[str, Layer]
) -> dict[str, bytes]:
    """Return the files beside the layout."""
    images = [
        {
            "architecture": image.architecture,
            "platform": oci_documents.make_platform(image.architecture),
            "manifest": image.digest,
            "config": image.config_digest,
            "size": image.size,
            "layers": [
                {
                    "name": each.name,
                    "diff_id": each.diff_id,
                    "digest": each.digest,
                    "size": each.size,
                    "unpacked": each.unpacked,
                    "here": each.digest not in out,
                }
                for each in image.layers
            ],
            "lock": records.get(image.architecture),
        }
        for image in index.images
    ]
    left = [{"name": each.name, "digest": each.digest, "size": each.size} for each in out.values()]
    document = {
        "bundle": "rosetta",
        "schema": SCHEMA,
        "name": name,
        "index": index.digest,
        "images": images,
        "left_out": left,
        "since": has.told or None,
    }
    rows = [("bundle", SCHEMA), ("name", name), ("index", index.digest, len(index.document))]
    for image in index.images:
        variant = oci_documents.make_platform(image.architecture).get("variant", "-")
        rows.append(
            (
                "image",
                image.architecture,
                variant,
                image.digest,
                len(image.manifest),
                image.config_digest,
                len(image.config),
            )
        )
        rows += [
            (
                "layer",
                image.architecture,
                each.name,
                each.digest,
                each.size,
                each.unpacked,
                each.diff_id,
                "site" if each.digest in out else "here",
            )
            for each in image.layers
        ]
    return {
        "bundle.json": (json.dumps(document, indent=1, sort_keys=True) + "\n").encode(),
        "contents.tsv": "".join("\t".join(map(str, row)) + "\n" for row in rows).encode(),
        "import.sh": (_TEMPLATES / "import.sh").read_bytes(),
        "README.txt": _format_readme(index, name, out).encode(),
    }


def _format_readme(index: Index, name: str, out: Mapping[str, Layer]) -> str:
    text = (_TEMPLATES / "offline-bundle-readme.txt").read_text(encoding="utf-8")
    platforms = ", ".join(f"linux/{image.architecture}" for image in index.images)
    left = ""
    if out:
        listed = "\n".join(
            f"  {each.name:<12} {each.size / 1e6:>10,.1f} MB  {each.digest}"
            for each in out.values()
        )
        left = (
            "\nLayers that are not here, since the site has them; add --with OLDER to every line "
            f"below, OLDER\nbeing the bundle or the OCI layout that holds them:\n{listed}\n"
        )
    values = {
        "NAME": name,
        "INDEX": index.digest,
        "PLATFORMS": platforms,
        "LEFT_OUT": left,
        "FILE": re.sub(r"[^a-z0-9.-]+", "-", name),
    }
    return re.sub(r"@([A-Z_]+)@", lambda found: values[found.group(1)], text)
