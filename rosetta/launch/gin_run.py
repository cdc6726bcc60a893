"""Describe the run of T5X's trainer with gin files alone, for `rosetta run` and `submit`."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core.errors import INVALID, MISSING, UserError
from rosetta.core.run_description import Run
from rosetta.core.value_parsing import asks_for_cpu
from rosetta.t5x.run import gin_files, gin_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAME = re.compile(r"[A-Za-z_][\w./]*")


def describe_gin_run(
    files: Sequence[str],
    words: Sequence[str],
    *,
    nodes: int,
    gpus_per_node: int,
    processes_per_node: str,
    environment: Mapping[str, str],
    in_container: bool,
) -> Run:
    """Return the run of gin files and of settings on top of them.

    Args:
      files: Gin files, as --gin_file of the trainer takes them; later ones override earlier ones.
      words: NAME=VALUE, each a binding. A value that is not a literal, a %MACRO or a @REFERENCE of
        gin counts as a text.
      nodes: The number of nodes.
      gpus_per_node: The number of GPUs of each node.
      processes_per_node: "node" or "gpu", as in Run.
      environment: The variables of this process, of which JAX_PLATFORMS is passed on.
      in_container: Whether the files are read in a container, where this process cannot look.

    Raises:
      UserError: A file does not exist, or a word is not a binding.
    """
    names = [_resolve_file(file, in_container=in_container) for file in files]
    bindings = dict(_parse_binding(word) for word in words)
    entry = ["python", "-m", "rosetta.t5x.train", "train"]
    entry += [f"--gin_file={name}" for name in names]
    entry += [f"--gin.{name}={value}" for name, value in bindings.items()]
    if nodes * (gpus_per_node if processes_per_node == "gpu" else 1) > 1:
        entry.append("--multiprocess_gpu")
    platforms = environment.get("JAX_PLATFORMS", "")
    env = {"JAX_PLATFORMS": platforms} if asks_for_cpu(platforms) else {}
    return Run(
        framework="t5x",
        entry=tuple(entry),
        model=Path(files[-1]).stem,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        processes_per_node=processes_per_node,
        env=env,
        gin=dict(bindings),
    )


def _resolve_file(file: str, *, in_container: bool) -> str:
    """Return a gin file as the trainer finds it: as an absolute path, or the name of one we ship.

    Raises:
      UserError: The file does not exist, or a container would not find it.
    """
    if (gin_files.ROOT / file).is_file() and not Path(file).is_absolute():
        return file
    if in_container:
        if Path(file).is_absolute():
            return file
        raise UserError(
            "a container does not find a relative path",
            f"--gin {file}",
            "give the path inside the container, and --mount for its folder",
            kind=INVALID,
            value=file,
        )
    if not Path(file).is_file():
        raise UserError(
            "the file does not exist",
            f"--gin {file}",
            f"name a gin file, or one of those in {gin_files.GIN_FOLDER}",
            kind=MISSING,
            value=file,
        )
    return str(Path(file).absolute())


def _parse_binding(word: str) -> tuple[str, str]:
    """Return the name and the gin value of a NAME=VALUE word.

    Raises:
      UserError: The word is not of this form.
    """
    name, equals, value = word.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise UserError(
            f"{word!r} is not a valid binding",
            "--gin",
            "write NAME=VALUE, as in MODEL_DIR=/runs/a or trainer.Trainer.num_microbatches=2",
            kind=INVALID,
            value=word,
        )
    if value.startswith(("%", "@")):
        return name, value
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, gin_text.format_literal(value)
    return name, value
