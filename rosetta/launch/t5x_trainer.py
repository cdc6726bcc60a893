"""From a script's settings to the trainer: every check that needs no JAX, the trainer's command
line, and then its process in place of ours.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import gpu_query, xla_flags
from rosetta.core.errors import CONFLICT, MISSING, UNKNOWN, UserError
from rosetta.core.run_folders import (
    check_folder_writable,
    list_checkpoint_steps,
    parse_checkpoint_step,
)
from rosetta.core.value_parsing import asks_for_cpu, is_address, parse_path
from rosetta.doctor import launch_checks
from rosetta.health import run_lock
from rosetta.launch import device_selection, execution, nsight_systems, scripts
from rosetta.presets import launch_flags, t5x_model_options
from rosetta.t5x import warmup
from rosetta.t5x.run import (
    folders,
    gin_bindings,
    gin_files,
    gin_reader,
    gin_text,
    network_fields,
    parameter_count,
    preflight,
    settings,
)
from rosetta.t5x.run.gin_text import Reference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.presets.launch_flags import LaunchFlags
    from rosetta.presets.t5x_model_options import ModelOptions
    from rosetta.t5x.run.gin_reader import Configuration
    from rosetta.t5x.run.settings import Settings

BENCHMARK_STEPS = 500
_SCHEDULE_CONFIGURABLE = "t5x.utils.create_learning_rate_scheduler"
_DEFAULT_WARMUP = "rosetta.t5x.warmup.default_steps"


def find_source_tree(environment: Mapping[str, str], here: str) -> Path:
    """Return the tree to train from: T5X_DIR where it is set, else the one the script lies in."""
    found = Path(environment.get("T5X_DIR") or here).resolve()
    if not (found / "t5x" / "train.py").is_file():
        raise UserError(
            "it holds no t5x/train.py",
            f"T5X_DIR={found}",
            "name the folder that has the package t5x in it, or unset T5X_DIR",
            kind=MISSING,
        )
    return found


def make_command(
    script: str, words: Sequence[str], environment: Mapping[str, str], here: str
) -> execution.Command:
    """Return what a script runs.

    Args:
      script: its name without suffix.
      words: its positionals.
      environment: the variables.
      here: the tree that the script lies in.

    Raises:
      UserError: anything that can be known to be wrong before JAX starts.
    """
    root = find_source_tree(environment, here)
    found = gpu_query.detect_gpus(environment)
    platforms, no_gpu = gpu_query.select_jax_platforms_or_error(found, environment)
    on_cpu = asks_for_cpu(platforms)
    given = settings.read_script_settings(
        script,
        words,
        environment,
        device_selection.count_devices(found, environment, on_cpu=on_cpu),
    )
    variables, values = given.variables, given.values
    files = [
        *gin_files.select_script_files(root, given.size, given.task),
        *gin_files.find_user_files(variables),
    ]
    chosen = t5x_model_options.choose_model_options(variables, found, on_cpu=on_cpu)
    env, notes = device_selection.select_devices(given, found, environment, on_cpu=on_cpu)
    configuration = gin_reader.read_configuration(files, (Path.cwd(), gin_files.ROOT, root))
    bindings = {
        **gin_bindings.make_size_bindings(given, configuration),
        **_make_macro_bindings(given, configuration),
        **chosen.training_bindings(),
    }
    benchmark = values["BENCHMARK_MODE"]
    model_dir, start = given.model_dir, None
    if given.finetune:
        stamp = environment.get("SLURM_JOB_ID") or dt.datetime.now().astimezone().strftime(
            "%F_%H-%M-%S"
        )
        model_dir, start = folders.choose_finetuning_folders(
            model_dir, given.task, variables, stamp
        )
        bindings["INITIAL_CHECKPOINT_PATH"] = start
    if asked := variables.get("INITIAL_CHECKPOINT_PATH"):
        bindings["INITIAL_CHECKPOINT_PATH"] = preflight.check_checkpoint_path(
            asked, "INITIAL_CHECKPOINT_PATH"
        )
    data, more = _make_data_bindings(given, benchmark, configuration)
    bindings |= {
        **data,
        **_make_length_bindings(given, benchmark, model_dir, start),
        "MODEL_DIR": model_dir,
    }
    if values["CHECKPOINT_DISABLE"]:
        bindings["utils.CheckpointConfig.save"] = None
    configuration = configuration.bind(bindings)
    preflight.check_training(given, configuration, environment)
    check_folder_writable(model_dir)
    begun = parse_checkpoint_step(str(bindings.get("INITIAL_CHECKPOINT_PATH") or "")) or 0
    own = [] if is_address(model_dir) else list_checkpoint_steps(model_dir)
    folder = "FT_DIR" if given.finetune else "MODEL_DIR"
    if own:
        newest = f"{model_dir}/checkpoint_{own[-1]}"
        preflight.check_resumed_data(newest, start or "", configuration)
        more = (
            *more,
            *preflight.describe_precision_change(newest, configuration),
            *preflight.check_last_step(configuration, begun, own[-1], folder),
        )
    log = None
    if given.log_dir:
        check_folder_writable(parse_path("LOGDIR", given.log_dir))
        log = Path(given.log_dir) / (
            f"{'ft_' if given.finetune else ''}{given.size}_gpu_{given.gpus}"
            f"_{chosen.precision}_gbs_{given.batch}.log"
        )
    argv = make_program_argv(
        environment, [str(file.absolute()) for file in files], bindings, root=root
    )
    if given.processes > 1:
        # No address: JAX finds the coordinator from Slurm's own variables, which name the right
        # host.
        argv.append("--multiprocess_gpu")
    if values["WITH_NSYS"]:
        profile = (
            f"{environment.get('T5X_WORKSPACE_DIR') or os.getcwd()}/nsys_"
            f"{environment.get('SLURM_JOB_ID') or os.getpid()}_"
            f"{environment.get('SLURM_PROCID', '0')}"
        )
        argv = nsight_systems.make_profile_command(
            argv, profile, marked=bool(variables.get("PROFILE_STEPS"))
        )
    used = choose_preset_flags(env, given.size, chosen, found, on_cpu=on_cpu, devices=given.gpus)
    said, refused = execution.run_checks(
        lambda: run_lock.check_not_in_use(model_dir, "MODEL_DIR") if given.processes == 1 else (),
        lambda: launch_checks.check_before_launch(env, found, platforms),
        lambda: (
            ()
            if launch_checks.is_disabled(env)
            else parameter_count.check_checkpoint_space(
                configuration, model_dir, own, begun, folder
            )
        ),
        refused=no_gpu,
    )
    lines = (
        _describe_run(given, model_dir, log),
        *(() if benchmark else _describe_warmup(configuration, model_dir)),
        *said,
        *map(execution.WarningLine, used.lines),
        *chosen.notes,
        *notes,
        *more,
    )
    path = env.get("PYTHONPATH")
    env = {
        **make_environment(env, used, platforms, given.processes),
        "PYTHONPATH": f"{root}{os.pathsep}{path}" if path else str(root),
    }
    return execution.Command(
        argv,
        env,
        log,
        lines,
        functools.partial(folders.write_start_file, model_dir, start) if start else None,
        refused,
    )


def _describe_run(given: Settings, model_dir: str, log: Path | None) -> str:
    processes = f" in {given.processes} processes" if given.processes > 1 else ""
    parts = (
        f"global batch {given.batch} on {given.gpus} device(s){processes}, "
        f"{given.tensor_parallel}-way tensor parallel, {given.microbatches} microbatch(es)"
    )
    if given.finetune:
        parts = f"finetuning on {given.task}, {parts}"
    return f"{parts}; checkpoints in {model_dir}" + (f", log in {log}" if log else "")


def make_program_argv(
    environment: Mapping[str, str],
    files: Sequence[str],
    bindings: Mapping[str, object],
    *,
    root: Path | None = None,
    program: str = "train",
) -> list[str]:
    """Return a program's command line: train, eval or infer.

    Raises:
      UserError: PYTHON names no program.
    """
    argv = [execution.find_python(environment), "-u", "-P", "-m", "rosetta.t5x.train", program]
    argv += [f"--gin_search_paths={root}"] if root else []
    argv += [f"--gin_file={file}" for file in files]
    argv.append(f"--tfds_data_dir={preflight.find_dataset_folder(environment)}")
    return argv + [
        f"--gin.{name}={gin_text.format_literal(value)}" for name, value in bindings.items()
    ]


def _make_macro_bindings(given: Settings, configuration: Configuration) -> dict[str, object]:
    """Return the bindings for macros that are given as variables; gin takes those that nothing
    reads, too.
    """
    for name, value in given.macros.items():
        if not configuration.missing and not configuration.binds(name):
            raise UserError(
                "its gin files have no such macro",
                f"{name}={value}",
                "leave it out, and set what they have in a file of your own: ROSETTA_GIN=FILE",
                kind=UNKNOWN,
                value=value,
            )
    return dict(given.macros)


def _describe_warmup(configuration: Configuration, model_dir: str) -> tuple[str, ...]:
    """Return a line on the learning rate's warm-up where it is a default, or longer than the
    run.
    """
    steps = configuration.value(f"{_SCHEDULE_CONFIGURABLE}.warmup_steps")
    total = configuration.integer("rosetta.t5x.optimizer.decay_per_step.steps")
    if configuration.value(f"{_SCHEDULE_CONFIGURABLE}.factors") != "linear_decay" or total is None:
        return ()
    if is_address(model_dir) and not isinstance(steps, int):
        return ()  # object stores are not asked before the trainer starts
    if steps == Reference(_DEFAULT_WARMUP):
        if configuration.integer(f"{_DEFAULT_WARMUP}.total") != total:
            return ()
        steps = warmup.default_steps(total, model_dir)
        if steps < min(total, warmup.LONGEST_WARMUP):
            return (
                (
                    f"the learning rate rises over the first {steps:,} of {total:,} steps: "
                    "WARMUP_STEPS"
                ),
            )
    if not isinstance(steps, int) or total >= steps:
        return ()
    return (
        (
            f"the learning rate still rises when the run ends, after {total:,} steps: "
            f"WARMUP_STEPS is {steps:,}"
        ),
    )


def _make_data_bindings(
    given: Settings, benchmark: bool, configuration: Configuration
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the bindings for data and vocabulary, and what to say of them; what is not set stays
    the gin file's.
    """
    chosen: dict[str, object] = {
        name: given.variables[name]
        for name in ("DATA", "EVAL_DATA", "VOCAB", "TEXT_FIELD")
        if given.variables.get(name)
    }
    if given.values["EXTRA_IDS"] is not None:
        chosen["EXTRA_IDS"] = given.values["EXTRA_IDS"]
    if benchmark and "DATA" not in chosen:
        rows = network_fields.read_count(configuration, "vocab_size")
        chosen = {
            "VOCAB": f"ids:{rows or 32128}",
            **chosen,
            "DATA": "synthetic",
        }
    if not given.finetune or "DATA" not in chosen or "EVAL_DATA" in chosen:
        return chosen, ()
    # The gin file's own evaluation data would be another data set than the one that is trained on.
    chosen |= {
        "EVAL_DATA": None,
        "train.train_eval_dataset_cfg": None,
        "train.infer_eval_dataset_cfg": None,
    }
    return chosen, () if benchmark else ("no evaluation: DATA is set and EVAL_DATA is not",)


