"""Check a run of Pax before JAX starts: its experiment, vocabulary, data, checkpoints and folders.

The launcher (rosetta.launch.pax_trainer) calls the checks in turn. Each one passes if the value
that it needs is not known yet; the trainer then checks again. Most checks know rosetta's own
experiments, whose classes can be read as text, and not the classes of a user.
"""

from __future__ import annotations

import difflib
import importlib.util
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from rosetta.core import run_folders
from rosetta.core.errors import DAMAGED, INVALID, MISSING, UNKNOWN, UNSUPPORTED, UserError
from rosetta.core.not_known import NOT_KNOWN
from rosetta.core.value_parsing import is_address, parse_path
from rosetta.data import data_checks, data_spec, tokenizer_folders
from rosetta.pax.run import dataset_download, experiment_checks, fiddle_arguments, hyper_parameters
from rosetta.pax.run.settings import CONFIGS_MODULE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rosetta.pax.run.settings import Settings

# The data set of experiments whose name begins so.
_QUESTION_PREFIX = "LLaMA"  # of the experiments that answer questions
DOWNLOADS = {"Lambada": "lambada", _QUESTION_PREFIX: "boolq"}
# The classes of Paxml that rosetta's experiments are derived from, by file.
PAXML_BASES = (
    ("base_experiment.py", "BaseExperiment"),
    ("tasks/lm/model_params.py", "TransformerLmSpmdAdafactor"),
)
CHECKPOINTS = "checkpoints"  # the folder of the checkpoints in the folder of a run
_NAME_VOCABULARY = "name a SentencePiece model (rosetta vocab train makes one)"
_NAME_DATA = "name the folder of prepared data sets, or text of your own: DATA=text:GLOB"


def resolve_experiment(config: str) -> str:
    """Return the full name of an experiment, which --fdl_config takes.

    Args:
      config: A name of rosetta.pax.configs, or MODULE.CLASS, which stays as it is.

    Raises:
      UserError: There is no such experiment. The error suggests the nearest name.
    """
    if "." in config:
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", config):
            raise UserError(
                f"{config!r} is not a valid name of an experiment",
                "CONFIG",
                "name an experiment, or MODULE.CLASS of your own",
                kind=INVALID,
                value=config,
            )
        return config
    known = hyper_parameters.list_experiments()
    if config not in known:
        similar = difflib.get_close_matches(config, known, 1, 0.5)
        raise UserError(
            f"there is no experiment {config!r}",
            "CONFIG",
            f"did you mean {similar[0]}?" if similar else f"choose one of: {', '.join(known)}",
            kind=UNKNOWN,
            value=config,
        )
    return f"{CONFIGS_MODULE}.{config}"


def _is_rosettas(config: str) -> bool:
    """Return whether an experiment, with or without the module, is one of rosetta.pax.configs."""
    return config.removeprefix(f"{CONFIGS_MODULE}.") in hyper_parameters.list_experiments()


def check_hyper_parameter_names(config: str, names: Iterable[str]) -> None:
    """Check that the hyper-parameters of one of rosetta's experiments exist.

    The known names are those that rosetta's files and the text of Paxml's base classes state. The
    check passes if Paxml is not installed, since only a part of the names is known then.

    Args:
      config: The experiment.
      names: The names that were given; a name may be a part, such as NAME[0].

    Raises:
      UserError: A name does not exist. The error suggests the nearest name.
    """
    paxml = importlib.util.find_spec("paxml")
    if not _is_rosettas(config) or paxml is None or not paxml.submodule_search_locations:
        return
    folder = Path(next(iter(paxml.submodule_search_locations)))
    known = set(hyper_parameters.list_names())
    for file, base in PAXML_BASES:
        if (folder / file).is_file():
            known |= hyper_parameters.read_class_names(folder / file, base)
    for name in map(fiddle_arguments.strip_part, names):
        if name not in known and (name.isupper() or name.upper() in known):
            raise experiment_checks.make_unknown_name_error(name, known)


