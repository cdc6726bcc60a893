"""The first stages of a night on the real sources, set back over real history: with the histories that $ROSETTA_MIRROR has.

ROSETTA_MIRROR=DIR python build.py test --no-lint tests/upstream/test_nightly.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder import cli
from builder.core import manifest
from builder.core.cache import Cache
from builder.upstream.source import Access
from tests.support.shipped_sources import SHIPPED
from tests.upstream.test_bump import BACK, NAMES, copy, mirror, set_back

__all__ = ["copy", "mirror"]  # fixtures
pytestmark = pytest.mark.upstream


def test_pins_move_over_real_commits_in_a_copy_and_every_patch_applies_there(
    copy: Path, mirror: str, capsys: pytest.CaptureFixture[str]
) -> None:
    access = Access(Cache(copy.parent / "cache"), offline=True, mirrors=(Path(mirror),))
    for name in NAMES:
        set_back(copy, name, access)
    before = copy.read_bytes()
    folder = copy.parent / "night"
    argv = [
        "nightly",
        "--only",
        "bump",
        "--only",
        "patches",
        "--distribution",
        "t5x",
        "--distribution",
        "pax",
        "--folder",
        str(folder),
    ]
    status = cli.main([*argv, "--manifest", str(copy), "--mirror", mirror, "--offline", "--json"])
    report = json.loads(capsys.readouterr().out)["result"]["report"]
    with capsys.disabled():
        print(
            "\n"
            + "\n".join(
                f"{step['name']}: {step['state']}, {step['seconds']} s" for step in report["steps"]
            )
        )
    assert (status, copy.read_bytes()) == (0, before)
    moved = manifest.load(folder / "tree/manifest.yaml")
    for name in NAMES:
        found = report["sources"][name]
        assert (found["state"], found["commits"], found["debt"]["behind"]) == (
            "moved",
            BACK,
            {"commits": 0, "days": 0},
        )
        assert moved.sources[name].commit == SHIPPED.sources[name].commit
        assert {patch["outcome"] for patch in found["patches"]} <= {"applies", "refreshed"}
