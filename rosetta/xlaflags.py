"""XLA_FLAGS as people have them in their scripts, made into what today's XLA takes: one unknown name, and it aborts the process."""

from __future__ import annotations

import difflib
import re
import shlex
import subprocess
from typing import TYPE_CHECKING

from rosetta.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Old name -> today's; "" where what it did is what happens now anyway, or nothing any more.
RENAMED = {
    "xla_gpu_enable_address_computation_fusion": "xla_gpu_enable_dynamic_slice_fusion",
    "xla_gpu_simplify_all_fp_conversions": "",
    "xla_gpu_enable_async_all_gather": "",
    "xla_gpu_enable_async_all_reduce": "",
    "xla_gpu_enable_async_reduce_scatter": "",
    "xla_gpu_enable_async_collectives": "",
    "xla_gpu_lhs_enable_gpu_async_tracker": "",
    "xla_gpu_enable_triton_softmax_fusion": "",
    "xla_gpu_enable_custom_fusions": "",
    "xla_gpu_enable_nccl_per_stream_comms": "",
    "xla_gpu_ensure_minor_dot_contraction_dims": "",
    "xla_gpu_redzone_scratch_max_megabytes": "",
    "xla_gpu_enable_triton_hopper": "",
    "xla_gpu_enable_bf16_6way_gemm": "",
    "xla_gpu_all_reduce_contiguous": "",
}
PIPELINED = ("xla_gpu_enable_pipelined_all_gather", "xla_gpu_enable_pipelined_all_reduce", "xla_gpu_enable_pipelined_reduce_scatter")


def written(options: Mapping[str, object]) -> list[str]:
    """Return options as XLA_FLAGS has them: a truth value as true or false."""
    return [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options.items()]


def split(text: str) -> list[str]:
    """Return the flags of a variable, which may go over several lines and have quotes.

    Raises:
      UserError: a quote is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError:
        raise UserError("a quote in it is not closed", f"XLA_FLAGS={text}", "close it") from None


def joined(flags: Iterable[str]) -> str:
    """Return flags as one variable, as XLA splits it: what has a space in it is quoted after its name."""
    return " ".join(flag if not re.search(r"\s", flag) else "{}='{}'".format(*flag.split("=", 1)) for flag in flags)


def value(flags: Iterable[str], name: str) -> str | None:
    """Return what the last of these flags with a name gives it, None where there is none. A flag without a value is "true"."""
    found = None
    for flag in flags:
        before, equals, after = flag.lstrip("-").partition("=")
        if before == name:
            found = after if equals else "true"
    return found


def today(text: str) -> tuple[list[str], tuple[str, ...]]:
    """Return flags as today's XLA takes them, and a line for each that is another now.

    Raises:
      UserError: see split.
    """
    flags, said = list[str](), list[str]()
    for flag in split(text):
        now = _today(flag)
        flags += now
        if now != [flag]:
            said.append(f"{flag} of XLA_FLAGS: " + (f"{' '.join(now)} today" if now else "left out, XLA has it no more"))
    return flags, tuple(said)


def _today(flag: str) -> list[str]:
    name, equals, given = flag.removeprefix("--").partition("=")
    if name.startswith("set_xla_"):  # as it was once documented
        name = name.removeprefix("set_")
    if name == "xla_gpu_graph_level":
        return ["--xla_gpu_enable_command_buffer="] if given == "0" else []
    if name == "xla_gpu_enable_pipelined_collectives":
        return [f"--{each}={given or 'true'}" for each in PIPELINED]
    name = RENAMED.get(name, name)
    if not name:
        return []
    given = given.lower() if given in ("True", "False") else given
    return [f"--{name}{equals}{given}"] if flag.startswith("--") else [flag]


def require_known(flags: Iterable[str], python: str) -> None:
    """UserError for the first flag that the XLA of an interpreter does not take. Takes half a second, and no device.

    Where that interpreter has no JAX, nothing is known, and nothing is said.
    """
    wanted = list(flags)
    if not wanted:
        return
    code = "import jax; jax.devices()"
    environment = {"XLA_FLAGS": joined(wanted), "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"}
    try:
        done = subprocess.run([python, "-P", "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return
    where = "XLA_FLAGS"
    if unknown := re.search(r"Unknown flags? in XLA_FLAGS: (\S+)", done.stderr):
        raise UserError(f"XLA has no flag {unknown[1]}", where, _nearest(unknown[1]))
    if bad := re.search(r"Couldn't interpret value (\S*) for flag (\S+?)\.?$", done.stderr, re.MULTILINE):
        raise UserError(f"XLA takes no {bad[1]!r} for {bad[2]}", where, "give another value, or leave the flag out")


def _nearest(flag: str) -> str:
    near = difflib.get_close_matches(flag.lstrip("-").partition("=")[0], [*filter(None, RENAMED.values()), *PIPELINED], 1, 0.85)
    return f"write --{near[0]}, or leave it out" if near else "leave it out: one such flag ends the process"
