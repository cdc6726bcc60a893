"""A preset resolved, with nothing around it but what a test gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.core import gpus
from rosetta.core.gpu_query import DetectedGpu
from rosetta.presets import preset_files, preset_run, resolution

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.presets.resolution import ResolvedPreset

NO_SITE = preset_files.Layer("site", {})
GPUS = {name: DetectedGpu(gpu.name, gpu.capability) for name, gpu in gpus.GPUS.items()}
# One GPU for each set of values that presets have.
DISTINCT_GPUS = [
    name for name, gpu in gpus.GPUS.items() if not gpu.preset_base or gpu.gpus_per_node == 4
]
MODELS = [name for name in preset_files.load_presets() if name not in ("t5x", "pax")]


def resolve_described(
    name: str,
    accelerator: str | None = "h100",
    environment: dict[str, str] | None = None,
    site: preset_files.Layer = NO_SITE,
    **settings: str,
) -> ResolvedPreset:
    return preset_run.resolve_values(
        name, accelerator=accelerator, settings=settings, environment=environment or {}, site=site
    )


def resolve_settings(name: str, accelerator: str | None = None, **more: Any) -> ResolvedPreset:
    return resolution.resolve_preset(
        name, accelerator=accelerator, environment={}, command_line={}, site=NO_SITE, **more
    )


def write_preset(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)
