"""Tell whether two trials would be the same run, so that the run is not tried twice.

Many a switch has no effect: XLA has the value by default, or the precision overrides it.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import TYPE_CHECKING

from rosetta.core import xla_flags

if TYPE_CHECKING:
    from rosetta.core.run_description import Run

# The debug options live in the memory of the compile options, so a name keeps these alive.
_PRINT_OPTIONS = (
    "from jaxlib import xla_client; made = xla_client.CompileOptions(); "
    "print(made.executable_build_options.debug_options)"
)


def identify_run(run: Run) -> tuple[object, ...]:
    """Return a value that is equal for two runs if the runs would do the same."""
    set_flags = {name: value for name, value in run.xla_flags.items() if value is not None}
    flags, _ = xla_flags.update_flags(
        xla_flags.join_flags(xla_flags.format_flags(set_flags)), xla_flags.find_jaxlib_version()
    )
    return (
        run.model,
        run.precision,
        tuple(sorted(run.env.items())),
        list_xla_options(xla_flags.join_flags(flags)),
    )


@functools.cache
def list_xla_options(flags: str, python: str = sys.executable) -> tuple[str, ...]:
    """Return the XLA options that some flags result in, including defaults, one line for each.

    If jaxlib cannot be asked, return the flags themselves.

    Args:
        flags: The flags, as in XLA_FLAGS.
        python: The interpreter whose jaxlib is asked.
    """
    environment = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"}
    process = subprocess.run(
        [python, "-P", "-c", _PRINT_OPTIONS],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    # The line that begins with goo.gle/ belongs to the text format. It varies from call to call.
    lines = [line for line in process.stdout.splitlines() if not line.startswith("goo.gle/")]
    if process.returncode or not lines:
        return tuple(sorted(set(xla_flags.split_flags(flags))))
    return tuple(sorted(lines))
