"""Get models of Hugging Face before a run: vocabularies, and weights to start from.

A run names them as hf:OWNER/NAME[@REVISION], or as a local folder of that layout. This module
downloads a model and converts its weights once, into $ROSETTA_HOME, before JAX starts. The run
itself gets paths.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import rosetta
from rosetta.core import file_lock, folder_fingerprint, home_folder, log
from rosetta.core.errors import FAILED, UserError
from rosetta.data import model_hub

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VOCABULARY_VARIABLES = ("VOCAB", "VOCAB_PATH")
_CONFIG_FILE = "config.json"
_GIN_FILE = "model.gin"  # rosetta convert t5 writes it
# The model that `rosetta convert` is told to convert, and the layout to make, by variable.
_CONVERSIONS = {
    "INITIAL_CHECKPOINT_PATH": ("t5", "t5x"),
    "CHECKPOINT_PATH": ("t5", "t5x"),
    "CHECKPOINT_RESTORE_PATH": ("llama", "pax"),
}


def resolve_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables with paths in place of models of Hugging Face.

    Args:
        environment: The variables of a run.

    Raises:
        UserError: A model cannot be fetched or converted.
    """
    variables = dict(environment)
    for name in _VOCABULARY_VARIABLES:
        if model_hub.is_hub_name(variables.get(name, "")):
            where = f"{name}={variables[name]}"
            folder = model_hub.fetch_model(variables[name], where, model_hub.TOKENIZER)
            variables[name] = str(folder)
    for name in _CONVERSIONS:
        if variables.get(name):
            variables[name] = resolve_weights(name, variables[name])
    return variables


def resolve_weights(variable: str, value: str, *, where: str = "", step: int = 0) -> str:
    """Return the folder of the checkpoint for the weights that a variable names.

    Args:
        variable: The variable, a key of _CONVERSIONS.
        value: Its value. If it names no model of Hugging Face, it is returned.
        where: The setting, for errors; "" for the variable.
        step: The step of the checkpoint of T5X to write.

    Raises:
        UserError: The model cannot be fetched or converted.
    """
    where = where or f"{variable}={value}"
    if model_hub.is_hub_name(value):
        source = model_hub.fetch_model(value, where, model_hub.WEIGHTS)
        key = f"{source.parent.parent.name}--{source.name}"
    elif os.path.isfile(os.path.join(value, _CONFIG_FILE)):
        source = Path(value).absolute()
        fingerprint = folder_fingerprint.compute_fingerprint(source)
        key = f"{source.name}--{fingerprint[:16]}"
    else:
        return value
    model, layout = _CONVERSIONS[variable]
    name = f"{key}-{layout}-{step}" if step else f"{key}-{layout}"
    out = home_folder.make_home_folder() / "converted" / name
    options = [f"--step={step}"] if step else []
    message = f"{value} is converted by another process"
    with file_lock.hold_lock(out.with_name(out.name + ".lock"), message):
        if not out.is_dir():
            log.info(f"converting {value} for {variable}, into {out}")
            _convert(model, [f"--to={layout}", *options], source, out, where)
    if (out / _GIN_FILE).is_file():
        log.info(f"the sizes of {value} are in a gin file: ROSETTA_GIN={out / _GIN_FILE}")
    return str(out)


def _convert(model: str, options: Sequence[str], source: Path, out: Path, where: str) -> None:
    """Convert a model in a child process, whose memory is free again before the run starts.

    Raises:
        UserError: The conversion fails. The error is that of `rosetta convert`.
    """
    program_folder = str(Path(rosetta.__file__).parents[1])
    path = os.pathsep.join(filter(None, [program_folder, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "rosetta", "convert", model, str(source), str(out)]
    done = subprocess.run(
        [*command, *options, "--json"],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        error = json.loads(done.stdout)["error"]
    except (ValueError, KeyError, TypeError):
        error = {"what": f"the conversion ended with status {done.returncode}"}
    if done.returncode:
        raise UserError(
            f"the weights cannot be converted: {error.get('where', '')}: {error['what']}",
            where,
            error.get("do", ""),
            kind=error.get("kind", FAILED),
            value=error.get("value"),
        )
