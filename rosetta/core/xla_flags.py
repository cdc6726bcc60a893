"""Bring XLA_FLAGS of existing scripts up to date for the XLA of a jaxlib.

A single flag that XLA does not know ends the process, and scripts have flags of older versions.
The launchers rename or drop such flags, and the presets and the doctor check the rest.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import bounded_read
from rosetta.core.errors import INVALID, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Flag -> the newest jaxlib in which its XLA was seen to take it. Later versions do what the flag
# asked for anyway, or no longer have what it was about. If the flag is in RENAMED too, XLA has it
# under another name from the next jaxlib on.
LAST_JAXLIB_WITH_FLAG = {
    **dict.fromkeys(
        (
            "xla_gpu_simplify_all_fp_conversions",
            "xla_gpu_enable_async_all_gather",
            "xla_gpu_enable_async_all_reduce",
            "xla_gpu_enable_async_all_to_all",
            "xla_gpu_enable_async_collective_broadcast",
            "xla_gpu_enable_async_collective_permute",
            "xla_gpu_enable_async_reduce_scatter",
            "xla_gpu_enable_async_collectives",
            "xla_gpu_all_reduce_contiguous",
            "xla_gpu_enable_bf16_3way_gemm",
            "xla_gpu_enable_cudnn_frontend",
            "xla_gpu_enable_dot_strength_reduction",
            "xla_gpu_enable_mlir_emitters",
            "xla_gpu_enable_xla_runtime_executable",
            "xla_gpu_dump_autotuned_triton_fusions",
            "xla_gpu_graph_eviction_timeout_seconds",
            "xla_gpu_graph_num_runs_to_instantiate",
            "xla_gpu_max_mlir_kernels",
            "xla_gpu_skip_mlir_kernels",
            "xla_gpu_normalize_layouts",
            "xla_gpu_triton_fusion_level",
        ),
        "0.4.26",
    ),
    "xla_gpu_enable_address_computation_fusion": "0.4.31",
    **dict.fromkeys(
        (
            "xla_gpu_lhs_enable_gpu_async_tracker",
            "xla_gpu_enable_triton_softmax_fusion",
            "xla_gpu_enable_bf16_6way_gemm",
            "xla_gpu_asm_extra_flags",
        ),
        "0.4.35",
    ),
    **dict.fromkeys(
        (
            "xla_gpu_enable_nccl_per_stream_comms",
            "xla_gpu_ensure_minor_dot_contraction_dims",
            "xla_gpu_enable_pipelined_collectives",
            "xla_gpu_enable_custom_fusions_re",
            "xla_gpu_enable_priority_fusion",
            "xla_gpu_enable_reduction_epilogue_fusion",
            "xla_gpu_enable_shared_constants",
            "xla_gpu_triton_gemm_disable_reduced_precision_reduction",
        ),
        "0.5.3",
    ),
    **dict.fromkeys(("xla_gpu_enable_custom_fusions", "xla_gpu_graph_level"), "0.6.2"),
    **dict.fromkeys(
        ("xla_gpu_redzone_scratch_max_megabytes", "xla_gpu_enable_triton_hopper"), "0.7.2"
    ),
    "xla_gpu_enable_split_k_autotuning": "0.9.2",
    **dict.fromkeys(
        (
            "xla_gpu_fused_attention_use_cudnn_rng",
            "xla_gpu_enable_llvm_module_compilation_parallelism",
            "xla_gpu_experimental_enable_nvshmem",
        ),
        "0.10.2",
    ),
}
RENAMED = {"xla_gpu_enable_address_computation_fusion": "xla_gpu_enable_dynamic_slice_fusion"}
LOCKED_JAXLIB = "0.10.2"  # the version that is assumed if no jaxlib is installed
PIPELINED_FLAGS = (
    "xla_gpu_enable_pipelined_all_gather",
    "xla_gpu_enable_pipelined_all_reduce",
    "xla_gpu_enable_pipelined_reduce_scatter",
)
# From this jaxlib on, XLA deprecates the three: "True maps to --xla_gpu_pipeline_all_gather=on and
# false maps to ...=default".
FIRST_JAXLIB_WITH_PIPELINE_FLAGS = (0, 12)
CACHE_MODE = "xla_gpu_experimental_autotune_cache_mode"
# Number, which older versions of XLA took -> name.
CACHE_MODES = {"1": "AUTOTUNE_CACHE_MODE_UPDATE", "2": "AUTOTUNE_CACHE_MODE_READ"}
_LAST_JAXLIB_WITH_CACHE_MODE_NUMBERS = (0, 4, 31)
# A flag that XLA does not have, see find_refused_flag.
_LAST_FLAG = "xla_rosetta_is_the_last"
_LEAVE_OUT = "leave it out: a flag that XLA does not know ends the process"


def format_flags(options: Mapping[str, object]) -> list[str]:
    """Return options as flags of XLA.

    Args:
      options: Name without dashes -> value. A truth value becomes true or false.
    """
    return [
        f"--{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in options.items()
    ]


def split_flags(text: str, name: str = "XLA_FLAGS") -> list[str]:
    """Return the flags of a variable, which may have several lines and quotes.

    Args:
      text: The value, or the path of a file that has the flags. XLA takes a path, too.
      name: The variable, for the error.

    Raises:
      UserError: A quote is not closed, or a word is not a flag.
    """
    words = split_words(text, name)
    word = find_stray_word(words)
    if word is not None:
        option = word.lstrip("-")
        remedy = "write each flag with two dashes, as in --xla_gpu_autotune_level=0"
        if re.match(r"(set_)?xla_", option):
            remedy = f"write it with two dashes: --{option}"
        raise UserError(f"{word!r} is not a valid flag", name, remedy, kind=INVALID, value=word)
    return words


def find_stray_word(words: Iterable[str]) -> str | None:
    """Return the first word that does not begin with two dashes, or None if there is none.

    XLA ignores such a word and everything after it, without a message.
    """
    return next((word for word in words if not word.startswith("--")), None)


def split_words(text: str, name: str = "XLA_FLAGS") -> list[str]:
    """Return the words of a variable, which need not be flags.

    Args:
      text: See split_flags.
      name: See split_flags.

    Raises:
      UserError: A quote is not closed, or the file cannot be read.
    """
    if not text.lstrip().startswith("-") and os.path.isfile(text):
        try:
            text = bounded_read.read_text(Path(text), name)
        except (OSError, UnicodeDecodeError):
            raise UserError(
                "not a text file that can be read",
                f"{name}={text}",
                "name a file of flags",
                kind=INVALID,
            ) from None
    try:
        return shlex.split(text)
    except ValueError:
        raise UserError(
            "a quote is not closed", f"{name}={text}", "close it", kind=INVALID, value=text
        ) from None


def join_flags(flags: Iterable[str]) -> str:
    """Return flags as the value of a variable, as XLA splits it.

    A value that has a space is quoted after the flag's name.
    """
    parts = (flag.partition("=") for flag in flags)
    return " ".join(
        f"{name}='{value}'" if re.search(r"\s", value) else f"{name}{equals}{value}"
        for name, equals, value in parts
    )


def find_flag_value(flags: Iterable[str], name: str) -> str | None:
    """Return the value that flags give a name; None if the name is not among them.

    As in XLA, the last one counts, and a flag without a value is "true".

    Args:
      flags: The flags, with dashes.
      name: The name, without dashes.
    """
    last_value = None
    for flag in flags:
        flag_name, equals, value = flag.lstrip("-").partition("=")
        if flag_name == name:
            last_value = value if equals else "true"
    return last_value


def find_jaxlib_version() -> str | None:
    """Return the version of the jaxlib of this Python, or None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version("jaxlib")
    except metadata.PackageNotFoundError:
        return None


