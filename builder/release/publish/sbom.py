"""What is in an image, as CycloneDX 1.6: Python packages and Debian packages with their hashes by
the locks, patched sources with their patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

from builder.packages import debian_lock, lock_file
from builder.packages.transformer_engine import version_pins
from builder.release.publish.public_urls import bare
from builder.upstream import patch_series
from rosetta.core.errors import DIFFERS, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.core.manifest import Manifest

_OTHER = "check out the commit of rosetta that the image was built from"


@dataclass(frozen=True)
class Contents:
    """The components of one architecture's image, by their bom-ref."""

    architecture: str
    components: dict[str, dict[str, Any]]


def contents(
    manifest: Manifest,
    record: Mapping[str, Any],
    checkout: Mapping[str, Any] | None = None,
    licences: Mapping[str, str] | None = None,
) -> Contents:
    """List the components of an image.

    Args:
        manifest: of this checkout, whose locks and patches the image was made of.
        record: the image's lock.json.
        checkout: what `provenance.of_checkout` says of this checkout.
        licences: what the image says of the licence of each project, by its name.

    Raises:
        UserError: locks or patches are not those that the image was made of.
    """
    found = [
        _rosetta(record, checkout or {}),
        *_sources(manifest, record),
        *_python(manifest, record),
        *_system(manifest, record),
    ]
    for component in found:
        licence = (licences or {}).get(canonicalize_name(component["name"]), "")
        if licence and not component.get("purl", "").startswith("pkg:deb/"):
            component["licenses"] = [_licence(licence)]
    return Contents(str(record["architecture"]), {each["bom-ref"]: each for each in found})


def document(name: str, version: str, digest: str, parts: list[Contents]) -> dict[str, Any]:
    """Return the SBOM of an image with this digest: of one architecture, or of an index over those
    in `parts`. Without date or serial number, so the same again.
    """
    merged: dict[str, dict[str, Any]] = {}
    platforms: dict[str, list[str]] = {}
    for part in sorted(parts, key=lambda each: each.architecture):
        for reference, component in part.components.items():
            merged.setdefault(reference, component)
            platforms.setdefault(reference, []).append(f"linux/{part.architecture}")
    components = [
        {
            **merged[each],
            "properties": [
                {"name": "rosetta:platform", "value": platform} for platform in platforms[each]
            ],
        }
        for each in sorted(merged)
    ]
    subject = {
        "type": "container",
        "bom-ref": digest,
        "name": name,
        "version": version,
        "hashes": [_hash(digest.removeprefix("sha256:"))],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": subject},
        "components": components,
        "dependencies": [{"ref": digest, "dependsOn": sorted(merged)}],
    }


def _rosetta(record: Mapping[str, Any], checkout: Mapping[str, Any]) -> dict[str, Any]:
    """Return the component of rosetta's own package and programs, with the commit they are of."""
    component: dict[str, Any] = {
        "type": "application",
        "bom-ref": "rosetta",
        "name": "rosetta",
        "version": str(record["builder"]),
    }
    if checkout:
        commit = {
            "uid": checkout["commit"],
            **({"url": checkout["url"]} if checkout["url"] else {}),
        }
        message = {} if checkout["clean"] else {"message": "with changes that are not committed"}
        component["pedigree"] = {"commits": [{**commit, **message}]}
    return component


def _licence(text: str) -> dict[str, Any]:
    """Return a licence choice: an SPDX expression where the text is a valid one, else a name."""
    try:
        return {"expression": str(canonicalize_license_expression(text))}
    except InvalidLicenseExpression:
        return {"license": {"name": text}}


def _sources(manifest: Manifest, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each patched source, with the pinned commit as its ancestor and the text of every patch."""
    found = []
    for name, state in record["sources"].items():
        folder = manifest.source(name).patches
        held = {patch.sha256: patch.raw for patch in patch_series.load(folder)}
        patches = []
        for each in state["patches"]:
            text = held.get(each["sha256"])
            if text is None:
                raise UserError(
                    f"the patch {each['name']} is not the one in the image",
                    str(folder),
                    _OTHER,
                    kind=DIFFERS,
                    value=each["name"],
                )
            patches.append(
                {
                    "type": "unofficial",
                    "diff": {
                        "text": {
                            "contentType": "text/x-diff",
                            "content": text.decode("utf-8", "replace"),
                        }
                    },
                }
            )
        address = bare(str(state["url"]))
        ancestor = {
            "type": "library",
            "name": name,
            "version": str(state["commit"]),
            "externalReferences": [{"type": "vcs", "url": address}],
        }
        noted = [
            {"name": f"rosetta:{key}", "value": str(state[key])}
            for key in ("tree", "patched_commit", "patched_tree")
        ]
        noted += [
            {"name": "rosetta:patch", "value": f"{each['name']} sha256:{each['sha256']}"}
            for each in state["patches"]
        ]
        found.append(
            {
                "type": "library",
                "bom-ref": f"source:{name}",
                "name": name,
                "version": str(state["patched_commit"]),
                "pedigree": {"ancestors": [{**ancestor, "properties": noted}], "patches": patches},
            }
        )
    return found


def _python(manifest: Manifest, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the packages of the lock that hold for this image, each with the hashes of all files
    that the lock takes for it.
    """
    lock = manifest.folder("locks") / str(record["requirements"]["file"])
    if lock_file.digest(lock) != record["requirements"]["sha256"]:
        raise UserError(
            "is not the lock that the image was made of", str(lock), _OTHER, kind=DIFFERS
        )
    python, architecture = str(record["python"]), str(record["architecture"])
    here = lock_file.environment_of(python, str(record["base"]["python"]), architecture)
    pins = {pin.name: pin for pin in lock_file.read(lock) if pin.holds(here)}
    found = []
    if te := record.get("transformer_engine"):
        for pin in version_pins.installed(
            manifest, str(record["line"]), str(record["accelerator"]), python, architecture
        ):
            pins.setdefault(pin.name, pin)
        found.append(
            _package("transformer-engine-jax", str(te["version"]), (str(te["wheel_sha256"]),))
        )
    return [*found, *(_package(pin.name, pin.version, pin.hashes) for pin in pins.values())]


def _package(name: str, version: str, sums: tuple[str, ...]) -> dict[str, Any]:
    purl = f"pkg:pypi/{quote(name)}@{quote(version)}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": [_hash(each) for each in sums],
    }


def _system(manifest: Manifest, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the Debian packages where the base was made from locked ones; any other base is one
    component, by its digest.
    """
    base, architecture = record["base"], str(record["architecture"])
    name = manifest.lines[str(record["line"])].base
    lock = debian_lock.load(manifest, name, architecture, current=False) if name else None
    if lock and lock.packages and lock.digest == base["digest"]:
        return [
            _deb(deb.name, deb.version, deb.architecture, deb.sha256, lock.suite)
            for deb in lock.packages
        ]
    if str(base["name"]).startswith("bootstrap:"):
        raise UserError(
            (
                f"the packages of {base['name']} for {architecture} are others than the image was "
                "made of"
            ),
            f"locks/base-{name}-{architecture}.json",
            _OTHER,
            kind=DIFFERS,
        )
    sums = [_hash(str(base["digest"]).removeprefix("sha256:"))]
    return [
        {
            "type": "operating-system",
            "bom-ref": f"base:{base['digest']}",
            "name": str(base["name"]),
            "version": str(base["digest"]),
            "hashes": sums,
        }
    ]


def _deb(name: str, version: str, architecture: str, sum_: str, suite: str) -> dict[str, Any]:
    purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}&distro={suite}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": [_hash(sum_)],
    }


def _hash(content: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": content}
