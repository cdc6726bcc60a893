"""The real cosign verifies what we attach with the public key, and we read what cosign signs.

cosign 2 reads the tags .sig and .att, cosign 3 reads bundles and falls back to the tags. Both are
in Debian: 2 in trixie, 3 in forky.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from builder.images.oci import layout, reference
from builder.images.registry.transport import Connection
from builder.release.publish import attachments, signing_key, verification
from tests.support import published_project
from tests.support.published_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.image_registry import Served

pytestmark = pytest.mark.registry

OFFLINE = ("--insecure-ignore-tlog=true", "--allow-http-registry")
KINDS = (
    ("verify",),
    ("verify-attestation", "--type", "cyclonedx"),
    ("verify-attestation", "--type", "slsaprovenance1"),
)


@dataclass(frozen=True)
class Cosign:
    """A cosign program, its major version, and the home folder that it gets."""

    program: str
    major: int
    home: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "COSIGN_YES": "true",
            "COSIGN_PASSWORD": "",
        }
        return subprocess.run(
            [self.program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=env,
            timeout=120,
        )


def _read_major(program: str) -> int:
    """Return the major version. Debian's build does not say its version, but has other options."""
    version = subprocess.run([program, "version"], capture_output=True, text=True, check=True)
    if found := re.search(r"GitVersion:\s+v(\d+)\.", version.stdout):
        return int(found[1])
    signing = subprocess.run(
        [program, "sign", "--help"], capture_output=True, text=True, check=True
    )
    return 3 if "--use-signing-config" in signing.stdout else 2


@pytest.fixture(name="cosign", params=["PATH", "ROSETTA_TEST_COSIGN"])
def cosign_(request: pytest.FixtureRequest, tmp_path: Path) -> Cosign:
    program = (
        shutil.which("cosign") if request.param == "PATH" else os.environ.get("ROSETTA_TEST_COSIGN")
    )
    if not program:
        pytest.skip(
            f"NOT CHECKED: {request.param} has no cosign (Debian's package cosign; give one of "
            "version 2 and one of version 3)"
        )
    return Cosign(program, _read_major(program), tmp_path)


@pytest.fixture(name="served")
def served_(tmp_path: Path) -> Iterator[Served]:
    with published_project.serve_registry("docker-registry", tmp_path) as served:
        yield served


def test_cosign_verifies_index_and_platforms(
    project: Project, served: Served, cosign: Cosign
) -> None:
    place = project.layout()
    assert project.publish(served, place)[0] == 0
    index = layout.read_layout(project.folder / place.rpartition("/")[2]).index
    for digest in (index.digest, *(image.digest for image in index.images)):
        name = f"{served.host}/team/thing@{digest}"
        for verb, *more in KINDS:
            key = ("--key", f"{project.keys['ours']}.pub")
            done = cosign.run(verb, *key, *OFFLINE, *more, name)
            assert done.returncode == 0, (verb, done.stderr)
            key = ("--key", f"{project.keys['theirs']}.pub")
            assert cosign.run(verb, *key, *OFFLINE, *more, name).returncode != 0, (verb, more)


def test_the_bundles_alone_are_enough(
    project: Project, served: Served, cosign: Cosign, tmp_path: Path
) -> None:
    """Without the tags of cosign 2: version 2 reads those of statements, version 3 all."""
    place = project.layout()
    assert project.publish(served, place)[0] == 0
    digest = project.digest(place)
    with Connection(
        reference.parse_reference(f"{served.host}/team/thing"), "pull,push"
    ) as connection:
        for suffix in ("sig", "att"):
            shared = attachments.find_document(connection, f"sha256-{digest[7:]}.{suffix}")
            assert shared
            served.answer("DELETE", f"/v2/team/thing/manifests/{shared.digest}", {}, b"")
            assert not attachments.find_document(connection, shared.digest)
    name = f"{served.host}/team/thing@{digest}"
    options = list(OFFLINE)
    if cosign.major == 2:
        root = tmp_path / "root.json"  # otherwise cosign 2 downloads Sigstore's, also with a key
        root.write_text(
            '{"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"}'
        )
        options += ["--new-bundle-format", "--trusted-root", str(root)]
    for verb, *more in KINDS if cosign.major >= 3 else KINDS[1:]:
        key = ("--key", f"{project.keys['ours']}.pub")
        done = cosign.run(verb, *key, *options, *more, name)
        assert done.returncode == 0, (verb, done.stderr)


def test_what_cosign_signs_is_read_and_stays(
    project: Project, served: Served, cosign: Cosign, tmp_path: Path
) -> None:
    place = project.layout()
    assert project.publish(served, place)[0] == 0
    digest = project.digest(place)
    name = f"{served.host}/team/thing@{digest}"
    pair = tmp_path / "pair"
    assert cosign.run("generate-key-pair", "--output-key-prefix", str(pair)).returncode == 0
    options = ["--tlog-upload=false", "--allow-http-registry"]
    if cosign.major >= 3:
        options.append("--use-signing-config=false")
    done = cosign.run("sign", "--key", f"{pair}.key", *options, name)
    assert done.returncode == 0, done.stderr
    key = signing_key.read_public_key(f"{pair}.pub")
    with Connection(reference.parse_reference(f"{served.host}/team/thing"), "pull") as connection:
        read = verification.read_trusted_statements(connection, digest, key)
    if cosign.major >= 3:
        # What cosign 3 signs does not name the repository, so it does not count.
        reasons = read.rejections["signature"]
        assert any("does not name the repository" in reason for reason in reasons), reasons
    else:
        # cosign 2 lists nothing by the image; we add to its tag.
        assert read.predicates == {}
    assert project.publish(served, project.layout("two"), date="2026-01-03")[0] == 0
    assert (
        project.run(
            "publish", "--to", f"{served.host}/team/thing", "--digest", digest, "--tag", "other"
        )[0]
        == 0
    )
    for public in (f"{project.keys['ours']}.pub", f"{pair}.pub"):
        done = cosign.run("verify", "--key", public, *OFFLINE, name)
        assert done.returncode == 0, done.stderr
    assert project.run("verify-published", name)[0] == 0
