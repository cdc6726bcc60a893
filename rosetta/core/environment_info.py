"""`rosetta info`: what this environment is.

Reads files alone; imports no framework and needs no GPU driver.
"""

from __future__ import annotations

import importlib.util
import json
import platform
from importlib import metadata
from typing import Any

from rosetta.core import lock_record, transformer_engine
from rosetta.core.errors import UserError

PACKAGES = (
    "jax",
    "jaxlib",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "transformer-engine-jax",
    "flax",
    "optax",
    "orbax-checkpoint",
    "tensorstore",
    "seqio",
    "tensorflow",
    "tensorflow-cpu",
    "numpy",
)
UPSTREAM_PACKAGES = ("t5x", "paxml", "praxis")


def find_package_versions() -> dict[str, str]:
    """Return name -> version of the packages worth naming, from their metadata."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def find_upstream_folders() -> dict[str, str]:
    """Return upstream package -> the folder it is imported from."""
    specs = {name: importlib.util.find_spec(name) for name in UPSTREAM_PACKAGES}
    return {
        n: next(iter(s.submodule_search_locations))
        for n, s in specs.items()
        if s and s.submodule_search_locations
    }


def describe_environment() -> dict[str, Any]:
    """Return what lock.json and the packages' metadata say; keys that an older lock lacks are
    None.
    """
    known = lock_record.read_lock()
    sources = {
        name: {
            "url": source.get("url"),
            "commit": source.get("commit"),
            "patched_commit": source.get("patched_commit"),
            "patches": [
                {"name": p.get("name"), "outcome": p.get("outcome")}
                for p in source.get("patches") or []
            ],
        }
        for name, source in (known.get("sources") or {}).items()
    }
    return {
        **{
            key: known.get(key)
            for key in ("distribution", "line", "accelerator", "architecture", "builder")
        },
        "python": platform.python_version(),
        "requirements": known.get("requirements"),
        "sources": sources,
        "base": known.get("base"),
        "transformer_engine": transformer_engine.find_installed_version(),
        "transformer_engine_reason": transformer_engine.explain_absence(),
        "known_issues": read_known_issues(),
        "packages": find_package_versions(),
        "trees": find_upstream_folders(),
    }


def read_known_issues() -> list[dict[str, str]]:
    """Return the known issues of exactly these versions, as they were found when this was built."""
    return list(_read_baked_list("known_issues.json", "issues", missing=[]))


def read_licences() -> list[dict[str, Any]]:
    """Return name, version, licence and files (below opt/rosetta/LICENSES) of everything that is
    shipped.
    """
    return list(_read_baked_list("LICENSES/index.json", "licences"))


def _read_baked_list(name: str, member: str, missing: list[Any] | None = None) -> list[Any]:
    """Return a list that the builder wrote beside lock.json."""
    where = lock_record.get_lock_path().parent / name
    if missing is not None and not where.exists():
        return missing
    try:
        found = json.loads(where.read_text(encoding="utf-8"))[member]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"cannot be read: {error}", str(where), "bake the environment again"
        ) from None
    if not isinstance(found, list):
        raise UserError(f"its {member} is no list", str(where), "bake the environment again")
    return found


def format_licences(rows: list[dict[str, Any]]) -> str:
    """Return `licences()` as lines for people."""
    width = max((len(f"{row['name']} {row['version']}") for row in rows), default=0)
    lines = [
        f"{row['name']} {row['version']}".ljust(width) + f"  {row['licence'] or 'not declared'}"
        for row in rows
    ]
    lines.append(f"texts in {lock_record.get_lock_path().parent / 'LICENSES'}")
    if lock_record.read_lock().get("base"):
        lines.append("those of the operating system's packages: /usr/share/doc/*/copyright")
    return "\n".join(lines)


def _format_value(value: object) -> str:
    return "unknown" if value is None else str(value)


def format_environment(result: dict[str, Any]) -> str:
    """Return `info()` as lines for people."""
    rows = [
        (key, _format_value(result[key]))
        for key in ("distribution", "line", "accelerator", "architecture", "python", "builder")
    ]
    for name, source in result["sources"].items():
        rows.append((name, f"{_format_value(source['commit'])}  {source['url'] or ''}".rstrip()))
        rows.append(("  patched", _format_value(source["patched_commit"])))
        rows.extend(
            ("  patch", f"{_format_value(p['name'])}: {_format_value(p['outcome'])}")
            for p in source["patches"]
        )
    if base := result["base"]:
        rows.append(("base", f"{base.get('name')}  {base.get('digest')}"))
    rows.extend(result["packages"].items())
    rows.append(
        (
            "Transformer Engine",
            result["transformer_engine"] or f"none: {result['transformer_engine_reason']}",
        )
    )
    rows.extend((f"{name} from", where) for name, where in result["trees"].items())
    rows.extend(
        ("known issue", f"{each['line']} ({each['see']})") for each in result["known_issues"]
    )
    width = max(len(key) for key, _ in rows)
    return "\n".join(f"{key:<{width}}  {value}" for key, value in rows)
