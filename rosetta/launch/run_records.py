"""The record of each run that `rosetta run` and `rosetta submit` start, for `rosetta runs`.

Each run gets a number. Its record is runs/NUMBER/run.json in rosetta's own folder, and a copy is in
the run's folder, if that is on this machine. On several nodes, the first one writes the copy.

A record has no values of secrets: of variables, and of texts that have the form of a secret.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import home_folder, log, run_description
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import DAMAGED, DENIED, MISSING, UNSUPPORTED, UserError
from rosetta.core.secrets import Mask, is_secret, redact_document, redact_text
from rosetta.core.value_parsing import is_address, parse_digits
from rosetta.launch.rendering import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rosetta.core.run_description import Run

SCHEMA = 1
LOCAL, DOCKER, JOBSET = "local", "docker", "jobset"
SLURM_PLACES = ("slurm", "pyxis", "apptainer")
_RECORD_FILE = "run.json"
_OWN_FOLDER = "rosetta"  # in the folder of a run, for what rosetta writes down about the run
# Fields of a record -> their types, for a record that somebody has changed by hand.
_FIELD_TYPES: dict[str, type | tuple[type, ...]] = {
    "number": int,
    "started": (int, float),
    **dict.fromkeys(("place", "name", "work_folder", "folder"), str),
    **dict.fromkeys(("run", "options", "node", "handle"), dict),
}
# Framework -> the variables that may name the folder of a run; the first that is set counts.
_FOLDER_VARIABLES = {"t5x": ("FT_DIR", "MODEL_DIR"), "pax": ("LOG_DIR",)}


@dataclass(frozen=True)
class RunRecord:
    """A run that was started.

    Attributes:
      number: The number of the run.
      place: Where it runs: a value of --on.
      name: The name of the job, or of the framework and the model.
      started: When it was started, in seconds since 1970.
      work_folder: The folder in which it was started.
      folder: The folder of its checkpoints, as the run sees it; "" if it is not known.
      run: The run description, without the values of secrets.
      secrets: The variables of the description whose values are not in it.
      hidden: The other fields, such as "fdl" or "options.extra", in which a secret was hidden.
      options: The options of the place, as in rendering.Options.
      node: The number of the node and the coordinator, for a run on this machine.
      handle: What the place calls the run: a process, a container, a job or a JobSet.
      status: The exit status of the processes, or None if it is not known.
      again: The number of the run that this one repeats, or None.
      cancelled: Whether `rosetta runs cancel` ended it.
    """

    number: int
    place: str
    name: str
    started: float
    work_folder: str
    folder: str
    run: dict[str, Any]
    secrets: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    node: dict[str, Any] = field(default_factory=dict)
    handle: dict[str, Any] = field(default_factory=dict)
    status: int | None = None
    again: int | None = None
    cancelled: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the record as a JSON document."""
        return {
            "schema": SCHEMA,
            **dataclasses.asdict(self),
            "secrets": list(self.secrets),
            "hidden": list(self.hidden),
        }

    def read_run(self, environment: Mapping[str, str]) -> Run:
        """Return the run to start again, with the values of secrets from the environment.

        Raises:
          UserError: The variable of a secret is not set, or another secret was hidden.
        """
        if self.hidden:
            fields = ", ".join(self.hidden)
            raise UserError(
                f"a secret in {fields} is not in the record of the run",
                f"run {self.number}",
                "start the run again with the command that started it",
                kind=MISSING,
                value=fields,
            )
        document = {**self.run, "env": dict(self.run["env"])}
        for name in self.secrets:
            if not environment.get(name):
                raise UserError(
                    "is a secret, which the record of the run does not have",
                    name,
                    "set the variable to the value that the run had",
                    kind=MISSING,
                    value=name,
                )
            document["env"][name] = environment[name]
        return run_description.parse_run(document)

    def read_options(self) -> Options:
        """Return the options of the place."""
        return Options(**{**self.options, "extra": tuple(self.options.get("extra", ()))})