def _make_length_bindings(
    given: Settings, benchmark: bool, model_dir: str, start: str | None
) -> dict[str, object]:
    """Return the bindings for how long to train: TRAIN_STEPS says the step to end at, FT_STEPS
    counts from the restored one.
    """
    if benchmark and not is_address(model_dir) and folders.find_newest_checkpoint(model_dir):
        raise UserError(
            "BENCHMARK_MODE=1 starts anew, but it holds checkpoints",
            f"MODEL_DIR={model_dir}",
            f"name another {'FT_DIR' if given.finetune else 'MODEL_DIR'}",
            kind=CONFLICT,
        )
    if not start:
        steps = given.steps or (BENCHMARK_STEPS if benchmark else None)
        return (
            {}
            if steps is None
            else {"TRAIN_STEPS": steps, **({"STATS_PERIOD": min(100, steps)} if benchmark else {})}
        )
    more = BENCHMARK_STEPS if benchmark else None
    if given.values["FT_STEPS"]:
        more = given.values["FT_STEPS"]
    elif given.steps:
        known = re.search(r"checkpoint_(\d+)/?$", start)
        if not known or given.steps <= int(known[1]):
            raise UserError(
                f"finetuning starts from {start}",
                f"TRAIN_STEPS={given.steps}",
                "give the number of steps to add: FT_STEPS=N",
                kind=CONFLICT,
                value=given.steps,
            )
        more = given.steps - int(known[1])
    return (
        {}
        if more is None
        else {"FT_STEPS": more, **({"STATS_PERIOD": min(100, more)} if benchmark else {})}
    )


