"""Describe a published image by its signed statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.release.publish import signed_releases, signed_statements

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.release.publish.verification import TrustedStatements

_PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "orbax-checkpoint",
    "tensorflow",
    "tensorflow-cpu",
    "transformer-engine-jax",
)


def describe_image(statements: TrustedStatements) -> dict[str, Any] | None:
    """Return what the signed provenance, SBOM and releases of an index say about the image.

    Returns:
        None if one of them is missing or not valid.
    """
    provenances = statements.predicates.get(signed_statements.PROVENANCE, [])
    sboms = statements.predicates.get(signed_statements.SBOM, [])
    if not provenances or not sboms:
        return None
    try:
        return {
            **_read_provenance(provenances[0]),
            "versions": _read_versions(sboms[0]),
            "releases": [
                {"date": release.position.date, "tags": sorted(release.tags)}
                for release in signed_releases.read_releases(statements)
            ],
        }
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None


def _read_provenance(predicate: Mapping[str, Any]) -> dict[str, Any]:
    build, details = predicate["buildDefinition"], predicate["runDetails"]
    external, internal = build["externalParameters"], build["internalParameters"]
    checkouts = [
        dependency
        for dependency in build["resolvedDependencies"]
        if dependency["name"] == "rosetta"
    ]
    return {
        "distribution": str(external["distribution"]),
        "accelerator": str(external["accelerator"]),
        "platforms": [f"linux/{architecture}" for architecture in external["architectures"]],
        "line": str(internal["line"]),
        "python": str(internal["python"]),
        "rosetta": str(details["builder"]["version"]["rosetta"]),
        "revision": str(checkouts[0]["digest"]["gitCommit"]) if checkouts else None,
        "builder": str(details["builder"]["id"]),
    }


def _read_versions(sbom: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of the main packages, and the pinned commits of the sources."""
    versions = {}
    for component in sbom["components"]:
        name = str(component["name"])
        if str(component["bom-ref"]).startswith("source:"):
            versions[name] = str(component["pedigree"]["ancestors"][0]["version"])
        elif name in _PACKAGES and str(component.get("purl", "")).startswith("pkg:pypi/"):
            versions[name] = str(component["version"])
    return versions


def format_image(image: Mapping[str, Any] | None) -> list[str]:
    """Return the lines that describe an image, from what `describe_image` returned."""
    if image is None:
        return []
    revision = image["revision"] or "not recorded"
    versions = [f"{name} {version[:12]}" for name, version in image["versions"].items()]
    lines = [
        f"image: {image['distribution']} for {image['accelerator']} (line {image['line']}), "
        + ", ".join(image["platforms"]),
        f"built by: rosetta {image['rosetta']}, revision {revision}",
        f"versions: Python {image['python']}, {', '.join(versions)}",
    ]
    lines += [
        f"released {release['date']}: {', '.join(release['tags'])}" for release in image["releases"]
    ]
    return lines
