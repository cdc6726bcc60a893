"""A preset resolved, with nothing around it but what a test gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.core.gpu_query import Card
from rosetta.presets import describe, layers, preset_files

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.presets.layers import Settings

NO_SITE = preset_files.Layer("site", {})
CARDS = {
    "a100": Card("NVIDIA A100-SXM4-80GB", (8, 0)),
    "h100": Card("NVIDIA H100 80GB HBM3", (9, 0)),
    "h200": Card("NVIDIA H200", (9, 0)),
    "gh200": Card("NVIDIA GH200 480GB", (9, 0)),
    "b200": Card("NVIDIA B200", (10, 0)),
}
MODELS = [name for name in preset_files.presets() if name not in ("t5x", "pax")]


def resolved(
    name: str,
    accelerator: str | None = "h100",
    environment: dict[str, str] | None = None,
    site: preset_files.Layer = NO_SITE,
    **settings: str,
) -> Settings:
    return describe.resolved(
        name, accelerator=accelerator, settings=settings, environment=environment or {}, site=site
    )


def resolve(name: str, accelerator: str | None = None, **more: Any) -> Settings:
    return layers.resolve(
        name, accelerator=accelerator, environment={}, typed={}, site=NO_SITE, **more
    )


def write(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)
