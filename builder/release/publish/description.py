"""What a published image is, by the statements on it that its key signed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.release.publish import signed_releases, signed_statements

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.release.publish.verification import Trusted

_VERSIONS = (
    "jax",
    "jaxlib",
    "flax",
    "orbax-checkpoint",
    "tensorflow",
    "tensorflow-cpu",
    "transformer-engine-jax",
)


def describe_image(known: Trusted) -> dict[str, Any] | None:
    """Return what the signed provenance, SBOM and releases of an index say; None where one is
    missing or damaged.
    """
    provenances, sboms = (
        known.said.get(signed_statements.PROVENANCE, []),
        known.said.get(signed_statements.SBOM, []),
    )
    if not provenances or not sboms:
        return None
    try:
        return {
            **_read_provenance(provenances[0]),
            "versions": _read_versions(sboms[0]),
            "releases": _list_releases(known),
        }
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None


def _list_releases(known: Trusted) -> list[dict[str, Any]]:
    return [
        {"date": release.position.date, "tags": sorted(release.tags)}
        for release in signed_releases.read_releases(known)
    ]


def _read_provenance(predicate: Mapping[str, Any]) -> dict[str, Any]:
    build, details = predicate["buildDefinition"], predicate["runDetails"]
    asked, internal = build["externalParameters"], build["internalParameters"]
    checkouts = [used for used in build["resolvedDependencies"] if used["name"] == "rosetta"]
    return {
        "distribution": str(asked["distribution"]),
        "accelerator": str(asked["accelerator"]),
        "platforms": [f"linux/{architecture}" for architecture in asked["architectures"]],
        "line": str(internal["line"]),
        "python": str(internal["python"]),
        "rosetta": str(details["builder"]["version"]["rosetta"]),
        "revision": str(checkouts[0]["digest"]["gitCommit"]) if checkouts else None,
        "builder": str(details["builder"]["id"]),
    }


def _read_versions(sbom: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of the packages that people ask for, and the pinned commits of the
    sources.
    """
    versions = {}
    for component in sbom["components"]:
        name = str(component["name"])
        if str(component["bom-ref"]).startswith("source:"):
            versions[name] = str(component["pedigree"]["ancestors"][0]["version"])
        elif name in _VERSIONS and str(component.get("purl", "")).startswith("pkg:pypi/"):
            versions[name] = str(component["version"])
    return versions


def format_image(image: Mapping[str, Any] | None) -> list[str]:
    """Return the lines that describe an image to a person."""
    if image is None:
        return []
    platforms, revision = ", ".join(image["platforms"]), image["revision"] or "not recorded"
    versions = ", ".join(f"{name} {version[:12]}" for name, version in image["versions"].items())
    lines = [
        (
            f"image: {image['distribution']} for {image['accelerator']} (line {image['line']}), "
            f"{platforms}"
        ),
        f"made by: rosetta {image['rosetta']}, revision {revision}",
        f"versions: Python {image['python']}, {versions}",
    ]
    return [
        *lines,
        *(
            f"released {release['date']}: {', '.join(release['tags'])}"
            for release in image["releases"]
        ),
    ]
