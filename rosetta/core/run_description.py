"""Describe a run: what runs, where, with which settings, and where each setting came from.

`rosetta explain`, `run` and `submit` describe a preset with this class, and the launchers start
what it describes. A description can be written and read as a JSON document.
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
_REQUIRED_FIELDS = frozenset({"framework", "entry", "model"})
_WHERE = "run description"
_WRITE_AGAIN = "write it with `rosetta explain --json`"


@dataclass(frozen=True)
class Run:
    """One run of a framework.

    Attributes:
      framework: "t5x" or "pax".
      entry: The program that each process executes, and its arguments. No shell reads them.
      model: T5_SIZE, or the name of the experiment.
      precision: "bf16", "fp32", "fp8-xla" or "fp8-te".
      mesh: "ici" and "dcn" -> the devices along each axis of the mesh, within a node and across
        nodes. Empty for the framework's own choice.
      batch: "per_gpu" and "microbatches" -> their values. Empty for the model's own.
      nodes: The number of nodes.
      gpus_per_node: The number of GPUs of each node.
      processes_per_node: "node" for one process on each node, "gpu" for one for each GPU.
      xla_flags: Flag without dashes -> value.
      env: The variables of each process besides XLA_FLAGS. The settings of the entry, such as
        BSIZE_PER_GPU and DATA, are among them.
      mounts: (host folder, container folder) for each folder that a container gets.
      gin: Gin bindings by name; empty for Pax.
      fdl: Fiddle settings by name; empty for T5X.
      origin: "xla_flags.NAME", "env.NAME", "nodes", ... -> the place that set the value, such as
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
        """The number of processes of the whole run."""
        return self.nodes * (self.gpus_per_node if self.processes_per_node == "gpu" else 1)

    def as_json(self) -> dict[str, Any]:
        """Return the run as a JSON document, which parse_run reads."""
        document = {
            "schema": SCHEMA,
            **asdict(self),
            "entry": list(self.entry),
            "mounts": [list(mount) for mount in self.mounts],
        }
        del document["fdl" if self.framework == "t5x" else "gin"]
        return document


# Each of these returns whether a value of the document has a type.
def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_flag_value(value: Any) -> bool:
    return isinstance(value, (str, int, float))


def _is_list_of(value: Any, is_item: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(is_item, value))


def _is_command(value: Any) -> bool:
    return _is_list_of(value, _is_text) and bool(value)


def _is_mount(value: Any) -> bool:
    return _is_list_of(value, _is_text) and len(value) == 2


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _is_mapping_of(value: Any, is_value: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(map(is_value, value.values()))


# Field -> whether a value is valid for it, and what is valid.
_FIELD_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "framework": (lambda value: value in FRAMEWORKS, f"give one of: {', '.join(FRAMEWORKS)}"),
    "entry": (_is_command, "give a list of texts, a program and its arguments"),
    "model": (_is_text, "give a text"),
    "precision": (_is_text, "give a text"),
    "nodes": (_is_count, "give a whole number, at least 1"),
    "gpus_per_node": (_is_count, "give a whole number, at least 1"),
    "processes_per_node": (
        lambda value: value in PROCESSES,
        f"give one of: {', '.join(PROCESSES)}",
    ),
    "xla_flags": (
        lambda value: _is_mapping_of(value, _is_flag_value),
        "give FLAG: VALUE, each value true, false, a number or a text",
    ),
    "env": (lambda value: _is_mapping_of(value, _is_text), "give NAME: VALUE, each value a text"),
    "origin": (
        lambda value: _is_mapping_of(value, _is_text),
        "give FIELD: PLACE, each place a text",
    ),
    "mounts": (
        lambda value: _is_list_of(value, _is_mount),
        "give pairs: [[HOST_FOLDER, CONTAINER_FOLDER], ...]",
    ),
    "mesh": (_is_mapping, "give NAME: VALUE"),
    "batch": (_is_mapping, "give NAME: VALUE"),
    "gin": (_is_mapping, "give NAME: VALUE"),
    "fdl": (_is_mapping, "give NAME: VALUE"),
}


def parse_run(document: Any) -> Run:
    """Return the run that a JSON document describes.

    Args:
      document: A document of Run.as_json.

    Raises:
      UserError: The document has another schema. Or a field is missing, is not known, or has a
        value that is not valid.
    """
    if not isinstance(document, dict):
        raise UserError("not a JSON object", _WHERE, _WRITE_AGAIN, kind=INVALID)
    if document.get("schema") != SCHEMA:
        raise UserError(
            f"the schema is {document.get('schema')!r}",
            _WHERE,
            f"this rosetta reads schema {SCHEMA}",
            kind=UNSUPPORTED,
            value=document.get("schema"),
        )
    fields = {name: value for name, value in document.items() if name != "schema"}
    _check_field_names(fields)
    for name, value in fields.items():
        is_valid, remedy = _FIELD_CHECKS[name]
        if not is_valid(value):
            # The message does not show the value, which may be a secret.
            what = f"the value of {name!r} is not valid"
            raise UserError(what, _WHERE, remedy, kind=INVALID, value=name)
    fields["entry"] = tuple(fields["entry"])
    fields["mounts"] = tuple(tuple(mount) for mount in fields.get("mounts", ()))
    return Run(**fields)


def _check_field_names(fields: dict[str, Any]) -> None:
    """Raise UserError for the first unknown field, or else the first missing one."""
    unknown = sorted(fields.keys() - _FIELD_CHECKS.keys())
    missing = sorted(_REQUIRED_FIELDS - fields.keys())
    if unknown:
        what, name = f"there is no field {unknown[0]!r}", unknown[0]
    elif missing:
        what, name = f"the field {missing[0]!r} is missing", missing[0]
    else:
        return
    raise UserError(what, _WHERE, _WRITE_AGAIN, kind=INVALID, value=name)


def runs_on_cpu(run: Run) -> bool:
    """Return whether JAX_PLATFORMS makes a run use the CPU; without that variable, none does."""
    return asks_for_cpu(run.env.get("JAX_PLATFORMS", ""))
