"""Evaluating a checkpoint and inferring from one: from the settings to the program, with every
check that needs no JAX.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import gpu_query
from rosetta.core.errors import INVALID, MISSING, UserError
from rosetta.core.run_folders import check_folder_writable
from rosetta.core.value_parsing import asks_for_cpu, parse_path
from rosetta.core.variables import setting_values
from rosetta.launch import device_selection, t5x_trainer
from rosetta.launch.execution import Command, WarningLine
from rosetta.presets import t5x_model_options
from rosetta.t5x.run import gin_bindings, gin_files, gin_reader, preflight, settings

if TYPE_CHECKING:
    from collections.abc import Mapping

OUTPUT_VARIABLES = {"eval": "EVAL_OUTPUT_DIR", "infer": "INFER_OUTPUT_DIR"}


def make_command(what: str, environment: Mapping[str, str]) -> Command:
    """Return what evaluates a checkpoint on a task, or infers from it.

    Args:
      what: "eval" or "infer".
      environment: CHECKPOINT_PATH, FT_TASK, OUTPUT_DIR; T5_FAMILY=t5_1_1, T5_SIZE=large, PREC,
        BSIZE (32), TP_SIZE, DATA, VOCAB, EXTRA_IDS, NUM_DECODES, ENC_SL, DEC_SL, ROSETTA_GIN, and
        the switches.

    Raises:
      UserError: anything that can be known to be wrong before JAX starts.
    """
    for name in ("CHECKPOINT_PATH", "OUTPUT_DIR"):
        if not environment.get(name):
            raise UserError("it is not set", name, f"give {name}=FOLDER", kind=MISSING)
    values = setting_values.read_settings(environment, f"t5x {what}")
    task = settings.require_task(values)
    size = values["T5_SIZE"]
    model = gin_files.find_model_file(values["T5_FAMILY"], size)
    found = gpu_query.detect_gpus(environment)
    platforms, no_gpu = gpu_query.select_jax_platforms_or_error(found, environment)
    on_cpu = asks_for_cpu(platforms)
    chosen = t5x_model_options.choose_model_options(environment, found, on_cpu=on_cpu)
    batch, ways = values["BSIZE"], values["TP_SIZE"]
    devices = (
        device_selection.count_devices(found, environment, on_cpu=on_cpu)
        if found or on_cpu
        else None
    )
    if devices:
        settings.check_batch_split(devices, ways)
        groups = devices // ways
        if batch % groups:
            raise UserError(
                f"it does not divide over {groups} groups of {ways} device(s)",
                f"BSIZE={batch}",
                f"give a multiple of {groups}",
                kind=INVALID,
                value=batch,
            )
    bindings: dict[str, object] = {
        **chosen.evaluation_bindings(),
        "BATCH_SIZE": batch,
        "NUM_PARTITIONS": ways,
        "CHECKPOINT_PATH": preflight.check_checkpoint_path(
            environment["CHECKPOINT_PATH"], "CHECKPOINT_PATH"
        ),
        OUTPUT_VARIABLES[what]: parse_path("OUTPUT_DIR", environment["OUTPUT_DIR"]),
        **{name: environment[name] for name in ("DATA", "VOCAB") if environment.get(name)},
    }
    if environment.get("DATA"):
        bindings["EVAL_DATA"] = environment.get("EVAL_DATA") or environment["DATA"]
    for name in ("EXTRA_IDS", "NUM_DECODES"):
        if values[name] is not None:
            bindings[name] = values[name]
    own = gin_files.find_user_files(environment)
    names = [model, *(f"{gin_files.GIN_FOLDER}/runs/{name}.gin" for name in (what, f"task_{task}"))]
    configuration = gin_reader.read_configuration(
        [*(gin_files.ROOT / name for name in names), *own], (Path.cwd(), gin_files.ROOT)
    )
    bindings |= gin_bindings.make_length_bindings(settings.select_lengths(values), configuration)
    configuration = configuration.bind(bindings)
    preflight.check_split(configuration, ways, devices, size=size)
    scores = what == "infer" and configuration.value("__main__.infer.mode") == "score"
    preflight.check_data(configuration, environment, answered=what == "eval" or scores)
    check_folder_writable(str(bindings[OUTPUT_VARIABLES[what]]))
    argv = t5x_trainer.make_program_argv(
        environment, [*names, *map(str, own)], bindings, program=what
    )
    used = t5x_trainer.choose_preset_flags(environment, size, chosen, found, on_cpu=on_cpu)
    return Command(
        argv,
        t5x_trainer.make_environment(environment, used, platforms),
        None,
        (
            *([WarningLine(no_gpu)] if no_gpu else []),
            *map(WarningLine, used.lines),
            *chosen.notes,
        ),
        refused=no_gpu,
    )
