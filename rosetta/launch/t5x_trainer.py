"""Start T5X's trainer from a script's settings.

Every check that needs no JAX comes first. The trainer then takes the place of this process.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import xla_flags
from rosetta.core.errors import CONFLICT, MISSING, UNKNOWN, UserError
from rosetta.core.run_folders import (
    check_folder_writable,
    list_checkpoint_steps,
    parse_checkpoint_step,
)
from rosetta.core.value_parsing import is_address, parse_path
from rosetta.doctor import launch_checks
from rosetta.health import run_lock
from rosetta.launch import (
    device_selection,
    execution,
    hub_inputs,
    nsight_systems,
    scripts,
)
from rosetta.presets import launch_flags, t5x_model_options
from rosetta.t5x import warmup
from rosetta.t5x.run import (
    folders,
    gin_bindings,
    gin_files,
    gin_reader,
    gin_text,
    network_fields,
    optimizer_settings,
    own_model_name,
    parameter_count,
    partial_training,
    periods,
    preflight,
    settings,
)
from rosetta.t5x.run.gin_text import Reference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.core.gpu_query import DetectedGpu
    from rosetta.presets.launch_flags import LaunchFlags
    from rosetta.presets.t5x_model_options import ModelOptions
    from rosetta.t5x.run.gin_reader import Configuration
    from rosetta.t5x.run.settings import Settings

BENCHMARK_STEPS = 500
_SCHEDULE_CONFIGURABLE = "t5x.utils.create_learning_rate_scheduler"
_DEFAULT_WARMUP = "rosetta.t5x.warmup.default_steps"


@dataclass(frozen=True)
class _BoundRun:
    """A run whose settings are bound in its gin configuration.

    Attributes:
      settings: of the script.
      configuration: with all bindings.
      bindings: the --gin. options of the trainer.
      model_dir: the folder that the run writes to.
      start: the checkpoint that finetuning starts from; None for pretraining.
      notes: about its data, for the user.
    """

    settings: Settings
    configuration: Configuration
    bindings: dict[str, object]
    model_dir: str
    start: str | None
    notes: tuple[str, ...]

    @property
    def folder_variable(self) -> str:
        """The variable that sets `model_dir`."""
        return "FT_DIR" if self.settings.finetune else "MODEL_DIR"

    @property
    def saved_steps(self) -> list[int]:
        """The steps of the checkpoints in `model_dir`; empty for an object store."""
        return [] if is_address(self.model_dir) else list_checkpoint_steps(self.model_dir)

    @property
    def first_step(self) -> int:
        """The step of the checkpoint that the run starts from."""
        return parse_checkpoint_step(str(self.bindings.get("INITIAL_CHECKPOINT_PATH") or "")) or 0

    def write_start_file(self) -> None:
        """Record the checkpoint that finetuning starts from, just before the trainer starts."""
        if self.start:
            folders.write_start_file(self.model_dir, self.start)


def find_source_tree(environment: Mapping[str, str], script_tree: str) -> Path:
    """Return the tree of T5X to train from: T5X_DIR if it is set, else the script's own tree.

    Raises:
      UserError: the tree does not contain T5X.
    """
    root = Path(environment.get("T5X_DIR") or script_tree).resolve()
    if not (root / "t5x" / "train.py").is_file():
        raise UserError(
            "the folder does not contain t5x/train.py",
            f"T5X_DIR={root}",
            "name the folder that has the package t5x in it, or unset T5X_DIR",
            kind=MISSING,
        )
    return root


def make_command(
    script: str, words: Sequence[str], environment: Mapping[str, str], script_tree: str
) -> execution.Command:
    """Return the command that a script runs.

    Args:
      script: its name without suffix.
      words: its positional words.
      environment: the variables.
      script_tree: the tree that the script lies in.

    Raises:
      UserError: a setting is wrong, as far as that can be known before JAX starts.
    """
    root = find_source_tree(environment, script_tree)
    machine = device_selection.detect_machine(environment)
    run = settings.read_script_settings(
        script, words, environment, machine.count_devices(environment)
    )
    run = replace(run, variables=hub_inputs.resolve_variables(run.variables))
    files = [
        *gin_files.select_script_files(root, run.size, run.task, run.values["T5_FAMILY"]),
        *gin_files.find_optimizer_files(run.variables),
        *gin_files.find_own_model_files(run.variables),
        *gin_files.find_user_files(run.variables),
    ]
    options = t5x_model_options.choose_model_options(
        own_model_name.replace_network_variables(run.variables),
        machine.gpus,
        on_cpu=machine.on_cpu,
        finetune=run.finetune,
    )
    env, device_notes = device_selection.select_devices(
        run, machine.gpus, environment, on_cpu=machine.on_cpu
    )
    bound = _bind_settings(run, options, files, root, environment)
    preflight.check_training(run, bound.configuration, environment)
    check_folder_writable(bound.model_dir)
    resume_notes = _check_resume(bound)
    log = _choose_log(run, options, bound.model_dir)
    argv = _make_trainer_argv(bound, files, environment, root)
    preset = choose_preset_flags(
        env, run.size, options, machine.gpus, on_cpu=machine.on_cpu, devices=run.gpus
    )
    check_notes, refusal = _run_machine_checks(bound, env, machine)
    trainer_env = make_environment(env, preset, machine.platforms, run.processes)
    trainer_env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH")]))
    return execution.Command(
        argv,
        trainer_env,
        log,
        (
            _describe_run(run, bound.model_dir, log),
            *_describe_warmup(bound),
            *check_notes,
            *map(execution.WarningLine, preset.lines),
            *options.notes,
            *device_notes,
            *bound.notes,
            *resume_notes,
        ),
        before_start=bound.write_start_file,
        refusal=refusal,
    )


def _bind_settings(
    run: Settings,
    options: ModelOptions,
    files: Sequence[Path],
    root: Path,
    environment: Mapping[str, str],
) -> _BoundRun:
    """Read the gin files of a run, and bind its settings in their configuration."""
    configuration = gin_reader.read_configuration(files, (Path.cwd(), gin_files.ROOT, root))
    bindings = {
        **gin_bindings.make_size_bindings(run, configuration),
        **_make_macro_bindings(run, configuration),
        **options.training_bindings(),
        **own_model_name.make_bindings(run.variables, options.precision),
    }
    benchmark = run.values["BENCHMARK_MODE"]
    model_dir, start = run.model_dir, None
    if run.finetune:
        now = dt.datetime.now().astimezone()
        stamp = environment.get("SLURM_JOB_ID") or now.strftime("%F_%H-%M-%S")
        model_dir, start = folders.choose_finetuning_folders(
            model_dir, run.task, run.variables, stamp
        )
        bindings["INITIAL_CHECKPOINT_PATH"] = start
    if checkpoint := run.variables.get("INITIAL_CHECKPOINT_PATH"):
        bindings["INITIAL_CHECKPOINT_PATH"] = preflight.check_checkpoint_path(
            checkpoint, "INITIAL_CHECKPOINT_PATH"
        )
    bindings |= _resolve_start(configuration.bind(bindings))
    data_bindings, notes = _make_data_bindings(run, benchmark, configuration)
    bindings |= data_bindings
    bindings |= _make_length_bindings(run, benchmark, model_dir, start)
    bindings |= optimizer_settings.make_optimizer_bindings(run)
    bindings |= partial_training.make_partial_training_bindings(run)
    bindings |= _make_best_checkpoint_bindings(run, configuration)
    bindings["MODEL_DIR"] = model_dir
    if run.values["CHECKPOINT_DISABLE"]:
        bindings["utils.CheckpointConfig.save"] = None
    user_files = gin_files.find_user_files(run.variables)
    fitted, period_notes = periods.fit_default_period(
        run.macros,
        configuration.bind(bindings),
        gin_reader.read_configuration(user_files, (Path.cwd(), gin_files.ROOT, root)),
    )
    bindings |= fitted
    notes = (*notes, *period_notes)
    return _BoundRun(run, configuration.bind(bindings), bindings, model_dir, start, notes)


def _make_best_checkpoint_bindings(
    run: Settings, configuration: gin_reader.Configuration
) -> dict[str, object]:
    """Return the bindings of KEEP_BEST and EARLY_STOP_PATIENCE."""
    names = ("KEEP_BEST", "EARLY_STOP_PATIENCE")
    bindings = {name: run.values[name] for name in names if run.values[name]}
    if "KEEP_BEST" in bindings and configuration.value("KEEP") is None:
        bindings["KEEP"] = 1  # the newest one, to resume from
        # Until now the run kept all.
        bindings[f"{parameter_count.TRACKER}.keeps_older"] = True
    return bindings


def _resolve_start(configuration: gin_reader.Configuration) -> dict[str, str]:
    """Return the binding of a checkpoint for a model of Hugging Face that gin names.

    Raises:
      UserError: the model cannot be fetched or converted.
    """
    name = "INITIAL_CHECKPOINT_PATH"
    start = configuration.value(name)
    if not isinstance(start, str) or not start:
        return {}
    resolved = hub_inputs.resolve_weights(name, start)
    return {} if resolved == start else {name: resolved}


def _check_resume(bound: _BoundRun) -> tuple[str, ...]:
    """Check that a run can resume from its newest checkpoint, if it has one; return notes."""
    saved_steps = bound.saved_steps
    if not saved_steps:
        return ()
    newest = f"{bound.model_dir}/checkpoint_{saved_steps[-1]}"
    preflight.check_resumed_data(newest, bound.start or "", bound.configuration)
    return (
        *preflight.describe_precision_change(newest, bound.configuration),
        *preflight.check_last_step(
            bound.configuration, bound.first_step, saved_steps[-1], bound.folder_variable
        ),
    )


def _choose_log(run: Settings, options: ModelOptions, model_dir: str) -> Path | None:
    """Return the file for the output of a run; None if the output stays on the terminal.

    The file is in LOGDIR, or else in the folder of the run. Slurm keeps the output of a run with
    several processes.
    """
    if run.processes > 1:
        return None
    if not run.log_dir or run.log_dir == settings.TERMINAL_LOG:
        return choose_default_log(run.log_dir, model_dir, "train")
    check_folder_writable(parse_path("LOGDIR", run.log_dir))
    prefix = "ft_" if run.finetune else ""
    name = f"{prefix}{run.size}_gpu_{run.gpus}_{options.precision}_gbs_{run.batch}.log"
    return Path(run.log_dir) / name


def choose_default_log(log_dir: str, folder: str, program: str) -> Path | None:
    """Return the file for the output of a program; None if the output stays on the terminal.

    Args:
      log_dir: the value of LOGDIR; "" if it is not set.
      folder: the folder that the program writes to. One in an object store cannot have the file.
      program: "train", "eval" or "infer".

    Raises:
      UserError: the folder of LOGDIR cannot be written to.
    """
    if log_dir == settings.TERMINAL_LOG:
        return None
    if log_dir:
        check_folder_writable(parse_path("LOGDIR", log_dir))
        return Path(log_dir, f"{program}.log")
    return None if is_address(folder) else Path(folder, "logs", f"{program}.log")


def _make_trainer_argv(
    bound: _BoundRun, files: Sequence[Path], environment: Mapping[str, str], root: Path
) -> list[str]:
    """Return the command line of the trainer, under Nsight Systems if the settings say so."""
    run = bound.settings
    paths = [str(file.absolute()) for file in files]
    argv = make_program_argv(environment, paths, bound.bindings, root=root)
    if run.processes > 1:
        # No address: JAX finds the coordinator from Slurm's own variables, which name the right
        # host.
        argv.append("--multiprocess_gpu")
    if not run.values["WITH_NSYS"]:
        return argv
    report = (
        f"{environment.get('T5X_WORKSPACE_DIR') or os.getcwd()}/nsys_"
        f"{environment.get('SLURM_JOB_ID') or os.getpid()}_"
        f"{environment.get('SLURM_PROCID', '0')}"
    )
    is_marked = bool(run.variables.get("PROFILE_STEPS"))
    return nsight_systems.make_profile_command(argv, report, marked=is_marked)


def _run_machine_checks(
    bound: _BoundRun, env: Mapping[str, str], machine: device_selection.Machine
) -> tuple[tuple[str, ...], UserError | None]:
    """Check what a run needs of this machine; return warnings and the first error."""

    def check_folder() -> tuple[str, ...]:
        if bound.settings.processes > 1:
            return ()
        return run_lock.check_not_in_use(bound.model_dir, "MODEL_DIR")

    def check_space() -> tuple[str, ...]:
        if launch_checks.is_disabled(env):
            return ()
        return parameter_count.check_checkpoint_space(
            bound.configuration,
            bound.model_dir,
            bound.saved_steps,
            bound.first_step,
            bound.folder_variable,
        )

    return execution.run_checks(
        check_folder,
        lambda: launch_checks.check_before_launch(env, machine.gpus, machine.platforms),
        check_space,
        refusal=machine.missing_gpu,
    )


def _describe_run(run: Settings, model_dir: str, log: Path | None) -> str:
    """Return a line about the run: its batch, its devices and its folders."""
    processes = f" in {run.processes} processes" if run.processes > 1 else ""
    summary = (
        f"global batch {run.batch} on {run.gpus} device(s){processes}, "
        f"{run.tensor_parallel}-way tensor parallel, {run.microbatches} microbatch(es)"
    )
    if run.finetune:
        summary = f"finetuning on {run.task}, {summary}"
    return f"{summary}; checkpoints in {model_dir}" + (f", log in {log}" if log else "")


def make_program_argv(
    environment: Mapping[str, str],
    files: Sequence[str],
    bindings: Mapping[str, object],
    *,
    root: Path | None = None,
    program: str = "train",
) -> list[str]:
    """Return the command line of one of T5X's programs.

    Args:
      environment: the variables.
      files: the gin files.
      bindings: the values of --gin. options, by name.
      root: a folder that gin searches for included files.
      program: "train", "eval" or "infer".

    Raises:
      UserError: PYTHON does not name a program.
    """
    argv = [execution.find_python(environment), "-u", "-P", "-m", "rosetta.t5x.train", program]
    argv += [f"--gin_search_paths={root}"] if root else []
    argv += [f"--gin_file={file}" for file in files]
    argv.append(f"--tfds_data_dir={preflight.find_dataset_folder(environment)}")
    return argv + [
        f"--gin.{name}={gin_text.format_literal(value)}" for name, value in bindings.items()
    ]


def _make_macro_bindings(run: Settings, configuration: Configuration) -> dict[str, object]:
    """Return the bindings of macros that variables set.

    Raises:
      UserError: the gin files do not use the macro. gin itself would accept it.
    """
    for name, value in run.macros.items():
        if not configuration.missing and not configuration.binds(name):
            raise UserError(
                "the gin files of this run have no such macro",
                f"{name}={value}",
                "leave it out, or set a macro of these files in a file of your own: "
                "ROSETTA_GIN=FILE",
                kind=UNKNOWN,
                value=value,
            )
    return dict(run.macros)


def _describe_warmup(bound: _BoundRun) -> tuple[str, ...]:
    """Return a line about the learning rate's warm-up if it is a default or exceeds the run."""
    configuration, model_dir = bound.configuration, bound.model_dir
    if bound.settings.values["BENCHMARK_MODE"]:
        return ()
    steps = configuration.value(f"{_SCHEDULE_CONFIGURABLE}.warmup_steps")
    total = configuration.integer("rosetta.t5x.optimizer.decay_per_step.steps")
    if configuration.value(f"{_SCHEDULE_CONFIGURABLE}.factors") != "linear_decay" or total is None:
        return ()
    if is_address(model_dir) and not isinstance(steps, int):
        return ()  # The trainer is the first to read an object store.
    if steps == Reference(_DEFAULT_WARMUP):
        if configuration.integer(f"{_DEFAULT_WARMUP}.total") != total:
            return ()
        limits = {
            name: configuration.integer(f"{_DEFAULT_WARMUP}.{name}") or default
            for name, default in warmup.DEFAULT_LIMITS.items()
            if configuration.binds(f"{_DEFAULT_WARMUP}.{name}")
        }
        steps = warmup.default_steps(total, model_dir, start=bound.start, **limits)
        if steps < min(total, limits.get("longest", warmup.LONGEST_WARMUP)):
            line = f"the learning rate rises over the first {steps:,} of {total:,} steps"
            return (f"{line}: WARMUP_STEPS",)
    if not isinstance(steps, int) or total >= steps:
        return ()
    line = f"the learning rate still rises when the run ends, after {total:,} steps"
    return (f"{line}: WARMUP_STEPS is {steps:,}",)


