"""What `bisect` refuses of an environment or image before it builds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.core.cache import Cache
from builder.core.command_context import Context
from builder.release.bisect import image_origin
from tests.support import errors

ROOT = Path(__file__).parents[5]


@pytest.mark.parametrize("projects", [{"mt3": None}, ["mt3"]], ids=["hashes", "names"])
def test_an_environment_with_projects_is_refused(
    projects: object, cache: Cache, tmp_path: Path
) -> None:
    file = tmp_path / "env/opt/rosetta/lock.json"
    file.parent.mkdir(parents=True)
    requirements = {"file": "t5x-cpu.txt", "sha256": ""}
    file.write_text(json.dumps({"sources": {}, "requirements": requirements, "projects": projects}))
    context = Context(ROOT, ROOT / "manifest.yaml", cache)
    with errors.expect_user_error(errors.UNSUPPORTED, where="env:", names="mt3"):
        image_origin.write_manifest_of_built(
            "env", str(tmp_path / "env"), context, tmp_path / "scratch"
        )
