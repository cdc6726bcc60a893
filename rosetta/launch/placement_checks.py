"""Check, before a run is started elsewhere, what it would lack there.

That is folders without a mount, an accelerator, and the settings that presets have for it.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from rosetta.core import run_description
from rosetta.core.errors import CONFLICT, UserError
from rosetta.core.value_parsing import asks_for_cpu, is_address
from rosetta.data import data_spec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rosetta.core.run_description import Run

OUTPUT_VARIABLES = {"t5x": "MODEL_DIR", "pax": "LOG_DIR"}
# Their site's configuration may mount more than the command says.
SITE_MOUNTED = ("pyxis", "apptainer")
CONTAINERS = ("docker", *SITE_MOUNTED, "jobset")
_DATA_VARIABLES, _VOCABULARY_VARIABLES = ("DATA", "EVAL_DATA"), ("VOCAB", "VOCAB_PATH")
_FOLDER_VARIABLES = ("TFDS_DATA_DIR", "INITIAL_CHECKPOINT_PATH", "CHECKPOINT_RESTORE_PATH")
_FILE_KINDS = ("text", "jsonl", "tfrecord", "cache")
_PLATFORMS = "JAX_PLATFORMS"


def describe_platform(run: Run, place: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note if JAX_PLATFORMS=cpu of our environment goes along, or is left behind.

    Args:
      run: the run.
      place: where it is started.
      environment: ours.
    """
    source = run.origin.get(f"settings.{_PLATFORMS}")
    if run_description.runs_on_cpu(run) and source == _PLATFORMS and place != "local":
        return (
            (
                f"{_PLATFORMS}={run.env[_PLATFORMS]} of the environment goes along: there, too, "
                "the run is ON THE CPU and asks for no GPU; give --accelerator CARD, or unset it"
            ),
        )
    if run.env.get(_PLATFORMS) == "" and asks_for_cpu(environment.get(_PLATFORMS, "")):
        return (
            (
                f"{_PLATFORMS}={environment[_PLATFORMS]} of the environment is not taken along: "
                "the run is for a GPU"
            ),
        )
    return ()


def describe_missing_accelerator(run: Run, fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return a note if no accelerator is known for a run.

    Args:
      run: the run.
      fields: the settings that presets have for accelerators.
    """
    if run_description.runs_on_cpu(run):
        return ()
    return (
        (
            "no card is given: the run goes without what presets have for one "
            f"({', '.join(fields)}); give --accelerator CARD, or name it in the site's file"
        ),
    )


def check_folders(run: Run, place: str) -> tuple[str, ...]:
    """Return notes on files and folders of a run that no mount covers.

    Only entries of rosetta are checked, since nothing is known of other programs.

    Args:
      run: the run, with its mounts.
      place: where it is started.

    Raises:
      UserError: the output would be lost with the container.
    """
    if place not in CONTAINERS or run.entry[:2] != ("rosetta", run.framework):
        return ()
    lines = tuple[str, ...]()
    name = OUTPUT_VARIABLES[run.framework]
    folder = (
        run.env.get(name)
        or (run.env.get("T5X_WORKSPACE_DIR") if run.framework == "t5x" else "")
        or ""
    )
    if not _is_mounted(folder, run):
        where, lost = (
            (f"{name}={folder}", "no mount covers it")
            if folder
            else (name, "it is not given, and no mount covers its default")
        )
        do = (
            f"give --mount OUTSIDE:{folder}, or a folder below a mount"
            if folder.startswith("/")
            else f"give {name}=/FOLDER, and --mount OUTSIDE:/FOLDER"
        )
        if place not in SITE_MOUNTED:
            raise UserError(
                f"{lost}: it would be lost with the container", where, do, kind=CONFLICT
            )
        lines = (
            f"{where}: {lost}: unless the site mounts it, it is lost with the container; {do}",
        )
    missing = [
        f"{path} ({variable})"
        for variable, path in _iterate_inputs(run.env)
        if not _is_mounted(path, run)
    ]
    if missing:
        lines += (
            (
                f"{', '.join(missing)}: no mount covers it: in the container it is what the image "
                "has there; give --mount OUTSIDE:INSIDE"
            ),
        )
    return lines


def _iterate_inputs(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variable and the path of each file or folder that a run reads."""
    for name in _DATA_VARIABLES:
        for part in data_spec.parse_parts(env[name]) if env.get(name) else ():
            if part.spec.kind in _FILE_KINDS:
                yield from ((name, path) for path in part.spec.value.split(","))
    yield from (
        (name, env[name])
        for name in _VOCABULARY_VARIABLES
        if env.get(name) and env[name] != "byte" and not env[name].startswith("ids:")
    )
    yield from ((name, env[name]) for name in _FOLDER_VARIABLES if env.get(name))


def _is_mounted(path: str, run: Run) -> bool:
    """Return whether a path is below a mount, or in an object store."""
    if is_address(path):
        return True
    normalized = posixpath.normpath(path)
    mounts = [posixpath.normpath(inside) for _, inside in run.mounts]
    return any(
        normalized == mount or normalized.startswith(f"{mount.rstrip('/')}/") for mount in mounts
    )
