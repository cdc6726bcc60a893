"""The run description: what runs, where, with what settings, and where each of them came from; whatever starts a run is made of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from rosetta.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 1
PROCESSES = ("node", "gpu")


@dataclass(frozen=True)
class Run:
    """One run of a framework.

    Attributes:
      framework: "t5x" or "pax".
      entry: what each process executes, as an argument list; never read by a shell.
      model: T5_SIZE, or the experiment's name.
      precision: "bf16", "fp32", "fp8-xla" or "fp8-te".
      mesh: "ici" and "dcn", the devices along each of the mesh's axes within a node and across nodes; empty: the framework's own choice.
      batch: "per_gpu" and "microbatches"; empty: the model's own.
      nodes, gpus_per_node: how many.
      processes_per_node: "node" for one process a node, "gpu" for one a GPU.
      xla_flags: flag without dashes -> value.
      env: variables of each process besides XLA_FLAGS, settings of the entry (BSIZE_PER_GPU, DATA, ...) among them.
      mounts: [outside, inside] for each folder that a container sees.
      gin, fdl: the framework's own configuration, by name; the one of the other framework is empty.
      origin: "xla_flags.NAME", "env.NAME", "nodes", ... -> the place that set it, as "presets/pax.yaml:12" or "BASE_XLA_FLAGS".
    """

    framework: str
    entry: tuple[str, ...]
    model: str
    precision: str = "bf16"
    mesh: dict[str, list[int]] = field(default_factory=dict)
    batch: dict[str, Any] = field(default_factory=dict)
    nodes: int = 1
    gpus_per_node: int = 8
    processes_per_node: str = "gpu"
    xla_flags: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    mounts: tuple[tuple[str, str], ...] = ()
    gin: dict[str, Any] = field(default_factory=dict)
    fdl: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)

    @property
    def processes(self) -> int:
        """Processes of the whole run."""
        return self.nodes * (self.gpus_per_node if self.processes_per_node == "gpu" else 1)

    def as_json(self) -> dict[str, Any]:
        """Return it as a document; see read."""
        found = {"schema": SCHEMA, **asdict(self), "entry": list(self.entry), "mounts": [list(each) for each in self.mounts]}
        del found["fdl" if self.framework == "t5x" else "gin"]
        return found


def read(document: Mapping[str, Any]) -> Run:
    """Return the run that a document describes.

    Raises:
      UserError: it is of another version, or lacks a field or has one that there is not.
    """
    if document.get("schema") != SCHEMA:
        raise UserError(f"its schema is {document.get('schema')!r}", "run description", f"this rosetta reads schema {SCHEMA}")
    known = {each.name for each in fields(Run)}
    given = {name: value for name, value in document.items() if name != "schema"}
    if wrong := sorted(given.keys() - known) or sorted({"framework", "entry", "model"} - given.keys()):
        raise UserError(f"{'it has no field' if wrong[0] in given else 'it lacks'} {wrong[0]}", "run description", "write it with --json of rosetta explain")
    return Run(**{**given, "entry": tuple(given["entry"]), "mounts": tuple((outside, inside) for outside, inside in given.get("mounts", ()))})
