"""The run description: what runs, where, with what settings, and where each of them came from;
whatever starts a run is made of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import INVALID, UNSUPPORTED, UserError
from rosetta.core.value_parsing import asks_for_cpu

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = 1
FRAMEWORKS = ("t5x", "pax")
PROCESSES = ("node", "gpu")


@dataclass(frozen=True)
class Run:
    """One run of a framework.

    Attributes:
      framework: "t5x" or "pax".
      entry: what each process executes, as an argument list; never read by a shell.
      model: T5_SIZE, or the experiment's name.
      precision: "bf16", "fp32", "fp8-xla" or "fp8-te".
      mesh: "ici" and "dcn", the devices along each of the mesh's axes within a node and across
        nodes; empty: the framework's own choice.
      batch: "per_gpu" and "microbatches"; empty: the model's own.
      nodes, gpus_per_node: how many.
      processes_per_node: "node" for one process a node, "gpu" for one a GPU.
      xla_flags: flag without dashes -> value.
      env: variables of each process besides XLA_FLAGS, settings of the entry (BSIZE_PER_GPU, DATA,
        ...) among them.
      mounts: [outside, inside] for each folder that a container sees.
      gin, fdl: the framework's own configuration, by name; the one of the other framework is empty.
      origin: "xla_flags.NAME", "env.NAME", "nodes", ... -> the place that set it, as
        "presets/pax.yaml:12" or "BASE_XLA_FLAGS".
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
        found = {
            "schema": SCHEMA,
            **asdict(self),
            "entry": list(self.entry),
            "mounts": [list(each) for each in self.mounts],
        }
        del found["fdl" if self.framework == "t5x" else "gin"]
        return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_list_of(value: Any, item: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(item, value))


def _is_mapping_of(value: Any, item: Callable[[Any], bool] = lambda _: True) -> bool:
    return isinstance(value, dict) and all(map(item, value.values()))


# Field -> is it of its kind, and what that is.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "framework": (lambda value: value in FRAMEWORKS, f"give one of: {', '.join(FRAMEWORKS)}"),
    "entry": (
        lambda value: _is_list_of(value, _is_text) and bool(value),
        "give a list of texts, a program and its arguments",
    ),
    "model": (_is_text, "give a text"),
    "precision": (_is_text, "give a text"),
    "nodes": (_is_count, "give a whole number, at least 1"),
    "gpus_per_node": (_is_count, "give a whole number, at least 1"),
    "processes_per_node": (
        lambda value: value in PROCESSES,
        f"give one of: {', '.join(PROCESSES)}",
    ),
    "xla_flags": (
        lambda value: _is_mapping_of(value, lambda each: isinstance(each, (str, int, float))),
        "give flag: value, each true, false, a number or a text",
    ),
    "env": (lambda value: _is_mapping_of(value, _is_text), "give NAME: VALUE, each a text"),
    "origin": (lambda value: _is_mapping_of(value, _is_text), "give FIELD: PLACE, each a text"),
    "mounts": (
        lambda value: _is_list_of(
            value, lambda pair: _is_list_of(pair, _is_text) and len(pair) == 2
        ),
        "give pairs: [[OUTSIDE, INSIDE], ...]",
    ),
    "mesh": (_is_mapping_of, "give NAME: VALUE"),
    "batch": (_is_mapping_of, "give NAME: VALUE"),
    "gin": (_is_mapping_of, "give NAME: VALUE"),
    "fdl": (_is_mapping_of, "give NAME: VALUE"),
}


def parse_run(document: Any) -> Run:
    """Return the run that a JSON document describes.

    Raises:
      UserError: it is of another version, or lacks a field, has one that there is not, or one of
        another kind.
    """
    if not isinstance(document, dict):
        raise UserError(
            "it is no JSON object",
            "run description",
            "write it with --json of rosetta explain",
            kind=INVALID,
        )
    if document.get("schema") != SCHEMA:
        raise UserError(
            f"its schema is {document.get('schema')!r}",
            "run description",
            f"this rosetta reads schema {SCHEMA}",
            kind=UNSUPPORTED,
            value=document.get("schema"),
        )
    given = {name: value for name, value in document.items() if name != "schema"}
    if wrong := sorted(given.keys() - _KINDS.keys()) or sorted(
        {"framework", "entry", "model"} - given.keys()
    ):
        raise UserError(
            f"{'it has no field' if wrong[0] in given else 'it lacks'} {wrong[0]}",
            "run description",
            "write it with --json of rosetta explain",
            kind=INVALID,
            value=wrong[0],
        )
    for name, value in given.items():
        fine, do = _KINDS[name]
        if not fine(value):
            raise UserError(
                f"its {name} is of another kind", "run description", do, kind=INVALID, value=name
            )  # without the value, which may be a secret
    return Run(
        **{
            **given,
            "entry": tuple(given["entry"]),
            "mounts": tuple((outside, inside) for outside, inside in given.get("mounts", ())),
        }
    )


def runs_on_cpu(run: Run) -> bool:
    """Return whether a run is to do without GPUs, which is never so unless JAX_PLATFORMS says
    it.
    """
    return asks_for_cpu(run.env.get("JAX_PLATFORMS", ""))
