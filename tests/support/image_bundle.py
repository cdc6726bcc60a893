"""A bundle and what tests of it share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.images import offline_bundle
from builder.images.oci import layout
from tests.support import image_registry

if TYPE_CHECKING:
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.images.oci.oci_documents import Index

NAME = "kit/t5x:cuda13"


@pytest.fixture(name="index")
def index_(cache: Cache, tmp_path: Path) -> Index:
    """An image whose layers no engine has seen before."""
    return image_registry.make_image(cache, architectures=("amd64", "arm64"), seed=str(tmp_path))


@pytest.fixture(name="site")
def site_(cache: Cache, index: Index, tmp_path: Path) -> Path:
    """A bundle as it arrived, its files not linked to the cache's."""
    offline_bundle.write_bundle(
        cache, index, tmp_path / "made", name=NAME, records={"amd64": {"distribution": "t5x"}}
    )
    (tmp_path / "site").mkdir()
    shutil.copytree(tmp_path / "made", tmp_path / "site/bundle")
    return tmp_path / "site"


def run_importer(
    where: Path, *arguments: str, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"} if path else None
    return subprocess.run(
        [str(where / "bundle/import.sh"), *arguments],
        cwd=where,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def list_names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def write_tool(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
    (folder / name).chmod(0o755)
    return folder


def read_files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """What a folder holds: content and mode of each file, and of each folder the mode."""
    return {
        str(each.relative_to(folder)): (
            each.read_bytes() if each.is_file() else b"",
            each.stat().st_mode,
        )
        for each in folder.rglob("*")
    }


def make_older_image(cache: Cache, tmp_path: Path, kind: str) -> tuple[Path, Path]:
    """What the site has, as --since takes it, and the folder that --with takes."""
    old = image_registry.make_image(
        cache, top="old", architectures=("amd64", "arm64"), seed=str(tmp_path)
    )
    place = tmp_path / "older"
    if kind in ("bundle", "bundle.json"):
        offline_bundle.write_bundle(cache, old, place, name=NAME)
        return (place if kind == "bundle" else place / "bundle.json"), place
    layout.write_layout(cache, old, place, name=NAME)
    if kind == "layout":
        return place, place
    lock = tmp_path / "lock.json"
    below = [
        {"name": each.name, "diff_id": each.diff_id, "digest": each.digest}
        for image in old.images
        for each in image.layers[:-1]
    ]
    lock.write_text(json.dumps({"distribution": "t5x", "layers": below}), encoding="ascii")
    return lock, place


def find_biggest_blob(where: Path) -> Path:
    return max((where / "image/blobs/sha256").iterdir(), key=lambda each: each.stat().st_size)