def find_vocabulary(settings: Settings) -> tuple[str, tuple[str, ...]]:
    """Return the vocabulary of a run as VOCAB_PATH takes it.

    Args:
      settings: The run. Its vocabulary may be a folder that has one model.

    Returns:
      The absolute path of the file, "byte" or "ids:N", or "" if nothing tokenises; and a line for
      the log if a folder was given.

    Raises:
      UserError: The run tokenises text and has no vocabulary, or the file does not exist.
    """
    path = settings.variables.get("VOCAB_PATH") or settings.variables.get("VOCAB") or ""
    if settings.is_synthetic or path == "byte" or path.startswith("ids:"):
        return path, ()
    if not path and settings.is_of_user:
        return "", ()
    if not path:
        raise UserError(
            f"{settings.config} has text to tokenise, and no vocabulary",
            "VOCAB_PATH",
            f"{_NAME_VOCABULARY}, or take a Synthetic experiment",
            kind=MISSING,
        )
    where = f"VOCAB_PATH={path}"
    if is_address(path):
        raise UserError(
            "a vocabulary cannot be read from an address",
            where,
            "copy the vocabulary to this machine, and name the copy",
            kind=UNSUPPORTED,
        )
    file = Path(path)
    if tokenizer_folders.is_tokenizer_folder(path):
        name, _ = tokenizer_folders.find_vocabulary(path)
        return name, (f"the vocabulary is {name}",)
    if file.is_dir():
        models = sorted(file.glob("*.model"))
        if len(models) != 1:
            raise UserError(
                f"the folder has {len(models)} files *.model",
                where,
                "name the SentencePiece model itself",
                kind=INVALID,
            )
        return str(models[0].absolute()), (f"the vocabulary is {models[0]}",)
    if not file.is_file():
        raise UserError("there is no such vocabulary file", where, _NAME_VOCABULARY, kind=MISSING)
    if not file.stat().st_size:
        raise UserError(
            "the vocabulary file is empty",
            where,
            "copy the file again, or name another SentencePiece model (rosetta vocab train makes "
            "one)",
            kind=DAMAGED,
        )
    return str(file.absolute()), ()


def find_data(settings: Settings) -> dict[str, str]:
    """Return the variables that tell the trainer what to read.

    Returns:
      TFDS_DATA_DIR if it is set, and DATA and EVAL_DATA if a download of rosetta is in that
      folder.

    Raises:
      UserError: TFDS_DATA_DIR is needed and not set, or is not a folder.
    """
    folder = settings.variables.get("TFDS_DATA_DIR", "")
    variables = {"TFDS_DATA_DIR": folder} if folder else {}
    if settings.is_synthetic or settings.variables.get("DATA"):
        return variables
    if settings.evaluates_only and settings.variables.get("EVAL_DATA"):
        # The experiment also checks its training data, which an evaluation does not read.
        return {**variables, "DATA": settings.variables["EVAL_DATA"]}
    if settings.is_of_user and not folder:
        return variables
    if not folder:
        raise UserError(f"{settings.config} has no data", "TFDS_DATA_DIR", _NAME_DATA, kind=MISSING)
    if not is_address(folder) and not Path(folder).is_dir():
        raise UserError(
            "there is no such folder", f"TFDS_DATA_DIR={folder}", _NAME_DATA, kind=MISSING
        )
    for prefix, name in DOWNLOADS.items():
        if settings.config.startswith(prefix):
            root = parse_path("TFDS_DATA_DIR", folder)
            return {**variables, **dataset_download.find_downloaded_files(name, root)}
    return variables


def check_sizes(settings: Settings, hyper: Mapping[str, str]) -> None:
    """Check sizes and microbatches, and the mesh and the batch if the user set the mesh.

    The values that the user did not set are those of the experiment's classes.

    Args:
      settings: The run.
      hyper: The literals of the hyper-parameters that the run sets, by name.

    Raises:
      UserError: A value is wrong. The run would fail with it after JAX has started.
    """
    values = hyper_parameters.resolve_values(settings.config, hyper, settings.words)
    known = {name: value for name, value in values.items() if value is not NOT_KNOWN}
    experiment_checks.check_counts(known)
    experiment_checks.check_numbers(known)
    if "NUM_MICROBATCHES" in known:
        parts = experiment_checks.check_count("NUM_MICROBATCHES", known["NUM_MICROBATCHES"])
        if parts > 1 and "PERCORE_BATCH_SIZE" in known:
            rows = experiment_checks.compute_batch(known["PERCORE_BATCH_SIZE"], settings.gpus)
            experiment_checks.check_microbatches(rows, parts)
    meshes = {"ICI_MESH_SHAPE", "DCN_MESH_SHAPE"}
    if meshes & hyper.keys() and meshes <= known.keys():
        mesh = experiment_checks.compute_mesh(SimpleNamespace(**known), settings.gpus)
        if "PERCORE_BATCH_SIZE" in known:
            experiment_checks.compute_batch(
                known["PERCORE_BATCH_SIZE"], settings.gpus, split=math.prod(mesh[:2])
            )


