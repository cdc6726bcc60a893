"""Check the projects built on a distribution, and make the table of the results.

An environment gets all projects, and its `rosetta selftest --project` imports the modules of each
and trains a tiny model of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import log, manifest, markdown_table
from builder.pipeline import environment_build, verification
from rosetta.core.errors import MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.core.command_context import Context

FOLDER = "build/projects"  # of the environments with projects
RECORD = "locks/project-checks.json"  # the results that docs/reference/t5x-projects.md shows


def check_projects(context: Context, names: Sequence[str], inside: str = "") -> dict[str, Any]:
    """Import and train projects.

    Args:
        context: The context of the command.
        names: The names of projects; all projects of the manifest if there are none.
        inside: env:DIR for an environment that has the projects; empty to bake one.

    Returns:
        The results, for --json: an entry for each project, and `ok`.

    Raises:
        UserError: A project is unknown, or an environment cannot be made or has no such project.
    """
    loaded = manifest.load(context.manifest_path)
    unknown = [name for name in names if name not in loaded.projects]
    if unknown:
        loaded.choose_projects(next(iter(loaded.distributions)), unknown)
    by_distribution: dict[str, list[str]] = {}
    for name in dict.fromkeys(names) or loaded.projects:
        by_distribution.setdefault(loaded.projects[name].distribution, []).append(name)
    rows: list[dict[str, Any]] = []
    for distribution, group in by_distribution.items():
        environment = _find_environment(context, distribution, group, inside)
        lock = _read_lock(environment)
        options = [word for name in group for word in ("--project", name)]
        with log.stage(f"import and train {', '.join(group)}"):
            report = verification.run_selftest(environment, *options)
        rows += [_make_row(distribution, lock, result) for result in report["projects"]]
    return {"projects": rows, "ok": all(not row["problems"] for row in rows)}


def _find_environment(
    context: Context, distribution: str, names: Sequence[str], inside: str
) -> Path:
    """Return the environment to check the projects in; bake it if the user named none."""
    if inside:
        return Path(inside.removeprefix("env:")).absolute()
    output = context.root / FOLDER / distribution
    plan = environment_build.plan_environment(
        context, distribution, "cpu", output, projects=tuple(names)
    )
    environment_build.bake_environment(plan)
    return output


def _read_lock(environment: Path) -> dict[str, Any]:
    """Return the lock.json of an environment.

    Raises:
        UserError: The folder is not an environment.
    """
    try:
        lock: dict[str, Any] = json.loads(
            (environment / "opt/rosetta/lock.json").read_text(encoding="utf-8")
        )
    except (OSError, ValueError) as error:
        raise UserError(
            "is not a baked environment",
            f"--inside env:{environment}",
            "bake one: build.py --distribution NAME --with PROJECT",
            kind=MISSING,
        ) from error
    return lock


def _make_row(distribution: str, lock: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a project: what it is, and what the self-test found."""
    source = lock["sources"].get(result["name"], {})
    return {
        "name": result["name"],
        "distribution": distribution,
        "commit": source.get("commit"),
        "python": lock["python"],
        "modules": result["modules"],
        "skipped": result["skipped"],
        "failed": result["failed"],
        "losses": result["losses"],
        "problems": result["problems"],
    }


def table_rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the cells of the table: project, commit, imports, losses, and what stops it."""
    return [_format_row(row) for row in results["projects"]]


TABLE_HEAD = ("project", "commit", "modules that import", "loss of each step", "what stops it")


def _format_row(row: dict[str, Any]) -> tuple[str, ...]:
    imported = row["modules"] - len(row["skipped"]) - len(row["failed"])
    losses = ", ".join(f"{loss:.4g}" for loss in row["losses"].values())
    reasons = [*row["problems"], *(f"{name}: {why}" for name, why in row["skipped"].items())]
    return (
        row["name"],
        (row["commit"] or "")[:12],
        f"{imported} of {row['modules']}",
        losses or "not trained",
        "; ".join(reason.splitlines()[0] for reason in reasons),
    )


def format_table(results: dict[str, Any]) -> str:
    """Return the table in Markdown."""
    return markdown_table.render(TABLE_HEAD, table_rows(results))
