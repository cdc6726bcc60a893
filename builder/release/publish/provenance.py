"""How an image was made, as SLSA provenance v1 (slsa.dev/spec/v1.0/provenance): what was asked for,
and all it was made of, by digest.

It holds no date and nothing of the machine, so the same image gives the same document; and no
credentials: addresses go in bare.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from builder.release.publish.public_urls import bare, remote
from builder.upstream.git import Git
from rosetta.core.errors import INVALID, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BUILD_TYPE = "urn:rosetta:image:v1"
BUILDER = "urn:rosetta:builder"
_ID = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[\x21-\x7e]{1,500}")


def builder_id(text: str) -> str:
    """Who built it, as a URI: --builder-id, such as the address of a CI workflow."""
    if not _ID.fullmatch(text):
        raise UserError(
            f"{text[:60]!r} is no URI",
            "--builder-id",
            (
                "give one, such as https://HOST/OWNER/REPOSITORY/.github/workflows/nightly.yml, "
                f"or leave it out ({BUILDER})"
            ),
            kind=INVALID,
            value=text[:60],
        )
    return bare(text) if "//" in text else text


def predicate(
    records: Mapping[str, Mapping[str, Any]], checkout: Mapping[str, Any], builder: str
) -> dict[str, Any]:
    """Return the predicate for the image whose lock.json are `records`, by architecture; one of
    them for one platform's manifest.

    `checkout` is what `of_checkout` says. The architectures that the index must have are an
    external parameter.
    """
    first = next(iter(records.values()))
    asked = {
        "distribution": first["distribution"],
        "accelerator": first["accelerator"],
        "architectures": sorted(records),
        "transformer_engine": bool(first.get("transformer_engine")),
    }
    used: dict[str, dict[str, Any]] = {}
    for record in records.values():
        for each in _dependencies(record):
            used.setdefault(f"{each['name']} {each['digest']}", each)
    if checkout:
        used["checkout"] = {
            "name": "rosetta",
            **({"uri": f"git+{checkout['url']}"} if checkout["url"] else {}),
            "digest": {"gitCommit": checkout["commit"]},
        }
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
            "externalParameters": asked,
            "internalParameters": internal,
            "resolvedDependencies": [used[name] for name in sorted(used)],
        },
        "runDetails": {"builder": {"id": builder, "version": {"rosetta": str(first["builder"])}}},
    }


def _dependencies(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what one architecture was made of: pinned sources, patches, the lock of its packages,
    its base, the Transformer Engine wheel.
    """
    found = []
    for name, state in record["sources"].items():
        address = bare(str(state["url"]))
        uri = (
            f"git+{address}@{state['commit']}"
            if "://" in address
            else f"pkg:pypi/{address.replace('==', '@')}"
        )
        found.append(
            {
                "name": name,
                "uri": uri,
                "digest": {"gitCommit": state["commit"], "gitTree": state["tree"]},
            }
        )
        found += [
            {"name": f"{name}: {each['name']}.patch", "digest": {"sha256": each["sha256"]}}
            for each in state["patches"]
        ]
    found.append(
        {
            "name": f"locks/{record['requirements']['file']}",
            "digest": {"sha256": record["requirements"]["sha256"]},
        }
    )
    base = record["base"]
    found.append(
        {
            "name": f"base {base['name']} for {record['architecture']}",
            "digest": {"sha256": str(base["digest"]).removeprefix("sha256:")},
        }
    )
    if te := record.get("transformer_engine"):
        found.append(
            {
                "name": f"transformer-engine-jax {te['version']} for {record['architecture']}",
                "digest": {"sha256": te["wheel_sha256"]},
            }
        )
    return found


def of_checkout(root: Path) -> dict[str, Any]:
    """Return the commit of this checkout, where it came from (bare; not where that is a place on
    this machine) and whether it is as committed; empty where it is no checkout.
    """
    if not (root / ".git").exists():
        return {}
    repository = Git(root / ".git", extra={"GIT_WORK_TREE": str(root)})

    def ask(*arguments: str) -> str | None:
        done = repository.run(*arguments, check=False)
        return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "--verify", "--quiet", "HEAD")
    return (
        {
            "commit": commit,
            "url": remote(ask("config", "--get", "remote.origin.url") or ""),
            "clean": ask("status", "--porcelain") == "",
        }
        if commit
        else {}
    )
