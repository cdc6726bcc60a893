"""The software bill of materials (SBOM) of an image, as CycloneDX 1.6.

It lists Python and Debian packages with the hashes of the locks, and sources with their patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

from builder.packages import debian_lock, lock_file
from builder.packages.transformer_engine import version_pins
from builder.upstream import patch_series
from builder.upstream.public_urls import clean_url
from rosetta.core.errors import DIFFERS, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.core.manifest import Manifest

    Component = dict[str, Any]

_OTHER_CHECKOUT = "check out the commit of rosetta that the image was built from"


@dataclass(frozen=True)
class ImageContents:
    """The components of the image of one architecture, by their `bom-ref`."""

    architecture: str
    components: dict[str, Component]


def list_contents(
    manifest: Manifest,
    record: Mapping[str, Any],
    checkout: Mapping[str, Any] | None = None,
    licences: Mapping[str, str] | None = None,
) -> ImageContents:
    """List the components of an image.

    Args:
        manifest: The manifest of this checkout, with the locks and patches of the image.
        record: The image's `lock.json`.
        checkout: What `checkout.describe_checkout` returned.
        licences: The licence that the image declares for each project, by its canonical name.

    Raises:
        UserError: the locks or patches are not the ones that the image was built from.
    """
    components = [
        _rosetta_component(record, checkout or {}),
        *_source_components(manifest, record),
        *_python_components(manifest, record),
        *_system_components(manifest, record),
    ]
    for component in components:
        licence = (licences or {}).get(canonicalize_name(component["name"]), "")
        if licence and not component.get("purl", "").startswith("pkg:deb/"):
            component["licenses"] = [_licence_choice(licence)]
    by_reference = {component["bom-ref"]: component for component in components}
    return ImageContents(str(record["architecture"]), by_reference)


def make_document(
    name: str, version: str, digest: str, contents: Iterable[ImageContents]
) -> dict[str, Any]:
    """Return the SBOM of an image, or of an index. It has no date and no serial number.

    Args:
        name: The name of the image.
        version: The version of rosetta.
        digest: The digest of the image or of the index.
        contents: The contents of the image, or of each image of the index.
    """
    merged: dict[str, Component] = {}
    platforms: dict[str, list[dict[str, str]]] = {}
    for image in sorted(contents, key=lambda image: image.architecture):
        platform = {"name": "rosetta:platform", "value": f"linux/{image.architecture}"}
        for reference, component in image.components.items():
            merged.setdefault(reference, component)
            platforms.setdefault(reference, []).append(platform)
    references = sorted(merged)
    subject = {
        "type": "container",
        "bom-ref": digest,
        "name": name,
        "version": version,
        "hashes": [_hash_entry(digest)],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": subject},
        "components": [
            {**merged[reference], "properties": platforms[reference]} for reference in references
        ],
        "dependencies": [{"ref": digest, "dependsOn": references}],
    }


def _rosetta_component(record: Mapping[str, Any], checkout: Mapping[str, Any]) -> Component:
    """Return the component of rosetta itself, with its commit."""
    component: Component = {
        "type": "application",
        "bom-ref": "rosetta",
        "name": "rosetta",
        "version": str(record["builder"]),
    }
    if checkout:
        commit = {"uid": checkout["commit"]}
        if checkout["url"]:
            commit["url"] = checkout["url"]
        if not checkout["clean"]:
            commit["message"] = "with changes that are not committed"
        component["pedigree"] = {"commits": [commit]}
    return component


def _licence_choice(text: str) -> dict[str, Any]:
    """Return a licence as an SPDX expression if it is a valid one, else as a name."""
    try:
        return {"expression": str(canonicalize_license_expression(text))}
    except InvalidLicenseExpression:
        return {"license": {"name": text}}


def _source_components(manifest: Manifest, record: Mapping[str, Any]) -> list[Component]:
    """Return each patched source, with its pinned commit as the ancestor and all its patches."""
    components = []
    for name, state in record["sources"].items():
        pedigree = {
            "ancestors": [_pinned_component(name, state)],
            "patches": _list_patches(manifest, name, state),
        }
        components.append(
            {
                "type": "library",
                "bom-ref": f"source:{name}",
                "name": name,
                "version": str(state["patched_commit"]),
                "pedigree": pedigree,
            }
        )
    return components


def _pinned_component(name: str, state: Mapping[str, Any]) -> Component:
    """Return a source at its pinned commit."""
    properties = [
        {"name": f"rosetta:{key}", "value": str(state[key])}
        for key in ("tree", "patched_commit", "patched_tree")
    ]
    properties += [
        {"name": "rosetta:patch", "value": f"{patch['name']} sha256:{patch['sha256']}"}
        for patch in state["patches"]
    ]
    return {
        "type": "library",
        "name": name,
        "version": str(state["commit"]),
        "externalReferences": [{"type": "vcs", "url": clean_url(str(state["url"]))}],
        "properties": properties,
    }


def _list_patches(manifest: Manifest, name: str, state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the text of each patch of a source.

    Raises:
        UserError: this checkout has other patches.
    """
    folder = manifest.source(name).patches
    text_by_hash = {patch.sha256: patch.raw for patch in patch_series.load_patches(folder)}
    patches = []
    for patch in state["patches"]:
        text = text_by_hash.get(patch["sha256"])
        if text is None:
            raise UserError(
                f"the patch {patch['name']} is not the one in the image",
                str(folder),
                _OTHER_CHECKOUT,
                kind=DIFFERS,
                value=patch["name"],
            )
        content = {"contentType": "text/x-diff", "content": text.decode("utf-8", "replace")}
        patches.append({"type": "unofficial", "diff": {"text": content}})
    return patches


