"""Describe how an image was built, as SLSA provenance v1 (slsa.dev/spec/v1.0/provenance).

The provenance has no date, no credentials and nothing about the machine. So the same image always
has the same provenance.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from builder.upstream.public_urls import clean_url, format_source_uri
from rosetta.core.errors import INVALID, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

BUILD_TYPE = "urn:rosetta:image:v1"
BUILDER = "urn:rosetta:builder"
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[\x21-\x7e]{1,500}")


def parse_builder_id(text: str) -> str:
    """Return the value of `--builder-id`, a URI, without credentials.

    Raises:
        UserError: the value is not a URI.
    """
    if not _URI.fullmatch(text):
        raise UserError(
            f"{text[:60]!r} is not a valid URI",
            "--builder-id",
            "give one, such as https://HOST/OWNER/REPOSITORY/.github/workflows/nightly.yml, "
            f"or leave the option out ({BUILDER})",
            kind=INVALID,
            value=text[:60],
        )
    return clean_url(text) if "//" in text else text


def make_predicate(
    records: Mapping[str, Mapping[str, Any]], checkout: Mapping[str, Any], builder: str
) -> dict[str, Any]:
    """Return the predicate of the provenance of an image or of an index.

    Args:
        records: The `lock.json` of each image, by its architecture.
        checkout: What `checkout.describe_checkout` returned.
        builder: The URI of the builder.
    """
    first = next(iter(records.values()))
    internal = {
        "line": first["line"],
        "python": first["base"]["python"],
        "glibc": first["base"]["glibc"],
        "compression": first["compression"],
    }
    if checkout:
        internal["checkout_clean"] = checkout["clean"]
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "distribution": first["distribution"],
                "accelerator": first["accelerator"],
                "architectures": sorted(records),
                "transformer_engine": bool(first.get("transformer_engine")),
            },
            "internalParameters": internal,
            "resolvedDependencies": _list_dependencies(records, checkout),
        },
        "runDetails": {"builder": {"id": builder, "version": {"rosetta": str(first["builder"])}}},
    }


def _list_dependencies(
    records: Mapping[str, Mapping[str, Any]], checkout: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return everything that the images were built from, each once."""
    dependencies: dict[str, dict[str, Any]] = {}
    for record in records.values():
        for dependency in _dependencies_of_image(record):
            dependencies.setdefault(f"{dependency['name']} {dependency['digest']}", dependency)
    if checkout:
        uri = {"uri": f"git+{checkout['url']}"} if checkout["url"] else {}
        dependencies["checkout"] = {
            "name": "rosetta",
            **uri,
            "digest": {"gitCommit": checkout["commit"]},
        }
    return [dependencies[key] for key in sorted(dependencies)]


def _dependencies_of_image(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the sources, patches, lock, base and Transformer Engine wheel of one image."""
    dependencies = []
    for name, state in record["sources"].items():
        digest = {"gitCommit": state["commit"], "gitTree": state["tree"]}
        dependencies.append({"name": name, "uri": format_source_uri(state), "digest": digest})
        dependencies += [
            _file_dependency(f"{name}: {patch['name']}.patch", patch["sha256"])
            for patch in state["patches"]
        ]
    requirements, base = record["requirements"], record["base"]
    architecture = record["architecture"]
    dependencies.append(_file_dependency(f"locks/{requirements['file']}", requirements["sha256"]))
    dependencies.append(
        _file_dependency(f"base {base['name']} for {architecture}", str(base["digest"]))
    )
    if wheel := record.get("transformer_engine"):
        name = f"transformer-engine-jax {wheel['version']} for {architecture}"
        dependencies.append(_file_dependency(name, wheel["wheel_sha256"]))
    return dependencies


def _file_dependency(name: str, sha256: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": sha256.removeprefix("sha256:")}}
