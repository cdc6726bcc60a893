"""Import every shipped module of a package, for the self-test.

The imports run in child processes, so that a module that fails, exits or ends the interpreter does
not hide the others.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rosetta.selftest import FRAMEWORKS, child_process, shipped_modules

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from rosetta.selftest.child_process import Context

TIMEOUT = 900.0  # seconds for one package
RETRIES = 8  # the most failed modules that are imported again, each alone in a new interpreter
_FOR_ANOTHER_FRAMEWORK = "is for another framework"
_NOT_SHIPPED = "listed as not importable, but no longer shipped: remove the entry"
_IMPORTABLE = "listed as not importable, but imports fine: remove the entry"


@dataclass(frozen=True)
class ImportResult:
    """The result of importing the modules of one package or of several.

    Attributes:
        modules: The number of modules.
        skipped: The modules that did not have to be importable, each with the reason.
        failed: The modules that failed, each with what happened.
    """

    modules: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def __add__(self, other: ImportResult) -> ImportResult:
        return ImportResult(
            self.modules + other.modules, self.skipped | other.skipped, self.failed | other.failed
        )


def _read_results(path: Path) -> tuple[dict[str, str | None], str | None]:
    """Read the file of results that `rosetta.selftest.importer` writes.

    Returns:
        The error of each module whose import ended (None if it succeeded), and the module whose
        import did not end.
    """
    done: dict[str, str | None] = {}
    running = None
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        record = json.loads(line)
        running = record.get("start")
        if running is None:
            done[record["done"]] = record["error"]
    return done, running


def import_modules(
    context: Context, names: Sequence[str], workdir: Path, label: str
) -> dict[str, str | None]:
    """Import modules in their order in a child process.

    If a module ends the interpreter, the rest is imported in another child process.

    Args:
        context: What the child processes of the self-test share.
        names: The modules.
        workdir: The folder for the files of the child process.
        label: The beginning of the names of these files.

    Returns:
        The error of each module; None if it was imported.
    """
    outcomes: dict[str, str | None] = {}
    todo, results, log = (workdir / f"{label}.{suffix}" for suffix in ("todo", "results", "log"))
    while remaining := [name for name in names if name not in outcomes]:
        todo.write_text("\n".join(remaining), encoding="utf-8")
        results.unlink(missing_ok=True)
        argv = [sys.executable, "-P", "-m", "rosetta.selftest.importer", str(todo), str(results)]
        status = child_process.run_process(context, argv, log, env={}, timeout=TIMEOUT)
        done, running = _read_results(results)
        outcomes |= done
        ending, log_end = child_process.describe_exit(status), child_process.read_log_end(log, 4)
        if running is not None:
            outcomes[running] = f"importing it ended Python: the process {ending}\n{log_end}"
        elif not done:
            reason = f"Python {ending} before the first import\n{log_end}"
            return outcomes | dict.fromkeys(remaining, reason)
    return outcomes


def check_package(
    context: Context,
    package: str,
    known_failures: dict[str, str],
    *,
    framework: str,
    workdir: Path,
) -> ImportResult:
    """Import all modules of a package.

    Args:
        context: What the child processes of the self-test share.
        package: The top-level package.
        known_failures: The modules of any package that cannot be imported, each with the reason.
        framework: The framework of the environment. rosetta's modules for others are skipped.
        workdir: The folder for the files of the child processes.
    """
    names = shipped_modules.list_modules(package)
    other_frameworks = [f"rosetta.{other}" for other in FRAMEWORKS if other != framework]
    foreign = [name for name in names if _is_below(name, other_frameworks)]
    known = {
        name: reason for name, reason in known_failures.items() if name.partition(".")[0] == package
    }
    expected = [name for name in names if name not in foreign and name not in known]
    # Known failures come last: a failed import leaves things behind in the interpreter.
    outcomes = import_modules(
        context,
        [*expected, *(name for name in names if name in known)],
        workdir,
        f"imports-{package}",
    )
    errors = {name: outcomes[name] for name in expected}
    failed = _retry_alone(
        context, {name: error for name, error in errors.items() if error is not None}, workdir
    )
    not_shipped = dict.fromkeys((name for name in known if name not in names), _NOT_SHIPPED)
    importable = dict.fromkeys(
        (name for name in known if name in outcomes and outcomes[name] is None), _IMPORTABLE
    )
    skipped = dict.fromkeys(foreign, _FOR_ANOTHER_FRAMEWORK)
    for name, reason in known.items():
        if name not in not_shipped and name not in importable:
            skipped[name] = reason
    return ImportResult(len(names), skipped, failed | not_shipped | importable)


def _is_below(name: str, packages: Iterable[str]) -> bool:
    """Return whether a module is one of the packages or in one of them."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _retry_alone(context: Context, failed: dict[str, str], workdir: Path) -> dict[str, str]:
    """Import failed modules again, each in a new interpreter, and return those that fail again.

    Users import a module alone, and beside others it can fail for another's fault. A module that
    was not found would not be found again.
    """
    names = [name for name, error in failed.items() if not error.startswith("ModuleNotFoundError")]
    if len(names) > RETRIES:
        return failed
    still_failed = dict(failed)
    for name in names:
        error = import_modules(context, [name], workdir, f"imports-{name}")[name]
        if error is None:
            del still_failed[name]
        else:
            still_failed[name] = error
    return still_failed
