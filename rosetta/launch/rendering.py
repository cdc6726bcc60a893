"""Render a run description as a command for Docker or a scheduler.

A rendering is an argument list, variables that are added to ours, and a document for standard
input. No shell reads a value of the user: values are whole arguments or variables of the
environment, and there are no templates.
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

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Rendering:
    """A command to execute.

    Attributes:
      argv: the command line, which no shell reads.
      env: variables that are added to our environment.
      document: what the command reads from standard input, as YAML; None for nothing.
      hidden: more variables whose secrets may be in the document.
    """

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    document: dict[str, Any] | None = None
    hidden: dict[str, str] = field(default_factory=dict)

    @property
    def stdin(self) -> str:
        """The text that the command reads from standard input."""
        return "" if self.document is None else yaml_output.format_yaml(self.document)

    def shown(self) -> dict[str, Any]:
        """Return the command as JSON, without secrets."""
        mask = Mask({**self.env, **self.hidden})
        found = {
            "argv": [mask.mask_text(word) for word in self.argv],
            "env": mask.mask_variables(self.env),
        }
        return (
            found
            if self.document is None
            else {**found, "document": mask.mask_document(self.document)}
        )

    def text(self) -> str:
        """Return the command as a shell takes it, without secrets.

        If the command reads a document, the document is returned instead.
        """
        found = self.shown()
        if "document" in found:
            return yaml_output.format_yaml(found["document"]).rstrip()
        settings = [f"{name}={shlex.quote(value)}" for name, value in found["env"].items()]
        return " \\\n  ".join([*settings, shlex.join(found["argv"])])


@dataclass(frozen=True)
class Options:
    """How a run is given to a scheduler or a container engine.

    An empty value leaves the choice to the scheduler or the engine.

    Attributes:
      image: of the container.
      name: of the job.
      account, partition, time, output: of sbatch.
      extra: whole options for sbatch.
      requeue: whether a run that ended early, for example at its time limit, is started again.
      warning: the seconds before the time limit at which the run is told to end.
      shared: whether other jobs may use the rest of the nodes.
      secret: the Kubernetes secret that has the values of secret variables.
      namespace: in Kubernetes.
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
                f"{name!r} is not a valid name of a variable",
                "env",
                "write letters, digits and underscores",
                kind=INVALID,
                value=name,
            )
        if "\0" in value:
            raise UserError(
                "it holds a zero byte",
                name,
                "take it out: no environment can hold one",
                kind=INVALID,
            )
    if any("\0" in word for word in run.entry):
        raise UserError(
            "it holds a zero byte", "entry", "take it out: no argument can hold one", kind=INVALID
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
    return options.name or re.sub(r"[^a-z0-9]+", "-", f"{run.framework}-{run.model}".lower()).strip(
        "-"
    )


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
