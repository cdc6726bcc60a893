"""Start T5X's evaluation of a checkpoint, or its inference, from variables.

Every check that needs no JAX comes first.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import (
    CONFLICT,
    DIFFERS,
    INVALID,
    MISSING,
    UNSUPPORTED,
    UserError,
)
from rosetta.core.not_known import NOT_KNOWN
from rosetta.core.run_folders import check_folder_writable
from rosetta.core.value_parsing import is_address, parse_path
from rosetta.core.variables import choices, setting_values
from rosetta.data import data_spec
from rosetta.launch import device_selection, hub_inputs, input_lines, t5x_trainer
from rosetta.launch.execution import Command, WarningLine
from rosetta.presets import t5x_model_options
from rosetta.t5x.run import (
    gin_bindings,
    gin_files,
    gin_reader,
    own_model_name,
    preflight,
    settings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.launch.device_selection import Machine
    from rosetta.launch.input_lines import InputLines
    from rosetta.presets.t5x_model_options import ModelOptions
    from rosetta.t5x.run.gin_reader import Configuration

# The names of the gin files that decide which questions are answered, and how.
_ANSWERED_NAMES = (
    "CHECKPOINT_PATH",
    "DATA",
    "EVAL_DATA",
    "SPLIT",
    "OBJECTIVE",
    "TEXT_FIELD",
    "INPUT_PREFIX",
    "LABELS",
    "OWN_MODEL",
    "MODEL_FIELDS",
    "TASK_FEATURE_LENGTHS",
    "VOCAB",
    "EXTRA_IDS",
    "MODE",
    "NUM_DECODES",
    "TEMPERATURE",
    "TOP_K",
    "TOP_P",
)
_SAMPLING = ("TEMPERATURE", "TOP_K", "TOP_P")  # variables, and macros of sampling.gin
OUTPUT_VARIABLES = {"eval": "EVAL_OUTPUT_DIR", "infer": "INFER_OUTPUT_DIR"}


@dataclass(frozen=True)
class _GinFiles:
    """The gin files of a program: rosetta's own, by name, and the user's."""

    names: list[str]
    user_files: list[Path]

    def list_paths(self) -> list[Path]:
        """Return the paths of all files, in the order in which gin reads them."""
        return [*(gin_files.ROOT / name for name in self.names), *self.user_files]

    def list_options(self) -> list[str]:
        """Return the values of --gin_file."""
        return [*self.names, *map(str, self.user_files)]


def make_command(program: str, environment: Mapping[str, str]) -> Command:
    """Return the command that evaluates a checkpoint on a task, or infers from it.

    Args:
      program: "eval" or "infer".
      environment: CHECKPOINT_PATH, FT_TASK, OUTPUT_DIR; T5_FAMILY=t5_1_1, T5_SIZE=large, PREC,
        BSIZE (32), TP_SIZE, DATA, VOCAB, EXTRA_IDS, NUM_DECODES, ENC_SL, DEC_SL, ROSETTA_GIN, and
        the switches. For "eval" also OBJECTIVE in place of FT_TASK. For "infer" also INPUTS in
        place of DATA, TEMPERATURE, TOP_K and TOP_P.

    Raises:
      UserError: a setting is wrong, as far as that can be known before JAX starts.
    """
    for name in ("CHECKPOINT_PATH", "OUTPUT_DIR"):
        if not environment.get(name):
            raise UserError("this variable is not set", name, f"give {name}=FOLDER", kind=MISSING)
    lines = _read_inputs(program, environment)
    if lines:
        task = environment.get("FT_TASK") or choices.PAIRS
        environment = {**environment, "FT_TASK": task, "DATA": lines.data}
    values = setting_values.read_settings(environment, f"t5x {program}")
    task = _choose_task(values, environment)
    files = _choose_files(program, task, values, environment)
    machine = device_selection.detect_machine(environment)
    options = t5x_model_options.choose_model_options(
        own_model_name.replace_network_variables(environment), machine.gpus, on_cpu=machine.on_cpu
    )
    devices = _count_devices(machine, environment)
    if devices:
        _check_batch(values["BSIZE"], devices, values["TP_SIZE"])
    bindings = _make_bindings(program, environment, values, options)
    configuration = gin_reader.read_configuration(files.list_paths(), (Path.cwd(), gin_files.ROOT))
    bindings |= settings.make_task_bindings(environment, task, evaluates=program == "eval")
    bindings |= gin_bindings.make_length_bindings(settings.select_lengths(values), configuration)
    configuration = configuration.bind(bindings)
    preflight.check_split(configuration, values["TP_SIZE"], devices, size=values["T5_SIZE"])
    # Inference that scores answers needs them, as evaluation does.
    needs_answers = program == "eval" or configuration.value("__main__.infer.mode") == "score"
    _check_data(configuration, environment, lines, answered=needs_answers)
    folder = str(bindings[OUTPUT_VARIABLES[program]])
    warnings = check_earlier_answers(folder, configuration) if program == "infer" else ()
    check_folder_writable(folder)
    command = _make_program_command(
        program, environment, files, bindings, values["T5_SIZE"], options, machine
    )
    command = replace(command, lines=(*command.lines, *map(WarningLine, warnings)))
    if lines:
        command = replace(command, before_start=lines.write)
    return _add_log(command, program, values["LOGDIR"] or "", folder)


def _choose_task(values: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Return the task: what settings.require_task returns, or MASKED_TASK for hidden tokens.

    Args:
      values: the variables by their types.
      environment: the variables.

    Raises:
      UserError: there is no task, the model does not do it, or other variables do not fit it.
    """
    objective = values.get("OBJECTIVE") or ""
    if not objective:
        task = settings.require_task(values)
    elif values["FT_TASK"]:
        raise UserError(
            "a task and an objective are two things to evaluate",
            f"OBJECTIVE={objective}",
            "leave out OBJECTIVE or FT_TASK",
            kind=CONFLICT,
            value=objective,
        )
    elif objective not in choices.MASKED_OBJECTIVES:
        raise UserError(
            "only the objectives of encoders are evaluated",
            f"OBJECTIVE={objective}",
            f"choose one of: {', '.join(choices.MASKED_OBJECTIVES)}; or name a task: FT_TASK",
            kind=UNSUPPORTED,
            value=objective,
        )
    else:
        task = gin_files.MASKED_TASK
        _check_data_ends(environment.get("DATA") or "")
    if values[own_model_name.VARIABLE]:
        return task
    if task == gin_files.MASKED_TASK:
        gin_files.check_family_has_masks(values["T5_FAMILY"], objective)
    else:
        gin_files.check_task_of_family(task, values["T5_FAMILY"])
    if values["T5_FAMILY"] in choices.ENCODER_FAMILIES:
        _check_encoder_variables(task, values, environment)
    return task


