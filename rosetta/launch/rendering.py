"""A run description made into what starts it somewhere: an argument list, the variables that are
added to ours, and what is read from standard input.

No value of a user's passes through a shell on the way: values are whole arguments or variables of
the environment, and nothing is a template.
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
    """What is executed.

    Attributes:
      argv: never read by a shell.
      env: added to the environment it is started in.
      document: what it reads from standard input, as YAML; None for nothing.
      hidden: variables besides env whose secrets may stand in it.
    """

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    document: dict[str, Any] | None = None
    hidden: dict[str, str] = field(default_factory=dict)

    @property
    def stdin(self) -> str:
        """What it reads."""
        return "" if self.document is None else yaml_output.format_yaml(self.document)

    def shown(self) -> dict[str, Any]:
        """Return it as JSON without secrets."""
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
        """Return it as a shell would be told, without secrets; a document for standard input
        instead of the command that reads it.
        """
        found = self.shown()
        if "document" in found:
            return yaml_output.format_yaml(found["document"]).rstrip()
        settings = [f"{name}={shlex.quote(value)}" for name, value in found["env"].items()]
        return " \\\n  ".join([*settings, shlex.join(found["argv"])])


@dataclass(frozen=True)
class Options:
    """What a run description does not say: how it is put to a scheduler or an engine. An empty one
    is left to these.

    Attributes:
      image: of the container.
      name: of the job.
      account, partition, time, output, extra: sbatch's; extra are whole options of its own.
      requeue: whether a run that ended early, at its time limit say, is started again.
      warning: seconds before the time limit at which the run is told to end.
      shared: whether others may use what is left of the nodes.
      secret: Kubernetes' secret that holds the variables which are secrets.
      namespace: Kubernetes'.
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
    """Return the environment that each process of a run is to have, XLA_FLAGS among it.

    Raises:
      UserError: a name is none of a variable, or a value cannot be one's.
    """
    found = dict(run.env)
    if run.xla_flags:
        found["XLA_FLAGS"] = xla_flags.join_flags(xla_flags.format_flags(run.xla_flags))
    for name, value in found.items():
        if not _VARIABLE.fullmatch(name):
            raise UserError(
                f"{name!r} is no variable's name",
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
    return found


def count_processes_per_node(run: Run) -> int:
    """Return the processes of each node."""
    return run.processes // run.nodes


def format_image(options: Options, place: str) -> str:
    """Return the image's name as a place reads it; UserError where there is none, or the place has
    no way to name it.
    """
    if not options.image:
        raise UserError(
            "it takes an image",
            f"--on {place}",
            "name one: --image IMAGE, or CONTAINER=IMAGE in the environment",
            kind=MISSING,
        )
    where = "--image="
    return image_reference.write_image(
        image_reference.read_image(options.image, where), place, where
    )


def choose_job_name(run: Run, options: Options) -> str:
    """Return the job's name: the one that was given, else the framework's and the model's."""
    return options.name or re.sub(r"[^a-z0-9]+", "-", f"{run.framework}-{run.model}".lower()).strip(
        "-"
    )


def format_mounts(run: Run, where: str) -> list[str]:
    """Return OUTSIDE:INSIDE for each folder, for what takes lists with commas and colons and has no
    way to quote.

    Raises:
      UserError: a path has one of these in it, or is not absolute.
    """
    for pair in run.mounts:
        for path in pair:
            if not path.startswith("/") or any(mark in path for mark in ",:"):
                raise UserError(
                    f"{path!r} cannot be mounted there",
                    where,
                    "give absolute paths without commas and colons; a link may have another name",
                    kind=UNSUPPORTED,
                    value=path,
                )
    return [":".join(pair) for pair in run.mounts]
