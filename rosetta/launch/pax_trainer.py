"""From a script's settings to Paxml: every check that needs no JAX, Paxml's command line, and then
its process in place of ours.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import gpu_query, run_folders, xla_flags
from rosetta.core.errors import CONFLICT, MISSING, UserError
from rosetta.core.value_parsing import asks_for_cpu, is_address
from rosetta.doctor import launch_checks
from rosetta.health import run_lock
from rosetta.launch import device_selection, execution, nsight_systems, scripts
from rosetta.launch.execution import Command
from rosetta.pax.run import parameter_count, preflight, settings
from rosetta.pax.run.compilation_cache import cache_works
from rosetta.presets import pax_flags, pax_model_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.pax.run.settings import Settings
    from rosetta.presets.launch_flags import LaunchFlags
    from rosetta.presets.pax_model_options import ModelOptions

LOG_NAMES = {
    "run_pile_singlenode": "pile_output.log",
    "run_lambada_singlenode": "lambada_output.log",
}


def make_commands(
    script: str, words: Sequence[str], environment: Mapping[str, str]
) -> list[Command]:
    """Return what a script runs, one after the other: training, evaluation, or both.

    Args:
      script: its name without suffix.
      words: its positionals.
      environment: the variables.

    Raises:
      UserError: anything that can be known to be wrong before JAX starts.
    """
    found = gpu_query.detect_gpus(environment)
    platforms, no_gpu = gpu_query.select_jax_platforms_or_error(found, environment)
    on_cpu = asks_for_cpu(platforms)
    given = settings.read_settings(
        script,
        words,
        environment,
        device_selection.count_devices(found, environment, on_cpu=on_cpu),
    )
    experiment = preflight.resolve_experiment(given.config)
    preflight.check_hyper_parameter_names(given.config, given.hyper)
    env, notes = _select_devices(given, found, environment, on_cpu=on_cpu)
    flags = pax_flags.select_pax_flags(given, env, found, None, on_cpu=on_cpu).flags
    chosen = pax_model_options.choose_model_options(given, found, flags, on_cpu=on_cpu)
    used = pax_flags.select_pax_flags(given, env, found, chosen, on_cpu=on_cpu)
    xla_flags.check_flags_known(used.user_flags, execution.find_python(env))
    vocab, more = preflight.find_vocabulary(given)
    data = preflight.find_data(given)
    reads = preflight.find_checkpoints(given)
    made = _make_environment(env, given, chosen, used)
    made |= {"VOCAB_PATH": vocab} if vocab else {}
    made |= {**data, "JAX_PLATFORMS": platforms}
    bare = given.llama and "restore" not in reads
    hyper = {**given.hyper, **chosen.hyper}
    preflight.check_sizes(given, hyper)
    preflight.check_files(given, hyper)
    preflight.check_rows(given, hyper)
    saves = (
        given.script != "run_lambada_singlenode"
        and not (given.llama and given.values["EVAL_ONLY"])
        and parameter_count.NO_CHECKPOINTS not in given.words
    )
    folder = (
        f"{given.log_dir}/{_choose_llama_folder(given, hyper)}" if given.llama else given.log_dir
    )
    more = (*more, *(preflight.check_last_step(given, hyper, folder) if saves else ()))
    said, refused = execution.run_checks(
        lambda: (
            run_lock.check_not_in_use(folder, "LOG_DIR") if saves and given.processes == 1 else ()
        ),
        lambda: launch_checks.check_before_launch(env, found, platforms),
        lambda: (
            parameter_count.check_disk_space(given.config, folder, hyper, given.words)
            if saves and not launch_checks.is_disabled(env)
            else ()
        ),
        refused=no_gpu,
    )
    lines = (
        _describe_run(given),
        *said,
        *map(execution.WarningLine, used.lines),
        *chosen.notes,
        *notes,
        *more,
        *(["training starts from nothing: CHECKPOINT_RESTORE_PATH is not set"] if bare else []),
    )
    start = [
        execution.find_python(made),
        "-u",
        "-P",
        "-m",
        "rosetta.pax.train",
        f"--fdl_config={experiment}",
    ]
    start += [f"--tfds_data_dir={data['TFDS_DATA_DIR']}"] if "TFDS_DATA_DIR" in data else []
    start += ["--eval_on_test"] if _evaluates_while_training(given, hyper) else []
    start += (
        ["--multiprocess_gpu"] if given.processes > 1 else []
    )  # no address: JAX finds the coordinator by Slurm's own variables
    return [
        Command(argv, made, log, () if index else lines, refused=None if index else refused)
        for index, (argv, log) in enumerate(_make_command_lines(given, start, hyper, reads))
    ]


def _evaluates_while_training(given: Settings, hyper: Mapping[str, str]) -> bool:
    """Return whether a training run has evaluation data that Paxml is to be asked to read.

    Paxml evaluates every `eval_interval_steps` and after the last step, and only with this option.
    LLaMA's script evaluates by a program of its own.
    """
    asked = bool(given.variables.get("EVAL_DATA")) or hyper.get("EVAL_DATA", "None") != "None"
    is_set = any(
        word.lstrip("-").startswith(("eval_on_test", "noeval_on_test")) for word in given.words
    )
    return asked and not given.llama and not given.evaluates_only and not is_set


def _make_command_lines(
    given: Settings, start: list[str], hyper: Mapping[str, str], reads: Mapping[str, object]
) -> list[tuple[list[str], Path | None]]:
    """Command lines and where each one's output goes; None: to where ours does."""

    def argv(job: str, mode: str, values: Mapping[str, object], *more: str) -> list[str]:
        words = [*start, f"--job_log_dir={job}", f"--mode={mode}", "--alsologtostderr", *more]
        words += [f"--fdl.{name}={value}" for name, value in values.items()] + list(given.words)
        if not given.values["WITH_NSYS"]:
            return words
        output = (
            f"{job}/nsys_{given.variables.get('SLURM_JOB_ID') or os.getpid()}_"
            f"{given.variables.get('SLURM_PROCID', '0')}"
        )
        return nsight_systems.make_profile_command(
            words, output, marked=bool(given.variables.get("PROFILE_STEPS")) and mode == "train"
        )

    # Evaluation ends with this checkpoint, rather than wait for the training run's next one.
    last = {} if reads.get("step") is None else {"MAX_STEPS": reads["step"]}
    if given.script == "run_lambada_singlenode":
        return [
            (
                argv(given.log_dir, "eval", {**hyper, **last}),
                _choose_log(given, LOG_NAMES[given.script]),
            )
        ]
    if not given.llama:
        log = _choose_log(given, LOG_NAMES[given.script]) if given.script in LOG_NAMES else None
        return [(argv(given.log_dir, "train", hyper), log)]
    name = _choose_llama_folder(given, hyper)
    job, log = f"{given.log_dir}/{name}", _choose_log(given, f"logs/{name}.txt")
    restore = reads.get("restore")
    if given.values["EVAL_ONLY"]:
        if not restore:
            raise UserError(
                "it is not given",
                "CHECKPOINT_RESTORE_PATH",
                (
                    "name the folder that holds checkpoints/checkpoint_N to evaluate, or set "
                    "EVAL_ONLY=0"
                ),
                kind=MISSING,
            )
        return [(argv(job, "eval", {**hyper, **last}, f"--evaluate_from={restore}"), log)]
    trained = {**hyper, "CHECKPOINT_RESTORE_PATH": json.dumps(restore)} if restore else hyper
    return [(argv(job, "train", trained), log), (argv(job, "eval", hyper), log)]