def _check_data_ends(data: str) -> None:
    """Check that the data of hidden tokens has an end, at which the evaluation stops.

    Raises:
      UserError: the data is not set, or has no end.
    """
    if not data:
        raise UserError("is not set", "DATA", "name texts, as in DATA=text:GLOB", kind=MISSING)
    for part in data_spec.parse_parts(data):
        is_stream = part.spec.kind == "hf" and not Path(part.spec.value).expanduser().is_dir()
        if is_stream or part.spec.kind == "synthetic":
            raise UserError(
                "this data has no end, at which the evaluation could stop",
                f"DATA={part.spec}",
                "name files, or save a part of the data set to a folder",
                kind=UNSUPPORTED,
                value=str(part.spec),
            )


def _check_encoder_variables(
    task: str, values: Mapping[str, Any], environment: Mapping[str, str]
) -> None:
    """Check the variables of an encoder, which has classes to name and writes no answers.

    Raises:
      UserError: the classes are not set, or a variable is about written answers.
    """
    if task == "classification" and not environment.get("LABELS"):
        raise UserError(
            "the classes are not set",
            "LABELS",
            "name them in the order of the finetuning, as in LABELS=negative,positive",
            kind=MISSING,
        )
    for name in ("NUM_DECODES", *_SAMPLING):
        if values.get(name) is not None:
            raise UserError(
                "an encoder does not generate text",
                f"{name}={values[name]:g}",
                "leave it out",
                kind=CONFLICT,
                value=values[name],
            )


def _choose_files(
    program: str, task: str, values: Mapping[str, Any], environment: Mapping[str, str]
) -> _GinFiles:
    """Return the gin files of a program.

    Args:
      program: "eval" or "infer".
      task: what _choose_task returned.
      values: the variables by their types.
      environment: the variables.
    """
    size = own_model_name.SIZE if values[own_model_name.VARIABLE] else values["T5_SIZE"]
    model = gin_files.find_model_file(values["T5_FAMILY"], size)
    names = [program, f"task_{gin_files.get_task_file_name(task)}"]
    if program == "infer" and _check_sampling(values):
        names.insert(1, "sampling")
    own_files = [f"{gin_files.GIN_FOLDER}/runs/{name}.gin" for name in names]
    user_files = [
        *gin_files.find_own_model_files(environment),
        *gin_files.find_user_files(environment),
    ]
    return _GinFiles([model, *own_files], user_files)


