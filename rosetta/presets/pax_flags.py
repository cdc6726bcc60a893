"""Choose the XLA flags and the environment variables of a Pax run.

They come from the preset of the experiment, for the GPUs of this machine and the chosen precision.
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

# Not the mixture-of-experts model 126M64E.
_MODEL_126M = re.compile(r"126M(?!64E)")


def select_pax_flags(
    settings: Settings,
    environment: Mapping[str, str],
    detected_gpus: Sequence[DetectedGpu],
    options: ModelOptions | None,
    *,
    on_cpu: bool,
) -> LaunchFlags:
    """Return the XLA flags and the variables of a run, see launch_flags.select_launch_flags.

    Args:
        settings: The settings of the run.
        environment: The environment variables of its processes.
        detected_gpus: The GPUs that this process sees.
        options: How the model is computed. None if that is not chosen yet: the flags are then
            those of bfloat16.
        on_cpu: Whether the run uses the CPU.

    Raises:
        UserError: The preset is unknown, or a file is not valid.
    """
    precision = "bf16" if options is None else _find_precision(settings, options)
    return launch_flags.select_launch_flags(
        "pax",
        settings.config,
        environment,
        detected_gpus,
        on_cpu=on_cpu,
        precision=precision,
        mesh=_find_meshes(settings),
        devices=settings.gpus,
    )


def _find_precision(settings: Settings, options: ModelOptions) -> str:
    """Return the precision of the run, as presets name it."""
    if settings.hyper_switch("USE_FP8") or "USE_FP8" in options.hyper:
        return "fp8-xla"
    if options.env.get("ENABLE_FP8") == "1":
        return "fp8-te"
    return "fp32" if settings.precision == "float32" else "bf16"


def _find_meshes(settings: Settings) -> dict[str, list[int]]:
    """Return the meshes of the run or of its experiment. An unknown mesh has one device."""
    values = hyper_parameters.resolve_values(settings.config, settings.hyper, settings.words)
    meshes = {}
    for name, parameter in (("ici", "ICI_MESH_SHAPE"), ("dcn", "DCN_MESH_SHAPE")):
        shape = values.get(parameter)
        meshes[name] = list(shape) if isinstance(shape, (list, tuple)) and shape else [1, 1, 1]
    return meshes


def is_126m_model(config: str) -> bool:
    """Return whether an experiment is the 126M model, which diverged with fused attention."""
    return bool(_MODEL_126M.search(config))
