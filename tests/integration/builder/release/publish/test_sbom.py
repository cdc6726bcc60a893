"""The SBOM has what the image was made of, by the locks, and only of that image."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from builder.core import manifest
from builder.release.publish import platform_images, sbom
from tests.support import errors, published_project
from tests.support.published_project import BOTH, COMMIT, SECRET, Project

pytestmark = pytest.mark.registry

DIGEST = "sha256:" + "d" * 64


def _parts(project: Project) -> list[sbom.ImageContents]:
    loaded = manifest.load(project.manifest)
    return [sbom.list_contents(loaded, project.record(each)) for each in BOTH]


def _by_name(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [each for each in document["components"] if each["name"] == name]


def test_packages_by_the_locks(project: Project) -> None:
    amd64, arm64 = (sbom.make_document("r", "1", DIGEST, [part]) for part in _parts(project))
    (helper,) = _by_name(amd64, "helper")
    assert (helper["purl"], len(helper["hashes"][0]["content"])) == ("pkg:pypi/helper@1.0", 64)
    assert (_by_name(amd64, "only-arm"), len(_by_name(arm64, "only-arm"))) == ([], 1)
    (libc,) = _by_name(amd64, "libc6")
    assert libc["purl"] == "pkg:deb/debian/libc6@2.41-1?arch=amd64&distro=trixie"
    assert amd64["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": "d" * 64}]


def test_components_carry_their_licences(project: Project) -> None:
    licences = {
        "helper": "MIT",
        "other": "Some licence of its own",
        "thing": "Apache-2.0",
        "rosetta": "Apache-2.0",
        "libc6": "MIT",
    }
    part = sbom.list_contents(
        manifest.load(project.manifest), project.record("arm64"), None, licences
    )
    document = sbom.make_document("r", "1", DIGEST, [part])
    found = {name: _by_name(document, name)[0].get("licenses") for name in (*licences, "only-arm")}
    expected = {name: [{"expression": "Apache-2.0"}] for name in ("thing", "rosetta")}
    named = {
        "helper": [{"expression": "MIT"}],
        "other": [{"license": {"name": "Some licence of its own"}}],
        "libc6": None,
        "only-arm": None,
    }
    assert found == expected | named


def test_the_licences_come_from_the_image(project: Project) -> None:
    rows = [{"name": "Helper", "version": "1.0", "licence": "BSD-3-Clause", "files": []}]
    project.licences = {"schema": 1, "licences": rows}
    loaded = manifest.load(project.manifest)
    made = platform_images.read_layouts(loaded, [Path(project.layout().removeprefix("oci:"))])
    assert made.licences == {name: {"helper": "BSD-3-Clause"} for name in BOTH}


def test_a_source_with_its_commit_and_patches(project: Project) -> None:
    (source,) = _by_name(sbom.make_document("r", "1", DIGEST, _parts(project)), "thing")
    (ancestor,) = source["pedigree"]["ancestors"]
    assert (ancestor["version"], ancestor["externalReferences"][0]["url"]) == (
        COMMIT,
        "https://example.invalid/group/thing.git",
    )
    (patch,) = source["pedigree"]["patches"]
    assert (
        patch["diff"]["text"]["content"]
        == (project.folder / "patches/thing/greet.patch").read_text()
    )


def test_an_index_has_the_components_of_all_platforms(project: Project) -> None:
    document = sbom.make_document("r", "1", DIGEST, _parts(project))
    assert [row["value"] for row in _by_name(document, "helper")[0]["properties"]] == [
        "linux/amd64",
        "linux/arm64",
    ]
    assert sorted(each["properties"][0]["value"] for each in _by_name(document, "libc6")) == [
        "linux/amd64",
        "linux/arm64",
    ]
    assert document == sbom.make_document("r", "1", DIGEST, _parts(project)[::-1])  # the same again
    assert SECRET not in str(document)
    references = [each["bom-ref"] for each in document["components"]]
    assert len(set(references)) == len(references)
    assert set(document["dependencies"][0]["dependsOn"]) == set(references)


def test_a_base_that_is_an_image_is_one_component(project: Project) -> None:
    record = project.record("amd64")
    record["base"] |= {"name": "debian:trixie-slim", "digest": "sha256:" + "b" * 64}
    document = sbom.make_document(
        "r", "1", DIGEST, [sbom.list_contents(manifest.load(project.manifest), record)]
    )
    (base,) = [each for each in document["components"] if each["type"] == "operating-system"]
    assert (base["name"], base["hashes"][0]["content"]) == ("debian:trixie-slim", "b" * 64)


@pytest.mark.parametrize("what", ["lock", "base", "patch"])
def test_a_checkout_with_other_inputs_is_refused(project: Project, what: str) -> None:
    record = project.record("amd64")
    if what == "lock":
        project.lock({"helper": "1.1"})
    elif what == "base":
        project.base(libc6="2.42-1")
    else:
        patch = project.folder / "patches/thing/greet.patch"
        patch.write_text(patch.read_text().replace("good day", "good bye"))
    with errors.expect_user_error(errors.DIFFERS, remedy="commit"):
        sbom.list_contents(manifest.load(project.manifest), record)


def test_what_is_attached_has_no_credentials(project: Project, tmp_path: Path) -> None:
    """The address in the lock has some: a manifest with them is refused, but this one was got by."""
    with published_project.serve_registry("memory", tmp_path) as served:
        assert project.publish(served, project.layout())[0] == 0
        kept = served.answer.__self__  # type: ignore[attr-defined]
        payloads = [
            base64.b64decode(json.loads(each)["payload"])
            for each in kept.blobs.values()
            if each.startswith(b'{"payload"')
        ]
    assert len(payloads) == 8  # two statements for each of three documents, and two releases
    assert not [each for each in payloads if SECRET.encode() in each]