def _read_inputs(program: str, environment: Mapping[str, str]) -> InputLines | None:
    """Return the lines of INPUTS; None if INPUTS is not set.

    Raises:
      UserError: the text cannot be read, or other variables say what is to be answered.
    """
    source = environment.get(input_lines.VARIABLE)
    if program != "infer" or not source:
        return None
    task = environment.get("FT_TASK") or choices.PAIRS
    others = {name: environment.get(name) for name in ("DATA", "EVAL_DATA")}
    if task not in (choices.PAIRS, choices.TEXT_TO_TEXT, *choices.LABEL_TASKS):
        others["FT_TASK"] = task
    for name, value in others.items():
        if value:
            raise UserError(
                "the inputs are the lines of a text",
                f"{name}={value}",
                f"leave it out, or leave out {input_lines.VARIABLE}",
                kind=CONFLICT,
                value=value,
            )
    folder = parse_path("OUTPUT_DIR", environment["OUTPUT_DIR"])
    field = environment.get("TEXT_FIELD") or data_spec.DEFAULT_FIELD
    is_labelled = task in choices.LABEL_TASKS
    parse_fields = data_spec.parse_label_fields if is_labelled else data_spec.parse_pair_fields
    names = parse_fields(field)
    if len(names) > 2:
        raise UserError(
            "a line is one text, and the records have two",
            f"TEXT_FIELD={field}",
            f"name records with both texts in place of {input_lines.VARIABLE}, as in "
            "DATA=jsonl:new.jsonl",
            kind=CONFLICT,
            value=field,
        )
    return input_lines.read_lines(source, folder, names[0])


def _check_sampling(values: Mapping[str, Any]) -> bool:
    """Return whether tokens are drawn by chance.

    Args:
      values: the variables by their types.

    Raises:
      UserError: the values are not valid, or the family does not draw so.
    """
    given = [name for name in _SAMPLING if values[name] is not None]
    if not given:
        return False
    where = f"{given[0]}={values[given[0]]:g}"
    if values["T5_FAMILY"] == "decoder_only":
        raise UserError(
            "a model that only has a decoder always draws its tokens, from the likeliest one",
            where,
            "leave it out, or set decoding.temperature_sample in a gin file (ROSETTA_GIN)",
            kind=UNSUPPORTED,
        )
    if values["TOP_P"] is not None and not 0 < values["TOP_P"] <= 1:
        raise UserError(
            "not a valid probability",
            f"TOP_P={values['TOP_P']:g}",
            "give a number above 0 and at most 1",
            kind=INVALID,
            value=values["TOP_P"],
        )
    if values["TOP_K"] and values["TOP_P"]:
        raise UserError(
            "T5X draws from the K likeliest tokens or from a share of the probability, not both",
            f"TOP_K={values['TOP_K']}",
            "leave out TOP_K or TOP_P",
            kind=CONFLICT,
        )
    return True


def _check_data(
    configuration: Configuration,
    environment: Mapping[str, str],
    lines: InputLines | None,
    *,
    answered: bool,
) -> None:
    """Check the data of a program.

    Args:
      configuration: the gin configuration.
      environment: the variables.
      lines: the data, which is not written yet; None if it is what DATA names.
      answered: whether the records need answers.

    Raises:
      UserError: the data cannot be used.
    """
    if lines is None:
        preflight.check_data(configuration, environment, answered=answered)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = replace(lines, file=Path(folder, "inputs.jsonl"))
        copy.write()
        checked = configuration.bind({"DATA": copy.data, "EVAL_DATA": copy.data})
        preflight.check_data(checked, environment, answered=answered)


def _add_log(command: Command, program: str, log_dir: str, folder: str) -> Command:
    """Return a command with its log file, and with a line about its folder and the file.

    Args:
      command: the command.
      program: "eval" or "infer".
      log_dir: the value of LOGDIR; "" if it is not set.
      folder: the value of OUTPUT_DIR.
    """
    log = t5x_trainer.choose_default_log(log_dir, folder, program)
    line = f"results in {folder}" + (f", log in {log}" if log else "")
    return replace(command, log=log, lines=(line, *command.lines))


