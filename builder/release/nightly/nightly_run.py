"""A nightly run: its folder, its copy of the manifest, and the record of each step.

A run that was killed continues from its records.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.core.cache import remove_path, stage_key
from builder.core.secrets import redact_document
from builder.core.subprocesses import output_end
from builder.release.bump import journal, working_copy
from rosetta.core.atomic_files import is_temporary, write_atomic
from rosetta.core.errors import EXISTS, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest

# The states of a step:
#   ok        it ended with status 0
#   held      a bump did not move a pin to the tip
#   left-out  it was not meant to run
#   failed    a check failed
#   error     it could not be done
#   blocked   an earlier step that it needs did not succeed
GREEN_STATES = ("ok", "held", "left-out")
_FINAL_STATES = ("ok", "held")  # such a step is not run again
_FILE = "night.json"
_REPORTS = "reports"


@dataclass(frozen=True)
class Step:
    """Commands of `build.py` that belong together. The result of the last one is the step's result.

    Attributes:
        name: The name of the step, which is the name of its files.
        stage: The stage that the step is part of.
        subject: The source, line, distribution, accelerator or architecture that the step is for.
        commands: The arguments of `build.py` for each command.
        key: The hash of everything that decides the result.
    """

    name: str
    stage: str
    subject: Mapping[str, str]
    commands: tuple[tuple[str, ...], ...]
    key: str


@dataclass(frozen=True)
class StepRecord:
    """The outcome of a step.

    Attributes:
        name: The name of the step.
        stage: The stage that the step is part of.
        subject: The source, line, distribution, accelerator or architecture that the step is for.
        state: One of the states above.
        seconds: How long the step took when it last ran.
        commands: The arguments of `build.py` for each command.
        result: The result of the last command.
        error: Why the step did not succeed.
        key: The key of the step.
    """

    name: str
    stage: str
    subject: Mapping[str, str]
    state: str
    seconds: float = 0.0
    commands: tuple[tuple[str, ...], ...] = ()
    result: dict[str, Any] = field(default_factory=dict)
    error: dict[str, str] | None = None
    key: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the step need not run again."""
        return self.state in _FINAL_STATES

    def as_json(self) -> dict[str, Any]:
        """Return the record as its file has it."""
        return {
            "schema": 1,
            "name": self.name,
            "stage": self.stage,
            "about": dict(self.subject),
            "state": self.state,
            "seconds": self.seconds,
            "commands": self.commands,
            "result": self.result,
            "error": self.error,
            "key": self.key,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StepRecord:
        """Return the record that a file has.

        Raises:
            ValueError, TypeError, KeyError: the file does not have the expected form.
        """
        fields = dict(data)
        if fields.pop("schema") != 1:
            raise ValueError(data["schema"])
        fields["subject"] = fields.pop("about")
        fields["commands"] = tuple(tuple(command) for command in fields["commands"])
        return cls(**fields)


@dataclass(frozen=True)
class NightlyRun:
    """The folder of a nightly run.

    Attributes:
        folder: The folder.
        date: The day of the run, as YYYY-MM-DD in UTC.
        start_digest: The hash of the manifest and the files that it names before any pin moved,
            or "" if the run was killed before the copy was complete.
        executable_files: The executable files of the copy. Workflow artifacts do not keep the
            permissions of files.
    """

    folder: Path
    date: str
    start_digest: str
    executable_files: tuple[str, ...] = ()

    @property
    def tree(self) -> Path:
        """The copy of the manifest and the files that it names."""
        return self.folder / "tree"

    @property
    def manifest_path(self) -> Path:
        """The copy of the manifest, whose pins the run moves."""
        return self.tree / working_copy.FILE

    def read_record(self, name: str) -> StepRecord | None:
        """Return the record of a step, or None if there is none that is valid."""
        try:
            data = json.loads(self._step_file(f"{name}.json").read_text(encoding="utf-8"))
            return StepRecord.from_json(data)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def read_records(self) -> list[StepRecord]:
        """Return all valid records, by the name of the step."""
        names = sorted(path.stem for path in (self.folder / "steps").glob("*.json"))
        return [record for name in names if (record := self.read_record(name))]

    def save_record(self, record: StepRecord) -> StepRecord:
        """Write the record of a step, without secrets, and return it."""
        text = json.dumps(redact_document(record.as_json()), indent=1) + "\n"
        write_atomic(self._step_file(f"{record.name}.json"), text)
        return record

    def delete_record(self, name: str) -> None:
        """Delete the record of a step, if there is one."""
        self._step_file(f"{name}.json").unlink(missing_ok=True)

    def log_file(self, name: str) -> Path:
        """Return where the output of a step goes."""
        return self._step_file(f"{name}.log")

    def write_description(self) -> None:
        """Write the date and the start of the run."""
        description = {
            "schema": 1,
            "date": self.date,
            "start": self.start_digest,
            "executable": list(self.executable_files),
        }
        write_atomic(self.folder / _FILE, json.dumps(description) + "\n")

    def _step_file(self, name: str) -> Path:
        return self.folder / "steps" / name


def open_run(
    context: Context, manifest: Manifest, folder: Path, date: str, *, may_begin: bool, fresh: bool
) -> NightlyRun:
    """Return the nightly run in a folder: the existing one if it is of this day, else a new one.

    Args:
        context: The context of the builder's command.
        manifest: The manifest of the checkout.
        folder: The folder of the run.
        date: The day of the run, or "" for the day of the existing run.
        may_begin: Whether a new run may begin. It also begins if the manifest has changed.
        fresh: Whether a new run begins in any case.

    Raises:
        UserError: there is no run to continue, or the folder has other files.
    """
    existing = _read_description(folder / _FILE)
    if existing is None:
        _check_folder(folder)
    elif (
        not fresh
        and existing.start_digest
        and date in ("", existing.date)
        and not (may_begin and existing.start_digest != _hash_start(manifest, context))
    ):
        _restore_permissions(existing)
        return existing
    if not may_begin:
        raise UserError(
            f"there is no nightly run of {date} to continue"
            if date
            else "there is no nightly run to continue",
            str(folder),
            "start with --only bump, or copy the folder from the machine that did",
            kind=MISSING,
            value=date,
        )
    return _begin_run(context, manifest, folder, date)


def _check_folder(folder: Path) -> None:
    """Refuse a folder with files that are not from a nightly run."""
    is_other_file = folder.exists() and not folder.is_dir()
    has_other_files = folder.is_dir() and any(
        not is_temporary(entry.name) for entry in folder.iterdir()
    )
    if is_other_file or has_other_files:
        raise UserError(
            "has files that are not from a nightly run",
            str(folder),
            "give a new or an empty --folder; nothing was changed",
            kind=EXISTS,
        )


def _restore_permissions(run: NightlyRun) -> None:
    for path in run.tree.rglob("*"):
        if path.relative_to(run.tree).as_posix() in run.executable_files:
            path.chmod(0o755)


def _begin_run(context: Context, manifest: Manifest, folder: Path, date: str) -> NightlyRun:
    """Start a nightly run in a folder. The reports of earlier runs stay."""
    run = NightlyRun(folder, date, "")
    run.write_description()  # a run that is killed from here on begins anew
    for entry in folder.iterdir():
        if entry.name not in (_REPORTS, _FILE):
            remove_path(entry)
    old_journal = journal.load_journal(context.cache, run.manifest_path)
    if old_journal:
        old_journal.delete()  # it belongs to a copy that was removed
    working_copy.copy_manifest(manifest, context.manifest_path, run.tree)
    executable_files = sorted(
        path.relative_to(run.tree).as_posix()
        for path in run.tree.rglob("*")
        if working_copy.is_executable(path)
    )
    start_digest = _hash_start(manifest, context)
    run = replace(run, start_digest=start_digest, executable_files=tuple(executable_files))
    run.write_description()
    return run


def _hash_start(manifest: Manifest, context: Context) -> str:
    """Return the hash of the manifest of the checkout and the files that it names."""
    names = {context.manifest_path.name: None, "locks": None}
    for source in manifest.sources.values():
        names |= {str(path): None for path in (source.patches, source.overlay) if path}
    return working_copy.hash_files(manifest.root, names)


def _read_description(file: Path) -> NightlyRun | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["schema"] == 1 and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", data["date"]):
            return NightlyRun(
                file.parent, data["date"], str(data["start"]), tuple(data["executable"])
            )
    except (OSError, ValueError, TypeError, KeyError):
        pass
    return None


def step_key(run: NightlyRun, context: Context, **inputs: Any) -> str:
    """Return the key of a step: the hash of the copy, of this repository, and of other inputs."""
    return stage_key(
        "night",
        {
            "tree": working_copy.hash_files(run.tree),
            "ours": working_copy.hash_files(context.root, working_copy.REPOSITORY_FILES),
            **inputs,
        },
    )


def run_step(context: Context, run: NightlyRun, step: Step) -> StepRecord:
    """Run a step, unless it succeeded before with the same key, and save its record.

    The output of its commands goes to the step's log file.
    """
    known = run.read_record(step.name)
    if known and known.is_final and known.key == step.key:
        log.info(f"{step.name}: already done ({known.state})")
        return known
    start = time.monotonic()
    with log.stage(step.name):
        status, document = _run_commands(context, step.commands, run.log_file(step.name))
    if status == 130:
        raise KeyboardInterrupt
    failed_check = "held" if step.stage == "bump" else "failed"
    state = {0: "ok", 1: failed_check}.get(status, "error")
    record = StepRecord(
        step.name,
        step.stage,
        step.subject,
        state,
        round(time.monotonic() - start, 1),
        step.commands,
        document.get("result") or {},
        document.get("error"),
        step.key,
    )
    if not record.is_final:
        reason = f": {UserError(**record.error)}" if record.error else ""
        log.info(f"{step.name}: {state}{reason}; see {run.log_file(step.name)}")
    return run.save_record(record)


def _run_commands(
    context: Context, commands: Sequence[Sequence[str]], log_file: Path
) -> tuple[int, dict[str, Any]]:
    """Run commands of `build.py` until one fails.

    Returns:
        The exit status and the JSON document of the last command.
    """
    options = _common_options(context)
    status, document = 0, dict[str, Any]()
    write_atomic(log_file, "")
    with open(log_file, "ab") as output:
        for command in commands:
            argv = [sys.executable, str(context.root / "build.py"), *command, *options, "--json"]
            done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=output, check=False)
            status = done.returncode
            document = _parse_document(done.stdout, status, log_file)
            if status:
                break
    return status, document


