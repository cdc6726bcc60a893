"""What the files of a data set hold, so that a run notices that one was changed while it stood
still.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from rosetta.data import data_spec, tfds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.data.data_spec import Spec

FULLY_HASHED_BYTES = 1 << 30  # bytes of a data set that are read whole; of more, blocks are
BLOCK_BYTES = 1 << 16
BLOCKS_PER_FILE = 64  # of a file
MAX_NAMED_FILES = 256  # files that are told apart by name


def find_source_files(spec: Spec, split: str) -> Sequence[str]:
    """Return the files of a source; of a remote one and of random ids there are none."""
    if spec.kind in ("text", "jsonl", "tfrecord"):
        return data_spec.find_files(spec)
    if spec.kind == "tfds":
        return tfds.find_shards(spec, split)
    if spec.kind not in ("cache", "hf") or not os.path.isdir(spec.value):
        return ()
    found = [
        os.path.join(folder, name) for folder, _, names in os.walk(spec.value) for name in names
    ]
    return sorted(path for path in found if os.path.isfile(path))


def describe_contents(data: str, split: str) -> dict[str, Any]:
    """Return name -> [bytes, digest] for the files of a data set, in which a changed file can be
    found.

    The digest is of the whole file where the set has at most WHOLE bytes, else of blocks spread
    over it. Of very many files one digest is kept for all.
    """
    paths = [
        path for part in data_spec.parse_parts(data) for path in find_source_files(part.spec, split)
    ]
    whole = sum(map(os.path.getsize, paths)) <= FULLY_HASHED_BYTES
    contents: dict[str, Any] = {}
    for number, path in enumerate(paths):
        name = os.path.basename(path)
        contents[f"{name} ({number})" if name in contents else name] = [
            os.path.getsize(path),
            _hash_file(path, whole=whole),
        ]
    if len(contents) <= MAX_NAMED_FILES:
        return contents
    digest = hashlib.blake2b(repr(sorted(contents.items())).encode(), digest_size=16).hexdigest()
    return {f"{len(contents)} files": [sum(size for size, _ in contents.values()), digest]}


def _hash_file(path: str, *, whole: bool) -> str:
    body = hashlib.blake2b(digest_size=16)
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        if whole:
            while block := file.read(1 << 20):
                body.update(block)
        else:
            for number in range(BLOCKS_PER_FILE):
                file.seek(max(size - BLOCK_BYTES, 0) * number // (BLOCKS_PER_FILE - 1))
                body.update(file.read(BLOCK_BYTES))
    return body.hexdigest()


def find_change(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> str | None:
    """Return the name of a file whose content is another than `describe_contents` said before; None
    for none.

    Files that came or went are not looked for: the data's fingerprint has names and sizes. An older
    record has no contents.
    """
    return next(
        (name for name, content in (before or {}).items() if name in now and now[name] != content),
        None,
    )
