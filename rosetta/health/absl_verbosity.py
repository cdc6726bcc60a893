"""The level of the lines that upstream's programs write by absl."""

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
    """Return a parser of absl's flags that sets --verbosity by ROSETTA_LOG_LEVEL.

    Upstream's level stays if the variable is not set, and if the command line has --verbosity.

    Args:
      parse: Parses the flags, as absl's `app.run` takes it.
      flag_values: absl's `flags.FLAGS`.
    """

    def parse_flags(words: list[str]) -> Any:
        level = log.read_level(os.environ)
        rest = parse(words)
        if os.environ.get(log.LEVEL_VARIABLE) and flag_values["verbosity"].using_default_value:
            flag_values.verbosity = _VERBOSITY[level]
        return rest

    return parse_flags