def _common_options(context: Context) -> list[str]:
    """Return the options that every command of a nightly run gets from the user's command."""
    options = []
    for folder in context.mirrors:
        options += ["--mirror", str(folder)]
    if context.offline:
        options.append("--offline")
    for protocol in context.protocols:
        if protocol not in ("https", "ssh"):
            options += ["--allow-protocol", protocol]
    return options


def _parse_document(stdout: bytes, status: int, log_file: Path) -> dict[str, Any]:
    """Return the JSON document of a command, or one with an error if the command printed none."""
    try:
        document = json.loads(stdout)
        if isinstance(document, dict) and document.get("schema") == 1:
            return document
    except ValueError:
        pass
    end = output_end(log_file.read_bytes())
    return {
        "error": {
            "what": f"ended with status {status} and no report: {end}",
            "where": "",
            "do": f"correct that, then run again (the output is in {log_file.name})",
        }
    }


def mark_as_held(record: StepRecord, problem: str) -> StepRecord:
    """Return the record of a bump whose pin was moved back.

    The record has no key, because the copy is no longer as the bump left it.

    Args:
        record: The record of the bump.
        problem: Why the pin was moved back.
    """
    sources = {
        name: {**source, "pin": source["from"], "ok": False, "taken_back": problem}
        for name, source in record.result.get("sources", {}).items()
    }
    summary = dict.fromkeys(sources, "held")
    result = {**record.result, "sources": sources, "summary": summary}
    return replace(record, state="held", key="", result=result)
