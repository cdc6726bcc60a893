"""The whole selftest: imports and runs side by side, one verdict."""

from __future__ import annotations

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import log
from rosetta.core.errors import UserError
from rosetta.presets import flag_check as presets
from rosetta.selftest import import_check, load_workload, shipped_modules, training
from rosetta.selftest.child_process import Context

if TYPE_CHECKING:
    from rosetta.selftest.workload import Workload


@dataclass(frozen=True)
class Options:
    """What was asked for; `workdir` None means a temporary one."""

    framework: str
    distribution: str | None = None
    steps: int = 20
    devices: tuple[int, ...] = (1, 4)
    workdir: Path | None = None
    with_imports: bool = True
    with_training: bool = True
    keep: bool = False  # what is in a temporary workdir; a given one is kept anyway
    jobs: int = 1


def report_progress(line: str) -> None:
    """Report progress."""
    log.info(line, prefix=False)


def make_workdir(options: Options) -> Path:
    """Return a fresh folder, inside the caller's workdir where one is given."""
    try:
        if options.workdir is not None:
            options.workdir.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="rosetta-selftest-", dir=options.workdir)).resolve()
    except OSError as error:
        raise UserError(
            f"cannot make a folder to work in: {error.strerror}",
            str(options.workdir or tempfile.gettempdir()),
            "name a writable one with --workdir",
        ) from None


def import_packages(
    context: Context, tiny: Workload, known: dict[str, str], place: Path
) -> import_check.ImportResult:
    """Import every module of the framework's packages and of rosetta."""
    total = import_check.ImportResult()
    for package in (*tiny.packages, "rosetta"):
        found = import_check.check_package(
            context, package, known, framework=tiny.framework, workdir=place
        )
        context.report(
            f"{package}: {found.modules} modules, {len(found.failed)} failed, "
            f"{len(found.skipped)} skipped"
        )
        total += found
    return total


def check_preset_flags(framework: str) -> tuple[int, list[str]]:
    """Return how many flags of XLA a framework's presets set, and a line for each that XLA does not
    take.
    """
    try:
        return len(presets.collect_flags(framework)), presets.find_refused_flags(framework)
    except LookupError as error:
        return 0, [f"JAX could not be asked: {error}"]


def run_checks(
    context: Context, tiny: Workload, known: dict[str, str], place: Path, options: Options
) -> tuple[list[training.TrainingRun], import_check.ImportResult]:
    """Do everything, `options.jobs` things at a time; whatever interrupts it ends the children
    first.
    """
    counts = options.devices if options.with_training else ()
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        try:
            # The longest first: imports fill the gap at the end.
            running = [
                pool.submit(
                    training.train_and_resume,
                    context,
                    tiny,
                    place / f"devices-{n}",
                    steps=options.steps,
                    devices=n,
                )
                for n in counts
            ]
            importing = (
                pool.submit(import_packages, context, tiny, known, place)
                if options.with_imports
                else None
            )
            runs = [run.result() for run in running]
            return runs, importing.result() if importing else import_check.ImportResult()
        except BaseException:
            context.stop.set()
            raise


def run_selftest(options: Options) -> dict[str, Any]:
    """Run it; return the result document, whose `ok` is the verdict."""
    tiny = load_workload(options.framework)
    known = shipped_modules.read_known_failures(options.framework, options.distribution)
    place = make_workdir(options)
    context = Context(
        (options.workdir.resolve() if options.workdir else place) / "jax-cache", report_progress
    )
    keep = options.keep or options.workdir is not None
    report_progress(f"selftest of {options.framework} in {place}")
    try:
        runs, found = run_checks(context, tiny, known, place, options)
    except KeyboardInterrupt:
        if not keep:
            shutil.rmtree(place)
        raise
    flags, refused = check_preset_flags(tiny.framework) if options.with_imports else (0, [])
    problems = [f"cannot import {name}: {error}" for name, error in found.failed.items()]
    problems += [f"a preset's flag: {line}" for line in refused]
    problems += [f"{run.devices} device(s): {problem}" for run in runs for problem in run.problems]
    if not problems and not keep:
        shutil.rmtree(place)
        for run in runs:
            run.checkpoint = None
    return {
        "framework": options.framework,
        "imports": {"modules": found.modules, "skipped": found.skipped, "failed": found.failed},
        "presets": {"flags": flags, "refused": refused},
        "runs": [run.as_json() for run in runs],
        "workdir": str(place) if place.exists() else None,
        "ok": not problems,
        "problems": problems,
    }


def choose_job_count() -> int:
    """Return how many children to run at once: each wants about a core and 2 GB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(3, len(os.sched_getaffinity(0)), memory // (3 << 30)))
