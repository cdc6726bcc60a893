"""XLA_FLAGS as people have them in their scripts, made into what today's XLA takes: one unknown
name, and it aborts the process.
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

# Old name -> the newest jaxlib that was seen to take it. A flag that is dropped did what happens
# now anyway, or what does not exist any more. Where another name follows, XLA has it from the next
# jaxlib on.
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
LOCKED_JAXLIB = "0.10.2"  # the jaxlib that is meant where none is at hand
PIPELINED_FLAGS = (
    "xla_gpu_enable_pipelined_all_gather",
    "xla_gpu_enable_pipelined_all_reduce",
    "xla_gpu_enable_pipelined_reduce_scatter",
)
# XLA's own words for the three: "True maps to --xla_gpu_pipeline_all_gather=on and false maps to
# ...=default"; they are deprecated from this jaxlib on.
FIRST_JAXLIB_WITH_PIPELINE_FLAGS = (0, 12)
_LAST_FLAG = "xla_rosetta_is_the_last"
CACHE_MODE = "xla_gpu_experimental_autotune_cache_mode"
CACHE_MODES = {
    "1": "AUTOTUNE_CACHE_MODE_UPDATE",
    "2": "AUTOTUNE_CACHE_MODE_READ",
}  # by number, which XLA took once


def format_flags(options: Mapping[str, object]) -> list[str]:
    """Return options as XLA_FLAGS has them: a truth value as true or false."""
    return [
        f"--{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in options.items()
    ]


def split_flags(text: str, name: str = "XLA_FLAGS") -> list[str]:
    """Return the flags of a variable, which may go over several lines and have quotes.

    Args:
      text: the value, or the path of a file that has it, as XLA takes it.
      name: the variable, for the error.

    Raises:
      UserError: a quote is not closed, or a word is not a flag.
    """
    words = split_words(text, name)
    word = find_stray_word(words)
    if word is not None:
        option = word.lstrip("-")
        remedy = (
            f"write it with two dashes: --{option}"
            if re.match(r"(set_)?xla_", option)
            else "write each flag with two dashes, as in --xla_gpu_autotune_level=0"
        )
        raise UserError(f"{word!r} is not a valid flag", name, remedy, kind=INVALID, value=word)
    return words


def find_stray_word(words: Iterable[str]) -> str | None:
    """Return the first word that does not begin with two dashes, None if there is none.

    XLA ignores such a word and everything after it, and does not say so.
    """
    return next((word for word in words if not word.startswith("--")), None)


def split_words(text: str, name: str = "XLA_FLAGS") -> list[str]:
    """Return the words of a variable, see split; they need not be flags.

    Raises:
      UserError: a quote is not closed, or the file cannot be read.
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
            "a quote in it is not closed", f"{name}={text}", "close it", kind=INVALID, value=text
        ) from None


def join_flags(flags: Iterable[str]) -> str:
    """Return flags as one variable, as XLA splits it: what has a space in it is quoted after its
    name.
    """
    parts = (flag.partition("=") for flag in flags)
    return " ".join(
        f"{name}='{value}'" if re.search(r"\s", value) else f"{name}{equals}{value}"
        for name, equals, value in parts
    )


def find_flag_value(flags: Iterable[str], name: str) -> str | None:
    """Return what the last of these flags with a name gives it, None where there is none.

    A flag without a value is "true".
    """
    found = None
    for flag in flags:
        before, equals, after = flag.lstrip("-").partition("=")
        if before == name:
            found = after if equals else "true"
    return found


def find_jaxlib_version() -> str | None:
    """Return the version of the jaxlib of this Python, None without one."""
    from importlib import metadata

    try:
        return metadata.version("jaxlib")
    except metadata.PackageNotFoundError:
        return None


def parse_version(version: str) -> tuple[int, ...]:
    """Return a version's numbers, to compare."""
    return tuple(int(each) for each in re.findall(r"\d+", version.partition("+")[0]))


def update_flags(
    text: str, version: str | None = None, where: str = "XLA_FLAGS"
) -> tuple[list[str], tuple[str, ...]]:
    """Return flags as the XLA of a jaxlib takes them, and a line for each that is another there.

    Args:
      text: as a variable has them.
      version: of jaxlib; None: the one that is locked.
      where: the variable, for the lines.

    Raises:
      UserError: see split.
    """
    flags, said = list[str](), list[str]()
    for flag in split_flags(text, where):
        now = _update_flag(flag, version or LOCKED_JAXLIB)
        flags += now
        if now != [flag]:
            said.append(
                f"{flag} of {where}: "
                + (f"{' '.join(now)} today" if now else "left out, XLA has it no more")
            )
    return flags, tuple(said)


