"""Check the variables of a run: those that stop it, slow it down, or change it unnoticed.

The findings show no values, which may be secret.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from rosetta.core import xla_flags
from rosetta.core.errors import UserError
from rosetta.core.value_parsing import parse_decimal, parse_list
from rosetta.core.variables import lookup, readers, setting_values, value_types
from rosetta.doctor.finding import BLOCKER, NOTE, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rosetta.doctor.machine import Machine

# CUDA libraries that JAX's wheels bring. JAX loads the ones in LD_LIBRARY_PATH instead.
_CUDA_LIBRARY = re.compile(
    r"lib(cudart|cublas|cublasLt|cudnn\w*|cufft|cusolver|cusparse|cupti|nccl|nvrtc|nvJitLink|nvshmem\w*)\.so(\.\d+)*"
)
_PRINTABLE_FLAG = re.compile(r"--\w+=(true|false|\d*)")  # a flag whose value cannot be secret
_SHOWN = 4  # libraries in a message


def check(machine: Machine) -> Iterator[Finding]:
    """Yield the problems of the variables of a run."""
    yield from _check_xla_flags(machine)
    yield from _check_values(machine)
    if machine.device_count or machine.driver:
        yield from _check_platform(machine)
        yield from _check_connections(machine)
        yield from _check_memory_fraction(machine)
        yield from _check_libraries(machine)
        yield from _find_slow_variables(machine)


def _check_values(machine: Machine) -> Iterator[Finding]:
    """Yield the variables of rosetta whose value every command that reads them refuses."""
    remedies: dict[str, str] = {}
    accepted: set[str] = set()
    for variable in lookup.TABLE:
        text = machine.environment.get(variable.name)
        # Flags of XLA, and most variables of other programs, have findings of their own.
        is_list = isinstance(variable.type, value_types.NameList)
        has_finding = isinstance(variable.type, value_types.XlaFlags)
        if not text or has_finding or (variable.owner and not is_list):
            continue
        try:
            setting_values.parse_value(variable, text)
            accepted.add(variable.name)
        except UserError as error:
            remedies[variable.name] = error.do
    for name in sorted(remedies.keys() - accepted):
        yield Finding("variable-invalid", BLOCKER, "the value is not valid", name, remedies[name])


def _find_slow_variables(machine: Machine) -> Iterator[Finding]:
    """Yield the variables that slow a run down, and may be left over from debugging."""
    for variable in lookup.list_variables(readers.DOCTOR):
        if variable.slow_because and machine.is_on(variable.name):
            yield Finding(
                "slow-variable",
                WARNING,
                f"is on: {variable.slow_because}",
                variable.name,
                "unset it, unless you are debugging",
            )


def _check_xla_flags(machine: Machine) -> Iterator[Finding]:
    """Check that XLA takes the flags of the run."""
    all_flags: list[str] = []
    for variable in ("BASE_XLA_FLAGS", "XLA_FLAGS"):
        try:
            flags = xla_flags.split_words(machine.environment.get(variable, ""))
        except UserError as error:
            yield Finding("xla-flags-quote", BLOCKER, error.what, variable, error.do)
            continue
        if xla_flags.find_stray_word(flags) is not None:
            yield Finding(
                "xla-flags-word",
                BLOCKER,
                "a word does not begin with two dashes: XLA ignores this word and all after it",
                variable,
                "write each flag as --xla_NAME=VALUE",
            )
            continue
        for flag in flags:
            updated_flags = xla_flags.update_flags(shlex.quote(flag))[0]
            all_flags += updated_flags
            yield from _check_flag_name(variable, flag, updated_flags)
    if all_flags and not machine.quick and machine.find_version("jaxlib"):
        refusal = machine.explain_refused_flags(all_flags)
        if refusal:
            # The value may be a secret.
            what = re.sub(
                r"^.* is not a valid value for ",
                "XLA does not take the value of ",
                re.sub(r"=\S*", "", refusal),
            )
            yield Finding(
                "xla-flag-refused",
                BLOCKER,
                what,
                "XLA_FLAGS",
                "correct the flag or leave it out: one such flag stops the process",
            )


def _check_flag_name(variable: str, flag: str, updated_flags: Sequence[str]) -> Iterator[Finding]:
    """Check that the XLA of this release still has a flag.

    Args:
      variable: The variable with the flag.
      flag: The flag.
      updated_flags: The flags that replace it today; itself if it still exists.
    """
    name = _get_flag_name(flag)
    if [_get_flag_name(updated) for updated in updated_flags] == [name]:
        return
    shown = [
        updated if _PRINTABLE_FLAG.fullmatch(updated) else _get_flag_name(updated)
        for updated in updated_flags
    ]
    yield Finding(
        "xla-flag-gone",
        WARNING,
        f"XLA does not have {name} any more, and one such flag stops the process; rosetta's "
        "scripts replace the flag, but a program started by hand does not",
        variable,
        f"write {' '.join(shown)}" if shown else "leave the flag out",
    )


def _get_flag_name(flag: str) -> str:
    """Return a flag without its value."""
    return flag.partition("=")[0]


def _check_platform(machine: Machine) -> Iterator[Finding]:
    """Check that the run uses the GPUs of the machine, as far as the user wants it."""
    if machine.on_cpu and machine.device_count:
        yield Finding(
            "cpu-on-gpu-machine",
            WARNING,
            f"this machine has {machine.device_count} GPU(s), but the run would use the CPU",
            "JAX_PLATFORMS=cpu",
            "unset it to train on the GPUs",
        )
    chosen = machine.environment.get("CUDA_VISIBLE_DEVICES", "")
    named = parse_list("CUDA_VISIBLE_DEVICES", chosen)
    if machine.given_gpus is None and 0 < len(machine.gpus) < len(named):
        yield Finding(
            "visible-devices",
            WARNING,
            f"names {len(named)} GPUs, but CUDA uses only the first {len(machine.gpus)}: the next "
            f"name is not one of the {len(machine.all_gpus)} GPUs of this machine",
            "CUDA_VISIBLE_DEVICES",
            "name GPUs that nvidia-smi -L lists",
        )


def _check_connections(machine: Machine) -> Iterator[Finding]:
    """Note a CUDA_DEVICE_MAX_CONNECTIONS that is slow on several Hopper GPUs."""
    majors = {detected.capability[0] for detected in machine.gpus}
    connections = machine.environment.get("CUDA_DEVICE_MAX_CONNECTIONS", "").strip()
    if majors == {9} and len(machine.gpus) > 1 and connections != "1":
        yield Finding(
            "connections-hopper",
            NOTE,
            "is not 1: on Hopper, communication that overlaps with matrix products then starts "
            "late (tensor parallelism, FSDP)",
            "CUDA_DEVICE_MAX_CONNECTIONS",
            "set it to 1",
        )


def _check_memory_fraction(machine: Machine) -> Iterator[Finding]:
    """Check the share of a GPU's memory that JAX takes."""
    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    text = machine.environment.get(name, "").strip()
    if not text:
        return
    share = parse_decimal(text)
    if share is None:
        yield Finding(
            "memory-fraction",
            BLOCKER,
            "not a valid number",
            name,
            "give a share of the GPU's memory, such as 0.9",
        )
        return
    if 0 < share <= 0.95 or machine.is_on("TF_FORCE_UNIFIED_MEMORY"):
        return
    if share > 0:
        what = "too little memory is left for NCCL, cuBLAS and cuDNN"
    else:
        what = "JAX gets no memory"
    yield Finding("memory-fraction", WARNING, what, f"{name}={share:g}", "give 0.8 to 0.92")


def _check_libraries(machine: Machine) -> Iterator[Finding]:
    """Check that LD_LIBRARY_PATH does not replace the CUDA libraries of JAX's wheels."""
    if machine.cuda is None:
        return
    for folder in machine.environment.get("LD_LIBRARY_PATH", "").split(":"):
        if not folder or "site-packages/nvidia" in folder:
            continue
        files = [name for name in machine.list_folder(folder) if _CUDA_LIBRARY.fullmatch(name)]
        libraries = sorted({name.partition(".so")[0] for name in files})
        if libraries:
            more = " and more" if len(libraries) > _SHOWN else ""
            yield Finding(
                "cuda-shadowed",
                WARNING,
                f"{folder} has {', '.join(libraries[:_SHOWN])}{more}, which are loaded instead of "
                "the libraries of this JAX",
                "LD_LIBRARY_PATH",
                "remove the folder from LD_LIBRARY_PATH",
            )