def describe_mesh_mismatch(settings: Settings, hyper: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning if the experiment's own mesh is for another number of GPUs than NUM_GPUS.

    It is not an error, because the command may be tried on one of the nodes of a larger run.
    """
    values = hyper_parameters.resolve_values(settings.config, hyper, settings.words)
    shapes = {name: values.get(name, NOT_KNOWN) for name in ("ICI_MESH_SHAPE", "DCN_MESH_SHAPE")}
    is_given = bool(shapes.keys() & hyper.keys())
    if is_given or NOT_KNOWN in shapes.values() or not settings.variables.get("NUM_GPUS"):
        return ()
    try:
        experiment_checks.compute_mesh(SimpleNamespace(**shapes), settings.gpus)
    except UserError as error:
        return (f"{settings.config}: {error.what}; {error.do}",)
    return ()


def check_files(settings: Settings, hyper: Mapping[str, str]) -> None:
    """Check that the files and folders of DATA and EVAL_DATA exist, and suit the experiment.

    Args:
      settings: The run. Only rosetta's experiments are checked.
      hyper: The literals of the hyper-parameters that the run sets, by name.

    Raises:
      UserError: A file or a folder is missing, or has no questions for LLaMA. The message names
        the variable.
    """
    if settings.is_synthetic or not _is_rosettas(settings.config):
        return
    known = hyper_parameters.resolve_values(settings.config, hyper, settings.words)
    config = settings.config.removeprefix(f"{CONFIGS_MODULE}.")
    for name in ("DATA", "EVAL_DATA"):
        data = known.get(name) or settings.variables.get(name)
        if isinstance(data, (str, dict)):
            _check_data_files(name, data)
            if config.startswith(_QUESTION_PREFIX):
                _refuse_plain_text(name, data)


def _refuse_plain_text(name: str, data: str | Mapping[str, float]) -> None:
    """Raise UserError if a source is plain text, which has no questions and answers."""
    for part in data_spec.parse_parts(data):
        if part.spec.kind == "text":
            raise UserError(
                "plain text has no questions and answers",
                f"{name}={part.spec}",
                "use jsonl or another kind of records, with the fields of BoolQ",
                kind=UNSUPPORTED,
                value=part.spec.kind,
            )


def _check_data_files(name: str, data: str | Mapping[str, float]) -> None:
    """Check the files and folders of one source or mixture, the value of the variable `name`."""
    try:
        for part in data_spec.parse_parts(data):
            if part.spec.kind in (*data_spec.FILE_KINDS, "megatron"):
                data_spec.find_files(part.spec)
                continue
            # Other names after hf: are data sets of the Hugging Face Hub.
            is_folder = part.spec.kind == "cache" or (
                part.spec.kind == "hf" and part.spec.value.startswith(("/", "."))
            )
            if is_folder and not Path(part.spec.value).expanduser().exists():
                raise UserError(
                    "there is no such folder",
                    part.spec.value,
                    "check the path: inside a container the mounted path counts",
                    kind=MISSING,
                )
    except UserError as error:
        raise data_checks.name_source_variable(error, name) from None


def check_last_step(settings: Settings, hyper: Mapping[str, str], folder: str) -> tuple[str, ...]:
    """Check that a training run does not end before its newest checkpoint.

    Args:
      settings: The run.
      hyper: The literals of the hyper-parameters that the run sets, by name.
      folder: The folder of the run.

    Returns:
      A warning if no step is left to train, else nothing.

    Raises:
      UserError: The checkpoint is past MAX_STEPS.
    """
    values = hyper_parameters.resolve_values(settings.config, hyper, settings.words)
    last_step = values.get("MAX_STEPS")
    step = None if is_address(folder) else find_newest_step(folder)
    if step is None or not isinstance(last_step, int):
        return ()
    return run_folders.check_last_step(f"MAX_STEPS={last_step}", last_step, step, "LOG_DIR")


def check_rows(settings: Settings, hyper: Mapping[str, str]) -> None:
    """Check that local text files hold enough rows for one batch.

    Only text with VOCAB=byte is counted here, since its rows follow from the sizes of the files.
    With another vocabulary the run counts the rows after it has loaded the vocabulary.

    Args:
      settings: The run. Only rosetta's experiments are checked.
      hyper: The literals of the hyper-parameters that the run sets, by name.

    Raises:
      UserError: Files are missing, or hold fewer rows than a global batch.
    """
    config = settings.config.removeprefix(f"{CONFIGS_MODULE}.")
    reads_prompts = config.startswith(tuple(DOWNLOADS))
    if settings.is_synthetic or not _is_rosettas(config) or reads_prompts:
        return
    if importlib.util.find_spec("numpy") is None:
        return
    from rosetta.data import data_recipe, row_sources

    known = hyper_parameters.resolve_values(config, hyper, settings.words)
    variables = settings.variables
    data = known.get("DATA") or variables.get("DATA")
    length, text_field = known.get("MAX_SEQ_LEN"), known.get("TEXT_FIELD")
    vocabulary = known.get("VOCAB") or variables.get("VOCAB_PATH") or variables.get("VOCAB")
    if vocabulary != "byte" or not isinstance(data, (str, dict)):
        return
    if not isinstance(length, int) or length < 2 or not isinstance(text_field, str):
        return
    parts = data_spec.parse_parts(data)
    if len(parts) > 1 or parts[0].spec.kind not in ("text", "jsonl"):
        return
    description = data_spec.describe_data(data)
    source = row_sources.open_sources(
        data_recipe.Recipe(description, "lm", "byte", 0, 0, length, text_field=text_field)
    )
    experiment_checks.check_row_count(
        getattr(source, "count", None),
        experiment_checks.compute_batch(known.get("PERCORE_BATCH_SIZE"), settings.gpus),
        length,
        description,
    )


def find_newest_step(run: str) -> int | None:
    """Return the step of the newest complete checkpoint of a run, None if there is none.

    Args:
      run: The folder of the run, on this machine.
    """
    steps = run_folders.list_checkpoint_steps(f"{run}/{CHECKPOINTS}")
    return steps[-1] if steps else None


def find_pretrained(name: str, path: str) -> tuple[str, int | None]:
    """Return the folder of a run's checkpoints, and the step of the newest one.

    Args:
      name: The variable that names the run, for the message.
      path: The folder of the run, or its folder `checkpoints`.

    Returns:
      The folder, and the step. The step is None in an object store, which is not read here.

    Raises:
      UserError: A folder of this machine has no complete checkpoint.
    """
    run = parse_path(name, path).rstrip("/").removesuffix(f"/{CHECKPOINTS}")
    if is_address(run):
        return f"{run}/{CHECKPOINTS}", None
    step = find_newest_step(run)
    if step is None:
        raise UserError(
            run_folders.describe_missing_checkpoint(run),
            f"{name}={path}",
            "name the folder of a run that has saved a checkpoint",
            kind=MISSING,
        )
    return f"{run}/{CHECKPOINTS}", step


def find_checkpoints(settings: Settings) -> Mapping[str, object]:
    """Return the checkpoints that a run of a script reads, after checking its folders.

    Returns:
      `restore`, the folder of the checkpoints that a run of LLaMA starts from, and `step`, the
      step of the newest one. A key is absent if the script reads no such checkpoint.

    Raises:
      UserError: A checkpoint is missing, or the folder of the run cannot be written to.
    """
    checkpoints: dict[str, object] = {}
    if settings.llama and settings.variables.get("CHECKPOINT_RESTORE_PATH"):
        checkpoints["restore"], checkpoints["step"] = find_pretrained(
            "CHECKPOINT_RESTORE_PATH", settings.variables["CHECKPOINT_RESTORE_PATH"]
        )
    if settings.script == "run_lambada_singlenode":
        _, checkpoints["step"] = find_pretrained("LOG_DIR", settings.log_dir)
    run_folders.check_folder_writable(settings.log_dir)
    return checkpoints
