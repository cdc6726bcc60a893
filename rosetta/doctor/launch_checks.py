"""The quick checks that each launch makes: whether a run can work on this machine.

They take some hundredths of a second, and do not import JAX. The launchers of T5X and Pax use them.
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
# A run certainly fails with one of these. With another blocker, a run works in some places, so that
# the launcher only prints it.
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
# The launchers check these themselves, with messages that fit the run.
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
# The blockers that matter to a run on the CPU too.
BLOCKERS_ON_CPU = ("jax-incomplete", "jax-older-than-jaxlib", "disk-full")
# How the ids of findings about the packages of this Python begin.
_PACKAGE_FINDINGS = (
    "jax",
    "no-plugin",
    "plugin",
    "two-plugins",
    "package",
    "not-as-locked",
    "locked",
    "te-",
)


def is_disabled(environment: Mapping[str, str]) -> bool:
    """Return whether ROSETTA_DOCTOR=0 turns the checks off.

    Raises:
      UserError: The value of ROSETTA_DOCTOR is not valid.
    """
    return not read_setting(environment, VARIABLE)


def check_before_launch(
    environment: Mapping[str, str], gpus: Sequence[DetectedGpu], platforms: str
) -> tuple[str, ...]:
    """Check the machine before a run; return the lines to print.

    Only the first process of a run gets lines. With ROSETTA_DOCTOR=0, nothing is checked.

    Args:
      environment: The variables of the run.
      gpus: The GPUs that the launcher has detected.
      platforms: JAX_PLATFORMS of the run.

    Raises:
      UserError: The run would certainly fail on this machine.
    """
    if is_disabled(environment):
        return ()
    on_cpu = asks_for_cpu(platforms)
    findings = [
        finding
        for finding in doctor.quick(
            {**environment, "JAX_PLATFORMS": platforms}, [] if on_cpu else gpus
        )
        if finding.id not in CHECKED_BY_LAUNCHERS
    ]
    if on_cpu:
        findings = [
            finding
            for finding in findings
            if finding.level != BLOCKER or finding.id in BLOCKERS_ON_CPU
        ]
    if environment.get("PYTHON"):
        # The run uses another Python, whose packages were not checked.
        findings = [finding for finding in findings if not finding.id.startswith(_PACKAGE_FINDINGS)]
    for finding in findings:
        if finding.level == BLOCKER and finding.id in FATAL_FINDINGS:
            raise UserError(
                finding.what,
                finding.where,
                f"{finding.do}; {VARIABLE}=0 starts the run without these checks",
                kind=UNSUPPORTED,
                value=finding.id,
            )
    is_first_process = environment.get("SLURM_PROCID", "0") == "0"
    return tuple(str(finding) for finding in findings) if is_first_process else ()
