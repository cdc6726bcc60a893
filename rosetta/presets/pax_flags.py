"""Which flags of XLA and variables a run of Pax has: those of its experiment's preset, on the GPUs
at hand, in the precision that was chosen.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rosetta.pax.run import hyper_parameters
from rosetta.presets import launch_flags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.core.gpu_query import DetectedGpu
    from rosetta.pax.run.settings import Settings
    from rosetta.presets.launch_flags import LaunchFlags
    from rosetta.presets.pax_model_options import ModelOptions

_MODEL_126M = re.compile(r"126M(?!64E)")


def select_pax_flags(
    given: Settings,
    environment: Mapping[str, str],
    detected_gpus: Sequence[DetectedGpu],
    chosen: ModelOptions | None,
    *,
    on_cpu: bool,
) -> LaunchFlags:
    """Return what a run gets of its preset, see launch_flags.select_launch_flags.

    Args:
      given: the run.
      environment: in which each process has its devices.
      detected_gpus: that this process sees.
      chosen: what the switches came to; None: not known yet, it is as in bfloat16.
      on_cpu: whether it runs on the CPU.

    Raises:
      UserError: there is no such preset, or a file is wrong.
    """
    precision = "bf16" if chosen is None else _find_precision(given, chosen)
    return launch_flags.select_launch_flags(
        "pax",
        given.config,
        environment,
        detected_gpus,
        on_cpu=on_cpu,
        precision=precision,
        mesh=_find_meshes(given),
        devices=given.gpus,
    )


def _find_precision(given: Settings, chosen: ModelOptions) -> str:
    if given.hyper_switch("USE_FP8") or "USE_FP8" in chosen.hyper:
        return "fp8-xla"
    return (
        "fp8-te"
        if chosen.env.get("ENABLE_FP8") == "1"
        else "fp32"
        if given.precision == "float32"
        else "bf16"
    )


def _find_meshes(given: Settings) -> dict[str, list[int]]:
    """Return the run's meshes, or its experiment's; an unknown mesh has one device."""
    known = hyper_parameters.resolve_values(given.config, given.hyper, given.words)

    def shape(name: str) -> list[int]:
        found = known.get(name)
        return list(found) if isinstance(found, (list, tuple)) and found else [1, 1, 1]

    return {"ici": shape("ICI_MESH_SHAPE"), "dcn": shape("DCN_MESH_SHAPE")}


def is_126m_model(config: str) -> bool:
    """Is it the 126M model, which was seen to diverge with fused attention?"""
    return bool(_MODEL_126M.search(config))