def _choose_llama_folder(given: Settings, hyper: Mapping[str, str]) -> str:
    """Return the name of a LLaMA run's folder."""
    before = f"llama-{given.config}-mbs-{hyper['PERCORE_BATCH_SIZE']}-te-"
    after = f"-lora-{int(given.lora)}"
    name = f"{before}{int(given.reads_on('ENABLE_TE'))}{after}"
    # Up to rosetta 0.1 the name had the word as it was typed, such as ENABLE_TE=true.
    typed = f"{before}{given.variables.get('ENABLE_TE') or 0}{after}"
    return (
        typed if typed != name and run_folders.folder_exists(f"{given.log_dir}/{typed}") else name
    )


def _choose_log(given: Settings, name: str) -> Path | None:
    """Where a run's output goes; to where ours does in an object store, and for all but the first
    of several processes, whose logs Slurm keeps.
    """
    return None if is_address(given.log_dir) or given.processes > 1 else Path(given.log_dir, name)


def _describe_run(given: Settings) -> str:
    processes = (
        f" in {given.processes} processes on {given.nodes} node(s)" if given.processes > 1 else ""
    )
    return (
        f"{given.config} on {given.gpus} device(s){processes}; checkpoints and logs in "
        f"{given.log_dir}"
    )


def _select_devices(
    given: Settings,
    found: list[gpu_query.DetectedGpu],
    environment: Mapping[str, str],
    *,
    on_cpu: bool,
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the environment in which each process has its devices."""
    if given.processes == 1:
        return device_selection.select_devices(given, found, environment, on_cpu=on_cpu)
    if given.gpus_per_process == 1:
        return dict(environment), ()
    if on_cpu:
        there = device_selection.count_devices(found, environment, on_cpu=True)
        if there != given.gpus_per_process:
            raise UserError(
                f"XLA_FLAGS makes {there} CPU device(s) in each process",
                f"NUM_GPUS={given.gpus_per_process}",
                "make both the same",
                kind=CONFLICT,
                value=there,
            )
        return dict(environment), ()
    if len(found) < given.gpus_per_process:
        raise UserError(
            f"{len(found)} GPU(s) are visible",
            f"NUM_GPUS={given.gpus_per_process}",
            f"give at most {len(found)}",
            kind=CONFLICT,
            value=len(found),
        )
    # JAX takes one GPU a process under Slurm, unless it is told.
    return {
        **environment,
        "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(given.gpus_per_process))),
    }, ()


def _make_environment(
    env: Mapping[str, str], given: Settings, chosen: ModelOptions, used: LaunchFlags
) -> dict[str, str]:
    known = {**env, **used.env}
    known.pop("BASE_XLA_FLAGS", None)
    return {
        **known,
        **_compilation_cache_variables(known, given),
        **chosen.env,
        "XLA_FLAGS": xla_flags.join_flags(used.flags),
    }


def _compilation_cache_variables(env: Mapping[str, str], given: Settings) -> dict[str, str]:
    """Where what is compiled is kept, if the JAX that runs it can use it again."""
    try:
        return (
            execution.compilation_cache_variables(env, given.processes)
            if cache_works(version("jax"))
            else {}
        )
    except PackageNotFoundError:
        return {}


def main(argv: Sequence[str]) -> int:
    """Run a script: its name, then its words, see rosetta.launch.scripts."""
    script, *words = argv
    return scripts.run_script(
        script,
        words,
        settings.POSITIONALS[script],
        lambda values: make_commands(script, values, os.environ),
    )
