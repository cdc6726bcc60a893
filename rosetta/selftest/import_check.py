"""Import every shipped module, so that one that fails, exits or takes the interpreter down does not
hide the others.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rosetta.selftest import FRAMEWORKS, child_process, shipped_modules

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rosetta.selftest.child_process import Context

TIMEOUT = 900.0  # seconds for one package
RETRIES = 8  # failed modules that get a second chance, alone in a fresh interpreter


@dataclass(frozen=True)
class ImportResult:
    """What importing did: how many modules there are, which were left out and why, which failed and
    how.
    """

    modules: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def __add__(self, other: ImportResult) -> ImportResult:
        return ImportResult(
            self.modules + other.modules, self.skipped | other.skipped, self.failed | other.failed
        )


def _read_results(path: Path) -> tuple[dict[str, str | None], str | None]:
    """Return module -> error (None: fine) of the finished ones, and the one that was started and
    never finished.
    """
    done: dict[str, str | None] = {}
    running = None
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        record = json.loads(line)
        running = record.get("start")
        if running is None:
            done[record["done"]] = record["error"]
    return done, running


def import_modules(
    context: Context, names: Sequence[str], workdir: Path, label: str
) -> dict[str, str | None]:
    """Import `names` in order in one child process, and in as many more as crashes make necessary;
    return name -> error.
    """
    outcome: dict[str, str | None] = {}
    todo, results, log = (workdir / f"{label}.{kind}" for kind in ("todo", "results", "log"))
    while rest := [name for name in names if name not in outcome]:
        todo.write_text("\n".join(rest), encoding="utf-8")
        results.unlink(missing_ok=True)
        argv = [sys.executable, "-P", "-m", "rosetta.selftest.importer", str(todo), str(results)]
        status = child_process.run_process(context, argv, log, env={}, timeout=TIMEOUT)
        done, running = _read_results(results)
        outcome |= done
        if running is not None:
            outcome[running] = (
                "importing it ended Python: the process "
                f"{child_process.describe_exit(status)}\n{child_process.read_log_end(log, 4)}"
            )
        elif not done:
            reason = (
                f"Python {child_process.describe_exit(status)} before the first import\n"
                f"{child_process.read_log_end(log, 4)}"
            )
            return outcome | dict.fromkeys(rest, reason)
    return outcome


def check_package(
    context: Context, package: str, known: dict[str, str], *, framework: str, workdir: Path
) -> ImportResult:
    """Import all modules of `package`; `known` maps modules that cannot be imported to the
    reason.
    """
    names = shipped_modules.list_modules(package)
    others = {f"rosetta.{other}" for other in FRAMEWORKS if other != framework}
    foreign = {
        n: "another framework's side of rosetta"
        for n in names
        if any(n == o or n.startswith(f"{o}.") for o in others)
    }
    listed = {name: reason for name, reason in known.items() if name.split(".")[0] == package}
    gone = {
        name: "listed as not importable, but no longer shipped: remove the entry"
        for name in listed
        if name not in names
    }
    plain = [name for name in names if name not in foreign and name not in listed]
    # The listed ones last: an import that fails half-way leaves things behind.
    outcome = import_modules(
        context,
        [*plain, *(name for name in names if name in listed)],
        workdir,
        f"imports-{package}",
    )
    failed = {name: error for name in plain if (error := outcome[name]) is not None}
    # What failed beside others may be fine by itself, which is how people import it. A package that
    # is not there stays so.
    doubtful = [
        name for name, error in failed.items() if not error.startswith("ModuleNotFoundError")
    ]
    if len(doubtful) <= RETRIES:
        alone = {
            name: import_modules(context, [name], workdir, f"imports-{name}")[name]
            for name in doubtful
        }
        failed = {
            name: error
            for name, before in failed.items()
            if (error := alone.get(name, before)) is not None
        }
    stale = {
        n: "listed as not importable, but imports fine: remove the entry"
        for n in listed
        if n in outcome and outcome[n] is None
    }
    skipped = foreign | {
        name: reason for name, reason in listed.items() if name not in stale and name not in gone
    }
    return ImportResult(len(names), skipped, failed | gone | stale)
