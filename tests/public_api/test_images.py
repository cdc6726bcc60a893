"""Compare what an image contains, and the names of what is built, with the code."""

from __future__ import annotations

import re
from typing import Any

import yaml

from builder.core.accelerators import ACCELERATORS
from builder.images import contents_page, image_settings
from builder.packages import program_wrappers
from builder.release.publish import image_variants, tags
from rosetta.core.gpus import GPUS
from rosetta.data import data_spec
from rosetta.presets import schema
from tests.support.public_names import (
    ROOT,
    assert_same_names,
    join_members,
    load_presets,
    read_mapping,
    read_names,
    read_sources,
)

# A build record with the least that an image needs.
EXAMPLE_RECORD: dict[str, Any] = {
    "distribution": "t5x",
    "accelerator": "cuda13",
    "line": "current",
    "architecture": "amd64",
    "builder": "1",
    "python": "3.13",
    "base": {"name": "debian", "digest": "sha256:0"},
    "sources": {
        "t5x": {"commit": "0", "patched_commit": "0", "url": "u", "date": 0, "patches": []}
    },
}


def test_paths_in_the_image() -> None:
    """Each path that the builder writes into an image is listed."""
    heading = "Paths in the image"
    listed = {path.strip("/") for path in read_names(heading)}
    paths = set()
    for distribution in ("t5x", "pax"):
        entries = image_settings.list_entries(
            {**EXAMPLE_RECORD, "distribution": distribution}, {}, []
        )
        paths |= {entry.path.strip("/") for entry in entries}
    manifest = yaml.safe_load((ROOT / "manifest.yaml").read_text(encoding="utf-8"))
    sources = [name for name in manifest["sources"] if name not in manifest["projects"]]
    paths |= {f"opt/{name.partition('-')[0]}" for name in sources}
    for text in read_sources("builder").values():
        paths |= set(re.findall(r'"/?(opt/[a-zA-Z0-9_./-]+)"', text))
    assert_same_names(heading, listed, paths)
    described = {path.strip("/") for path in contents_page.PATHS}
    assert described == paths, f"{contents_page.PAGE} describes other paths"


def test_programs_in_the_image() -> None:
    """Programs on PATH are those that the page lists."""
    assert_same_names("Programs on PATH", read_names("Programs on PATH"), program_wrappers.PROGRAMS)


def test_variables_in_the_image() -> None:
    """The image sets the variables that the page lists, and no others."""
    heading = "Variables that the image sets"
    existing = {line.partition("=")[0] for line in image_settings.make_env()}
    assert_same_names(heading, read_names(heading), existing)


def test_labels() -> None:
    """The image has the labels that the page lists."""
    assert_same_names(
        "Labels",
        read_names("Labels"),
        image_settings.make_labels(EXAMPLE_RECORD, contents_page.EXAMPLE_ORIGIN),
    )


def test_tags() -> None:
    """Tags of published images are those that the page lists."""
    existing = {
        start + image_variants.find_suffix(accelerator)
        for start in ("latest", tags.VERIFIED, tags.Position("YYYY-MM-DD").tag)
        for accelerator in ACCELERATORS
    }
    assert_same_names("Tags", read_names("Tags"), existing)


def test_distributions() -> None:
    """Distributions and accelerators are those of the manifest."""
    manifest = yaml.safe_load((ROOT / "manifest.yaml").read_text(encoding="utf-8"))
    existing = {
        name: set(entry["accelerators"]) for name, entry in manifest["distributions"].items()
    }
    assert_same_names(
        "Distributions", join_members(read_mapping("Distributions")), join_members(existing)
    )


def test_presets() -> None:
    """Presets, switches and precisions are those of the YAML files, accelerators the table's."""
    existing = {*load_presets("t5x"), *load_presets("pax")}
    assert_same_names("Presets", read_names("Presets"), existing)
    assert_same_names("Accelerators", read_names("Accelerators"), GPUS)
    for heading in ("Switches", "Precisions"):
        assert_same_names(heading, read_names(heading), load_presets(heading.lower()))


def test_fields_of_presets() -> None:
    """The fields of a preset are those that the page lists."""
    heading = "Fields of a preset"
    assert_same_names(heading, read_names(heading), {*schema.FIELDS, *schema._GROUP_RULES})


def test_data_addresses() -> None:
    """Kinds of data and objectives are those that the page lists."""
    assert_same_names("Kinds of data", read_names("Kinds of data"), data_spec.KINDS)
    assert_same_names("Objectives", read_names("Objectives"), data_spec.OBJECTIVES)
