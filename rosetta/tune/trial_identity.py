"""What a run comes to, so that the same one is not tried twice under two names: XLA's defaults, and
what a precision goes without, make many a switch void.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import TYPE_CHECKING

from rosetta.core import xla_flags

if TYPE_CHECKING:
    from rosetta.core.run_description import Run

# The options are kept while they are written: their memory is the compile options'.
_PRINT_OPTIONS = (
    "from jaxlib import xla_client; made = xla_client.CompileOptions(); "
    "print(made.executable_build_options.debug_options)"
)


def identify_run(run: Run) -> tuple[object, ...]:
    """Return what makes a run what it is: two runs are the same where these are equal."""
    flags, _ = xla_flags.update_flags(
        xla_flags.join_flags(
            xla_flags.format_flags(
                {name: value for name, value in run.xla_flags.items() if value is not None}
            )
        ),
        xla_flags.find_jaxlib_version(),
    )
    return (
        run.model,
        run.precision,
        tuple(sorted(run.env.items())),
        list_xla_options(xla_flags.join_flags(flags)),
    )


@functools.cache
def list_xla_options(flags: str, python: str = sys.executable) -> tuple[str, ...]:
    """Return all options of XLA that these flags make, defaults among them, a line for each; where
    the jaxlib at hand cannot say, the flags.

    Args:
      flags: as XLA_FLAGS has them.
      python: whose jaxlib is asked.
    """
    environment = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [python, "-P", "-c", _PRINT_OPTIONS],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [
        line for line in done.stdout.splitlines() if not line.startswith("goo.gle/")
    ]  # of the text format's: it is not always the same
    return tuple(
        sorted(lines if done.returncode == 0 and lines else set(xla_flags.split_flags(flags)))
    )
