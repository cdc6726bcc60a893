"""Check that the files of a T5X or Paxml checkpoint are complete, and name the damaged file.

The trainers use this before they restore a checkpoint, and supervision before the log says that a
checkpoint is complete.

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
from typing import TYPE_CHECKING, Any, NamedTuple

from rosetta.core import run_folders
from rosetta.core.errors import DAMAGED, UserError
from rosetta.core.value_parsing import is_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_COMMIT_FILE = "commit_success.txt"  # Orbax's mark in object stores, where no folder can be renamed
_MANIFEST = "manifest.ocdbt"
_METADATA_FILES = ("_CHECKPOINT_METADATA", "metadata/metadata", "state/_METADATA", "rosetta.json")
_FIRST_CHUNK = re.compile(r"0(\.0)*")  # the file name of an array's first chunk


@dataclass(frozen=True)
class Damage:
    """A file of a checkpoint that can't be read, and the problem as a clause."""

    file: str
    problem: str


class _DamagedError(Exception):
    """Raised by the checks of this module at the first damaged file."""

    def __init__(self, file: str, problem: str) -> None:
        super().__init__(file, problem)
        self.damage = Damage(file, problem)


def find_damage(checkpoint: str, *, read_values: bool = False) -> Damage | None:
    """Return the first damaged file of a checkpoint; None if all are complete.

    Args:
      checkpoint: a checkpoint_N of T5X or Paxml, on this machine or in an object store.
      read_values: whether to decode every array too. Otherwise only the index is read, and the
        length of each file is compared with the index.
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
    except Exception as error:  # noqa: BLE001 (TensorStore and object stores have their own errors; each means that the checkpoint can't be read)
        return _convert_error(checkpoint, error)
    return None


def find_problem(folder: str, step: int) -> str | None:
    """Return why no run can resume from the checkpoint of a step, as a clause.

    Args:
      folder: the folder that has the checkpoint_N, on this machine or in an object store.
      step: the step of the checkpoint.

    Returns:
      The clause, or None if a run can resume from this checkpoint.
    """
    paths = run_folders.make_path(folder).iterdir() if run_folders.folder_exists(folder) else ()
    for path in paths:
        if run_folders.parse_checkpoint_step(path.name) == step:
            damage = find_damage(f"{folder.rstrip('/')}/{path.name}")
            return f"{damage.file}: {damage.problem}" if damage else None
    newest_step = max(run_folders.list_checkpoint_steps(folder), default=None)
    if newest_step is None:
        return f"{folder} has no checkpoint of step {step:,}"
    return f"{folder} has no checkpoint of step {step:,}, its newest one is of step {newest_step:,}"


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
    has_metadata = False
    for name in _METADATA_FILES:
        path = folder / name
        if not path.exists():
            continue
        has_metadata = has_metadata or name != "rosetta.json"
        try:
            json.loads(path.read_text())
        except ValueError:
            raise _DamagedError(str(path), "the file is cut short or not JSON") from None
    if not has_metadata and not _has_legacy_format(checkpoint):
        raise _DamagedError(f"{checkpoint}/{_METADATA_FILES[0]}", "the file is missing")


def _has_legacy_format(checkpoint: str) -> bool:
    """Return whether a checkpoint is from before Orbax wrote metadata.

    Such a checkpoint has its small arrays in one file, `checkpoint`.
    """
    return any(
        run_folders.make_path(f"{checkpoint}/{name}").exists()
        for name in ("checkpoint", "state/checkpoint")
    )


def _is_ocdbt(folder: str) -> bool:
    """Return whether a folder has an OCDBT database, also one of which files are missing."""
    if run_folders.make_path(f"{folder}/{_MANIFEST}").exists():
        return True
    if run_folders.make_path(f"{folder}/d").is_dir():
        return True
    metadata = run_folders.make_path(f"{folder}/_METADATA")
    return metadata.exists() and bool(json.loads(metadata.read_text()).get("use_ocdbt"))


@dataclass(frozen=True)
class _Database:
    """An opened OCDBT database.

    Attributes:
      folder: the folder that has `manifest.ocdbt`.
      address: the folder as a URL, without a slash at the end.
      files: the files of the folder, as a store of TensorStore.
      values: the values of the database, as a store of TensorStore.
    """

    folder: str
    address: str
    files: Any
    values: Any


class _IndexEntry(NamedTuple):
    """Where the index says that a value is.

    Attributes:
      key: the key of the value, such as "target.scale/0.0".
      file: the file that has the value, "" if the index itself has it.
      end: the offset in the file at which the value ends, in bytes.
    """

    key: str
    file: str
    end: int


def _check_ocdbt(folder: str, *, read_values: bool) -> None:
    """Check the files of a database, that no array or chunk is missing, and maybe all values."""
    # Orbax before 0.6 could put its list of the arrays into `checkpoint` instead of `_METADATA`.
    has_list = run_folders.make_path(f"{folder}/checkpoint").exists()
    for name in (_MANIFEST, *([] if has_list else ["_METADATA"])):
        if not run_folders.make_path(f"{folder}/{name}").exists():
            raise _DamagedError(f"{folder}/{name}", "the file is missing")
    database = _open_database(folder)
    entries = _read_index(database)
    _check_data_files(folder, entries)
    file_of_key = {entry.key: entry.file for entry in entries}
    arrays = _list_arrays(folder, file_of_key)
    for name in arrays:
        _check_chunks(database, name, file_of_key)
    if read_values:
        for name in arrays:
            _read_database_array(database, name, file_of_key)


def _open_database(folder: str) -> _Database:
    """Open the database of a folder, and the folder itself."""
    import tensorstore  # type: ignore[import-not-found]

    address = folder if is_address(folder) else f"file://{folder}"
    files = tensorstore.KvStore.open(f"{address}/").result()
    values = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"{address}/"}).result()
    return _Database(folder, address, files, values)


def _read_index(database: _Database) -> list[_IndexEntry]:
    """Return all entries of the newest version of the index."""
    import tensorstore

    manifest = tensorstore.ocdbt.dump(database.files).result()
    root = manifest["versions"][-1]["root"]["location"]
    return list(_iterate_index(database, root))


def _check_data_files(folder: str, entries: Iterable[_IndexEntry]) -> None:
    """Check that each file which the index names is as long as the index needs."""
    needed_sizes: dict[str, int] = {}
    for entry in entries:
        if entry.file:
            needed_sizes[entry.file] = max(entry.end, needed_sizes.get(entry.file, 0))
    for file, needed in sorted(needed_sizes.items()):
        _check_file_size(f"{folder}/{file}", needed)


def _list_arrays(folder: str, file_of_key: Mapping[str, str]) -> list[str]:
    """Return the arrays of the index, sorted; check that all of Orbax's list are among them."""
    arrays = {
        key.rpartition("/")[0] for key in file_of_key if key.endswith(("/.zarray", "/zarr.json"))
    }
    if missing := sorted(_read_array_names(folder) - arrays):
        raise _DamagedError(
            f"{folder}/{_MANIFEST}",
            f"the array {missing[0]} is missing, and {len(missing) - 1} more",
        )
    return sorted(arrays)