def _python_components(manifest: Manifest, record: Mapping[str, Any]) -> list[Component]:
    """Return the Python packages of an image, each with all hashes that its lock accepts."""
    lock = manifest.folder("locks") / str(record["requirements"]["file"])
    if lock_file.hash_lock(lock) != record["requirements"]["sha256"]:
        raise UserError(
            "is not the lock that the image was built from",
            str(lock),
            _OTHER_CHECKOUT,
            kind=DIFFERS,
        )
    python, architecture = str(record["python"]), str(record["architecture"])
    environment = lock_file.marker_environment(python, str(record["base"]["python"]), architecture)
    pins = {pin.name: pin for pin in lock_file.read_lock(lock) if pin.applies_to(environment)}
    components = []
    if wheel := record.get("transformer_engine"):
        for pin in version_pins.installed_pins(
            manifest, str(record["line"]), str(record["accelerator"]), python, architecture
        ):
            pins.setdefault(pin.name, pin)
        hashes = (str(wheel["wheel_sha256"]),)
        components.append(
            _python_component("transformer-engine-jax", str(wheel["version"]), hashes)
        )
    components += [_python_component(pin.name, pin.version, pin.hashes) for pin in pins.values()]
    return components


def _python_component(name: str, version: str, hashes: Iterable[str]) -> Component:
    purl = f"pkg:pypi/{quote(name)}@{quote(version)}"
    return _package_component(name, version, purl, hashes)


def _system_components(manifest: Manifest, record: Mapping[str, Any]) -> list[Component]:
    """Return the Debian packages of the base, if they are locked, else the base as a whole."""
    base, architecture = record["base"], str(record["architecture"])
    name = manifest.lines[str(record["line"])].base
    lock = debian_lock.load_lock(manifest, name, architecture, current=False) if name else None
    if lock and lock.packages and lock.digest == base["digest"]:
        components = []
        for package in lock.packages:
            query = f"arch={package.architecture}&distro={lock.suite}"
            purl = f"pkg:deb/debian/{quote(package.name)}@{quote(package.version)}?{query}"
            components.append(
                _package_component(package.name, package.version, purl, [package.sha256])
            )
        return components
    if str(base["name"]).startswith("bootstrap:"):
        raise UserError(
            f"the packages of {base['name']} for {architecture} are not the ones that the image "
            "was built from",
            f"locks/base-{name}-{architecture}.json",
            _OTHER_CHECKOUT,
            kind=DIFFERS,
        )
    return [
        {
            "type": "operating-system",
            "bom-ref": f"base:{base['digest']}",
            "name": str(base["name"]),
            "version": str(base["digest"]),
            "hashes": [_hash_entry(str(base["digest"]))],
        }
    ]


def _package_component(name: str, version: str, purl: str, hashes: Iterable[str]) -> Component:
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": [_hash_entry(sha256) for sha256 in hashes],
    }


def _hash_entry(sha256: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": sha256.removeprefix("sha256:")}