def parse_version(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparisons. What follows a "+" is ignored."""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])))


def update_flags(
    text: str, version: str | None = None, where: str = "XLA_FLAGS"
) -> tuple[list[str], tuple[str, ...]]:
    """Return flags as the XLA of a jaxlib takes them, and a notice for each that was changed.

    Args:
      text: The flags, as a variable has them.
      version: The version of jaxlib; None for LOCKED_JAXLIB.
      where: The variable, for the notices.

    Raises:
      UserError: See split_flags.
    """
    flags, notices = list[str](), list[str]()
    for flag in split_flags(text, where):
        updated_flags = _update_flag(flag, version or LOCKED_JAXLIB)
        flags += updated_flags
        if not updated_flags:
            notices.append(f"{flag} of {where}: left out, because XLA does not have it any more")
        elif updated_flags != [flag]:
            notices.append(f"{flag} of {where}: replaced by {' '.join(updated_flags)}")
    return flags, tuple(notices)


def _update_flag(flag: str, version: str) -> list[str]:
    """Return the flags that replace a flag for a version of jaxlib, or the flag itself."""
    name, equals, value = flag.removeprefix("--").partition("=")
    if name.startswith("set_xla_"):  # the documentation of XLA once had this prefix
        name = name.removeprefix("set_")
    if value in ("True", "False"):  # XLA writes truth values in lower case
        value = value.lower()
    jaxlib = parse_version(version)
    if name == CACHE_MODE and jaxlib > _LAST_JAXLIB_WITH_CACHE_MODE_NUMBERS:
        value = CACHE_MODES.get(value, value)
    if name in PIPELINED_FLAGS and jaxlib >= FIRST_JAXLIB_WITH_PIPELINE_FLAGS:
        if value not in ("true", "false", ""):
            return [flag]
        new_name = name.replace("enable_pipelined", "pipeline")
        return [f"--{new_name}={'default' if value == 'false' else 'on'}"]
    if name not in LAST_JAXLIB_WITH_FLAG or jaxlib <= parse_version(LAST_JAXLIB_WITH_FLAG[name]):
        return [f"--{name}{equals}{value}"]
    if name == "xla_gpu_graph_level":
        return ["--xla_gpu_enable_command_buffer="] if value == "0" else []
    if name == "xla_gpu_enable_pipelined_collectives":
        flags = list[str]()
        for pipelined_flag in PIPELINED_FLAGS:
            flags += _update_flag(f"--{pipelined_flag}={value or 'true'}", version)
        return flags
    return [f"--{RENAMED[name]}{equals}{value}"] if name in RENAMED else []


@dataclass(frozen=True)
class RefusedFlag:
    """A flag that XLA does not take.

    Attributes:
      name: The name, without dashes.
      what: What is wrong with the flag.
      do: The remedy.
    """

    name: str
    what: str
    do: str


def find_refused_flag(flags: Sequence[str], python: str) -> RefusedFlag | None:
    """Return a flag that the XLA of a Python does not take, or None if it takes all.

    The function starts that Python with JAX on the CPU, which takes half a second.

    Args:
      flags: The flags, with dashes.
      python: The path of the interpreter.

    Raises:
      LookupError: That Python has no JAX, or does not start.
    """
    completed = _parse_with_xla([*flags, f"--{_LAST_FLAG}"], python)
    refused_value = re.search(
        r"Couldn't interpret value (?P<value>\S*) for flag (?P<name>\S+?)\.?$"
        r"|Illegal value for --(?P<illegal_name>\S+) '(?P<illegal_value>.*)'$",
        completed.stderr,
        re.MULTILINE,
    )
    if refused_value:
        if refused_value["illegal_name"]:
            return _refuse_value(refused_value["illegal_name"], refused_value["illegal_value"])
        return _refuse_value(refused_value["name"], refused_value["value"])
    if unknown := re.search(r"Unknown flags? in XLA_FLAGS: (\S+)", completed.stderr):
        name = unknown[1].lstrip("-").partition("=")[0]
        if name == _LAST_FLAG:
            return None
        return RefusedFlag(name, f"XLA has no flag {unknown[1]}", _suggest_remedy(name))
    if completed.returncode and "Flag parsing failed" not in completed.stderr:
        lines = completed.stderr.strip().splitlines() or [f"status {completed.returncode}"]
        raise LookupError(lines[-1])
    # XLA refused a value without naming the flag.
    if len(flags) > 1:
        half = len(flags) // 2
        return find_refused_flag(flags[:half], python) or find_refused_flag(flags[half:], python)
    name, _, value = flags[0].lstrip("-").partition("=")
    return _refuse_value(name, value)


def _parse_with_xla(flags: Sequence[str], python: str) -> subprocess.CompletedProcess[str]:
    """Let the XLA of a Python read flags; its messages are on stderr.

    An old XLA stops at a value that it does not take, without a message. If the last flag is one
    that XLA does not have, XLA complains about that flag only after it has read all others.
    """
    environment = {
        "XLA_FLAGS": join_flags(flags),
        "JAX_PLATFORMS": "cpu",
        "PATH": "/usr/bin:/bin",
    }
    try:
        return subprocess.run(
            [python, "-P", "-c", "import jax; jax.devices()"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LookupError(str(error)) from None


def _refuse_value(name: str, value: str) -> RefusedFlag:
    """Return the refusal of a value."""
    what = f"{value!r} is not a valid value for {name}"
    return RefusedFlag(name, what, "give another value, or leave the flag out")


def check_flags_known(flags: Sequence[str], python: str) -> None:
    """Check that the XLA of a Python takes flags. If that Python has no JAX, the check passes.

    Args:
      flags: The flags, with dashes.
      python: The path of the interpreter.

    Raises:
      UserError: XLA does not take a flag.
    """
    try:
        refused_flag = find_refused_flag(flags, python) if flags else None
    except LookupError:
        return
    if refused_flag:
        raise UserError(refused_flag.what, "XLA_FLAGS", refused_flag.do, kind=INVALID)


def _suggest_remedy(name: str) -> str:
    """Return the remedy for a flag that XLA does not have."""
    known = [*RENAMED.values(), *PIPELINED_FLAGS]
    near = difflib.get_close_matches(name, known, 1, 0.85)
    return f"write --{near[0]}, or leave it out" if near else _LEAVE_OUT
