"""The manifest of a mixed build, made from the real one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.core import manifest
from builder.release.bisect import build_contents, build_manifest
from builder.release.bisect.build_contents import EndpointManifest

ROOT = Path(__file__).resolve().parents[5]
SHIPPED = manifest.load(ROOT / "manifest.yaml")


@pytest.mark.parametrize("distribution", list(SHIPPED.distributions))
def test_rules_name_the_line_of_the_build_alone(tmp_path: Path, distribution: str) -> None:
    accelerator = SHIPPED.distribution(distribution).accelerators[-1]
    endpoint = EndpointManifest("here", SHIPPED)
    build = build_contents.read_build(endpoint, distribution, accelerator)
    sources = {source.name: dict(source.entry) for source in build.sources}
    for name, entry in sources.items():
        entry["patches"] = f"patches/{name}"
        (tmp_path / entry["patches"]).mkdir(parents=True)
    document = build_manifest._manifest_document(build, sources)
    file = tmp_path / "manifest.yaml"
    file.write_text(json.dumps(document))
    mixed = manifest.load(file)
    (line,) = mixed.lines
    shipped = SHIPPED.strips_for_line(line)
    assert [entry.name for entry in mixed.strips_for_line(line)] == [
        entry.name for entry in shipped
    ]
