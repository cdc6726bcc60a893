"""Check a run before it starts on another machine or in a container.

`rosetta run` and `rosetta submit` use these checks. They find folders that no mount covers, and an
accelerator that is not named, so that the settings which presets have for the accelerator are left
out. A place is a value of --on: local, docker, slurm, pyxis, apptainer or jobset.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from rosetta.core import run_description
from rosetta.core.errors import CONFLICT, UserError
from rosetta.core.value_parsing import asks_for_cpu, is_address
from rosetta.data import data_spec, model_hub

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rosetta.core.run_description import Run

OUTPUT_VARIABLES = {"t5x": "MODEL_DIR", "pax": "LOG_DIR"}
# Under pyxis and apptainer, the configuration of a site may mount more folders than the command.
SITE_MOUNTED = ("pyxis", "apptainer")
CONTAINERS = ("docker", *SITE_MOUNTED, "jobset")
_DATA_VARIABLES, _VOCABULARY_VARIABLES = ("DATA", "EVAL_DATA"), ("VOCAB", "VOCAB_PATH")
_FOLDER_VARIABLES = ("TFDS_DATA_DIR", "INITIAL_CHECKPOINT_PATH", "CHECKPOINT_RESTORE_PATH")
_FILE_KINDS = (*data_spec.FILE_KINDS, *data_spec.TOKEN_KINDS)
_PLATFORMS = "JAX_PLATFORMS"


def describe_platform(run: Run, place: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note on whether JAX_PLATFORMS=cpu of this environment applies to the run.

    Args:
      run: the run.
      place: where the run will start.
      environment: the environment of this process.

    Returns:
      One note, or none if the environment does not ask for the CPU.
    """
    source = run.origin.get(f"settings.{_PLATFORMS}")
    if run_description.runs_on_cpu(run) and source == _PLATFORMS and place != "local":
        note = (
            f"{_PLATFORMS}={run.env[_PLATFORMS]} of the environment applies to the run too: the "
            "run is ON THE CPU and requests no GPU; for a GPU, give --accelerator GPU or unset "
            f"{_PLATFORMS}"
        )
        return (note,)
    if run.env.get(_PLATFORMS) == "" and asks_for_cpu(environment.get(_PLATFORMS, "")):
        note = (
            f"{_PLATFORMS}={environment[_PLATFORMS]} of the environment does not apply to the run: "
            "the run is for a GPU"
        )
        return (note,)
    return ()


def describe_missing_accelerator(run: Run, fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return a note for a run on GPUs whose model is not known.

    Args:
      run: the run.
      fields: the settings that presets have for accelerators, and that the run therefore lacks.
    """
    if run_description.runs_on_cpu(run):
        return ()
    note = (
        "no GPU model is named, so the run lacks the settings that presets have for a GPU model "
        f"({', '.join(fields)}); give --accelerator GPU, or set accelerator in the site file"
    )
    return (note,)


def check_folders(run: Run, place: str) -> tuple[str, ...]:
    """Return notes on files and folders of a run that no mount covers.

    Only commands of rosetta are checked, because the folders of other programs are not known.

    Args:
      run: the run, with its mounts.
      place: where the run will start.

    Raises:
      UserError: the output would be lost with the container.
    """
    if place not in CONTAINERS or run.entry[:2] != ("rosetta", run.framework):
        return ()
    return _check_output_folder(run, place) + _describe_unmounted_inputs(run)


def _check_output_folder(run: Run, place: str) -> tuple[str, ...]:
    """Return a note if no mount covers the output folder; refuse it if no site can mount it."""
    name = OUTPUT_VARIABLES[run.framework]
    folder = run.env.get(name, "")
    if not folder and run.framework == "t5x":
        folder = run.env.get("T5X_WORKSPACE_DIR", "")
    if _is_mounted(folder, run):
        return ()
    if folder:
        where, problem = f"{name}={folder}", "no mount covers this folder"
    else:
        where, problem = name, f"{name} is not set, and no mount covers its default"
    if folder.startswith("/"):
        remedy = f"give --mount OUTSIDE:{folder}, or a folder below a mount"
    else:
        remedy = f"give {name}=/FOLDER, and --mount OUTSIDE:/FOLDER"
    if place not in SITE_MOUNTED:
        raise UserError(
            f"{problem}: the output would be lost with the container", where, remedy, kind=CONFLICT
        )
    note = (
        f"{where}: {problem}: unless the site mounts it, the output is lost with the container; "
        f"{remedy}"
    )
    return (note,)


def _describe_unmounted_inputs(run: Run) -> tuple[str, ...]:
    """Return a note that lists the inputs of a run that no mount covers."""
    unmounted = [
        f"{path} ({variable})"
        for variable, path in _iterate_inputs(run.env)
        if not _is_mounted(path, run)
    ]
    if not unmounted:
        return ()
    note = (
        f"{', '.join(unmounted)}: no mount covers this: the run reads what the image has at this "
        "path; give --mount OUTSIDE:INSIDE"
    )
    return (note,)


def _iterate_inputs(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variable and the path of each file or folder that a run reads."""
    for name in _DATA_VARIABLES:
        parts = data_spec.parse_parts(env[name]) if env.get(name) else ()
        for part in parts:
            if part.spec.kind in _FILE_KINDS:
                yield from ((name, path) for path in part.spec.value.split(","))
    for name in _VOCABULARY_VARIABLES:
        vocabulary = env.get(name, "")
        if vocabulary and vocabulary != "byte" and not vocabulary.startswith("ids:"):
            yield name, vocabulary
    for name in _FOLDER_VARIABLES:
        if env.get(name):
            yield name, env[name]


def _is_mounted(path: str, run: Run) -> bool:
    """Return whether a path is below a mount, in an object store or on the Hub."""
    if is_address(path) or model_hub.is_hub_name(path):
        return True
    normalized = posixpath.normpath(path)
    mounts = [posixpath.normpath(inside) for _, inside in run.mounts]
    return any(
        normalized == mount or normalized.startswith(f"{mount.rstrip('/')}/") for mount in mounts
    )
