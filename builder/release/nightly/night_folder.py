"""The folder of a night: the copy that was bumped, images, and a record of each step, so that a
killed night goes on where it was.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.core.cache import remove_path, stage_key
from builder.core.secrets import redact_document
from builder.core.subprocesses import output_end
from builder.release.bump import journal, working_copy
from rosetta.core.atomic_files import is_temporary, write_atomic
from rosetta.core.errors import EXISTS, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest

# ok: status 0; held: a bump left a pin behind; left-out: was meant to be; failed: a check said no;
# error: it could not be done; blocked: something before it is missing.
GOOD = ("ok", "held", "left-out")
SETTLED = ("ok", "held")
_FILE = "night.json"
_KEPT = ("reports", _FILE)  # of nights before


@dataclass(frozen=True)
class Step:
    """Commands of build.py that belong together; the last one's document is the result.

    `key` is of all that decides them.
    """

    name: str
    stage: str
    about: Mapping[str, str]
    commands: tuple[tuple[str, ...], ...]
    key: str


@dataclass(frozen=True)
class Record:
    """What became of a step.

    `commands` as they can be typed after `build.py`; `seconds` of the run that ended in this.
    """

    name: str
    stage: str
    about: Mapping[str, str]
    state: str
    seconds: float = 0.0
    commands: tuple[tuple[str, ...], ...] = ()
    result: dict[str, Any] = field(default_factory=dict)
    error: dict[str, str] | None = None
    key: str = ""

    @property
    def settled(self) -> bool:
        return self.state in SETTLED


@dataclass(frozen=True)
class Night:
    """`date` names the night (YYYY-MM-DD, UTC); `start` is the digest of the manifest and all it
    names before anything moved, "" where it did not get that far.

    `executable` are the files of the copy that are so, since a folder that an artifact of a
    workflow brings has forgotten it.
    """

    folder: Path
    date: str
    start: str
    executable: tuple[str, ...] = ()

    @property
    def root(self) -> Path:
        return self.folder / "tree"

    @property
    def manifest(self) -> Path:
        return self.root / working_copy.FILE

    def record(self, name: str) -> Record | None:
        """Return what is known of a step; None where nothing is, or nothing that can be read."""
        try:
            data = json.loads((self.folder / "steps" / f"{name}.json").read_text(encoding="utf-8"))
            if data.pop("schema") != 1:
                return None
            return Record(**{**data, "commands": tuple(tuple(each) for each in data["commands"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def records(self) -> list[Record]:
        """All of them, by name."""
        names = sorted(path.stem for path in (self.folder / "steps").glob("*.json"))
        return [found for name in names if (found := self.record(name))]

    def remember(self) -> None:
        """Write down which night this is."""
        kept = {
            "schema": 1,
            "date": self.date,
            "start": self.start,
            "executable": list(self.executable),
        }
        write_atomic(self.folder / _FILE, json.dumps(kept) + "\n")

    def save(self, record: Record) -> Record:
        write_atomic(
            self.folder / "steps" / f"{record.name}.json",
            json.dumps(redact_document({"schema": 1, **asdict(record)}), indent=1) + "\n",
        )
        return record


def opened(
    context: Context, shipped: Manifest, folder: Path, date: str, *, begins: bool, fresh: bool
) -> Night:
    """Return the night in `folder`: the one that is there if it is of `date`, else a new one.

    Args:
        context: what the verb works with.
        shipped: the manifest at context.manifest_path.
        folder: where the night is kept.
        date: the day that is meant; "", where nothing begins, for that of the night that is there.
        begins: a night may begin, and does where the one that is there is of another manifest.
        fresh: it begins in any case.

    Raises:
        UserError: nothing is there to go on with, or `folder` holds something else.
    """
    there = _known(folder / _FILE)
    held = (
        [each for each in folder.iterdir() if not is_temporary(each.name)]
        if folder.is_dir()
        else []
    )
    if there is None and (held or (folder.exists() and not folder.is_dir())):
        raise UserError(
            "holds files that are no night of ours",
            str(folder),
            "give a new or an empty --folder; nothing was touched",
            kind=EXISTS,
        )
    if (
        there
        and there.start
        and not fresh
        and date in ("", there.date)
        and not (begins and there.start != _start(shipped, context))
    ):
        for path in there.root.rglob("*"):
            if path.relative_to(there.root).as_posix() in there.executable:
                path.chmod(0o755)
        return there
    if not begins:
        raise UserError(
            f"there is no night{f' of {date}' * bool(date)} to go on with",
            str(folder),
            "begin with the stage bump, or bring the folder of the machine that did",
            kind=MISSING,
            value=date,
        )
    night = Night(folder, date, "")
    night.remember()  # a kill from here on leaves a night that begins anew
    for each in folder.iterdir():
        if each.name not in _KEPT:
            remove_path(each)
    if kept := journal.load_journal(context.cache, night.manifest):
        kept.delete()  # of a copy that is gone
    working_copy.copy_manifest(shipped, context.manifest_path, night.root)
    executable = (
        path.relative_to(night.root).as_posix()
        for path in night.root.rglob("*")
        if working_copy.is_executable(path)
    )
    night = replace(night, start=_start(shipped, context), executable=tuple(sorted(executable)))
    night.remember()
    return night


def _start(shipped: Manifest, context: Context) -> str:
    names = [
        context.manifest_path.name,
        "locks",
        *(
            str(path)
            for source in shipped.sources.values()
            for path in (source.patches, source.overlay)
            if path
        ),
    ]
    return working_copy.hash_files(shipped.root, dict.fromkeys(names))


def _known(file: Path) -> Night | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["schema"] == 1 and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", data["date"]):
            return Night(file.parent, data["date"], str(data["start"]), tuple(data["executable"]))
    except (OSError, ValueError, TypeError, KeyError):
        pass
    return None


def key(night: Night, context: Context, **inputs: Any) -> str:
    """Return the key of a step: the copy as it stands now, our own code, and what is special to the
    step.
    """
    return stage_key(
        "night",
        {
            "tree": working_copy.hash_files(night.root),
            "ours": working_copy.hash_files(context.root, working_copy.REPOSITORY_FILES),
            **inputs,
        },
    )


def run(context: Context, night: Night, step: Step) -> Record:
    """Run a step unless it has settled before with the same key.

    What it says goes to steps/NAME.log.
    """
    known = night.record(step.name)
    if known and known.settled and known.key == step.key:
        log.info(f"{step.name}: done before ({known.state})")
        return known
    shared = [
        *(part for folder in context.mirrors for part in ("--mirror", str(folder))),
        *(["--offline"] if context.offline else []),
    ]
    shared += [
        part
        for name in context.protocols
        if name not in ("https", "ssh")
        for part in ("--allow-protocol", name)
    ]
    start, status, document = time.monotonic(), 0, dict[str, Any]()
    write_atomic(night.folder / "steps" / f"{step.name}.log", "")
    with log.stage(step.name), open(night.folder / "steps" / f"{step.name}.log", "ab") as said:
        for command in step.commands:
            argv = [sys.executable, str(context.root / "build.py"), *command, *shared, "--json"]
            done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=said, check=False)
            status, document = (
                done.returncode,
                _document(
                    done.stdout, done.returncode, night.folder / "steps" / f"{step.name}.log"
                ),
            )
            if status:
                break
    if status == 130:
        raise KeyboardInterrupt
    state = {0: "ok", 1: "held" if step.stage == "bump" else "failed"}.get(status, "error")
    record = Record(
        step.name,
        step.stage,
        step.about,
        state,
        round(time.monotonic() - start, 1),
        step.commands,
        document.get("result") or {},
        document.get("error"),
        step.key,
    )
    if state not in SETTLED:
        log.info(
            f"{step.name}: "
            f"{state}{f': {UserError(**record.error)}' if record.error else ''}; see "
            f"{night.folder / 'steps' / step.name}.log"
        )
    return night.save(record)


def held(moved: Record, problem: str) -> Record:
    """Return a bump whose move was taken back: the pin stands where it stood, and the record says
    why.

    Without its key, since what it says of the copy no longer holds.
    """
    sources = {
        name: {**one, "pin": one["from"], "ok": False, "taken_back": problem}
        for name, one in moved.result.get("sources", {}).items()
    }
    return replace(
        moved,
        state="held",
        key="",
        result={**moved.result, "sources": sources, "summary": dict.fromkeys(sources, "held")},
    )


def _document(stdout: bytes, status: int, log_file: Path) -> dict[str, Any]:
    try:
        found = json.loads(stdout)
        if isinstance(found, dict) and found.get("schema") == 1:
            return found
    except ValueError:
        pass
    end = output_end(log_file.read_bytes())
    return {
        "error": {
            "what": f"ended with status {status} and no report: {end}",
            "where": "",
            "do": f"mend what it names, then run again (its log is {log_file.name})",
        }
    }