def _check_chunks(database: _Database, name: str, file_of_key: Mapping[str, str]) -> None:
    """Check that the index has every chunk of an array. TensorStore reads a missing one as zeros.

    Only arrays in the format Zarr 2 are checked, which have a `.zarray`.
    """
    description = database.values.read(f"{name}/.zarray").result().value
    if not description:
        return
    for chunk in list_chunk_names(json.loads(description)):
        if f"{name}/{chunk}" not in file_of_key:
            raise _DamagedError(
                f"{database.folder}/{_MANIFEST}", f"the index has no {chunk} of the array {name}"
            )


def _read_database_array(database: _Database, name: str, file_of_key: Mapping[str, str]) -> None:
    """Decode an array of a database. An error that names no file is put down to the first one."""
    import tensorstore

    driver = "zarr3" if any(key.endswith("/zarr.json") for key in file_of_key) else "zarr"
    spec = {
        "driver": driver,
        "kvstore": {"driver": "ocdbt", "base": f"{database.address}/", "path": f"{name}/"},
    }
    files = {file for key, file in file_of_key.items() if file and key.startswith(f"{name}/")}
    first_file = min(files, default=_MANIFEST)
    _read_array(tensorstore, spec, f"{database.folder}/{first_file}", name)


def _check_file_size(file: str, needed: int) -> None:
    """Check that a file exists and has at least `needed` bytes."""
    path = run_folders.make_path(file)
    if not path.exists():
        raise _DamagedError(file, "the file is missing")
    status = path.stat()
    # The paths of object stores, which are those of etils, name the size `length`.
    size = status.length if hasattr(status, "length") else status.st_size
    if size < needed:
        raise _DamagedError(file, f"the file has {size} bytes, and the index needs {needed}")


def _iterate_index(database: _Database, location: str) -> Iterator[_IndexEntry]:
    """Yield the entries below a node of the index; `location` is a reference to the node."""
    import tensorstore

    node_file, _ = _parse_location(location)
    try:
        node = tensorstore.ocdbt.dump(database.files, location).result()
    except Exception as error:  # noqa: BLE001 (TensorStore raises ValueError and its own)
        problem = _convert_error("", error).problem
        raise _DamagedError(f"{database.folder}/{node_file}", problem) from None
    for child in node["entries"]:
        if "location" in child:
            prefix = _decode_key(child.get("subtree_common_prefix", ""))
            for entry in _iterate_index(database, str(child["location"])):
                yield entry._replace(key=prefix + entry.key)
        else:
            file, end = _parse_location(str(child.get("indirect_value", "")))
            yield _IndexEntry(_decode_key(child["key"]), file, end)


def _parse_location(reference: str) -> tuple[str, int]:
    """Return the file and the end offset of a reference: "KIND:FOLDER:FILE:OFFSET:LENGTH".

    The result is ("", 0) for a text that is not a reference.
    """
    match = re.fullmatch(r"\w+:(.*):(\d+):(\d+)", reference)
    if not match:
        return "", 0
    return match[1].replace(":", ""), int(match[2]) + int(match[3])


