"""Define the entry of the table for one environment variable."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rosetta.core.variables.readers import SCRIPT_COMMANDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.core.variables.value_types import ValueType


class Scope(enum.Enum):
    """The purpose of a variable. The values are the headings of the reference page."""

    RUN = "Settings of a run"
    PROGRAM = "Variables of rosetta"
    INTERNAL = "Internal variables"
    SLURM_FILE = "Variables of the .sub files"
    OTHER_PROGRAM = "Variables of other programs"


class Group(enum.Enum):
    """The subject of a variable. The values are the headings of help texts, in this order."""

    MODEL = "Model and task"
    DATA = "Data and vocabulary"
    BATCH = "Batch and parallelism"
    LENGTH = "Length of the run and learning rate"
    CHECKPOINTS = "Checkpoints"
    HEALTH = "Health"
    PRECISION = "Precision and kernels"
    PROFILING = "Profiling"
    PROGRAMS = "Programs and folders"
    XLA = "XLA and JAX"
    BUILDER = "Builder"
    CLUSTER = "Cluster and machine"
    NETWORK = "Network and accounts"


class Note(str):
    """A phrase that describes a default which is not a fixed value, such as "the visible GPUs"."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)  # compared by identity, so that an entry can be a key
class Variable:
    """One variable, as one framework or program reads it.

    A name has two entries if it means different things to T5X and Pax.

    Attributes:
      name: The variable.
      type: The values that it takes.
      help: What it does, in one plain sentence.
      group: Its subject.
      read_by: The commands, scripts and programs that read it; names of `readers`.
      default: Its value if it is not set, as a user would write it. A Note if the default depends
        on something, or if files of other programs set it; "" if there is none.
      default_for: Reader -> default, for the readers that have another default.
      unit: What the value counts, "" if nothing.
      example: A value that a user might give; "" if the default is a good example.
      scope: The purpose of the variable.
      owner: The program whose variable it is, "" for rosetta.
      secret: Whether the value must never be printed.
      hyper_parameter: Whether Pax takes its value as the hyper-parameter of the same name.
      preset_field: The field of a preset that it sets; "" for none.
      passed_to_run: Whether `rosetta run` and `submit` pass it on from the environment.
      slow_because: Why a run is slow if the variable is on, for `rosetta doctor`; "" if the run is
        not slow.
      argument_name: What the scripts call the argument that sets the variable, if that is not the
        name of the variable. An environment variable of that name is not read.
      since: The release of rosetta that first had it.
      details: More sentences, for the reference page and `rosetta explain`; "" if none is needed.
      page: The page that has more, below docs/, such as "explanation/fp8.md"; "" for none.
    """

    name: str
    type: ValueType
    help: str
    group: Group
    read_by: tuple[str, ...]
    default: str = ""
    default_for: Mapping[str, str] = field(default_factory=dict)
    unit: str = ""
    example: str = ""
    scope: Scope = Scope.RUN
    owner: str = ""
    secret: bool = False
    hyper_parameter: bool = False
    preset_field: str = ""
    passed_to_run: bool = True
    slow_because: str = ""
    argument_name: str = ""
    since: str = "0.1"
    details: str = ""
    page: str = ""

    @property
    def frameworks(self) -> tuple[str, ...]:
        """The frameworks whose commands read the variable: "t5x", "pax", both or none."""
        first_words = {reader.partition(" ")[0] for reader in self.read_by}
        return tuple(name for name in ("t5x", "pax") if name in first_words)

    def get_default_text(self, reader: str = "") -> str:
        """Return the default as help shows it, or "" if there is none.

        Args:
          reader: The command or script whose default is returned; "" for the default of most
            readers.
        """
        command = SCRIPT_COMMANDS.get(reader, reader)
        return self.default_for.get(reader, self.default_for.get(command, self.default))

    def get_default_value(self, reader: str = "") -> str:
        """Return the default as a user would write it, or "" if it depends on something.

        Args:
          reader: See get_default_text.
        """
        text = self.get_default_text(reader)
        return "" if isinstance(text, Note) else text

    def make_example(self) -> str:
        """Return NAME=VALUE with a value that a user might give."""
        choices, default = self.type.choices, self.get_default_value()
        another = next((choice for choice in choices if choice != default), "")
        value = self.example or another or default or self.type.placeholder
        return f"{self.name}={value}"
