"""What every launch asks: does this machine stand in the way?

It costs some hundredths of a second, and JAX is not imported for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta import doctor
from rosetta.core.errors import UNSUPPORTED, UserError
from rosetta.core.value_parsing import asks_for_cpu
from rosetta.core.variables.setting_values import read_setting
from rosetta.doctor.finding import BLOCKER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.core.gpu_query import DetectedGpu

VARIABLE = "ROSETTA_DOCTOR"
# What a run surely dies of. Other blockers are only said: in some place or other, a run gets by
# with them.
FATAL_FINDINGS = (
    "driver-too-old",
    "libcuda-missing",
    "card-too-old",
    "jax-incomplete",
    "jax-older-than-jaxlib",
    "plugin-version",
    "plugin-incomplete",
    "no-plugin",
    "gpus-for-processes",
    "memory-fraction",
)
# What launchers look into themselves, and word by the run that is asked for.
CHECKED_BY_LAUNCHERS = (
    "no-driver",
    "fp8-without-hardware",
    "te-missing",
    "te-without-hardware",
    "xla-flag-gone",
    "xla-flags-quote",
    "xla-flags-word",
    "not-writable",
    "folder-missing",
    "disk-tight",
    "visible-devices",
    "variable-invalid",
)
BLOCKERS_ON_CPU = (
    "jax-incomplete",
    "jax-older-than-jaxlib",
    "disk-full",
)  # the blockers that are no matter of GPUs
_PACKAGE_FINDINGS = (
    "jax",
    "no-plugin",
    "plugin",
    "two-plugins",
    "package",
    "not-as-locked",
    "locked",
    "te-",
)  # how findings about this Python's packages begin


def is_disabled(environment: Mapping[str, str]) -> bool:
    """Is the machine not to be looked at? UserError where ROSETTA_DOCTOR is neither on nor off."""
    return not read_setting(environment, VARIABLE)


def check_before_launch(
    environment: Mapping[str, str], cards: Sequence[DetectedGpu], platforms: str
) -> tuple[str, ...]:
    """Return what is to be said of the machine before a run, by the first of its processes; nothing
    with ROSETTA_DOCTOR=0.

    Args:
      environment: the run's.
      cards: those that the launcher has found.
      platforms: JAX_PLATFORMS of the run.

    Raises:
      UserError: a run here dies of it.
    """
    if is_disabled(environment):
        return ()
    on_cpu = asks_for_cpu(platforms)
    found = [
        each
        for each in doctor.quick(
            {**environment, "JAX_PLATFORMS": platforms}, [] if on_cpu else cards
        )
        if each.id not in CHECKED_BY_LAUNCHERS
    ]
    if on_cpu:
        found = [each for each in found if each.level != BLOCKER or each.id in BLOCKERS_ON_CPU]
    if environment.get("PYTHON"):  # its packages are not those that are imported here
        found = [each for each in found if not each.id.startswith(_PACKAGE_FINDINGS)]
    stop = next(
        (each for each in found if each.level == BLOCKER and each.id in FATAL_FINDINGS), None
    )
    if stop:
        raise UserError(
            stop.what,
            stop.where,
            f"{stop.do}; {VARIABLE}=0 starts it all the same",
            kind=UNSUPPORTED,
            value=stop.id,
        )
    first = environment.get("SLURM_PROCID", "0") == "0"
    return tuple(map(str, found)) if first else ()
