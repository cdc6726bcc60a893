"""Start Paxml from the settings of a script.

`make_commands` does all checks that need no JAX, and returns the command lines of Paxml. `main`
prints them or executes them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import run_folders, xla_flags
from rosetta.core.errors import CONFLICT, MISSING, UserError
from rosetta.core.value_parsing import is_address
from rosetta.doctor import launch_checks
from rosetta.health import run_lock
from rosetta.launch import (
    device_selection,
    execution,
    hub_inputs,
    nsight_systems,
    scripts,
)
from rosetta.launch.execution import Command
from rosetta.pax.run import parameter_count, preflight, settings
from rosetta.pax.run.compilation_cache import cache_works
from rosetta.presets import pax_flags, pax_model_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.launch.device_selection import Machine
    from rosetta.pax.run.settings import Settings
    from rosetta.presets.launch_flags import LaunchFlags
    from rosetta.presets.pax_model_options import ModelOptions

# Script -> the name of its log in LOG_DIR.
LOG_NAMES = {
    "run_pile_singlenode": "pile_output.log",
    "run_lambada_singlenode": "lambada_output.log",
}


@dataclass(frozen=True)
class _CheckedRun:
    """A run whose settings are checked.

    Attributes:
      settings: The settings of the script.
      hyper: Hyper-parameter -> the literal that replaces the experiment's own value.
      checkpoints: The checkpoints that the run reads, see preflight.find_checkpoints: "restore" is
        a path, and "step" is the step of the newest checkpoint.
    """

    settings: Settings
    hyper: Mapping[str, str]
    checkpoints: Mapping[str, object]

    @property
    def saves_checkpoints(self) -> bool:
        """Whether the run trains and writes checkpoints."""
        run = self.settings
        return not run.evaluates_only and parameter_count.NO_CHECKPOINTS not in run.words

    @property
    def folder(self) -> str:
        """The folder that Paxml writes to."""
        if not self.settings.llama:
            return self.settings.log_dir
        return f"{self.settings.log_dir}/{_choose_llama_folder(self.settings, self.hyper)}"


def make_commands(
    script: str, words: Sequence[str], environment: Mapping[str, str]
) -> list[Command]:
    """Return the commands that a script runs in order: training, evaluation, or both.

    Args:
      script: The name of the script, without suffix.
      words: The positional arguments of the script.
      environment: The environment variables.

    Raises:
      UserError: A setting is wrong, as far as that can be known before JAX starts.
    """
    machine = device_selection.detect_machine(environment)
    run = settings.read_settings(script, words, environment, machine.count_devices(environment))
    experiment = preflight.resolve_experiment(run.config)
    preflight.check_hyper_parameter_names(run.config, run.hyper)
    run = replace(run, variables=hub_inputs.resolve_variables(run.variables))
    env, device_notes = _select_devices(run, machine, environment)
    options, preset = _choose_options(run, machine, env)
    data_variables, data_notes = _find_data(run)
    checked = _CheckedRun(run, {**run.hyper, **options.hyper}, preflight.find_checkpoints(run))
    trainer_env = _make_environment(env, run, options, preset)
    trainer_env |= {**data_variables, "JAX_PLATFORMS": machine.platforms}
    run_notes = _check_run(checked)
    machine_warnings, refusal = _run_machine_checks(checked, env, machine)
    notes = (
        _describe_run(run),
        *machine_warnings,
        *map(execution.WarningLine, preset.lines),
        *options.notes,
        *device_notes,
        *data_notes,
        *run_notes,
    )
    return _assemble_commands(
        _make_command_lines(checked, experiment, trainer_env, data_variables),
        trainer_env,
        notes,
        refusal,
    )


def _assemble_commands(
    command_lines: Sequence[tuple[list[str], Path | None]],
    env: dict[str, str],
    notes: tuple[str, ...],
    refusal: UserError | None,
) -> list[Command]:
    """Return the commands of a script.

    Args:
      command_lines: The command line and the log of each command.
      env: The environment of all commands.
      notes: What to tell the user before the first command starts.
      refusal: The error that keeps the first command from starting on this machine, or None.
    """
    commands = []
    for argv, log in command_lines:
        commands.append(Command(argv, env, log, notes, refusal=refusal))
        notes, refusal = (), None
    return commands


def _choose_options(
    run: Settings, machine: Machine, env: Mapping[str, str]
) -> tuple[ModelOptions, LaunchFlags]:
    """Return the options of the model, and the flags and variables of its preset."""
    gpus, on_cpu = machine.gpus, machine.on_cpu
    # The options depend on the flags of the preset, and the flags on the options. So the flags are
    # selected without options first, and again once the options are known.
    flags = pax_flags.select_pax_flags(run, env, gpus, None, on_cpu=on_cpu).flags
    options = pax_model_options.choose_model_options(run, gpus, flags, on_cpu=on_cpu)
    preset = pax_flags.select_pax_flags(run, env, gpus, options, on_cpu=on_cpu)
    xla_flags.check_flags_known(preset.user_flags, execution.find_python(env))
    return options, preset


def _find_data(run: Settings) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that name the vocabulary and the data, and notes about them."""
    vocabulary, notes = preflight.find_vocabulary(run)
    variables = {"VOCAB_PATH": vocabulary} if vocabulary else {}
    return {**variables, **preflight.find_data(run)}, tuple(notes)


