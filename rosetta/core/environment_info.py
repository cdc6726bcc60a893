"""Collect what this environment contains, for `rosetta info` and the doctor.

The module only reads files. It imports no framework and needs no GPU driver.
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
_LOCK_KEYS = ("distribution", "line", "accelerator", "architecture", "builder")
_ROW_KEYS = ("distribution", "line", "accelerator", "architecture", "python", "builder")


def find_package_versions() -> dict[str, str]:
    """Return name -> version of those of PACKAGES that are installed."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def find_upstream_folders() -> dict[str, str]:
    """Return upstream package -> the folder that Python imports it from."""
    folders = {}
    for name in UPSTREAM_PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec and spec.submodule_search_locations:
            folders[name] = next(iter(spec.submodule_search_locations))
    return folders


def describe_environment() -> dict[str, Any]:
    """Return the result of `rosetta info`, from lock.json and the metadata of packages.

    A key that an older lock.json lacks has the value None.

    Raises:
      UserError: There is no lock.json, or a file of the environment cannot be read.
    """
    lock = lock_record.read_lock()
    sources = {
        name: _describe_source(source) for name, source in (lock.get("sources") or {}).items()
    }
    return {
        **{key: lock.get(key) for key in _LOCK_KEYS},
        "revision": read_revision(),
        "python": platform.python_version(),
        "requirements": lock.get("requirements"),
        "sources": sources,
        "base": lock.get("base"),
        "transformer_engine": transformer_engine.find_installed_version(),
        "transformer_engine_reason": transformer_engine.explain_absence(),
        "known_issues": read_known_issues(),
        "packages": find_package_versions(),
        "trees": find_upstream_folders(),
    }


def _describe_source(source: dict[str, Any]) -> dict[str, Any]:
    """Return what `rosetta info` shows of one source of lock.json."""
    patches = source.get("patches") or []
    return {
        "url": source.get("url"),
        "commit": source.get("commit"),
        "patched_commit": source.get("patched_commit"),
        "patches": [
            {"name": patch.get("name"), "outcome": patch.get("outcome")} for patch in patches
        ],
    }


def read_revision() -> dict[str, Any] | None:
    """Return the commit of rosetta in this environment.

    Returns:
      The keys `commit`, the last commit that changed the package, and `clean`, whether everything
      of the package was committed. None if the builder did not know the commit.

    Raises:
      UserError: The file cannot be read.
    """
    path = lock_record.get_lock_path().parent / "revision.json"
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {"commit": str(content["commit"]), "clean": content["clean"] is True}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"cannot be read: {error}", str(path), "bake the environment again"
        ) from None


def _format_revision(revision: dict[str, Any] | None) -> str:
    """Return the result of read_revision as text."""
    if revision is None:
        return "unknown"
    return f"{revision['commit']}{'' if revision['clean'] else ', with changes'}"


def read_known_issues() -> list[dict[str, str]]:
    """Return the known issues of the versions in this environment, which the builder recorded.

    Raises:
      UserError: The file of issues cannot be read.
    """
    return list(_read_baked_list("known_issues.json", "issues", missing=[]))


def read_licences() -> list[dict[str, Any]]:
    """Return the name, version, licence and licence files of everything in this environment.

    The files are below opt/rosetta/LICENSES.

    Raises:
      UserError: The list cannot be read.
    """
    return list(_read_baked_list("LICENSES/index.json", "licences"))


def _read_baked_list(name: str, key: str, missing: list[Any] | None = None) -> list[Any]:
    """Return a list that the builder wrote beside lock.json.

    Args:
      name: The JSON file.
      key: The member of its object that has the list.
      missing: The result if the file does not exist; None if that is an error.
    """
    path = lock_record.get_lock_path().parent / name
    if missing is not None and not path.exists():
        return missing
    try:
        content = json.loads(path.read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"cannot be read: {error}", str(path), "bake the environment again"
        ) from None
    if not isinstance(content, list):
        raise UserError(f"{key!r} is not a list", str(path), "bake the environment again")
    return content


def format_licences(licences: list[dict[str, Any]]) -> str:
    """Return the result of read_licences as text."""
    titles = [f"{licence['name']} {licence['version']}" for licence in licences]
    width = max(map(len, titles), default=0)
    lines = [
        f"{title.ljust(width)}  {licence['licence'] or 'not declared'}"
        for title, licence in zip(titles, licences, strict=True)
    ]
    lines.append(f"texts in {lock_record.get_lock_path().parent / 'LICENSES'}")
    if lock_record.read_lock().get("base"):
        lines.append("licences of the operating system's packages: /usr/share/doc/*/copyright")
    return "\n".join(lines)


def _format_value(value: object) -> str:
    """Return a value of lock.json as text."""
    return "unknown" if value is None else str(value)


def format_environment(result: dict[str, Any]) -> str:
    """Return the result of describe_environment as text."""
    rows = [(key, _format_value(result[key])) for key in _ROW_KEYS]
    rows.append(("rosetta", _format_revision(result["revision"])))
    for name, source in result["sources"].items():
        rows += _list_source_rows(name, source)
    if base := result["base"]:
        rows.append(("base", f"{base.get('name')}  {base.get('digest')}"))
    rows.extend(result["packages"].items())
    engine = result["transformer_engine"] or f"none: {result['transformer_engine_reason']}"
    rows.append(("Transformer Engine", engine))
    rows.extend((f"{name} from", folder) for name, folder in result["trees"].items())
    for issue in result["known_issues"]:
        rows.append(("known issue", f"{issue['line']} ({issue['see']})"))
    width = max(len(key) for key, _ in rows)
    return "\n".join(f"{key:<{width}}  {value}" for key, value in rows)


def _list_source_rows(name: str, source: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows on one source: its commits and its patches."""
    rows = [
        (name, f"{_format_value(source['commit'])}  {source['url'] or ''}".rstrip()),
        ("  patched", _format_value(source["patched_commit"])),
    ]
    for patch in source["patches"]:
        outcome = f"{_format_value(patch['name'])}: {_format_value(patch['outcome'])}"
        rows.append(("  patch", outcome))
    return rows
