"""Run the whole self-test: training runs, checks of features, the import check, and a check of
the presets' flags.

All but the last use child processes, several at a time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import control_groups, log
from rosetta.core.errors import UserError
from rosetta.presets import flag_check
from rosetta.selftest import (
    feature_checks,
    import_check,
    load_workload,
    shipped_modules,
    training,
)
from rosetta.selftest.child_process import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

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
        with_training: Whether to train, and to check the features.
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


@dataclass(frozen=True)
class Results:
    """The results of the child processes; empty for a part that is off.

    Attributes:
        runs: The training runs.
        features: The checks of features.
        imports: The import check.
    """

    runs: Sequence[training.TrainingRun]
    features: Sequence[feature_checks.FeatureCheck]
    imports: import_check.ImportResult


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
) -> Results:
    """Run the training runs, the checks of features and the import check.

    `options.jobs` of them run at a time. But the collective, which needs all GPUs, runs alone.

    All child processes have ended when this function returns or raises. An error or Ctrl-C sets
    `context.stop`, which makes run_process end them.

    Args:
        context: What the child processes of the self-test share.
        workload: The tiny model of the framework.
        known_failures: The modules that cannot be imported, each with the reason.
        workdir: The folder for checkpoints and logs.
        options: The options of the self-test.

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
            feature_jobs = _submit_feature_checks(pool, context, workload, workdir, options)
            import_job = None
            if options.with_imports:
                import_job = pool.submit(
                    import_packages, context, workload, known_failures, workdir
                )
            runs = [job.result() for job in training_jobs]
            features = [job.result() for job in feature_jobs]
            imports = import_job.result() if import_job else import_check.ImportResult()
            features.append(_check_collective(context, workdir, options))
            return Results(runs, features, imports)
        except BaseException:
            context.stop.set()
            raise


def _submit_feature_checks(
    pool: ThreadPoolExecutor,
    context: Context,
    workload: Workload,
    workdir: Path,
    options: Options,
) -> list[Future[feature_checks.FeatureCheck]]:
    """Start the checks that train in FP8."""
    return [
        pool.submit(_check_fp8, context, workload, workdir / name, options)
        for name in (feature_checks.FP8, feature_checks.TE)
    ]


def _check_fp8(
    context: Context, workload: Workload, folder: Path, options: Options
) -> feature_checks.FeatureCheck:
    """Train in FP8, by what the name of the folder says, if training is on."""
    if not options.with_training:
        return _skip_without_training(folder.name)
    return feature_checks.train_in_fp8(context, workload, folder, folder.name)


def _check_collective(
    context: Context, workdir: Path, options: Options
) -> feature_checks.FeatureCheck:
    """Sum an array over all devices, if training is on."""
    if not options.with_training:
        return _skip_without_training(feature_checks.COLLECTIVE)
    return feature_checks.sum_over_all_devices(context, workdir, max(options.devices))


def _skip_without_training(name: str) -> feature_checks.FeatureCheck:
    """Return the result of a check while training is off."""
    reason = "--imports-only trains nothing"
    return feature_checks.skip_check(name, feature_checks.OPTION, reason)


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
    flag_count = 0
    flag_problems: list[str] = []
    try:
        results = run_checks(context, workload, known_failures, output, options)
        if options.with_imports:
            flag_count, flag_problems = check_preset_flags(workload.framework)
    except (KeyboardInterrupt, UserError):
        if not keep:
            shutil.rmtree(output)
        raise
    imports = results.imports
    problems = _list_problems(results, flag_problems)
    if not problems and not keep:
        shutil.rmtree(output)
        for run in results.runs:
            run.checkpoint = None  # deleted with the folder
    return {
        "framework": options.framework,
        "imports": {
            "modules": imports.modules,
            "skipped": imports.skipped,
            "failed": imports.failed,
        },
        "presets": {"flags": flag_count, "refused": flag_problems},
        "runs": [run.as_json() for run in results.runs],
        "checks": [check.as_json() for check in results.features],
        "workdir": str(output) if output.exists() else None,
        "ok": not problems,
        "problems": problems,
    }


def _list_problems(results: Results, flag_problems: list[str]) -> list[str]:
    """Return a line for each problem of the self-test.

    Args:
        results: The results of the child processes.
        flag_problems: The lines of check_preset_flags.
    """
    problems = [f"cannot import {name}: {error}" for name, error in results.imports.failed.items()]
    problems += [f"XLA flags of the presets: {line}" for line in flag_problems]
    for run in results.runs:
        problems += [f"{run.devices} device(s): {problem}" for problem in run.problems]
    for check in results.features:
        problems += [f"{check.name}: {problem}" for problem in check.problems]
    return problems


def choose_job_count(read_text: Callable[[str], str] = control_groups.read_file) -> int:
    """Return how many child processes to run at a time, 1 to 3.

    The cores and the memory of this machine limit the number, and so do the limits of this
    process's control groups: those of the container or the job.

    Args:
        read_text: Returns the text of a file, "" if it cannot be read.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory = min([memory, *control_groups.read_memory_limits(read_text)])
    cores = len(os.sched_getaffinity(0))
    usable_cores = int(min([cores, *control_groups.read_core_quotas(read_text)]))
    return max(1, min(_MAX_JOBS, usable_cores, memory // _MEMORY_PER_JOB))
