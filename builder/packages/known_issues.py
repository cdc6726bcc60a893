"""Which of rosetta/known_issues.yaml hold for what is being built: decided once, here, so that
nothing has to be worked out in an image.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from builder.core.baked_package import find_baked_package
from rosetta.core import strict_yaml
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_TEXTS = ("id", "line", "see", "end")
_LISTS = ("distributions", "accelerators", "architectures")
_AT_RUN_TIME = (
    "capabilities",
    "variables",
    "one_process_per_gpu",
)  # `rosetta doctor` looks at these
_KEYS = {*_TEXTS, "when", *_LISTS, "transformer_engine", *_AT_RUN_TIME}


def load_issues(path: Path | None = None) -> list[dict[str, Any]]:
    """All known issues; UserError where one is not of the shape that the file's head describes."""
    path = path or find_baked_package() / "known_issues.yaml"
    document = strict_yaml.load(path.read_text(encoding="utf-8"), str(path)).data
    issues = document.get("issues") if isinstance(document, dict) else None
    if not isinstance(issues, list):
        raise UserError("has no list `issues`", str(path), "see the head of the file")
    seen: set[str] = set()
    for issue in issues:
        name = str(issue.get("id", "?")) if isinstance(issue, dict) else "?"
        problem = _find_problem(issue, seen)
        if problem:
            raise UserError(problem, f"{path}: {name}", "see the head of the file")
        seen.add(name)
    return issues


def _find_problem(issue: Any, seen: set[str]) -> str:
    if not isinstance(issue, dict) or not set(issue) <= _KEYS:
        return f"has other keys than {', '.join(sorted(_KEYS))}"
    if not all(
        isinstance(issue.get(key), str) and issue[key] and "\n" not in issue[key] for key in _TEXTS
    ):
        return "id, line, see and end have to be texts of one line"
    if issue["id"] in seen:
        return "is there twice"
    if not all(isinstance(issue.get(key, []), list) for key in _LISTS) or not isinstance(
        issue.get("transformer_engine", True), bool
    ):
        return f"{', '.join(_LISTS)} are lists, transformer_engine is true or false"
    majors, variables = issue.get("capabilities", []), issue.get("variables", {})
    sound = isinstance(majors, list) and all(isinstance(major, int) for major in majors)
    sound = (
        sound
        and isinstance(variables, dict)
        and all(isinstance(value, str) for value in variables.values())
    )
    if not sound or not isinstance(issue.get("one_process_per_gpu", True), bool):
        return (
            "capabilities lists whole numbers, variables gives texts, one_process_per_gpu is true "
            "or false"
        )
    try:
        for specifier in dict(issue.get("when") or {}).values():
            SpecifierSet(str(specifier))
    except (InvalidSpecifier, ValueError, TypeError):
        return "`when` is package: versions, such as jaxlib: '>=0.4.31,<0.12'"
    return ""


def select_issues(
    issues: list[dict[str, Any]], record: Mapping[str, Any], versions: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Those that hold for the build that `record` (lock.json) describes, with `versions` of its
    packages.
    """
    here = {
        "distributions": record["distribution"],
        "accelerators": record["accelerator"],
        "architectures": record["architecture"],
    }
    found = []
    for issue in issues:
        fits = all(here[key] in issue[key] for key in _LISTS if key in issue)
        fits = fits and issue.get("transformer_engine") in (
            None,
            bool(record.get("transformer_engine")),
        )
        for name, specifier in dict(issue.get("when") or {}).items():
            version = versions.get(canonicalize_name(name))
            fits = (
                fits
                and version is not None
                and SpecifierSet(str(specifier)).contains(version, prereleases=True)
            )
        if fits:
            found.append({key: issue[key] for key in (*_TEXTS, *_AT_RUN_TIME) if key in issue})
    return found


def render_issues(record: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """Return the text of opt/rosetta/known_issues.json."""
    return (
        json.dumps(
            {"schema": 1, "issues": select_issues(load_issues(), record, versions)}, indent=1
        )
        + "\n"
    )