def find_run_folder(run: Run) -> str:
    """Return the folder of a run's checkpoints, as the run sees it; "" if it is not known."""
    for name in _FOLDER_VARIABLES.get(run.framework, ()):
        if value := run.env.get(name):
            return value
    value = str(run.gin.get("MODEL_DIR", "")).strip("\"'")
    if value:
        return value
    if run.framework == "t5x" and not run.gin:
        # As rosetta.t5x.run.settings chooses it.
        return str(Path(run.env.get("T5X_WORKSPACE_DIR") or ".", f"model_dir_{run.model}"))
    return ""


def make_record(
    place: str,
    run: Run,
    options: Options,
    name: str,
    *,
    node: dict[str, Any] | None = None,
    again: int | None = None,
) -> RunRecord:
    """Return the record of a run that is about to start, with a new number.

    Raises:
      UserError: rosetta's own folder cannot be written to.
      OSError: As UserError.
    """
    document = run.as_json()
    secret_mask = Mask(run.env)

    def hide(text: str) -> str:
        return redact_text(secret_mask.mask_text(text))

    secrets = tuple(
        sorted(
            key for key, value in run.env.items() if is_secret(key, value) or hide(value) != value
        )
    )
    document["env"] = {key: value for key, value in run.env.items() if key not in secrets}
    document, hidden = _hide_secrets(document, hide)
    option_fields, hidden_options = _hide_secrets(dataclasses.asdict(options), hide)
    hidden += [f"options.{name}" for name in hidden_options]
    folder = hide(find_run_folder(run))
    if folder and not is_address(folder) and place == LOCAL:
        folder = os.path.abspath(os.path.expanduser(folder))
    return RunRecord(
        number=_reserve_number(),
        place=place,
        name=hide(name),
        started=time.time(),
        work_folder=os.getcwd(),
        folder=folder,
        run=document,
        secrets=secrets,
        hidden=tuple(hidden),
        options=option_fields,
        node=node or {},
        again=again,
    )


def _hide_secrets(
    document: dict[str, Any], hide: Callable[[str], str]
) -> tuple[dict[str, Any], list[str]]:
    """Return a document without secrets, and the names of the fields that had some."""
    # JSON has no tuples, and a tuple would differ from the list that takes its place.
    plain = json.loads(json.dumps(document))
    redacted = redact_document(plain, hide, keys=True)
    return redacted, [name for name in plain if redacted.get(name) != plain[name]]


def _find_index() -> Path:
    """Return the folder that has the records of all runs."""
    return home_folder.make_home_folder() / "runs"


def _reserve_number() -> int:
    """Return the next number; its folder is made, so that no other process takes it."""
    index = _find_index()
    index.mkdir(mode=0o700, exist_ok=True)
    number = max(_list_numbers(index), default=0) + 1
    while True:
        try:
            (index / str(number)).mkdir(mode=0o700)
        except FileExistsError:
            number += 1
        else:
            return number


def _list_numbers(index: Path) -> list[int]:
    """Return the numbers of all runs, smallest first."""
    names = [path.name for path in index.iterdir()] if index.is_dir() else []
    numbers = [parse_digits(name) for name in names]
    return sorted(number for number in numbers if number)


def write_record(record: RunRecord) -> None:
    """Write a record.

    Raises:
      OSError: The file cannot be written.
    """
    _write_file(_find_index() / str(record.number) / _RECORD_FILE, record)


def _write_file(path: Path, record: RunRecord) -> None:
    """Write the file of a record, which only the user can read."""
    write_atomic(path, json.dumps(record.as_json(), indent=2) + "\n", 0o600)


def try_write_new_record(record: RunRecord) -> None:
    """Write the record of a run that starts, and a copy in the folder of a run on this machine.

    If that is not possible, only warn, because the run itself matters more.
    """
    try:
        write_record(record)
        copy = _find_copy(record)
        if copy:
            _write_file(copy, record)
    except (OSError, UserError) as error:
        log.warn(f"`rosetta runs` will not know this run: its record cannot be written: {error}")


def _find_copy(record: RunRecord) -> Path | None:
    """Return the copy of a record in the folder of the run; None if this node writes none."""
    is_here = record.place == LOCAL and record.folder and not is_address(record.folder)
    if not is_here or record.node.get("node", 0) != 0:
        return None
    return Path(record.folder, _OWN_FOLDER, _RECORD_FILE)


