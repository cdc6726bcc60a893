"""Check that the files of a T5X or Paxml checkpoint are complete, and name a damaged one.

Orbax stores the arrays of a checkpoint in TensorStore's database (OCDBT): `manifest.ocdbt` leads to
an index, and the index names the file under `d/` that has each value. Older releases of Orbax write
a folder with `.zarray` for each array.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core import run_folders
from rosetta.core.errors import DAMAGED, UserError
from rosetta.core.value_parsing import is_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_COMMIT_FILE = "commit_success.txt"  # Orbax's mark in object stores, where no folder can be renamed
_MANIFEST = "manifest.ocdbt"
_METADATA_FILES = ("_CHECKPOINT_METADATA", "metadata/metadata", "state/_METADATA", "rosetta.json")
_FIRST_CHUNK = re.compile(r"0(\.0)*")  # the first one of an array


@dataclass(frozen=True)
class Damage:
    """A file of a checkpoint that can't be read, and what is wrong with it."""

    file: str
    what: str


class _DamagedError(Exception):
    def __init__(self, file: str, what: str) -> None:
        super().__init__(file, what)
        self.damage = Damage(file, what)


def find_damage(checkpoint: str, *, read_values: bool = False) -> Damage | None:
    """Return the first damaged file of a checkpoint; None if all are complete.

    Args:
      checkpoint: a checkpoint_N of T5X or Paxml, on this machine or in an object store.
      read_values: decode every array too. Otherwise, only the index is read, and the length of
        each file is compared with it.
    """
    try:
        _check_metadata(checkpoint)
        for folder in (f"{checkpoint}/state", checkpoint):
            if _is_ocdbt(folder):
                _check_ocdbt(folder, read_values=read_values)
                return None
        _check_array_folders(checkpoint, read_values=read_values)
    except _DamagedError as error:
        return error.damage
    except Exception as error:  # noqa: BLE001 (TensorStore and object stores raise their own; each means that it can't be read)
        return _convert_error(checkpoint, error)
    return None


def find_problem(folder: str, step: int) -> str | None:
    """Return why no run can resume from the checkpoint of a step, as a clause; None if it can."""
    for path in (
        run_folders.make_path(folder).iterdir() if run_folders.folder_exists(folder) else ()
    ):
        if run_folders.parse_checkpoint_step(path.name) == step:
            damage = find_damage(f"{folder.rstrip('/')}/{path.name}")
            return f"{damage.file}: {damage.what}" if damage else None
    last = max(run_folders.list_checkpoint_steps(folder), default=None)
    return f"{folder} has no checkpoint of step {step:,}" + (
        "" if last is None else f", its newest one is of step {last:,}"
    )


def _check_metadata(checkpoint: str) -> None:
    """Check the folder of a checkpoint, its commit file and its metadata files."""
    folder = run_folders.make_path(checkpoint)
    if not folder.is_dir():
        raise _DamagedError(checkpoint, "the folder is missing")
    if checkpoint.startswith("gs://") and not (folder / _COMMIT_FILE).exists():
        raise _DamagedError(
            f"{checkpoint}/{_COMMIT_FILE}",
            "the file is missing, so the checkpoint was not finished",
        )
    known = 0
    for name in _METADATA_FILES:
        path = folder / name
        if not path.exists():
            continue
        known += name != "rosetta.json"
        try:
            json.loads(path.read_text())
        except ValueError:
            raise _DamagedError(str(path), "the file is cut short or not JSON") from None
    if not known and not _has_legacy_format(checkpoint):
        raise _DamagedError(f"{checkpoint}/{_METADATA_FILES[0]}", "the file is missing")


def _has_legacy_format(checkpoint: str) -> bool:
    """Return whether a checkpoint is older than Orbax's metadata; one file has its small arrays."""
    return any(
        run_folders.make_path(f"{checkpoint}/{name}").exists()
        for name in ("checkpoint", "state/checkpoint")
    )


def _is_ocdbt(folder: str) -> bool:
    """Return whether a folder has a database, or what is left of one."""
    if (
        run_folders.make_path(f"{folder}/{_MANIFEST}").exists()
        or run_folders.make_path(f"{folder}/d").is_dir()
    ):
        return True
    listed = run_folders.make_path(f"{folder}/_METADATA")
    return listed.exists() and bool(json.loads(listed.read_text()).get("use_ocdbt"))