def _check_run(checked: _CheckedRun) -> tuple[str, ...]:
    """Check sizes, files and rows, and the last step of a run that resumes; return notes.

    Raises:
      UserError: A check fails.
    """
    run, hyper = checked.settings, checked.hyper
    preflight.check_sizes(run, hyper)
    preflight.check_files(run, hyper)
    preflight.check_rows(run, hyper)
    mismatch = preflight.describe_mesh_mismatch(run, hyper)
    notes: tuple[str, ...] = tuple(map(execution.WarningLine, mismatch))
    if checked.saves_checkpoints:
        notes += tuple(preflight.check_last_step(run, hyper, checked.folder))
    if run.llama and "restore" not in checked.checkpoints:
        notes += ("training starts from random weights: CHECKPOINT_RESTORE_PATH is not set",)
    return notes


def _run_machine_checks(
    checked: _CheckedRun, env: Mapping[str, str], machine: Machine
) -> tuple[tuple[str, ...], UserError | None]:
    """Check what a run needs of this machine.

    Returns:
      Warnings, and the first error. The error is not raised, so that a dry run can go on.
    """
    run = checked.settings

    def check_folder() -> tuple[str, ...]:
        if not checked.saves_checkpoints or run.processes > 1:
            return ()
        return run_lock.check_not_in_use(checked.folder, "LOG_DIR")

    def check_space() -> tuple[str, ...]:
        if not checked.saves_checkpoints or launch_checks.is_disabled(env):
            return ()
        return parameter_count.check_disk_space(
            run.config, checked.folder, checked.hyper, run.words
        )

    return execution.run_checks(
        check_folder,
        lambda: launch_checks.check_before_launch(env, machine.gpus, machine.platforms),
        check_space,
        refusal=machine.missing_gpu,
    )


def _make_base_argv(
    checked: _CheckedRun, experiment: str, env: Mapping[str, str], data_variables: Mapping[str, str]
) -> list[str]:
    """Return the part of the command line that all commands of a script share.

    Args:
      checked: The run.
      experiment: The experiment, as --fdl_config takes it.
      env: The environment of Paxml.
      data_variables: The variables that name the vocabulary and the data.
    """
    argv = [
        execution.find_python(env),
        "-u",
        "-P",
        "-m",
        "rosetta.pax.train",
        f"--fdl_config={experiment}",
    ]
    if "TFDS_DATA_DIR" in data_variables:
        argv.append(f"--tfds_data_dir={data_variables['TFDS_DATA_DIR']}")
    if _evaluates_while_training(checked.settings, checked.hyper):
        argv.append("--eval_on_test")
    if checked.settings.processes > 1:
        # No option names the coordinator, because JAX finds it by Slurm's own variables.
        argv.append("--multiprocess_gpu")
    return argv


