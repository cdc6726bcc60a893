"""Render a run description as a command for Docker or a scheduler.

A rendering is an argument list, environment variables to add, and a document for standard input.
There is one module for each place: docker.py, slurm.py and jobset.py. No shell evaluates a value of
the user: values are whole arguments or environment variables, and there are no templates.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rosetta.core import xla_flags, yaml_output
from rosetta.core.errors import INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.core.secrets import Mask
from rosetta.launch import image_reference

if TYPE_CHECKING:
    from rosetta.core.run_description import Run

# The label of a container, of a JobSet and of its pods that has the id of their run.
RUN_LABEL = "rosetta.run"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Rendering:
    """A command to execute.

    Attributes:
      argv: the arguments of the command, the program first. No shell evaluates them.
      env: variables to add to the environment of this process.
      document: what the command reads from standard input, as YAML; None for nothing.
      hidden: more variables of the run. Their secrets are masked in the output too.
    """

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    document: dict[str, Any] | None = None
    hidden: dict[str, str] = field(default_factory=dict)

    @property
    def stdin(self) -> str:
        """The text that the command reads from standard input."""
        return "" if self.document is None else yaml_output.format_yaml(self.document)

    def as_json(self) -> dict[str, Any]:
        """Return the command as a dry run prints it with --json, without secrets."""
        mask = Mask({**self.env, **self.hidden})
        result: dict[str, Any] = {
            "argv": [mask.mask_text(argument) for argument in self.argv],
            "env": mask.mask_variables(self.env),
        }
        if self.document is not None:
            result["document"] = mask.mask_document(self.document)
        return result

    def format_command(self) -> str:
        """Return the command in the syntax of a shell, without secrets.

        If the command reads a document, the document is returned instead.
        """
        result = self.as_json()
        if "document" in result:
            return yaml_output.format_yaml(result["document"]).rstrip()
        variables = [f"{name}={shlex.quote(value)}" for name, value in result["env"].items()]
        return " \\\n  ".join([*variables, shlex.join(result["argv"])])


@dataclass(frozen=True)
class Options:
    """What the user asks of a scheduler or a container engine.

    An empty value leaves the choice to the scheduler or the engine.

    Attributes:
      image: the image of the container.
      name: the name of the job.
      account, partition, time, output: the options of sbatch with these names.
      extra: more options for sbatch, each a whole argument.
      requeue: whether a run that ended early, for example at its time limit, is started again.
      warning: how many seconds before the time limit the run gets the signal to end.
      shared: whether other jobs may use the rest of the nodes.
      secret: the name of the Kubernetes secret that has the values of secret variables.
      namespace: the namespace in Kubernetes.
      run_id: the id of the run, which becomes a label; "" for no label. `rosetta runs` compares it,
        because a later run may have a container or a JobSet with the same name.
    """

    image: str = ""
    name: str = ""
    account: str = ""
    partition: str = ""
    time: str = ""
    output: str = ""
    extra: tuple[str, ...] = ()
    requeue: bool = False
    warning: int = 120
    shared: bool = False
    secret: str = "rosetta"  # noqa: S105 (a name)
    namespace: str = ""
    run_id: str = ""


def make_variables(run: Run) -> dict[str, str]:
    """Return the variables of each process of a run, XLA_FLAGS included.

    Raises:
      UserError: the name or the value of a variable is not valid.
    """
    variables = dict(run.env)
    if run.xla_flags:
        variables["XLA_FLAGS"] = xla_flags.join_flags(xla_flags.format_flags(run.xla_flags))
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name):
            raise UserError(
                f"{name!r} is not a valid variable name",
                "env",
                "write letters, digits and underscores",
                kind=INVALID,
                value=name,
            )
        if "\0" in value:
            raise UserError(
                "the value has a zero byte",
                name,
                "remove the byte: an environment variable cannot contain it",
                kind=INVALID,
            )
    if any("\0" in argument for argument in run.entry):
        raise UserError(
            "an argument has a zero byte",
            "entry",
            "remove the byte: a command line cannot contain it",
            kind=INVALID,
        )
    return variables


def count_processes_per_node(run: Run) -> int:
    """Return the number of processes of each node."""
    return run.processes // run.nodes


def format_image(options: Options, place: str) -> str:
    """Return the image's name in the form of a place; see image_reference.write_image.

    Raises:
      UserError: there is no image, or the place cannot run it.
    """
    if not options.image:
        raise UserError(
            "an image is missing",
            f"--on {place}",
            "name an image: --image IMAGE, or CONTAINER=IMAGE in the environment",
            kind=MISSING,
        )
    where = "--image="
    return image_reference.write_image(
        image_reference.read_image(options.image, where), place, where
    )


def choose_job_name(run: Run, options: Options) -> str:
    """Return the job's name from the options, else from the framework and the model."""
    if options.name:
        return options.name
    default_name = f"{run.framework}-{run.model}".lower()
    return re.sub(r"[^a-z0-9]+", "-", default_name).strip("-")


def format_mounts(run: Run, where: str) -> list[str]:
    """Return OUTSIDE:INSIDE for each mount, for programs that split lists at commas and colons.

    Raises:
      UserError: a path has a comma or a colon, or is not absolute.
    """
    for pair in run.mounts:
        for path in pair:
            if not path.startswith("/") or any(separator in path for separator in ",:"):
                raise UserError(
                    f"{path!r} cannot be mounted",
                    where,
                    "give absolute paths without commas and colons; a link may have another name",
                    kind=UNSUPPORTED,
                    value=path,
                )
    return [":".join(pair) for pair in run.mounts]
