"""What can be known to be wrong with a run of Pax before JAX starts: its experiment's name,
vocabulary, data, checkpoints, folders.
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
from rosetta.data import data_checks, data_spec
from rosetta.pax.run import dataset_download, experiment_checks, fiddle_arguments, hyper_parameters
from rosetta.pax.run.settings import CONFIGS_MODULE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rosetta.pax.run.settings import Settings

DOWNLOADS = {
    "Lambada": "lambada",
    "LLaMA": "boolq",
}  # how experiments' names begin -> what they read
PAXML_BASES = (
    ("base_experiment.py", "BaseExperiment"),
    ("tasks/lm/model_params.py", "TransformerLmSpmdAdafactor"),
)  # Paxml's that our experiments are made of
CHECKPOINTS = "checkpoints"  # a run's folder has them in this one


def resolve_experiment(config: str) -> str:
    """Return the name that --fdl_config takes: ours in full, one with dots as it is.

    Raises:
      UserError: there is none of this name; it says the nearest.
    """
    if "." in config:
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", config):
            raise UserError(
                f"it is {config!r}",
                "CONFIG",
                "name an experiment, or MODULE.CLASS of your own",
                kind=INVALID,
                value=config,
            )
        return config
    known = hyper_parameters.list_experiments()
    if config not in known:
        near = difflib.get_close_matches(config, known, 1, 0.5)
        raise UserError(
            f"there is no experiment {config!r}",
            "CONFIG",
            f"did you mean {near[0]}?" if near else f"choose one of: {', '.join(known)}",
            kind=UNKNOWN,
            value=config,
        )
    return f"{CONFIGS_MODULE}.{config}"


def check_hyper_parameter_names(config: str, given: Iterable[str]) -> None:
    """Check the names of hyper-parameters for an experiment of ours: those that our files state,
    and those of Paxml's base classes, read from their text.

    Raises:
      UserError: one is none; it says the nearest. Without Paxml at hand nothing is known, and
        nothing is said.
    """
    paxml = importlib.util.find_spec("paxml")
    if (
        config.removeprefix(f"{CONFIGS_MODULE}.") not in hyper_parameters.list_experiments()
        or paxml is None
        or not paxml.submodule_search_locations
    ):
        return
    known = set(hyper_parameters.list_names())
    for file, base in PAXML_BASES:
        path = Path(next(iter(paxml.submodule_search_locations)), file)
        known |= hyper_parameters.read_class_names(path, base) if path.is_file() else set()
    for name in map(fiddle_arguments.strip_part, given):
        if name not in known and (name.isupper() or name.upper() in known):
            near = difflib.get_close_matches(name.upper(), known, n=1)
            raise UserError(
                "there is no such hyper-parameter",
                f"--fdl.{name}",
                f"did you mean {near[0]}?"
                if near
                else "see docs/reference/pax-experiments.md for their names",
                kind=UNKNOWN,
                value=name,
            )


def find_vocabulary(given: Settings) -> tuple[str, tuple[str, ...]]:
    """Return VOCAB_PATH for a run, "" where nothing tokenises, and what to say of it. A folder
    stands for the one model in it.

    Raises:
      UserError: something tokenises and there is none, or no such file.
    """
    path = given.variables.get("VOCAB_PATH") or given.variables.get("VOCAB") or ""
    if given.synthetic or path == "byte" or path.startswith("ids:"):
        return path, ()
    if not path and given.of_user:
        return "", ()
    if not path:
        raise UserError(
            f"{given.config} has text to tokenise, and no vocabulary",
            "VOCAB_PATH",
            (
                "name a SentencePiece model (rosetta vocab train makes one), or take a Synthetic "
                "experiment"
            ),
            kind=MISSING,
        )
    if is_address(path):
        raise UserError(
            "vocabularies are read from files",
            f"VOCAB_PATH={path}",
            "copy it first, and name the copy",
            kind=UNSUPPORTED,
        )
    if Path(path).is_dir():
        inside = sorted(Path(path).glob("*.model"))
        if len(inside) != 1:
            raise UserError(
                f"it is a folder with {len(inside)} files *.model",
                f"VOCAB_PATH={path}",
                "name the SentencePiece model itself",
                kind=INVALID,
            )
        return str(inside[0].absolute()), (f"the vocabulary is {inside[0]}",)
    if Path(path).is_file() and not Path(path).stat().st_size:
        raise UserError(
            "the vocabulary file is empty",
            f"VOCAB_PATH={path}",
            "copy it again, or name another SentencePiece model (rosetta vocab train makes one)",
            kind=DAMAGED,
        )
    if not Path(path).is_file():
        raise UserError(
            "there is no such vocabulary file",
            f"VOCAB_PATH={path}",
            "name a SentencePiece model (rosetta vocab train makes one)",
            kind=MISSING,
        )
    return str(Path(path).absolute()), ()


def find_data(given: Settings) -> dict[str, str]:
    """Return the variables that say what a run reads: TFDS_DATA_DIR where it is given, DATA and
    EVAL_DATA where a download of ours lies in it.

    Raises:
      UserError: the folder is needed and not given, or is none.
    """
    folder = given.variables.get("TFDS_DATA_DIR", "")
    found = {"TFDS_DATA_DIR": folder} if folder else {}
    if given.synthetic or given.variables.get("DATA"):
        return found
    if given.evaluates_only and given.variables.get("EVAL_DATA"):
        # The experiment checks its training data too, which an evaluation does not read.
        return {**found, "DATA": given.variables["EVAL_DATA"]}
    if given.of_user and not folder:
        return found
    if not folder:
        raise UserError(
            f"{given.config} has no data",
            "TFDS_DATA_DIR",
            "name the folder of prepared data sets, or text of your own: DATA=text:GLOB",
            kind=MISSING,
        )
    if not is_address(folder) and not Path(folder).is_dir():
        raise UserError(
            "there is no such folder",
            f"TFDS_DATA_DIR={folder}",
            "name the folder of prepared data sets, or text of your own: DATA=text:GLOB",
            kind=MISSING,
        )
    name = next((name for start, name in DOWNLOADS.items() if given.config.startswith(start)), None)
    return {
        **found,
        **(
            dataset_download.find_downloaded(name, parse_path("TFDS_DATA_DIR", folder))
            if name
            else {}
        ),
    }


def check_sizes(given: Settings, hyper: Mapping[str, str]) -> None:
    """Check sizes, and the mesh and the batch where the user gave a part of the mesh.

    Of an experiment of ours the files state what was not given.

    Args:
      given: the run.
      hyper: its hyper-parameters as --fdl has them; those left out are the experiment's.

    Raises:
      UserError: one line; the run would fail with it after JAX has started.
    """
    values = hyper_parameters.resolve_values(given.config, hyper, given.words)
    known = {name: value for name, value in values.items() if value is not NOT_KNOWN}
    experiment_checks.check_counts(known)
    experiment_checks.check_numbers(known)
    if "NUM_MICROBATCHES" in known:
        parts = experiment_checks.check_count("NUM_MICROBATCHES", known["NUM_MICROBATCHES"])
        if parts > 1 and "PERCORE_BATCH_SIZE" in known:
            experiment_checks.check_microbatches(
                experiment_checks.compute_batch(known["PERCORE_BATCH_SIZE"], given.gpus), parts
            )
    meshes = {"ICI_MESH_SHAPE", "DCN_MESH_SHAPE"}
    if meshes & hyper.keys() and meshes <= known.keys():
        parts = math.prod(experiment_checks.compute_mesh(SimpleNamespace(**known), given.gpus)[:2])
        if "PERCORE_BATCH_SIZE" in known:
            experiment_checks.compute_batch(known["PERCORE_BATCH_SIZE"], given.gpus, split=parts)


def check_files(given: Settings, hyper: Mapping[str, str]) -> None:
    """Check that the files and folders of DATA and EVAL_DATA are there, for an experiment of ours.

    Args:
      given: the run.
      hyper: its hyper-parameters as --fdl has them.

    Raises:
      UserError: one is missing; the message names the variable.
    """
    config = given.config.removeprefix(f"{CONFIGS_MODULE}.")
    if given.synthetic or config not in hyper_parameters.list_experiments():
        return
    known = hyper_parameters.resolve_values(config, hyper, given.words)
    for name in ("DATA", "EVAL_DATA"):
        typed = known.get(name) or given.variables.get(name)
        if isinstance(typed, (str, dict)):
            _check_source(name, typed)


def _check_source(name: str, typed: str | Mapping[str, float]) -> None:
    """Check the files and folders of one source or mixture; UserError where one is missing."""
    try:
        for part in data_spec.parse_parts(typed):
            if part.spec.kind in ("text", "jsonl", "tfrecord"):
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
                    "check the path: inside a container it is the mounted one",
                    kind=MISSING,
                )
    except UserError as error:
        raise data_checks.name_source_variable(error, name) from None


def check_last_step(given: Settings, hyper: Mapping[str, str], folder: str) -> tuple[str, ...]:
    """Check that a training run ends no earlier than its newest checkpoint; return a line if no
    step is left.

    Args:
      given: the run.
      hyper: its hyper-parameters as --fdl has them.
      folder: of the run.

    Raises:
      UserError: the checkpoint is past MAX_STEPS.
    """
    end = hyper_parameters.resolve_values(given.config, hyper, given.words).get("MAX_STEPS")
    step = None if is_address(folder) else find_newest_step(folder)
    if step is None or not isinstance(end, int):
        return ()
    return run_folders.check_last_step(f"MAX_STEPS={end}", end, step, "LOG_DIR")


def check_rows(given: Settings, hyper: Mapping[str, str]) -> None:
    """Check local files of running text that a run of an experiment of ours trains on: their names,
    and whether they hold a batch.

    Bytes say exactly how many rows files give; other vocabularies are loaded by the run, which
    counts then.

    Args:
      given: the run.
      hyper: its hyper-parameters as --fdl has them.

    Raises:
      UserError: files are missing, or hold fewer rows than a global batch.
    """
    config = given.config.removeprefix(f"{CONFIGS_MODULE}.")
    if (
        given.synthetic
        or config not in hyper_parameters.list_experiments()
        or config.startswith(tuple(DOWNLOADS))
        or importlib.util.find_spec("numpy") is None
    ):
        return
    from rosetta.data import pipeline

    known = hyper_parameters.resolve_values(config, hyper, given.words)
    typed, length, field = (
        known.get("DATA") or given.variables.get("DATA"),
        known.get("MAX_SEQ_LEN"),
        known.get("TEXT_FIELD"),
    )
    vocab = known.get("VOCAB") or given.variables.get("VOCAB_PATH") or given.variables.get("VOCAB")
    if (
        not isinstance(typed, (str, dict))
        or not isinstance(length, int)
        or length < 2
        or not isinstance(field, str)
        or vocab != "byte"
    ):
        return
    parts = data_spec.parse_parts(typed)
    if len(parts) > 1 or parts[0].spec.kind not in ("text", "jsonl"):
        return
    data = data_spec.describe_data(typed)
    found = pipeline.open_sources(
        pipeline.Recipe(data, "lm", "byte", 0, 0, length, text_field=field)
    )
    experiment_checks.check_row_count(
        getattr(found, "count", None),
        experiment_checks.compute_batch(known.get("PERCORE_BATCH_SIZE"), given.gpus),
        length,
        data,
    )


def find_newest_step(run: str) -> int | None:
    """Return the step of the newest whole checkpoint of a run's folder of this machine, None where
    it has none.
    """
    steps = run_folders.list_checkpoint_steps(f"{run}/{CHECKPOINTS}")
    return steps[-1] if steps else None


def find_pretrained(name: str, path: str) -> tuple[str, int | None]:
    """Return a run's folder of checkpoints and its newest step, None in an object store.

    Args:
      name: of the variable, for the message.
      path: the folder with `checkpoints` in it.

    Raises:
      UserError: it is a folder of this machine without a whole checkpoint.
    """
    run = parse_path(name, path).rstrip("/").removesuffix(f"/{CHECKPOINTS}")
    if is_address(run):
        return f"{run}/{CHECKPOINTS}", None
    step = find_newest_step(run)
    if step is None:
        raise UserError(
            "it holds no checkpoints/checkpoint_N",
            f"{name}={path}",
            "name the folder of a run that has saved one",
            kind=MISSING,
        )
    return f"{run}/{CHECKPOINTS}", step


def find_checkpoints(given: Settings) -> Mapping[str, object]:
    """Return what a run reads, found and checked: evaluate_from, its step, and restore, each where
    there is one.

    Raises:
      UserError: a checkpoint is missing, or a folder cannot be written to.
    """
    found: dict[str, object] = {}
    if given.llama and given.variables.get("CHECKPOINT_RESTORE_PATH"):
        found["restore"], found["step"] = find_pretrained(
            "CHECKPOINT_RESTORE_PATH", given.variables["CHECKPOINT_RESTORE_PATH"]
        )
    if given.script == "run_lambada_singlenode":
        _, found["step"] = find_pretrained("LOG_DIR", given.log_dir)
    run_folders.check_folder_writable(given.log_dir)
    return found
