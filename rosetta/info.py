"""`rosetta info`: what this environment is. Reads files alone; imports no framework and needs no GPU driver."""

from __future__ import annotations

import importlib.util
import platform
from importlib import metadata
from typing import Any

from rosetta import lock

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
UPSTREAM = ("t5x", "paxml", "praxis")


def installed() -> dict[str, str]:
    """Return name -> version of the packages worth naming, from their metadata."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def trees() -> dict[str, str]:
    """Return upstream package -> the folder it is imported from."""
    specs = {name: importlib.util.find_spec(name) for name in UPSTREAM}
    return {n: next(iter(s.submodule_search_locations)) for n, s in specs.items() if s and s.submodule_search_locations}


def info() -> dict[str, Any]:
    """Return what lock.json and the packages' metadata say; keys that an older lock lacks are None."""
    known = lock.read()
    sources = {
        name: {
            "url": source.get("url"),
            "commit": source.get("commit"),
            "patched_commit": source.get("patched_commit"),
            "patches": [{"name": p.get("name"), "outcome": p.get("outcome")} for p in source.get("patches") or []],
        }
        for name, source in (known.get("sources") or {}).items()
    }
    return {
        **{key: known.get(key) for key in ("distribution", "line", "accelerator", "architecture", "builder")},
        "python": platform.python_version(),
        "requirements": known.get("requirements"),
        "sources": sources,
        "packages": installed(),
        "trees": trees(),
    }


def _text(value: object) -> str:
    return "unknown" if value is None else str(value)


def table(result: dict[str, Any]) -> str:
    """Return `info()` as lines for people."""
    rows = [
        (key, _text(result[key]))
        for key in ("distribution", "line", "accelerator", "architecture", "python", "builder")
    ]
    for name, source in result["sources"].items():
        rows.append((name, f"{_text(source['commit'])}  {source['url'] or ''}".rstrip()))
        rows.append(("  patched", _text(source["patched_commit"])))
        rows.extend(("  patch", f"{_text(p['name'])}: {_text(p['outcome'])}") for p in source["patches"])
    rows.extend(result["packages"].items())
    rows.extend((f"{name} from", where) for name, where in result["trees"].items())
    width = max(len(key) for key, _ in rows)
    return "\n".join(f"{key:<{width}}  {value}" for key, value in rows)
