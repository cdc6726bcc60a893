"""Recognise trials that would be the same run, so that `rosetta tune` tries the run only once.

Runs with different switches can be the same: a switch may set what is XLA's default anyway, or what
the precision of the run overrides. So resolved runs are compared, by the options that XLA ends up
with.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import TYPE_CHECKING

from rosetta.core import xla_flags

if TYPE_CHECKING:
    from rosetta.core.run_description import Run

# A program. The variable keeps the compile options alive: their memory has the debug options.
_PRINT_OPTIONS_PROGRAM = (
    "from jaxlib import xla_client; compile_options = xla_client.CompileOptions(); "
    "print(compile_options.executable_build_options.debug_options)"
)


def identify_run(run: Run) -> tuple[object, ...]:
    """Return a key that two runs share if they would do the same."""
    set_flags = {name: value for name, value in run.xla_flags.items() if value is not None}
    text = xla_flags.join_flags(xla_flags.format_flags(set_flags))
    # The notices about flags that jaxlib no longer has do not matter here.
    flags, _ = xla_flags.update_flags(text, xla_flags.find_jaxlib_version())
    return (
        run.model,
        run.precision,
        tuple(sorted(run.env.items())),
        list_xla_options(xla_flags.join_flags(flags)),
    )


@functools.cache
def list_xla_options(flags: str, python: str = sys.executable) -> tuple[str, ...]:
    """Return all debug options that XLA has with some flags, including defaults.

    Args:
        flags: The flags, as in XLA_FLAGS.
        python: The interpreter whose jaxlib prints the options.

    Returns:
        The lines of the options in protobuf's text format, sorted. If jaxlib cannot print them, the
        flags themselves.
    """
    environment = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"}
    process = subprocess.run(
        [python, "-P", "-c", _PRINT_OPTIONS_PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    # Protobuf prints a line with goo.gle/ above the options. It differs from call to call, so that
    # nobody compares the text.
    lines = [line for line in process.stdout.splitlines() if not line.startswith("goo.gle/")]
    if process.returncode or not lines:
        return tuple(sorted(set(xla_flags.split_flags(flags))))
    return tuple(sorted(lines))
