"""Load what autotuning chose on a GPU into a compilation for a GPU that is not there.

A run with `XLA_FLAGS=--xla_gpu_dump_autotune_results_to=FILE` writes the file. XLA finds a result
by the GPU, the version of cuDNN, the instruction and a version of its own. It must have a result
for each instruction that it would tune, or it refuses to compile. So a plan that says TUNED is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import xla_flags
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import DIFFERS, INVALID, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rosetta.core.gpus import Gpu

OPTION = "--autotune-results"
FLAG = "xla_gpu_load_autotune_results_from"
# XLA refuses an instruction without a result.
REQUIRE_ALL_FLAG = "--xla_gpu_require_complete_aot_autotune_results=true"
TUNED, UNTUNED = "tuned", "untuned"
_TEXT_SUFFIXES = (".txt", ".textproto")  # XLA takes all others for binary files
_DEVICE = re.compile(
    r'^\s*device:\s*"CUDA: (?P<capability>[\d.]+), Cores: (?P<cores>\d+),.*'
    r'DNN version: (?P<dnn>\d+\.\d+\.\d+)"',
    re.MULTILINE,
)
_REMEDY = f"dump one on that GPU: XLA_FLAGS=--{FLAG.replace('load', 'dump').replace('from', 'to')}"


def find_results_file(flags: Iterable[str]) -> str:
    """Return the file that XLA flags name, "" if there is none."""
    return xla_flags.find_flag_value(flags, FLAG) or ""


def read_dnn_version(file: str, gpu: Gpu) -> tuple[int, int, int]:
    """Return the version of cuDNN that was tuned with.

    Args:
        file: The file with the results.
        gpu: The GPU that is compiled for.

    Raises:
        UserError: The file does not exist, or has no results for this GPU.
    """
    path = Path(file)
    if path.suffix not in _TEXT_SUFFIXES or len(file.split()) != 1:
        raise UserError(
            "not a text file of autotune results",
            f"{OPTION} {file}",
            f"{_REMEDY}=FILE, without spaces, and with {' or '.join(_TEXT_SUFFIXES)} at its end",
            kind=INVALID,
        )
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})",
            f"{OPTION} {file}",
            f"name a file with autotune results, or {_REMEDY}=FILE",
            kind=MISSING,
        ) from error
    except UnicodeDecodeError as error:
        raise _make_format_error(file) from error
    devices = list(_DEVICE.finditer(text))
    if not devices:
        raise _make_format_error(file)
    capability = ".".join(map(str, gpu.capability))
    for device in devices:
        if (device["capability"], int(device["cores"])) == (capability, gpu.sms):
            major, minor, patch = map(int, device["dnn"].split("."))
            return major, minor, patch
    first = devices[0]
    raise UserError(
        f"tuned on a GPU with capability {first['capability']} and {first['cores']} cores, and "
        f"{gpu.name} has {capability} and {gpu.sms}",
        f"{OPTION} {file}",
        f"{_REMEDY}=FILE",
        kind=DIFFERS,
        value=first["cores"],
    )


def merge_results_files(files: Iterable[Path], merged: Path) -> None:
    """Write one file with the results of several, each result once.

    XLA refuses a file that has two results for one instruction on one device. The first one stays.

    Args:
        files: Files with results of one version.
        merged: The file to write.
    """
    head, results = "", dict[str, str]()
    for path in files:
        # At the top level, a line that begins with "results" begins a result.
        text = path.read_text(encoding="utf-8")
        first, *blocks = re.split(r"^(?=results \{)", text, flags=re.MULTILINE)
        head = head or first
        for block in blocks:
            # Without what was chosen: the device and the instruction.
            key = "\n".join(re.findall(r"^  (?:device|hlo): .*$", block, re.MULTILINE))
            results.setdefault(key, block)
    write_atomic(merged, head + "".join(results.values()))


def explain_compile_error(message: str, file: str) -> UserError | None:
    """Return the error for a compilation that failed because of the file, else None.

    Args:
        message: What XLA says.
        file: The file with the results.
    """
    if "Failed to parse autotune results" in message:
        return _make_format_error(file)
    missing = re.search(r"No cached config found for HLO instr: (%[\w.\-]+)", message)
    if missing:
        return UserError(
            f"no result for the instruction {missing[1]} of this step",
            f"{OPTION} {file}",
            "dump the results of a run with the same step, flags and jaxlib, or leave the file out",
            kind=DIFFERS,
            value=missing[1],
        )
    return None


def _make_format_error(file: str) -> UserError:
    return UserError(
        "not a file with autotune results of XLA",
        f"{OPTION} {file}",
        f"{_REMEDY}=FILE",
        kind=INVALID,
    )
