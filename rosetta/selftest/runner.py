"""Run the whole self-test: training runs, the import check, and a check of the presets' flags.

The training runs and the import check use child processes, several at a time.
"""

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

_MAX_JOBS = 3
_MEMORY_PER_JOB = 3 << 30  # bytes; a child process uses about 2 GB, and one core


@dataclass(frozen=True)
class Options:
    """The options of the self-test, as `rosetta selftest` takes them.

    Attributes:
        framework: The framework to test.
        distribution: The distribution of the environment, if it is known.
        steps: The number of steps before the restore.
        devices: The number of devices of each training run.
        workdir: The folder in which a new folder for checkpoints and logs is created and kept;
            None for the folder of temporary files.
        with_imports: Whether to import every module and to check the presets' flags.
        with_training: Whether to train.
        keep: Whether to keep the new folder even without `workdir`. Otherwise it is deleted, unless
            the self-test found a problem.
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
    """Print a line of progress, without the prefix of its log level."""
    log.info(line, prefix=False)


def make_output_folder(options: Options) -> Path:
    """Create a new folder for this self-test, in `options.workdir` if it is set; return its path.

    Raises:
        UserError: The folder cannot be created.
    """
    try:
        if options.workdir is not None:
            options.workdir.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="rosetta-selftest-", dir=options.workdir)).resolve()
    except OSError as error:
        raise UserError(
            f"cannot create the folder of the self-test here: {error.strerror}",
            str(options.workdir or tempfile.gettempdir()),
            "name a writable folder with --workdir",
        ) from None


def import_packages(
    context: Context, workload: Workload, known_failures: dict[str, str], workdir: Path
) -> import_check.ImportResult:
    """Import every module of the framework's packages and of rosetta.

    Args:
        context: What the child processes of the self-test share.
        workload: The tiny model of the framework, which names the packages.
        known_failures: The modules that cannot be imported, each with the reason.
        workdir: The folder for the files of the child processes.
    """
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
        The number of flags, and a line for each flag that XLA refuses. If JAX cannot check the
        flags, the number is 0, and one line says why.
    """
    try:
        flags = flag_check.collect_flags(framework)
        return len(flags), flag_check.find_refused_flags(framework)
    except LookupError as error:
        return 0, [f"JAX cannot check the flags: {error}"]


def run_checks(
    context: Context,
    workload: Workload,
    known_failures: dict[str, str],
    workdir: Path,
    options: Options,
) -> tuple[list[training.TrainingRun], import_check.ImportResult]:
    """Run the training runs and the import check, `options.jobs` at a time.

    All child processes have ended when this function returns or raises. An error or Ctrl-C sets
    `context.stop`, which makes run_process end them.

    Args:
        context: What the child processes of the self-test share.
        workload: The tiny model of the framework.
        known_failures: The modules that cannot be imported, each with the reason.
        workdir: The folder for checkpoints and logs.
        options: The options of the self-test.

    Returns:
        The results of the training runs and of the import check; empty for a part that is off.
    """
    device_counts = options.devices if options.with_training else ()
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        try:
            # Training takes longest, so it starts first. The imports take the next free process.
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
            if import_job is None:
                return runs, import_check.ImportResult()
            return runs, import_job.result()
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
    output = make_output_folder(options)
    # Self-tests with the same --workdir share JAX's cache, so it is not in their own folders.
    cache_parent = options.workdir.resolve() if options.workdir else output
    context = Context(cache_parent / "jax-cache", report_progress)
    keep = options.keep or options.workdir is not None
    report_progress(f"self-test of {options.framework} in {output}")
    try:
        runs, imports = run_checks(context, workload, known_failures, output, options)
    except KeyboardInterrupt:
        if not keep:
            shutil.rmtree(output)
        raise
    flag_count = 0
    flag_problems: list[str] = []
    if options.with_imports:
        flag_count, flag_problems = check_preset_flags(workload.framework)
    problems = _list_problems(runs, imports, flag_problems)
    if not problems and not keep:
        shutil.rmtree(output)
        for run in runs:
            run.checkpoint = None  # deleted with the folder
    return {
        "framework": options.framework,
        "imports": {
            "modules": imports.modules,
            "skipped": imports.skipped,
            "failed": imports.failed,
        },
        "presets": {"flags": flag_count, "refused": flag_problems},
        "runs": [run.as_json() for run in runs],
        "workdir": str(output) if output.exists() else None,
        "ok": not problems,
        "problems": problems,
    }


def _list_problems(
    runs: list[training.TrainingRun], imports: import_check.ImportResult, flag_problems: list[str]
) -> list[str]:
    """Return a line for each problem of the self-test.

    Args:
        runs: The results of the training runs.
        imports: The results of the import check.
        flag_problems: The lines of check_preset_flags.
    """
    problems = [f"cannot import {name}: {error}" for name, error in imports.failed.items()]
    problems += [f"XLA flags of the presets: {line}" for line in flag_problems]
    for run in runs:
        problems += [f"{run.devices} device(s): {problem}" for problem in run.problems]
    return problems


def choose_job_count() -> int:
    """Return how many child processes to run at a time: what cores and memory allow, 1 to 3."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    return max(1, min(_MAX_JOBS, cores, memory // _MEMORY_PER_JOB))