def _evaluates_while_training(run: Settings, hyper: Mapping[str, str]) -> bool:
    """Return whether to add --eval_on_test, with which Paxml evaluates during training.

    With this option Paxml evaluates every `eval_interval_steps` and after the last step. The option
    is added if there is evaluation data, the user did not give the option, and the script does not
    evaluate by a command of its own, as LLaMA's does.
    """
    has_data = bool(run.variables.get("EVAL_DATA")) or hyper.get("EVAL_DATA", "None") != "None"
    is_set_by_user = any(
        word.lstrip("-").startswith(("eval_on_test", "noeval_on_test")) for word in run.words
    )
    return has_data and not run.llama and not run.evaluates_only and not is_set_by_user


def _make_command_lines(
    checked: _CheckedRun, experiment: str, env: Mapping[str, str], data_variables: Mapping[str, str]
) -> list[tuple[list[str], Path | None]]:
    """Return the command lines of a script, and the log of each.

    A log of None means that the command writes to the output of this process. The arguments are
    those of `_make_base_argv`.
    """
    run, hyper = checked.settings, checked.hyper
    base_argv = _make_base_argv(checked, experiment, env, data_variables)
    # With MAX_STEPS at the newest checkpoint, an evaluation ends there. Otherwise it would wait for
    # more checkpoints from a training.
    step = checked.checkpoints.get("step")
    eval_values = hyper if step is None else {**hyper, "MAX_STEPS": step}
    if run.script == "run_lambada_singlenode":
        log = _choose_log(run, LOG_NAMES[run.script])
        return [(_make_argv(run, base_argv, run.log_dir, "eval", eval_values), log)]
    if not run.llama:
        log = _choose_log(run, LOG_NAMES[run.script]) if run.script in LOG_NAMES else None
        return [(_make_argv(run, base_argv, run.log_dir, "train", hyper), log)]
    folder, name = checked.folder, _choose_llama_folder(run, hyper)
    log = _choose_log(run, f"logs/{name}.txt")
    restore = checked.checkpoints.get("restore")
    if run.values["EVAL_ONLY"]:
        if not restore:
            raise UserError(
                "this variable is not set, and EVAL_ONLY=1 needs it",
                "CHECKPOINT_RESTORE_PATH",
                (
                    "name the folder that has the checkpoints/checkpoint_N to evaluate, or set "
                    "EVAL_ONLY=0"
                ),
                kind=MISSING,
            )
        option = f"--evaluate_from={restore}"
        return [(_make_argv(run, base_argv, folder, "eval", eval_values, option), log)]
    train_values: Mapping[str, object] = hyper
    if restore:
        train_values = {**hyper, "CHECKPOINT_RESTORE_PATH": json.dumps(restore)}
    return [
        (_make_argv(run, base_argv, folder, "train", train_values), log),
        (_make_argv(run, base_argv, folder, "eval", hyper), log),
    ]


def _make_argv(
    run: Settings,
    base_argv: list[str],
    folder: str,
    mode: str,
    hyper: Mapping[str, object],
    *options: str,
) -> list[str]:
    """Return the command line of Paxml.

    Args:
      run: The settings of the script.
      base_argv: The part that all commands of the script share.
      folder: The folder that Paxml writes to.
      mode: "train" or "eval".
      hyper: The hyper-parameters by name, as --fdl takes them.
      *options: More options of Paxml.
    """
    argv = [*base_argv, f"--job_log_dir={folder}", f"--mode={mode}", "--alsologtostderr", *options]
    argv += [f"--fdl.{name}={value}" for name, value in hyper.items()]
    argv += run.words
    if not run.values["WITH_NSYS"]:
        return argv
    job = run.variables.get("SLURM_JOB_ID") or os.getpid()
    rank = run.variables.get("SLURM_PROCID", "0")
    # With PROFILE_STEPS, the training itself marks the steps that nsys records.
    marks_steps = bool(run.variables.get("PROFILE_STEPS")) and mode == "train"
    return nsight_systems.make_profile_command(
        argv, f"{folder}/nsys_{job}_{rank}", marked=marks_steps
    )


