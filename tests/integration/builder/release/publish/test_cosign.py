"""The real cosign verifies what we attach, with nothing but the public key."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.images.oci import layout
from tests.support import published_project
from tests.support.published_project import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.registry


def _cosign(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("cosign") or os.environ.get("ROSETTA_TEST_COSIGN", "")
    if not program:
        pytest.skip(
            "NOT CHECKED: there is no cosign on PATH (Debian's package cosign), nor does ROSETTA_TEST_COSIGN name one"
        )
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "COSIGN_YES": "true"}
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, env=env
    )


def test_cosign_verifies_index_and_platforms(project: Project, tmp_path: Path) -> None:
    offline = ("--insecure-ignore-tlog=true", "--allow-http-registry")
    with published_project.serve_registry("docker-registry", tmp_path) as served:
        place = project.layout()
        assert project.publish(served, place)[0] == 0
        index = layout.read_layout(project.folder / place.rpartition("/")[2]).index
        for digest in (index.digest, *(image.digest for image in index.images)):
            name = f"{served.host}/team/thing@{digest}"
            for more in (
                ("verify",),
                ("verify-attestation", "--type", "cyclonedx"),
                ("verify-attestation", "--type", "slsaprovenance1"),
            ):
                done = _cosign(
                    more[0],
                    "--key",
                    f"{project.keys['ours']}.pub",
                    *offline,
                    *more[1:],
                    name,
                    home=tmp_path,
                )
                assert done.returncode == 0, (more, done.stderr)
                other = _cosign(
                    more[0],
                    "--key",
                    f"{project.keys['theirs']}.pub",
                    *offline,
                    *more[1:],
                    name,
                    home=tmp_path,
                )
                assert other.returncode != 0, more