def check_earlier_answers(folder: str, configuration: Configuration) -> tuple[str, ...]:
    """Check that a folder has no answers to other questions.

    T5X skips what an earlier inference has written to the folder, and ends with status 0. The gin
    file that T5X writes there tells what the earlier inference answered.

    Args:
      folder: the folder of the answers. An object store is not looked at.
      configuration: the gin configuration of this inference.

    Returns:
      A warning if all answers are there, else nothing.

    Raises:
      UserError: the folder has answers to other questions, or of another checkpoint.
    """
    if is_address(folder):
        return ()
    completed = sorted(Path(folder).glob("*.COMPLETED"))
    if not completed and not any(Path(folder).glob("tmp-*")):
        return ()
    where = f"OUTPUT_DIR={folder}"
    record = Path(folder, "config.gin")
    if record.is_file():
        earlier = gin_reader.read_configuration([record], (gin_files.ROOT,))
        names = [name for name in _ANSWERED_NAMES if _differs(name, earlier, configuration)]
        if names:
            raise UserError(
                f"the folder has the answers of an inference with another {', '.join(names)}",
                where,
                "name another folder",
                kind=DIFFERS,
                value=", ".join(names),
            )
    if not completed:
        return ()
    warning = f"{where}: {completed[0].stem} is complete, so nothing is computed again"
    return (f"{warning}; name another folder to infer again",)


def _differs(name: str, earlier: Configuration, configuration: Configuration) -> bool:
    """Return whether a name is known to have different values in two configurations."""
    values = [earlier.value(name), configuration.value(name)]
    return NOT_KNOWN not in values and values[0] != values[1]


def _count_devices(machine: Machine, environment: Mapping[str, str]) -> int | None:
    """Return the number of devices; None if the program will run on another machine."""
    if not machine.gpus and not machine.on_cpu:
        return None
    return machine.count_devices(environment)


def _check_batch(batch: int, devices: int, tensor_parallel: int) -> None:
    """Check that a batch divides over the groups of devices that share a model.

    Raises:
      UserError: the batch or the devices do not divide.
    """
    settings.check_batch_split(devices, tensor_parallel)
    groups = devices // tensor_parallel
    if batch % groups:
        raise UserError(
            f"the batch does not divide over {groups} groups of {tensor_parallel} device(s)",
            f"BSIZE={batch}",
            f"give a multiple of {groups}",
            kind=INVALID,
            value=batch,
        )


def _make_bindings(
    program: str,
    environment: Mapping[str, str],
    values: Mapping[str, Any],
    options: ModelOptions,
) -> dict[str, object]:
    """Return the values of --gin. options, except for the lengths.

    Args:
      program: "eval" or "infer".
      environment: the variables.
      values: the variables by their types.
      options: precision and kernels of the model.
    """
    environment = hub_inputs.resolve_variables(environment)
    bindings: dict[str, object] = {
        **options.evaluation_bindings(),
        **own_model_name.make_bindings(environment, options.precision),
        "BATCH_SIZE": values["BSIZE"],
        "NUM_PARTITIONS": values["TP_SIZE"],
        "CHECKPOINT_PATH": preflight.check_checkpoint_path(
            environment["CHECKPOINT_PATH"], "CHECKPOINT_PATH"
        ),
        OUTPUT_VARIABLES[program]: parse_path("OUTPUT_DIR", environment["OUTPUT_DIR"]),
    }
    objective = ("OBJECTIVE",) if program == "eval" else ()
    for name in ("DATA", "VOCAB", "TEXT_FIELD", "INPUT_PREFIX", "LABELS", *objective):
        if environment.get(name):
            bindings[name] = environment[name]
    if environment.get("DATA"):
        bindings["EVAL_DATA"] = environment.get("EVAL_DATA") or environment["DATA"]
    sampling = _SAMPLING if program == "infer" else ()
    for name in ("EXTRA_IDS", "NUM_DECODES", *sampling):
        if values[name] is not None:
            bindings[name] = values[name]
    return bindings


def _make_program_command(
    program: str,
    environment: Mapping[str, str],
    files: _GinFiles,
    bindings: Mapping[str, object],
    size: str,
    options: ModelOptions,
    machine: Machine,
) -> Command:
    """Return the command of a program whose settings are checked."""
    argv = t5x_trainer.make_program_argv(
        environment, files.list_options(), bindings, program=program
    )
    preset = t5x_trainer.choose_preset_flags(
        environment, size, options, machine.gpus, on_cpu=machine.on_cpu
    )
    warnings = [*([machine.missing_gpu] if machine.missing_gpu else []), *preset.lines]
    return Command(
        argv,
        t5x_trainer.make_environment(environment, preset, machine.platforms),
        None,
        (*map(WarningLine, warnings), *options.notes),
        refusal=machine.missing_gpu,
    )
