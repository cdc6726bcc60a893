"""Set absl's log level, which T5X and Paxml use, from ROSETTA_LOG_LEVEL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rosetta.core import log

if TYPE_CHECKING:
    from collections.abc import Callable

_VERBOSITY = {"debug": 1, "info": 0, "warning": -1, "error": -2}


def make_flag_parser(
    parse: Callable[[list[str]], Any], flag_values: Any
) -> Callable[[list[str]], Any]:
    """Return a parser of absl's flags that also sets --verbosity from ROSETTA_LOG_LEVEL.

    Without the variable, or with --verbosity on the command line, the level stays.

    Args:
      parse: the parser of the program, in the form that absl's `app.run` takes.
      flag_values: absl's `flags.FLAGS`.
    """

    def parse_flags(words: list[str]) -> Any:
        level = log.read_level(os.environ)
        arguments = parse(words)
        if os.environ.get(log.LEVEL_VARIABLE) and flag_values["verbosity"].using_default_value:
            flag_values.verbosity = _VERBOSITY[level]
        return arguments

    return parse_flags
