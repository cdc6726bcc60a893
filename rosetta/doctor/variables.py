"""Variables that stop a run, slow it down, or make it another run than was meant.

Values are not printed: anything may stand in them.
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
    from collections.abc import Iterator

    from rosetta.doctor.machine import Machine

# Libraries that come as wheels; JAX looks for them where LD_LIBRARY_PATH says, first.
_CUDA_LIBRARY = re.compile(
    r"lib(cudart|cublas|cublasLt|cudnn\w*|cufft|cusolver|cusparse|cupti|nccl|nvrtc|nvJitLink|nvshmem\w*)\.so(\.\d+)*"
)
_PRINTABLE_FLAG = re.compile(r"--\w+=(true|false|\d*)")  # a flag whose value can be shown


def check(machine: Machine) -> Iterator[Finding]:
    """Yield the traps that are set."""
    yield from _check_xla_flags(machine)
    yield from _check_values(machine)
    if machine.devices or machine.driver:
        yield from _check_platform(machine)
        yield from _check_connections(machine)
        yield from _check_memory_fraction(machine)
        yield from _check_libraries(machine)
        yield from _find_slow_variables(machine)


def _check_values(machine: Machine) -> Iterator[Finding]:
    """Yield the variables of rosetta whose values no framework takes."""
    refused: dict[str, str] = {}
    taken = set[str]()
    for variable in lookup.TABLE:
        text = machine.environment.get(variable.name)
        # Flags of XLA, and most variables of other programs, have findings of their own.
        is_list = isinstance(variable.type, value_types.NameList)
        has_finding = isinstance(variable.type, value_types.XlaFlags)
        if not text or has_finding or (variable.owner and not is_list):
            continue
        try:
            setting_values.parse_value(variable, text)
            taken.add(variable.name)
        except UserError as error:
            refused[variable.name] = error.do
    for name in sorted(refused.keys() - taken):
        yield Finding("variable-invalid", BLOCKER, "a run refuses its value", name, refused[name])


def _find_slow_variables(machine: Machine) -> Iterator[Finding]:
    """Yield the variables that are on and make a run slow: left over from looking for a fault."""
    for variable in lookup.list_variables(readers.DOCTOR):
        if variable.slow_because and machine.on(variable.name):
            yield Finding(
                "slow-variable",
                WARNING,
                f"it is on: {variable.slow_because}",
                variable.name,
                "unset it, unless you are looking for a fault",
            )


def _check_xla_flags(machine: Machine) -> Iterator[Finding]:
    taken = list[str]()
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
                "a word in it does not begin with two dashes: XLA ignores everything from there on",
                variable,
                "write each flag as --xla_NAME=VALUE",
            )
            continue
        for flag in flags:
            now = xla_flags.update_flags(shlex.quote(flag))[0]
            taken += now
            name, names = _get_flag_name(flag), [_get_flag_name(each) for each in now]
            if names != [name]:
                shown = (
                    each if _PRINTABLE_FLAG.fullmatch(each) else _get_flag_name(each)
                    for each in now
                )
                do = f"write {' '.join(shown)}" if now else "leave it out"
                what = (
                    f"XLA has no {name} any more, and one such flag stops the process; rosetta's "
                    "scripts translate it, a program started by hand does not"
                )
                yield Finding("xla-flag-gone", WARNING, what, variable, do)
    if taken and not machine.quick and machine.version("jaxlib"):
        refused = machine.flags_refused(taken)
        if refused:
            # The value may be a secret.
            what = re.sub(
                r"^.* is not a valid value for ",
                "XLA does not take the value of ",
                re.sub(r"=\S*", "", refused),
            )
            yield Finding(
                "xla-flag-refused",
                BLOCKER,
                what,
                "XLA_FLAGS",
                "mend it, or leave it out: one such flag stops the process",
            )


def _get_flag_name(flag: str) -> str:
    return flag.partition("=")[0]


def _check_platform(machine: Machine) -> Iterator[Finding]:
    if machine.on_cpu and machine.devices:
        yield Finding(
            "cpu-on-gpu-machine",
            WARNING,
            f"this machine has {machine.devices} GPU(s), and the run would be on the CPU",
            "JAX_PLATFORMS=cpu",
            "unset it to train on the GPUs",
        )
    chosen = machine.environment.get("CUDA_VISIBLE_DEVICES", "")
    named = parse_list("CUDA_VISIBLE_DEVICES", chosen)
    if machine.given is None and 0 < len(machine.cards) < len(named):
        what = (
            f"it names {len(named)} GPUs, and CUDA takes the first {len(machine.cards)}: the next "
            f"is none of this machine's {len(machine.all_cards)}"
        )
        yield Finding(
            "visible-devices",
            WARNING,
            what,
            "CUDA_VISIBLE_DEVICES",
            "name those that nvidia-smi -L lists",
        )


def _check_connections(machine: Machine) -> Iterator[Finding]:
    majors = {gpu.capability[0] for gpu in machine.cards}
    given = machine.environment.get("CUDA_DEVICE_MAX_CONNECTIONS", "").strip()
    if majors == {9} and len(machine.cards) > 1 and given != "1":
        what = (
            "it is not 1: on Hopper, communication then starts late where it runs beside matrix "
            "products (tensor parallelism, FSDP)"
        )
        yield Finding(
            "connections-hopper", NOTE, what, "CUDA_DEVICE_MAX_CONNECTIONS", "set it to 1"
        )


def _check_memory_fraction(machine: Machine) -> Iterator[Finding]:
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
            "give a share of the card's memory, as 0.9",
        )
        return
    if not 0 < share <= 0.95 and not machine.on("TF_FORCE_UNIFIED_MEMORY"):
        what = (
            "NCCL, cuBLAS and cuDNN take memory of their own beside it"
            if share > 0
            else "JAX gets no memory"
        )
        yield Finding("memory-fraction", WARNING, what, f"{name}={share:g}", "give 0.8 to 0.92")


def _check_libraries(machine: Machine) -> Iterator[Finding]:
    if machine.cuda is None:
        return
    for folder in filter(None, machine.environment.get("LD_LIBRARY_PATH", "").split(":")):
        if "site-packages/nvidia" in folder:
            continue
        found = sorted(
            {
                name.partition(".so")[0]
                for name in machine.listing(folder)
                if _CUDA_LIBRARY.fullmatch(name)
            }
        )
        if found:
            what = (
                f"{folder} has {', '.join(found[:4])}{' and more' if len(found) > 4 else ''}, "
                "which are taken before those that belong to this JAX"
            )
            yield Finding(
                "cuda-shadowed", WARNING, what, "LD_LIBRARY_PATH", "take it out of LD_LIBRARY_PATH"
            )