def _update_flag(flag: str, version: str) -> list[str]:
    name, equals, given = flag.removeprefix("--").partition("=")
    if name.startswith("set_xla_"):  # as it was once documented
        name = name.removeprefix("set_")
    given = given.lower() if given in ("True", "False") else given  # XLA's own two words
    if name == CACHE_MODE and given in CACHE_MODES and parse_version(version) > (0, 4, 31):
        given = CACHE_MODES[given]
    if name in PIPELINED_FLAGS and parse_version(version) >= FIRST_JAXLIB_WITH_PIPELINE_FLAGS:
        return (
            [
                (
                    f"--{name.replace('enable_pipelined', 'pipeline')}="
                    f"{'default' if given == 'false' else 'on'}"
                )
            ]
            if given in ("true", "false", "")
            else [flag]
        )
    if name in LAST_JAXLIB_WITH_FLAG and parse_version(version) > parse_version(
        LAST_JAXLIB_WITH_FLAG[name]
    ):
        if name == "xla_gpu_graph_level":
            return ["--xla_gpu_enable_command_buffer="] if given == "0" else []
        if name == "xla_gpu_enable_pipelined_collectives":
            return [
                each
                for wanted in PIPELINED_FLAGS
                for each in _update_flag(f"--{wanted}={given or 'true'}", version)
            ]
        if name not in RENAMED:
            return []
        name = RENAMED[name]
    return [f"--{name}{equals}{given}"]


@dataclass(frozen=True)
class RefusedFlag:
    """A flag that XLA does not take: its name without dashes, what is wrong with it, and what to
    do.
    """

    name: str
    what: str
    do: str


def find_refused_flag(flags: Sequence[str], python: str) -> RefusedFlag | None:
    """Return a flag that the XLA of an interpreter does not take, None where it takes all. Takes
    half a second, and no device.

    Raises:
      LookupError: that interpreter has no JAX, or cannot be asked.
    """
    # An old XLA stops reading at a value that it does not take, and says nothing: a last flag that
    # there is not says whether it came so far.
    environment = {
        "XLA_FLAGS": join_flags([*flags, f"--{_LAST_FLAG}"]),
        "JAX_PLATFORMS": "cpu",
        "PATH": "/usr/bin:/bin",
    }
    try:
        done = subprocess.run(
            [python, "-P", "-c", "import jax; jax.devices()"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LookupError(str(error)) from None
    if bad := re.search(
        (
            r"Couldn't interpret value (?P<value>\S*) for flag (?P<name>\S+?)\.?$|Illegal value "
            r"for --(?P<set>\S+) '(?P<word>.*)'$"
        ),
        done.stderr,
        re.MULTILINE,
    ):
        return _refuse_value(bad["name"] or bad["set"], bad["word"] if bad["set"] else bad["value"])
    if unknown := re.search(r"Unknown flags? in XLA_FLAGS: (\S+)", done.stderr):
        name = unknown[1].lstrip("-").partition("=")[0]
        return (
            None
            if name == _LAST_FLAG
            else RefusedFlag(name, f"XLA has no flag {unknown[1]}", _suggest_remedy(unknown[1]))
        )
    if done.returncode and "Flag parsing failed" not in done.stderr:
        raise LookupError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    if len(flags) > 1:  # there is one, and XLA does not say which
        half = len(flags) // 2
        return find_refused_flag(flags[:half], python) or find_refused_flag(flags[half:], python)
    return _refuse_value(*flags[0].lstrip("-").partition("=")[::2])


def _refuse_value(name: str, value: str) -> RefusedFlag:
    return RefusedFlag(
        name, f"XLA takes no {value!r} for {name}", "give another value, or leave the flag out"
    )


def check_flags_known(flags: Sequence[str], python: str) -> None:
    """UserError for a flag that the XLA of an interpreter does not take.

    Where that has no JAX, nothing is known, and nothing is said.
    """
    try:
        found = find_refused_flag(flags, python) if flags else None
    except LookupError:
        return
    if found:
        raise UserError(found.what, "XLA_FLAGS", found.do, kind=INVALID)


def _suggest_remedy(flag: str) -> str:
    near = difflib.get_close_matches(
        flag.lstrip("-").partition("=")[0], [*RENAMED.values(), *PIPELINED_FLAGS], 1, 0.85
    )
    return (
        f"write --{near[0]}, or leave it out"
        if near
        else "leave it out: one such flag ends the process"
    )
