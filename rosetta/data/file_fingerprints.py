"""Fingerprints of the files of a data set, so that a resumed run notices a changed file.

`Batches.make_state` stores them in checkpoints.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from rosetta.data import data_spec, tfds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.data.data_spec import Spec

FULLY_HASHED_BYTES = 1 << 30  # A data set of at most this size is read whole.
BLOCK_BYTES = 1 << 16  # Of the files of a larger set, blocks of this size are read.
BLOCKS_PER_FILE = 64
MAX_NAMED_FILES = 256  # A set of more files gets one fingerprint for all of them.


def find_source_files(spec: Spec, split: str) -> Sequence[str]:
    """Return the files of a source. Remote sets and random ids have none.

    Args:
        spec: The source.
        split: The split of a tfds set whose spec names none.

    Raises:
        UserError: The files cannot be found.
    """
    if spec.kind in (*data_spec.FILE_KINDS, "megatron"):
        return data_spec.find_files(spec)
    if spec.kind == "tfds":
        return tfds.find_shards(spec, split)
    if spec.kind not in ("cache", "hf") or not os.path.isdir(spec.value):
        return ()
    paths: list[str] = []
    for folder, _, names in os.walk(spec.value):
        paths += [os.path.join(folder, name) for name in names]
    return sorted(path for path in paths if os.path.isfile(path))


def describe_contents(data: str, split: str) -> dict[str, Any]:
    """Return the size and a digest of each file of a data set.

    If the set is larger than FULLY_HASHED_BYTES, the digest of a file is that of blocks spread over
    the file. A set of more than MAX_NAMED_FILES files gets one entry for all of them.

    Args:
        data: A spec string, or {spec: rate} as JSON.
        split: The split of the tfds sets that do not name one.

    Returns:
        File name -> [size in bytes, digest].
    """
    paths: list[str] = []
    for part in data_spec.parse_parts(data):
        paths += find_source_files(part.spec, split)
    whole = sum(map(os.path.getsize, paths)) <= FULLY_HASHED_BYTES
    contents: dict[str, Any] = {}
    for number, path in enumerate(paths):
        name = os.path.basename(path)
        key = f"{name} ({number})" if name in contents else name
        contents[key] = [os.path.getsize(path), _hash_file(path, whole=whole)]
    if len(contents) <= MAX_NAMED_FILES:
        return contents
    digest = hashlib.blake2b(repr(sorted(contents.items())).encode(), digest_size=16).hexdigest()
    total = sum(size for size, _ in contents.values())
    return {f"{len(contents)} files": [total, digest]}


def _hash_file(path: str, *, whole: bool) -> str:
    """Return the digest of a whole file, or of blocks spread over it."""
    digest = hashlib.blake2b(digest_size=16)
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        if whole:
            while block := file.read(1 << 20):
                digest.update(block)
        else:
            for number in range(BLOCKS_PER_FILE):
                file.seek(max(size - BLOCK_BYTES, 0) * number // (BLOCKS_PER_FILE - 1))
                digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()


def find_change(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> str | None:
    """Return the name of a file that has changed; None if no file has.

    Added and removed files are not reported: the fingerprint of the data has their names and sizes.

    Args:
        before: What `describe_contents` returned when the run began. None if the record is of a
            release that did not store it.
        now: What it returns now.
    """
    for name, content in (before or {}).items():
        if name in now and now[name] != content:
            return name
    return None