def _check_ocdbt(folder: str, *, read_values: bool) -> None:
    import tensorstore  # type: ignore[import-not-found]

    for name in (_MANIFEST, "_METADATA"):
        if not run_folders.make_path(f"{folder}/{name}").exists():
            raise _DamagedError(f"{folder}/{name}", "the file is missing")
    address = folder if is_address(folder) else f"file://{folder}"
    base = tensorstore.KvStore.open(f"{address}/").result()
    database = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"{address}/"}).result()
    manifest = tensorstore.ocdbt.dump(base).result()
    root = manifest["versions"][-1]["root"]["location"]
    keys: dict[str, str] = {}  # the key of a value -> the file that has it
    sizes: dict[str, int] = {}  # a file -> the bytes that it must have
    for key, file, end in _iterate_index(tensorstore, base, folder, root):
        keys[key] = file
        sizes[file] = max(end, sizes.get(file, 0))
    sizes.pop("", None)
    for file, needed in sorted(sizes.items()):
        _check_file_size(f"{folder}/{file}", needed)
    arrays = {key.rpartition("/")[0] for key in keys if key.endswith(("/.zarray", "/zarr.json"))}
    wanted = _read_array_names(folder)
    if missing := sorted(wanted - arrays):
        raise _DamagedError(
            f"{folder}/{_MANIFEST}",
            f"the array {missing[0]} is missing, and {len(missing) - 1} more",
        )
    for name in sorted(arrays):
        described = database.read(f"{name}/.zarray").result().value
        chunks = list_chunk_names(json.loads(described)) if described else ()
        absent = next((chunk for chunk in chunks if f"{name}/{chunk}" not in keys), None)
        if absent:  # TensorStore would read it as zeros.
            raise _DamagedError(
                f"{folder}/{_MANIFEST}", f"the index has no {absent} of the array {name}"
            )
    if read_values:
        driver = "zarr3" if any(key.endswith("/zarr.json") for key in keys) else "zarr"
        for name in sorted(arrays):
            spec = {
                "driver": driver,
                "kvstore": {"driver": "ocdbt", "base": f"{address}/", "path": f"{name}/"},
            }
            held = {keys[key] for key in keys if key.startswith(f"{name}/")} - {""}
            _read_array(tensorstore, spec, f"{folder}/{min(held, default=_MANIFEST)}", name)


def _check_file_size(name: str, needed: int) -> None:
    path = run_folders.make_path(name)
    if not path.exists():
        raise _DamagedError(name, "the file is missing")
    status = path.stat()
    size = status.length if hasattr(status, "length") else status.st_size
    if size < needed:
        raise _DamagedError(name, f"the file has {size} bytes, and the index needs {needed}")


def _iterate_index(
    tensorstore: Any, base: Any, folder: str, location: str
) -> Iterator[tuple[str, str, int]]:
    """Yield the entries below a node of the index.

    Yields:
      The key, the file that has its value ("" if the index itself has it), and the offset in the
      file at which the value ends.
    """
    place, _ = _parse_location(location)
    try:
        node = tensorstore.ocdbt.dump(base, location).result()
    except Exception as error:  # noqa: BLE001 (TensorStore raises ValueError and its own)
        raise _DamagedError(f"{folder}/{place}", _convert_error("", error).what) from None
    for entry in node["entries"]:
        if "location" in entry:
            prefix = _decode_key(entry.get("subtree_common_prefix", ""))
            for key, file, end in _iterate_index(tensorstore, base, folder, str(entry["location"])):
                yield prefix + key, file, end
        else:
            file, end = _parse_location(str(entry.get("indirect_value", "")))
            yield _decode_key(entry["key"]), file, end


def _parse_location(reference: str) -> tuple[str, int]:
    """Return the file and the end offset of a reference: "value:FOLDER:FILE:OFFSET:LENGTH"."""
    match = re.fullmatch(r"\w+:(.*):(\d+):(\d+)", reference)
    if not match:
        return "", 0
    return match[1].replace(":", ""), int(match[2]) + int(match[3])


def _decode_key(key: Any) -> str:
    if isinstance(key, bytes):
        return key.decode()
    text = str(key)
    return ast.literal_eval(text).decode() if text.startswith(("b'", 'b"')) else text


def _read_array_names(folder: str) -> set[str]:
    """Return the names of the arrays in Orbax's own list; empty without a list."""
    path = run_folders.make_path(f"{folder}/_METADATA")
    if not path.exists():
        return set()
    names = set[str]()
    for leaf in json.loads(path.read_text()).get("tree_metadata", {}).values():
        if leaf.get("value_metadata", {}).get("value_type") == "jax.Array":
            names.add(".".join(str(part["key"]) for part in leaf["key_metadata"]))
    return names