def _make_data_bindings(
    run: Settings, benchmark: bool, configuration: Configuration
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the bindings for data and vocabulary, and notes about them.

    What no variable sets stays as the gin file has it.
    """
    bindings: dict[str, object] = {
        name: run.variables[name]
        for name in ("DATA", "EVAL_DATA", "VOCAB", "TEXT_FIELD", "INPUT_PREFIX", "LABELS")
        if run.variables.get(name)
    }
    bindings |= settings.make_task_bindings(run.variables, run.task, trains=run.finetune)
    if run.values["EXTRA_IDS"] is not None:
        bindings["EXTRA_IDS"] = run.values["EXTRA_IDS"]
    if run.variables.get("OBJECTIVE") and not run.finetune:
        bindings["OBJECTIVE"] = run.variables["OBJECTIVE"]
    if benchmark and "DATA" not in bindings:
        vocab_size = network_fields.read_count(configuration, "vocab_size") or 32128
        bindings = {"VOCAB": f"ids:{vocab_size}", **bindings, "DATA": "synthetic"}
    is_evaluated_task = settings.is_seqio_task(run.task) and "TRAIN_FILES" not in bindings
    has_own_evaluation = "EVAL_DATA" in bindings or is_evaluated_task
    if not run.finetune or "DATA" not in bindings or has_own_evaluation:
        return bindings, ()
    # The gin file's own evaluation data would be another data set than the one that is trained on.
    bindings |= {
        "EVAL_DATA": None,
        "train.train_eval_dataset_cfg": None,
        "train.infer_eval_dataset_cfg": None,
    }
    return bindings, () if benchmark else ("no evaluation: DATA is set and EVAL_DATA is not",)


def _make_length_bindings(
    run: Settings, benchmark: bool, model_dir: str, start: str | None
) -> dict[str, object]:
    """Return the bindings for the length of the training.

    TRAIN_STEPS is the step to end at, and FT_STEPS counts from the step of the first checkpoint.

    Raises:
      UserError: the folder of a benchmark has checkpoints, or finetuning would have no steps.
    """
    if benchmark and not is_address(model_dir) and folders.find_newest_checkpoint(model_dir):
        raise UserError(
            "BENCHMARK_MODE=1 starts from nothing, but the folder contains checkpoints",
            f"MODEL_DIR={model_dir}",
            f"name another {'FT_DIR' if run.finetune else 'MODEL_DIR'}",
            kind=CONFLICT,
        )
    if start:
        name, steps = "FT_STEPS", _count_finetuning_steps(run, start)
    else:
        name, steps = "TRAIN_STEPS", run.steps
    if not steps:
        if not benchmark:
            return {}
        steps = BENCHMARK_STEPS
    bindings: dict[str, object] = {name: steps}
    if benchmark:
        bindings["STATS_PERIOD"] = run.values["STATS_PERIOD"] or min(100, steps)
    return bindings


def _count_finetuning_steps(run: Settings, start: str) -> int | None:
    """Return the steps to add to a checkpoint; None if no variable sets them."""
    if run.values["FT_STEPS"]:
        return int(run.values["FT_STEPS"])
    if not run.steps:
        return None
    match = re.search(r"checkpoint_(\d+)/?$", start)
    if not match or run.steps <= int(match[1]):
        raise UserError(
            f"finetuning starts from {start}",
            f"TRAIN_STEPS={run.steps}",
            "give the number of steps to add: FT_STEPS=N",
            kind=CONFLICT,
            value=run.steps,
        )
    return run.steps - int(match[1])


def choose_preset_flags(
    environment: Mapping[str, str],
    size: str,
    options: ModelOptions,
    gpus: Sequence[DetectedGpu],
    *,
    on_cpu: bool,
    devices: int = 1,
) -> LaunchFlags:
    """Return the flags and variables of the preset of a model size.

    Args:
      environment: the variables.
      size: of the model.
      options: its precision.
      gpus: of this machine.
      on_cpu: whether the run uses the CPU.
      devices: of the run.

    Raises:
      UserError: XLA does not accept a flag of the user.
    """
    precision = "fp32"
    if options.precision != "float32":
        precision = t5x_model_options.PRESET_PRECISIONS[options.fp8]
    preset = launch_flags.select_launch_flags(
        "t5x", size, environment, gpus, on_cpu=on_cpu, precision=precision, devices=devices
    )
    xla_flags.check_flags_known(preset.user_flags, execution.find_python(environment))
    return preset


def make_environment(
    environment: Mapping[str, str], preset: LaunchFlags, platforms: str, processes: int = 1
) -> dict[str, str]:
    """Return the environment of one of T5X's programs.

    Args:
      environment: the variables.
      preset: flags and variables of the preset.
      platforms: JAX's.
      processes: of the run, see execution.compilation_cache_variables.
    """
    variables = {**environment, **preset.env}
    variables.pop("BASE_XLA_FLAGS", None)
    return {
        **variables,
        **execution.compilation_cache_variables(variables, processes),
        "TFDS_DATA_DIR": preflight.find_dataset_folder(environment),
        "XLA_FLAGS": xla_flags.join_flags(preset.flags),
        "JAX_PLATFORMS": platforms,
    }


def main(argv: Sequence[str]) -> int:
    """Run a script, see rosetta.launch.scripts.

    Args:
      argv: the script's name, the tree that it lies in, and its words.
    """
    script, script_tree, *words = argv
    return scripts.run_script(
        script,
        words,
        settings.POSITIONALS[script],
        lambda values: [make_command(script, values, os.environ, script_tree)],
    )