def choose_preset_flags(
    environment: Mapping[str, str],
    size: str,
    chosen: ModelOptions,
    found: Sequence[gpu_query.DetectedGpu],
    *,
    on_cpu: bool,
    devices: int = 1,
) -> LaunchFlags:
    """Return the flags and variables of a size's preset, see presets.use.

    UserError where XLA does not take a flag of the user's.
    """
    precision = (
        t5x_model_options.PRESET_PRECISIONS[chosen.fp8] if chosen.precision != "float32" else "fp32"
    )
    used = launch_flags.select_launch_flags(
        "t5x", size, environment, found, on_cpu=on_cpu, precision=precision, devices=devices
    )
    xla_flags.check_flags_known(used.user_flags, execution.find_python(environment))
    return used


def make_environment(
    environment: Mapping[str, str], used: LaunchFlags, platforms: str, processes: int = 1
) -> dict[str, str]:
    """Return a program's environment, with what a preset gives it, on these of JAX's platforms; see
    run.compiled.
    """
    known = {**environment, **used.env}
    known.pop("BASE_XLA_FLAGS", None)
    return {
        **known,
        **execution.compilation_cache_variables(known, processes),
        "TFDS_DATA_DIR": preflight.find_dataset_folder(environment),
        "XLA_FLAGS": xla_flags.join_flags(used.flags),
        "JAX_PLATFORMS": platforms,
    }


def main(argv: Sequence[str]) -> int:
    """Run a script: its name, the tree it lies in, then its words, see rosetta.launch.scripts."""
    script, here, *words = argv
    return scripts.run_script(
        script,
        words,
        settings.POSITIONALS[script],
        lambda values: [make_command(script, values, os.environ, here)],
    )
