"""Prepared TensorFlow Datasets folders (C4, the Pile, GLUE, SQuAD), read as the TFRecord files they
are.
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
    from rosetta.data.data_spec import Spec

SHARD_NAME = re.compile(
    r"^(?P<name>.+)-(?P<split>[A-Za-z0-9_]+)\.(?P<kind>tfrecord|array_record)-(?P<number>\d{5})-of-(?P<count>\d{5})$"
)

FULLY_COUNTED_BYTES = 1 << 30  # bytes of a set that is looked at record by record: seconds


def find_data_dir() -> str:
    """Return the folder that holds prepared data sets: TFDS_DATA_DIR, else TFDS's own default."""
    return os.environ.get("TFDS_DATA_DIR") or os.path.expanduser("~/tensorflow_datasets")


def find_set_folder(name: str) -> str:
    """Return the folder of `NAME[/CONFIG][:VERSION]`: of the newest version where none is named, of
    the only config where there is one.

    Raises:
      UserError: there is none, or several configs to choose from; the folder is in an object store.
    """
    wanted, _, version = name.partition(":")
    place = os.path.join(find_data_dir(), *wanted.split("/"))
    where = f"TFDS_DATA_DIR={find_data_dir()}"
    path_checks.check_is_local(find_data_dir(), where)
    if not os.path.isdir(place):
        there = (
            ", ".join(sorted(os.listdir(find_data_dir()))[:8])
            if os.path.isdir(find_data_dir())
            else "nothing: no such folder"
        )
        raise UserError(
            f"no prepared data set {wanted} (there is: {there})",
            where,
            "set TFDS_DATA_DIR to the folder that has it, or use text:, jsonl: or hf:",
            kind=UNKNOWN,
            value=wanted,
        )
    configs = (
        []
        if _list_versions(place)
        else [
            entry
            for entry in sorted(os.listdir(place))
            if os.path.isdir(os.path.join(place, entry))
        ]
    )
    if len(configs) == 1 and _list_versions(os.path.join(place, configs[0])):
        place = os.path.join(place, configs[0])
    if version:
        place = os.path.join(place, version)
    else:
        versions = _list_versions(place)
        if not versions:
            do = (
                f"name a config: {wanted}/{configs[0]}"
                if configs
                else "prepare it with tensorflow_datasets"
            )
            raise UserError(
                f"{wanted} has no version here (it has: {', '.join(configs[:8]) or 'nothing'})",
                place,
                do,
                kind=UNKNOWN,
            )
        place = os.path.join(place, versions[-1])
    if not os.path.isdir(place):
        raise UserError(
            "there is no such version",
            place,
            "leave the version out to take the newest",
            kind=UNKNOWN,
            value=version,
        )
    return place


def _list_versions(place: str) -> list[str]:
    """Return the names of a folder that are versions, ascending."""
    return sorted(
        (entry for entry in os.listdir(place) if re.fullmatch(r"\d+\.\d+\.\d+", entry)),
        key=lambda entry: [int(part) for part in entry.split(".")],
    )


def read_splits(place: str) -> dict[str, dict[str, Any]]:
    """Return split -> {"shards": [examples a shard], "bytes"} as dataset_info.json has it;
    UserError where that is missing.
    """
    path = os.path.join(place, "dataset_info.json")
    try:
        with open(path, encoding="utf-8") as file:
            info = json.load(file)
    except FileNotFoundError:
        raise UserError(
            "dataset_info.json is missing: the set was not prepared to its end",
            place,
            "prepare it again, or copy all of it",
            kind=MISSING,
        ) from None
    except ValueError:
        raise UserError("the file is no JSON", path, "copy it again", kind=DAMAGED) from None
    found = {}
    for split in info.get("splits", []):
        found[split["name"]] = {
            "shards": [int(count) for count in split.get("shardLengths", [])],
            "bytes": int(split.get("numBytes", 0)),
        }
    return found


def find_shards(spec: Spec, split: str = "train") -> tuple[str, ...]:
    """Return the TFRecord files of a split, all of them there, in order.

    Raises:
      UserError: the set, the split or a file is missing, or the files are no TFRecord files.
    """
    place = find_set_folder(spec.value)
    wanted = spec.split or split
    known = read_splits(place)
    if wanted not in known:
        raise UserError(
            f"there is no split {wanted} (there is: {', '.join(sorted(known))})",
            place,
            f"name one: {spec.kind}:{spec.value}#{next(iter(sorted(known)), 'train')}",
            kind=UNKNOWN,
            value=wanted,
        )
    found: dict[int, str] = {}
    count = 0
    for entry in os.listdir(place):
        match = SHARD_NAME.match(entry)
        if match and match["split"] == wanted:
            if match["kind"] != "tfrecord":
                raise UserError(
                    "the set is stored as array_record files",
                    place,
                    "prepare it with file_format=tfrecord",
                    kind=UNSUPPORTED,
                )
            count = int(match["count"])
            found[int(match["number"])] = os.path.join(place, entry)
    expected = len(known[wanted]["shards"]) or count
    missing = [number for number in range(max(expected, count)) if number not in found]
    if missing or not found:
        raise UserError(
            (
                f"{len(missing) or 'all'} of {expected} files of split {wanted} are missing, the "
                f"first is number {missing[0] if missing else 0}"
            ),
            place,
            "copy the rest of the set",
            kind=MISSING,
        )
    return tuple(found[number] for number in sorted(found))


def check(spec: Spec, split: str) -> dict[str, Any]:
    """Look a prepared set over: every file there, none cut short at its head, as many bytes (of
    small sets: records) as dataset_info.json says.

    Returns:
      {"folder", "files", "bytes", "examples"}.

    Raises:
      UserError: what is wrong with the copy.
    """
    place = find_set_folder(spec.value)
    paths = find_shards(spec, split)
    known = read_splits(place)[spec.split or split]
    sizes = [os.path.getsize(path) for path in paths]
    for path, size, examples in zip(paths, sizes, known["shards"] or [1] * len(paths), strict=True):
        if examples and size < tfrecord.HEADER.size + tfrecord.FOOTER_BYTES:
            raise UserError("the file is empty", path, "copy it again", kind=DAMAGED, value=size)
        with open(path, "rb") as file:
            head = file.read(tfrecord.HEADER.size)
        if examples and tfrecord.HEADER.unpack(head)[1] != tfrecord.compute_masked_crc(head[:8]):
            raise UserError(
                "the file does not begin with a record", path, "copy it again", kind=DAMAGED
            )
    examples = sum(known["shards"])
    if sum(sizes) < known["bytes"]:
        raise UserError(
            f"the files hold {sum(sizes):,} bytes, dataset_info.json says {known['bytes']:,}",
            place,
            "copy the set again: some file is cut short",
            kind=DAMAGED,
            value=sum(sizes),
        )
    if sum(sizes) < FULLY_COUNTED_BYTES:
        for path, count in zip(paths, known["shards"], strict=False):
            if (found := len(tfrecord.index_records(path))) != count:
                raise UserError(
                    f"the file has {found} records, dataset_info.json says {count}",
                    path,
                    "copy it again",
                    kind=DAMAGED,
                    value=found,
                )
    return {"folder": place, "files": len(paths), "bytes": sum(sizes), "examples": examples}
