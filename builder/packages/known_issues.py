"""Select the issues of rosetta/known_issues.yaml that apply to a build.

The builder selects them once, so that `rosetta doctor` only has to check the machine.
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
# `rosetta doctor` checks these.
_AT_RUN_TIME = ("capabilities", "variables", "one_process_per_gpu")
_KEYS = {*_TEXTS, "when", *_LISTS, "transformer_engine", *_AT_RUN_TIME}


def load_issues(path: Path | None = None) -> list[dict[str, Any]]:
    """Return all known issues.

    Raises:
        UserError: An issue does not have the form that the head of the file describes.
    """
    path = path or find_baked_package() / "known_issues.yaml"
    document = strict_yaml.parse_document(path.read_text(encoding="utf-8"), str(path)).data
    issues = document.get("issues") if isinstance(document, dict) else None
    if not isinstance(issues, list):
        raise UserError("has no list `issues`", str(path), "see the head of the file")
    known_names: set[str] = set()
    for issue in issues:
        name = str(issue.get("id", "?")) if isinstance(issue, dict) else "?"
        problem = _find_problem(issue, known_names)
        if problem:
            raise UserError(problem, f"{path}: {name}", "see the head of the file")
        known_names.add(name)
    return issues


def _find_problem(issue: Any, known_names: set[str]) -> str:
    """Return what is wrong with the form of an issue, or ""."""
    if not isinstance(issue, dict) or not set(issue) <= _KEYS:
        return f"has other keys than {', '.join(sorted(_KEYS))}"
    if not all(
        isinstance(issue.get(key), str) and issue[key] and "\n" not in issue[key] for key in _TEXTS
    ):
        return "id, line, see and end must each be a text of one line"
    if issue["id"] in known_names:
        return "the id is used twice"
    if not all(isinstance(issue.get(key, []), list) for key in _LISTS) or not isinstance(
        issue.get("transformer_engine", True), bool
    ):
        return f"{', '.join(_LISTS)} must be lists; transformer_engine must be true or false"
    majors, variables = issue.get("capabilities", []), issue.get("variables", {})
    is_valid = (
        isinstance(majors, list)
        and all(isinstance(major, int) for major in majors)
        and isinstance(variables, dict)
        and all(isinstance(value, str) for value in variables.values())
        and isinstance(issue.get("one_process_per_gpu", True), bool)
    )
    if not is_valid:
        return (
            "capabilities must be whole numbers, variables must be texts, one_process_per_gpu must "
            "be true or false"
        )
    try:
        for specifier in dict(issue.get("when") or {}).values():
            SpecifierSet(str(specifier))
    except (InvalidSpecifier, ValueError, TypeError):
        return "`when` must be package: versions, for example jaxlib: '>=0.4.31,<0.12'"
    return ""


def select_issues(
    issues: list[dict[str, Any]], record: Mapping[str, Any], versions: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the issues that apply to a build.

    Args:
        issues: All known issues.
        record: The content of the build's lock.json.
        versions: The versions of its packages, by normalised name.
    """
    keys = (*_TEXTS, *_AT_RUN_TIME)
    return [
        {key: issue[key] for key in keys if key in issue}
        for issue in issues
        if _matches_record(issue, record) and _matches_versions(issue, versions)
    ]


def _matches_record(issue: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    build = {
        "distributions": record["distribution"],
        "accelerators": record["accelerator"],
        "architectures": record["architecture"],
    }
    has_transformer_engine = bool(record.get("transformer_engine"))
    return all(build[key] in issue[key] for key in _LISTS if key in issue) and issue.get(
        "transformer_engine"
    ) in (None, has_transformer_engine)


def _matches_versions(issue: Mapping[str, Any], versions: Mapping[str, str]) -> bool:
    for name, specifier in dict(issue.get("when") or {}).items():
        version = versions.get(canonicalize_name(name))
        if version is None or not SpecifierSet(str(specifier)).contains(version, prereleases=True):
            return False
    return True


def render_issues(record: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """Return the text of opt/rosetta/known_issues.json."""
    issues = select_issues(load_issues(), record, versions)
    return json.dumps({"schema": 1, "issues": issues}, indent=1) + "\n"