def _list_files(record: RunRecord) -> list[Path]:
    """Return the files that have the record of this run, and not of another with its number.

    A run that was found by its folder may have been started with another ROSETTA_HOME, in which
    its number is that of another run. A later run in the folder replaces the copy.

    Raises:
      OSError: rosetta's own folder cannot be used.
      UserError: As OSError.
    """
    paths = [_find_index() / str(record.number) / _RECORD_FILE, _find_copy(record)]
    files = []
    for path in filter(None, paths):
        with contextlib.suppress(UserError):
            other = _read_file(path, "", "")
            if (other.number, other.place, other.started, other.handle) == (
                record.number,
                record.place,
                record.started,
                record.handle,
            ):
                files.append(path)
    return files


def update_record(record: RunRecord, **changes: Any) -> None:
    """Write changes to the record of a run and to the copy in its folder.

    Other changes that a process has written meanwhile are kept. If nothing can be written, only
    warn, because what happened to the run matters more.

    Args:
      record: The run.
      changes: Fields of the record, and their values.
    """
    try:
        files = _list_files(record)
        if not files:
            log.warn(f"the record of run {record.number} does not exist any more")
        for path in files:
            _write_file(path, dataclasses.replace(_read_file(path, "", ""), **changes))
    except (OSError, UserError) as error:
        log.warn(f"the record of run {record.number} cannot be written: {error}")


def find_record(text: str) -> RunRecord:
    """Return the record of a run that a user names by its number or by its folder.

    Raises:
      UserError: There is no such run, or its record is damaged or of a newer rosetta.
    """
    number = parse_digits(text)
    if number is not None:
        return read_record(number)
    where = f"run {text}"
    path = Path(text).expanduser() / _OWN_FOLDER / _RECORD_FILE
    try:
        return _read_file(path, where, "give the number of a run, see rosetta runs list")
    except UserError as error:
        # A run that did not start has taken the copy of an earlier one with it.
        folder = os.path.abspath(os.path.expanduser(text))
        runs = [run for run in list_records() if run.place == LOCAL and run.folder == folder]
        if error.kind != MISSING or not runs:
            raise
        return runs[-1]


def read_record(number: int) -> RunRecord:
    """Return the record of a run.

    Raises:
      UserError: There is no such run, or its record is damaged or of a newer rosetta.
    """
    path = _find_index() / str(number) / _RECORD_FILE
    return _read_file(path, f"run {number}", "see rosetta runs list")


def _read_file(path: Path, where: str, remedy: str) -> RunRecord:
    """Return the record in a file.

    Args:
      path: The file.
      where: The run, for errors.
      remedy: What to do if there is no such file.

    Raises:
      UserError: See read_record.
    """
    damage = UserError("the record of the run is damaged", where, f"delete {path}", kind=DAMAGED)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        schema = document.pop("schema")
    except (FileNotFoundError, NotADirectoryError):
        raise UserError("there is no such run", where, remedy, kind=MISSING) from None
    except PermissionError:
        raise UserError(
            "the record of the run may not be read",
            where,
            f"ask the user who started the run, or the owner of {path}",
            kind=DENIED,
        ) from None
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise damage from None
    if schema != SCHEMA:
        raise UserError(
            f"the record has the schema {schema!r}",
            where,
            "use the rosetta that started the run",
            kind=UNSUPPORTED,
            value=schema,
        )
    try:
        names = {name: tuple(document.get(name, ())) for name in ("secrets", "hidden")}
        record = RunRecord(**{**document, **names})
    except TypeError:
        raise damage from None
    if not all(isinstance(getattr(record, name), kind) for name, kind in _FIELD_TYPES.items()):
        raise damage
    return record


def list_records() -> list[RunRecord]:
    """Return the records of all runs, oldest first; a line names each that cannot be read."""
    records = []
    for number in _list_numbers(_find_index()):
        try:
            records.append(read_record(number))
        except UserError as error:
            if error.kind != MISSING:  # A number without a record is a run that is just starting.
                log.warn(str(error))
    return records


def discard_record(record: RunRecord) -> None:
    """Delete the record of a run that did not start."""
    with contextlib.suppress(OSError, UserError):
        for path in _list_files(record):
            with contextlib.suppress(OSError):
                path.unlink()
                path.parent.rmdir()
