"""Prepared TensorFlow Datasets folders, such as C4, the Pile, GLUE and SQuAD.

They are read as the TFRecord files that they are, without TensorFlow. The folder of a set has
dataset_info.json and the files of each split, its shards.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from rosetta.core import path_checks
from rosetta.core.errors import DAMAGED, MISSING, UNKNOWN, UNSUPPORTED, UserError
from rosetta.data import tfrecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.data.data_spec import Spec

SHARD_NAME = re.compile(
    r"^(?P<name>.+)-(?P<split>[A-Za-z0-9_]+)\.(?P<kind>tfrecord|array_record)-(?P<number>\d{5})-of-(?P<count>\d{5})$"
)

# The records of a set of at most this size are counted, which takes seconds.
FULLY_COUNTED_BYTES = 1 << 30
_MAX_LISTED = 8  # names of sets or configs that a message lists


def find_data_dir() -> str:
    """Return the folder of prepared data sets: TFDS_DATA_DIR, or the default of TFDS."""
    return os.environ.get("TFDS_DATA_DIR") or os.path.expanduser("~/tensorflow_datasets")


def find_set_folder(name: str) -> str:
    """Return the folder of a prepared set.

    Args:
        name: `NAME[/CONFIG][:VERSION]`. Without a config, the only one of the set is meant; without
            a version, the newest.

    Raises:
        UserError: There is no such set or version, there are several configs to choose from, or the
            folder is in an object store.
    """
    set_name, _, version = name.partition(":")
    data_dir = find_data_dir()
    folder = os.path.join(data_dir, *set_name.split("/"))
    where = f"TFDS_DATA_DIR={data_dir}"
    path_checks.check_is_local(data_dir, where)
    if not os.path.isdir(folder):
        if os.path.isdir(data_dir):
            available = ", ".join(sorted(os.listdir(data_dir))[:_MAX_LISTED])
        else:
            available = "nothing: the folder does not exist"
        raise UserError(
            f"there is no prepared data set {set_name!r} (available: {available})",
            where,
            "set TFDS_DATA_DIR to the folder that has it, or use text:, jsonl: or hf:",
            kind=UNKNOWN,
            value=set_name,
        )
    configs = [] if _list_versions(folder) else _list_folders(folder)
    if len(configs) == 1 and _list_versions(os.path.join(folder, configs[0])):
        folder = os.path.join(folder, configs[0])
    if version:
        folder = os.path.join(folder, version)
    else:
        versions = _list_versions(folder)
        if not versions:
            raise _describe_missing_version(folder, set_name, configs)
        folder = os.path.join(folder, versions[-1])
    if not os.path.isdir(folder):
        raise UserError(
            f"there is no version {version!r} of the set",
            folder,
            "leave the version out to use the newest",
            kind=UNKNOWN,
            value=version,
        )
    return folder


def _describe_missing_version(folder: str, set_name: str, configs: Sequence[str]) -> UserError:
    """Return the error for a set whose folder has no versions, but perhaps configs."""
    if configs:
        remedy = f"name a config: {set_name}/{configs[0]}"
    else:
        remedy = "prepare it with tensorflow_datasets"
    contents = ", ".join(configs[:_MAX_LISTED]) or "nothing"
    return UserError(
        f"the folder of {set_name!r} has no version (it has: {contents})",
        folder,
        remedy,
        kind=UNKNOWN,
    )


def _list_folders(folder: str) -> list[str]:
    """Return the names of the folders in a folder, sorted."""
    return [
        name for name in sorted(os.listdir(folder)) if os.path.isdir(os.path.join(folder, name))
    ]


def _list_versions(folder: str) -> list[str]:
    """Return the names in a folder that are versions, in ascending order."""
    versions = [name for name in os.listdir(folder) if re.fullmatch(r"\d+\.\d+\.\d+", name)]
    return sorted(versions, key=lambda version: [int(part) for part in version.split(".")])


def read_splits(folder: str) -> dict[str, dict[str, Any]]:
    """Return the splits that dataset_info.json lists.

    Args:
        folder: The folder of a version of a set.

    Returns:
        Split -> {"shards": [examples of each shard], "bytes": size of all}.

    Raises:
        UserError: dataset_info.json is missing or damaged.
    """
    path = os.path.join(folder, "dataset_info.json")
    try:
        with open(path, encoding="utf-8") as file:
            info = json.load(file)
    except FileNotFoundError:
        raise UserError(
            "dataset_info.json is missing: the set was not prepared to its end",
            folder,
            "prepare it again, or copy all of it",
            kind=MISSING,
        ) from None
    except ValueError:
        raise UserError("not a valid JSON file", path, "copy it again", kind=DAMAGED) from None
    splits = {}
    for split in info.get("splits", []):
        splits[split["name"]] = {
            "shards": [int(count) for count in split.get("shardLengths", [])],
            "bytes": int(split.get("numBytes", 0)),
        }
    return splits


def find_shards(spec: Spec, split: str = "train") -> tuple[str, ...]:
    """Return the TFRecord files of a split, in order.

    Args:
        spec: The set.
        split: The split, if the spec names none.

    Raises:
        UserError: The set, the split or a file is missing, or the files are not TFRecord files.
    """
    folder = find_set_folder(spec.value)
    name = spec.split or split
    splits = read_splits(folder)
    if name not in splits:
        example = next(iter(sorted(splits)), "train")
        raise UserError(
            f"there is no split {name!r} (available: {', '.join(sorted(splits))})",
            folder,
            f"name an available split: {spec.kind}:{spec.value}#{example}",
            kind=UNKNOWN,
            value=name,
        )
    paths, count = _list_shards(folder, name)
    expected = len(splits[name]["shards"]) or count
    missing = [number for number in range(max(expected, count)) if number not in paths]
    if missing or not paths:
        raise UserError(
            f"{len(missing) or 'all'} of {expected} files of split {name!r} are missing, the first "
            f"is number {missing[0] if missing else 0}",
            folder,
            "copy the rest of the set",
            kind=MISSING,
        )
    return tuple(paths[number] for number in sorted(paths))


def _list_shards(folder: str, split: str) -> tuple[dict[int, str], int]:
    """Return the files of a split by their numbers, and how many there should be by their names.

    Raises:
        UserError: The files are not TFRecord files.
    """
    paths = {}
    count = 0
    for entry in os.listdir(folder):
        match = SHARD_NAME.match(entry)
        if match and match["split"] == split:
            if match["kind"] != "tfrecord":
                raise UserError(
                    "the set is stored as array_record files",
                    folder,
                    f"write arrayrecord:{folder}/*-{split}.array_record*",
                    kind=UNSUPPORTED,
                )
            count = int(match["count"])
            paths[int(match["number"])] = os.path.join(folder, entry)
    return paths, count


def check(spec: Spec, split: str) -> dict[str, Any]:
    """Check a prepared set: all files are there, whole, and as large as dataset_info.json says.

    Each file must begin with a record. Of a small set, the records are counted, too.

    Args:
        spec: The set.
        split: The split, if the spec names none.

    Returns:
        {"folder", "files", "bytes", "examples"}.

    Raises:
        UserError: The set is missing, damaged or incomplete.
    """
    folder = find_set_folder(spec.value)
    paths = find_shards(spec, split)
    info = read_splits(folder)[spec.split or split]
    sizes = [os.path.getsize(path) for path in paths]
    example_counts = info["shards"] or [1] * len(paths)
    for path, size, examples in zip(paths, sizes, example_counts, strict=True):
        if examples:
            _check_first_header(path, size)
    total = sum(sizes)
    if total < info["bytes"]:
        raise UserError(
            f"the files have {total:,} bytes, but dataset_info.json says {info['bytes']:,}",
            folder,
            "copy the set again: a file is cut short",
            kind=DAMAGED,
            value=total,
        )
    if total < FULLY_COUNTED_BYTES:
        for path, expected in zip(paths, info["shards"], strict=False):
            count = len(tfrecord.index_records(path))
            if count != expected:
                raise UserError(
                    f"the file has {count} records, but dataset_info.json says {expected}",
                    path,
                    "copy it again",
                    kind=DAMAGED,
                    value=count,
                )
    return {
        "folder": folder,
        "files": len(paths),
        "bytes": total,
        "examples": sum(info["shards"]),
    }


def _check_first_header(path: str, size: int) -> None:
    """Raise UserError if a file does not begin with the header of a record."""
    if size < tfrecord.HEADER.size + tfrecord.FOOTER_BYTES:
        raise UserError("the file is empty", path, "copy it again", kind=DAMAGED, value=size)
    with open(path, "rb") as file:
        head = file.read(tfrecord.HEADER.size)
    if tfrecord.HEADER.unpack(head)[1] != tfrecord.compute_masked_crc(head[:8]):
        raise UserError(
            "the file does not begin with a record", path, "copy it again", kind=DAMAGED
        )