def _choose_llama_folder(run: Settings, hyper: Mapping[str, str]) -> str:
    """Return the name of a LLaMA run's folder in LOG_DIR."""
    prefix = f"llama-{run.config}-mbs-{hyper['PERCORE_BATCH_SIZE']}-te-"
    suffix = f"-lora-{int(run.lora)}"
    name = f"{prefix}{int(run.reads_on('ENABLE_TE'))}{suffix}"
    # Up to rosetta 0.1 the name had the value as the user wrote it, such as ENABLE_TE=true.
    old_name = f"{prefix}{run.variables.get('ENABLE_TE') or 0}{suffix}"
    if old_name != name and run_folders.folder_exists(f"{run.log_dir}/{old_name}"):
        return old_name
    return name


def _choose_log(run: Settings, name: str) -> Path | None:
    """Return the file for a command's output, or None for the output of this process.

    There is no file if LOG_DIR is in an object store, or if the run has several processes, whose
    output Slurm keeps.
    """
    return None if is_address(run.log_dir) or run.processes > 1 else Path(run.log_dir, name)


def _describe_run(run: Settings) -> str:
    """Return a line about the run: its experiment, its devices and its folder."""
    processes = f" in {run.processes} processes on {run.nodes} node(s)" if run.processes > 1 else ""
    return f"{run.config} on {run.gpus} device(s){processes}; checkpoints and logs in {run.log_dir}"


def _select_devices(
    run: Settings, machine: Machine, environment: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the environment that gives each process its devices, and notes.

    Raises:
      UserError: The machine has fewer devices than NUM_GPUS says.
    """
    gpus, on_cpu = machine.gpus, machine.on_cpu
    if run.processes == 1:
        return device_selection.select_devices(run, gpus, environment, on_cpu=on_cpu)
    if run.gpus_per_process == 1:
        return dict(environment), ()
    if on_cpu:
        available = device_selection.count_devices(gpus, environment, on_cpu=True)
        if available != run.gpus_per_process:
            raise UserError(
                f"XLA_FLAGS makes {available} CPU device(s) in each process",
                f"NUM_GPUS={run.gpus_per_process}",
                "set NUM_GPUS to that number, or change XLA_FLAGS",
                kind=CONFLICT,
                value=available,
            )
        return dict(environment), ()
    if len(gpus) < run.gpus_per_process:
        raise UserError(
            f"only {len(gpus)} GPU(s) are visible",
            f"NUM_GPUS={run.gpus_per_process}",
            f"set NUM_GPUS to at most {len(gpus)}",
            kind=CONFLICT,
            value=len(gpus),
        )
    # Under Slurm, JAX takes one GPU for each process unless this variable names more.
    device_ids = ",".join(map(str, range(run.gpus_per_process)))
    return {**environment, "JAX_LOCAL_DEVICE_IDS": device_ids}, ()


def _make_environment(
    env: Mapping[str, str], run: Settings, options: ModelOptions, preset: LaunchFlags
) -> dict[str, str]:
    """Return the environment of Paxml, with the variables and flags of the preset."""
    variables = {**env, **preset.env}
    variables.pop("BASE_XLA_FLAGS", None)
    return {
        **variables,
        **_choose_compilation_cache_variables(variables, run),
        **options.env,
        "XLA_FLAGS": xla_flags.join_flags(preset.flags),
    }


def _choose_compilation_cache_variables(env: Mapping[str, str], run: Settings) -> dict[str, str]:
    """Return the variables for JAX's compilation cache.

    There are none if programs that this version of JAX reads from its cache may crash.
    """
    try:
        if not cache_works(version("jax")):
            return {}
    except PackageNotFoundError:
        return {}
    return execution.compilation_cache_variables(env, run.processes)


def main(argv: Sequence[str]) -> int:
    """Run a script, and return the exit status; see rosetta.launch.scripts.run_script.

    Args:
      argv: The name of the script, without suffix, and the words of its command line.
    """
    script, *words = argv
    return scripts.run_script(
        script,
        words,
        settings.POSITIONALS[script],
        lambda values: make_commands(script, values, os.environ),
    )