def _decode_key(key: Any) -> str:
    """Return a key as text. A key may be bytes, or the text of a bytes literal."""
    if isinstance(key, bytes):
        return key.decode()
    text = str(key)
    return ast.literal_eval(text).decode() if text.startswith(("b'", 'b"')) else text


def _read_array_names(folder: str) -> set[str]:
    """Return the arrays that Orbax lists in `_METADATA`; an empty set without this file."""
    path = run_folders.make_path(f"{folder}/_METADATA")
    if not path.exists():
        return set()
    names = set[str]()
    for leaf in json.loads(path.read_text()).get("tree_metadata", {}).values():
        if leaf.get("value_metadata", {}).get("value_type") == "jax.Array":
            names.add(".".join(str(part["key"]) for part in leaf["key_metadata"]))
    return names


def _check_array_folders(checkpoint: str, *, read_values: bool) -> None:
    """Check a checkpoint that has a folder for each array.

    Only the chunks of arrays in the format Zarr 2 are checked, which have a `.zarray`.
    """
    root = run_folders.make_path(checkpoint)
    zarr3_folders = {path.parent for path in root.glob("**/zarr.json")}
    array_folders = {
        str(chunk.parent)
        for chunk in root.glob("**/0*")
        if _FIRST_CHUNK.fullmatch(chunk.name) and zarr3_folders.isdisjoint(chunk.parents)
    }
    for folder in array_folders:
        if not run_folders.make_path(f"{folder}/.zarray").exists():
            raise _DamagedError(f"{folder}/.zarray", "the file is missing")
    descriptions = sorted(root.glob("**/.zarray"), key=str)
    if not descriptions and not zarr3_folders and not _has_legacy_format(checkpoint):
        raise _DamagedError(f"{checkpoint}/state", "the folder has no arrays")
    for path in descriptions:
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
      description: the content of the array's `.zarray`.

    Raises:
      ValueError, KeyError, TypeError, ArithmeticError: the description is not that of an array.
    """
    chunk_counts = [
        -(-size // chunk)
        for size, chunk in zip(description["shape"], description["chunks"], strict=True)
    ]
    separator: str = description.get("dimension_separator") or "."
    return (
        separator.join(map(str, index)) or "0"
        for index in itertools.product(*map(range, chunk_counts))
    )


def find_missing_chunk(folder: Any, names: Iterable[str]) -> str | None:
    """Return the first chunk that has no file; TensorStore would read this chunk as zeros.

    Args:
      folder: the folder of an array, as a path.
      names: the names of all its chunks.

    Returns:
      The name of the missing chunk, or None if all have a file.
    """
    files = {child.name for child in folder.iterdir() if not child.is_dir()}
    for name in names:
        if name not in files and not ("/" in name and (folder / name).is_file()):
            return name
    return None


def _read_array(tensorstore: Any, spec: dict[str, Any], file: str, name: str) -> None:
    """Decode an array. `file` is named if the error of TensorStore names no file."""
    try:
        tensorstore.open(spec, open=True).result().read().result()
    except Exception as error:  # noqa: BLE001 (TensorStore raises ValueError, OSError and its own)
        damage = _convert_error(file, error)
        raise _DamagedError(damage.file, f"{damage.problem} (array {name})") from None


def _convert_error(default_file: str, error: Exception) -> Damage:
    """Return the file that an error of TensorStore names, else `default_file`, and the reason."""
    first_line = next(iter(str(error).splitlines()), "") or type(error).__name__
    file_match = re.search(r'file "([^"]+)"', first_line)
    file = file_match[1] if file_match else default_file
    reason = first_line.split(" [source", 1)[0]
    return Damage(file, f"reading failed: {reason[:160]}")


def explain_damage(checkpoint: str, damage: Damage, *, resumes: bool) -> UserError:
    """Return the error about a damaged checkpoint: the file, and the newest complete checkpoint.

    Args:
      checkpoint: the damaged checkpoint_N.
      damage: what find_damage returned.
      resumes: whether a run would resume from the checkpoint. Otherwise the run would only read
        weights from it.
    """
    folder, name = run_folders.split_checkpoint_path(checkpoint)
    step = run_folders.parse_checkpoint_step(checkpoint)
    problem = f"{damage.problem}, so {name} can't be restored"
    complete = _find_newest_complete(folder, step) if step is not None else None
    if complete is None:
        problem += "; no earlier checkpoint is complete"
        remedy = "restore the file from a copy, or start anew in another folder"
    elif resumes:
        problem += f"; {complete} is complete"
        remedy = (
            f"to resume from {complete}, move the damaged checkpoint away: "
            f"mv {folder}/{name} {folder}/damaged_{name}"
        )
    else:
        problem += f"; {complete} is complete"
        remedy = f"name {folder}/{complete} instead"
    return UserError(problem, damage.file, remedy, kind=DAMAGED)


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
