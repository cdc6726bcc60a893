"""Run the whole self-test: the import check and the training runs, several at a time."""

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
from rosetta.presets import flag_check
from rosetta.selftest import import_check, load_workload, shipped_modules, training
from rosetta.selftest.child_process import Context

if TYPE_CHECKING:
    from rosetta.selftest.workload import Workload


@dataclass(frozen=True)
class Options:
    """The options of the self-test.

    Attributes:
        framework: The framework to test.
        distribution: The distribution of the environment, if it is known.
        steps: The number of steps before the restore.
        devices: The number of devices of each training run.
        workdir: The folder for checkpoints and logs; None for a temporary one.
        with_imports: Whether to import every module.
        with_training: Whether to train.
        keep: Whether to keep a temporary folder if all is well.
        jobs: The number of child processes at a time.
    """

    framework: str
    distribution: str | None = None
    steps: int = 20
    devices: tuple[int, ...] = (1, 4)
    workdir: Path | None = None
    with_imports: bool = True
    with_training: bool = True
    keep: bool = False
    jobs: int = 1


def report_progress(line: str) -> None:
    """Print a line of progress."""
    log.info(line, prefix=False)


def make_workdir(options: Options) -> Path:
    """Create a new folder, in `options.workdir` if that is given, and return its path.

    Raises:
        UserError: The folder cannot be created.
    """
    try:
        if options.workdir is not None:
            options.workdir.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="rosetta-selftest-", dir=options.workdir)).resolve()
    except OSError as error:
        raise UserError(
            f"cannot create a folder in it: {error.strerror}",
            str(options.workdir or tempfile.gettempdir()),
            "name a writable folder with --workdir",
        ) from None


def import_packages(
    context: Context, workload: Workload, known_failures: dict[str, str], workdir: Path
) -> import_check.ImportResult:
    """Import every module of the framework's packages and of rosetta."""
    total = import_check.ImportResult()
    for package in (*workload.packages, "rosetta"):
        result = import_check.check_package(
            context, package, known_failures, framework=workload.framework, workdir=workdir
        )
        context.report(
            f"{package}: {result.modules} modules, {len(result.failed)} failed, "
            f"{len(result.skipped)} skipped"
        )
        total += result
    return total


def check_preset_flags(framework: str) -> tuple[int, list[str]]:
    """Check the XLA flags of a framework's presets.

    Returns:
        The number of flags, and a line for each flag that XLA does not know.
    """
    try:
        flags = flag_check.collect_flags(framework)
        return len(flags), flag_check.find_refused_flags(framework)
    except LookupError as error:
        return 0, [f"JAX cannot be asked: {error}"]


def run_checks(
    context: Context,
    workload: Workload,
    known_failures: dict[str, str],
    workdir: Path,
    options: Options,
) -> tuple[list[training.TrainingRun], import_check.ImportResult]:
    """Run the training runs and the import check, `options.jobs` at a time.

    Whatever interrupts them, all child processes end before this returns.
    """
    device_counts = options.devices if options.with_training else ()
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        try:
            # Training takes longest, so it starts first. The imports use what is free at the end.
            training_jobs = [
                pool.submit(
                    training.train_and_resume,
                    context,
                    workload,
                    workdir / f"devices-{devices}",
                    steps=options.steps,
                    devices=devices,
                )
                for devices in device_counts
            ]
            import_job = None
            if options.with_imports:
                import_job = pool.submit(
                    import_packages, context, workload, known_failures, workdir
                )
            runs = [job.result() for job in training_jobs]
            return runs, import_job.result() if import_job else import_check.ImportResult()
        except BaseException:
            context.stop.set()
            raise


def run_selftest(options: Options) -> dict[str, Any]:
    """Run the self-test.

    Returns:
        The document that `rosetta selftest --json` prints. Its key `ok` is the verdict.

    Raises:
        UserError: The folder cannot be created, the list of known failures is not valid, or a
            package is not installed.
    """
    workload = load_workload(options.framework)
    known_failures = shipped_modules.read_known_failures(options.framework, options.distribution)
    workdir = make_workdir(options)
    # The cache is outside `workdir` if the user gave a folder: other runs there use it again.
    cache = (options.workdir.resolve() if options.workdir else workdir) / "jax-cache"
    context = Context(cache, report_progress)
    keep = options.keep or options.workdir is not None
    report_progress(f"self-test of {options.framework} in {workdir}")
    try:
        runs, imports = run_checks(context, workload, known_failures, workdir, options)
    except KeyboardInterrupt:
        if not keep:
            shutil.rmtree(workdir)
        raise
    flag_count, refused = 0, list[str]()
    if options.with_imports:
        flag_count, refused = check_preset_flags(workload.framework)
    problems = _list_problems(runs, imports, refused)
    if not problems and not keep:
        shutil.rmtree(workdir)
        for run in runs:
            run.checkpoint = None
    return {
        "framework": options.framework,
        "imports": {
            "modules": imports.modules,
            "skipped": imports.skipped,
            "failed": imports.failed,
        },
        "presets": {"flags": flag_count, "refused": refused},
        "runs": [run.as_json() for run in runs],
        "workdir": str(workdir) if workdir.exists() else None,
        "ok": not problems,
        "problems": problems,
    }


def _list_problems(
    runs: list[training.TrainingRun], imports: import_check.ImportResult, refused: list[str]
) -> list[str]:
    """Return a line for each problem of the self-test; `refused` are the lines about flags."""
    problems = [f"cannot import {name}: {error}" for name, error in imports.failed.items()]
    problems += [f"the flag of a preset: {line}" for line in refused]
    for run in runs:
        problems += [f"{run.devices} device(s): {problem}" for problem in run.problems]
    return problems


def choose_job_count() -> int:
    """Return how many child processes to run at a time, at most 3.

    Each uses about one core and 2 GB of memory; 3 GiB are counted for each.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(3, len(os.sched_getaffinity(0)), memory // (3 << 30)))