def _check_array_folders(checkpoint: str, *, read_values: bool) -> None:
    for place in {
        str(chunk.parent)
        for chunk in run_folders.make_path(checkpoint).glob("**/0*")
        if _FIRST_CHUNK.fullmatch(chunk.name)
    }:
        if not run_folders.make_path(f"{place}/.zarray").exists():
            raise _DamagedError(f"{place}/.zarray", "the file is missing")
    described = sorted(run_folders.make_path(checkpoint).glob("**/.zarray"), key=str)
    if not described and not _has_legacy_format(checkpoint):
        raise _DamagedError(f"{checkpoint}/state", "there are no arrays in it")
    for path in described:
        folder = str(path.parent)
        try:
            chunks = list_chunk_names(json.loads(path.read_text()))
        except (ValueError, KeyError, TypeError, ArithmeticError):
            raise _DamagedError(str(path), "the file is cut short or not JSON") from None
        if missing := find_missing_chunk(path.parent, chunks):
            raise _DamagedError(f"{folder}/{missing}", "the file is missing")
        if read_values:
            import tensorstore

            address = folder if is_address(folder) else f"file://{folder}"
            _read_array(
                tensorstore, {"driver": "zarr", "kvstore": f"{address}/"}, folder, path.parent.name
            )


def list_chunk_names(description: dict[str, Any]) -> Iterator[str]:
    """Return the names of the files of an array's chunks.

    Args:
      description: what the array's `.zarray` says.

    Raises:
      ValueError, KeyError, TypeError, ArithmeticError: the description is not that of an array.
    """
    counts = [
        -(-size // chunk)
        for size, chunk in zip(description["shape"], description["chunks"], strict=True)
    ]
    separator: str = description.get("dimension_separator") or "."
    return (
        separator.join(map(str, index)) or "0" for index in itertools.product(*map(range, counts))
    )


def find_missing_chunk(folder: Any, names: Iterable[str]) -> str | None:
    """Return the first of these chunks without a file in an array's folder; None if all have one.

    TensorStore reads a missing chunk as zeros.
    """
    files = {child.name for child in folder.iterdir() if not child.is_dir()}
    for name in names:
        if name not in files and not ("/" in name and (folder / name).is_file()):
            return name
    return None


def _read_array(tensorstore: Any, spec: dict[str, Any], file: str, name: str) -> None:
    try:
        tensorstore.open(spec, open=True).result().read().result()
    except Exception as error:  # noqa: BLE001 (TensorStore raises ValueError, OSError and its own)
        damage = _convert_error(file, error)
        raise _DamagedError(damage.file, f"{damage.what} (array {name})") from None


def _convert_error(place: str, error: Exception) -> Damage:
    """Return the file that an error of TensorStore names, else `place`, and the reason."""
    text = next(iter(str(error).splitlines()), "") or type(error).__name__
    named = re.search(r'file "([^"]+)"', text)
    reason = text.split(" [source", 1)[0]
    return Damage(named[1] if named else place, f"it can't be read: {reason[:160]}")


def explain_damage(checkpoint: str, damage: Damage, *, resumes: bool) -> UserError:
    """Return the error about a damaged checkpoint: the file, and the newest complete checkpoint.

    Args:
      checkpoint: the damaged checkpoint_N.
      damage: what find_damage returned.
      resumes: whether a run would resume from it; otherwise it would only read its weights.
    """
    folder, name = run_folders.split_checkpoint_path(checkpoint)
    step = run_folders.parse_checkpoint_step(checkpoint)
    what = f"{damage.what}, so {name} can't be restored"
    whole = _find_newest_complete(folder, step) if step is not None else None
    if whole is None:
        do = "restore the file from a copy, or start anew in another folder"
        return UserError(f"{what}; no checkpoint before it is whole", damage.file, do, kind=DAMAGED)
    own = f"{folder}/{name}"
    if resumes:
        do = f"to go on from {whole}, move the damaged one away: mv {own} {folder}/damaged_{name}"
    else:
        do = f"name {folder}/{whole} instead"
    return UserError(f"{what}; {whole} is whole", damage.file, do, kind=DAMAGED)


def _find_newest_complete(folder: str, before: int) -> str | None:
    """Return the name of the newest checkpoint before a step that has no damaged file."""
    names: dict[int, str] = {}
    for path in run_folders.make_path(folder).iterdir():
        step = run_folders.parse_checkpoint_step(path.name)
        if step is not None and step < before:
            names[step] = path.name
    for step in sorted(names, reverse=True):
        if find_damage(f"{folder}/{names[step]}", read_values=True) is None:
            return names[step]
    return None
