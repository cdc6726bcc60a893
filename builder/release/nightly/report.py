"""The report of a nightly run: one JSON document for the status page, and its text in Markdown."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from builder import __version__
from builder.packages import jax_releases
from builder.pipeline import project_checks
from builder.pipeline.step_plans import comparison, figures
from builder.release.counted_nouns import format_count
from builder.release.nightly import stages
from builder.release.nightly.nightly_run import GREEN_STATES
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builder.core.manifest import Manifest
    from builder.release.nightly.nightly_run import NightlyRun, StepRecord
    from builder.release.nightly.stages import ImageTarget

    Records = Mapping[str, StepRecord]

_NOT_ASKED = "not-asked"  # the state of what the run did not try
_HELD_STATES = (
    "held",
    "part-way",
    "unreachable",
    "branch-lost",
    "rewritten",
    "tag-moved",
    "unreadable",
    "error",
)


def report_as_json(run: NightlyRun, manifest: Manifest, commit: str | None) -> dict[str, Any]:
    """Return the report of a nightly run.

    Args:
        run: The run.
        manifest: The manifest with the pins that the run moved.
        commit: The commit of this repository, if it is known.
    """
    records = {record.name: record for record in run.read_records()}
    targets = stages.list_images(manifest)
    images = [_report_image(target, records) for target in targets]
    seconds = dict.fromkeys(stages.STAGE_NAMES, 0.0)
    for record in records.values():
        seconds[record.stage] += record.seconds
    return {
        "schema": 1,
        "date": run.date,
        "builder": __version__,
        "commit": commit,
        "ok": bool(records) and all(record.state in GREEN_STATES for record in records.values()),
        "seconds": {stage: round(value, 1) for stage, value in seconds.items()},
        "steps": [_report_step(record) for record in sorted(records.values(), key=_step_order)],
        "sources": {name: _report_source(name, manifest, records) for name in manifest.sources},
        "lines": _report_lines(manifest),
        "distributions": {
            name: {"line": distribution.line, "sources": list(distribution.sources)}
            for name, distribution in manifest.distributions.items()
        },
        "audit": _report_audit(records.get("audit")),
        "plans": _report_plans(records),
        "projects": _report_projects(records),
        "images": images,
        "published": [
            _report_publication(title, images, records)
            for title in dict.fromkeys(target.title for target in targets)
        ],
    }


def _report_lines(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Return the support of each line, and the release of JAX that the line has locked."""
    releases = jax_releases.load_record(manifest.root / jax_releases.RECORD)
    return {
        name: {
            "until": line.until,
            "support": line.support,
            "jax": asdict(releases[name]) if name in releases else None,
        }
        for name, line in manifest.lines.items()
    }


def _step_order(record: StepRecord) -> tuple[int, str]:
    return stages.STAGE_NAMES.index(record.stage), record.name


def _report_step(record: StepRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "stage": record.stage,
        "state": record.state,
        "seconds": record.seconds,
        "error": record.error,
        "commands": [list(command) for command in record.commands],
    }


def _report_source(name: str, manifest: Manifest, records: Records) -> dict[str, Any]:
    """Return the pin of a source, what the bump found, and the statistics of the patches."""
    entry = manifest.sources[name]
    record = records.get(f"bump-{name}")
    bump = _result_of_source(record, name)
    statistics = _result_of_source(records.get("debt"), name)
    history = _result_of_source(records.get("stats"), name)
    if record:
        state = (record.result.get("summary") or {}).get(name, record.state)
    else:
        state = "release" if entry.wheel else _NOT_ASKED
    debt_keys = ("count", "added", "removed", "behind", "upstream_status")
    state_keys = ("date", "count", "added", "removed", "behind")
    return {
        "url": entry.git,
        "wheel": entry.wheel,
        "pin": entry.commit or entry.sha256,
        "state": state,
        "from": bump.get("from"),
        "tip": bump.get("tip"),
        "commits": bump.get("commits"),
        "problem": _find_problem(bump, record),
        "patches": [_report_patch(patch) for patch in bump.get("patches", [])],
        "debt": {
            **{key: statistics.get(key) for key in debt_keys},
            "oldest_days": history.get("oldest_days"),
        },
        "over_time": [
            {key: past_state.get(key) for key in state_keys}
            for past_state in history.get("over_time", [])
        ],
    }


def _result_of_source(record: StepRecord | None, name: str) -> Mapping[str, Any]:
    """Return what a step reports about a source, empty if it reports nothing."""
    if record is None:
        return {}
    return (record.result.get("sources") or {}).get(name) or {}


def _find_problem(bump: Mapping[str, Any], record: StepRecord | None) -> str | None:
    """Return why a pin did not move to the tip of its branch."""
    problem = (
        bump.get("taken_back") or bump.get("problem") or (bump.get("finding") or {}).get("what")
    )
    if not problem and record and record.error:
        return str(UserError(**record.error))
    return problem or None


def _report_patch(patch: Mapping[str, Any]) -> dict[str, Any]:
    commit = (patch.get("culprit") or {}).get("by")
    keys = ("commit", "author", "date", "subject")
    return {
        "name": patch["name"],
        "outcome": patch["outcome"],
        "detail": patch["detail"],
        "culprit": {key: commit[key] for key in keys} if commit else None,
    }


def _report_audit(record: StepRecord | None) -> dict[str, Any]:
    """Return the known vulnerabilities of each lock; no locks if OSV did not answer."""
    result = record.result if record else {}
    return {
        **_report_state(record),
        "date": result.get("date"),
        "service": result.get("service"),
        "locks": result.get("locks") or {},
    }


def _report_plans(records: Records) -> list[dict[str, Any]]:
    """Return what became of each recorded plan, as `test --plans` reports it."""
    plans: list[dict[str, Any]] = []
    for record in records.values():
        if record.stage == "plans":
            plans += record.result.get("plans") or []
    return plans


def _report_projects(records: Records) -> list[dict[str, Any]]:
    """Return the row of each project, as `test --projects` reports it."""
    rows: list[dict[str, Any]] = []
    for record in records.values():
        if record.stage == "projects":
            rows += record.result.get("projects") or []
    return rows


def _report_image(target: ImageTarget, records: Records) -> dict[str, Any]:
    built = records.get(f"image-{target.name}")
    trained = records.get(f"training-{target.name}")
    (image,) = (built.result.get("images") if built else None) or [{}]
    unpacked_size = sum(layer["unpacked"] for layer in image.get("layers", []))
    training = trained.result if trained else {}
    return {
        **target.subject,
        "size": image.get("size"),
        "unpacked": unpacked_size or None,
        "digest": image.get("digest"),
        "built": _report_state(built),
        "trained": {
            **_report_state(trained),
            "problems": training.get("problems") or [],
            "runs": [_report_training_run(run) for run in training.get("runs") or []],
        },
    }


def _report_training_run(run: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "devices": run["devices"],
        "mesh": run.get("mesh", ""),
        "steps_per_second": run["steps_per_second"],
        "resumed_from": run["resumed_from"],
        "losses": {**run["losses"], **run["resumed_losses"]},
    }


def _report_state(record: StepRecord | None) -> dict[str, Any]:
    if record is None:
        return {"state": _NOT_ASKED, "seconds": None, "why": None}
    return {
        "state": record.state,
        "seconds": record.seconds,
        "why": str(UserError(**record.error)) if record.error else None,
    }


def _report_publication(
    title: str, images: Iterable[Mapping[str, Any]], records: Records
) -> dict[str, Any]:
    """Return what was published of a distribution and accelerator, and whether all of it is green.

    Args:
        title: The distribution and the accelerator.
        images: The report of every image.
        records: The record of every step.
    """
    published, checked = records.get(f"publish-{title}"), records.get(f"check-{title}")
    state = _report_state(published)
    is_published = published is not None and published.state == "ok"
    if is_published and (checked is None or checked.state != "ok"):
        state = {**_report_state(checked), "why": "was published, but could not be verified"}
    result = published.result if published and is_published else {}
    own_images = [
        image for image in images if f"{image['distribution']}-{image['accelerator']}" == title
    ]
    patches = records.get(f"patches-{own_images[0]['distribution']}")
    states = [image[part]["state"] for image in own_images for part in ("built", "trained")]
    states += [patches.state] if patches else []
    return {
        "title": title,
        **state,
        "repository": result.get("repository"),
        "digest": result.get("digest"),
        "tags": result.get("tags", []),
        "changes": _report_changes(records.get(f"changelog-{title}")),
        "green": state["state"] == "ok" and all(value in GREEN_STATES for value in states),
    }


def _report_changes(record: StepRecord | None) -> dict[str, dict[str, Any]] | None:
    """Return the old and the new pin of each source that changed, from a step `changelog`."""
    if record is None:
        return None
    return {
        name: {"from": change["from"], "to": change["to"]}
        for name, change in (record.result.get("sources") or {}).items()
        if isinstance(change, dict) and {"from", "to"} <= set(change)
    }


def report_as_markdown(report: Mapping[str, Any]) -> str:
    """Return a report as Markdown: the failures first, then everything in tables."""
    state = "green" if report["ok"] else "red"
    tables = (
        _source_table(report),
        _patch_lines(report),
        _image_table(report),
        _publication_table(report),
        _audit_table(report),
        _plan_table(report),
        _project_table(report),
        _format_table(
            ("stage", "seconds"),
            [(stage, f"{value:.1f}") for stage, value in report["seconds"].items()],
        ),
    )
    lines = [f"# Night of {report['date']}: {state}"]
    for paragraph in (_failure_lines(report), *tables):
        if paragraph:
            lines += ["", *paragraph]
    return "\n".join(lines) + "\n"


def _failure_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the steps that failed, and the pins that did not move to the tip."""
    lines = []
    for step in report["steps"]:
        if step["state"] not in GREEN_STATES:
            error = step["error"]
            reason = UserError(**error) if error else "a check failed; see the log of the step"
            lines.append(f"- **{step['name']}** {step['state']}: {reason}")
    for name, source in report["sources"].items():
        if source["state"] in _HELD_STATES:
            problem = source["problem"] or "its patches do not apply at the tip"
            lines.append(f"- **{name}** {source['state']}: {problem}")
    return lines


def _source_table(report: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, source in report["sources"].items():
        pin = source["wheel"] or source["pin"][:12]
        commits = "" if source["commits"] is None else str(source["commits"])
        patch_count = source["debt"]["count"]
        patches = "" if patch_count is None else format_count(patch_count, "patch", "patches")
        rows.append((name, pin, source["state"], commits, patches))
    return _format_table(("source", "pin", "state", "commits", "patches"), rows)


def _patch_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the patches that do not apply as they are."""
    lines = []
    for name, source in report["sources"].items():
        for patch in source["patches"]:
            if patch["outcome"] == "applies":
                continue
            line = f"- {name}, {patch['name']}: {patch['outcome']}"
            if culprit := patch["culprit"]:
                line += (
                    f": {culprit['commit'][:12]} ({culprit['author']}, {culprit['date']}, "
                    f"{culprit['subject']!r})"
                )
            lines.append(line)
    return lines


def _image_table(report: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            f"{image['distribution']} {image['accelerator']} {image['architecture']}",
            image["built"]["state"],
            f"{image['size'] / 1e6:,.1f} MB" if image["size"] else "",
            image["trained"]["state"],
            _format_last_losses(image),
        )
        for image in report["images"]
        if image["built"]["state"] != _NOT_ASKED
    ]
    return _format_table(("image", "built", "size", "trained", "last loss"), rows)


def _format_last_losses(image: Mapping[str, Any]) -> str:
    """Return the last loss of each training run."""
    runs = [run for run in image["trained"]["runs"] if run["losses"]]
    last_losses = [list(run["losses"].values())[-1] for run in runs]
    return ", ".join(f"{loss:.4f}" for loss in last_losses)


def _publication_table(report: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            publication["title"],
            publication["state"],
            publication["digest"] or publication["why"] or "",
            " ".join(publication["tags"]),
        )
        for publication in report["published"]
        if publication["state"] != _NOT_ASKED
    ]
    return _format_table(("published", "state", "digest", "tags"), rows)


def _audit_table(report: Mapping[str, Any]) -> list[str]:
    audit = report["audit"]
    if not audit["locks"]:
        return []
    rows = [
        (name, str(lock["packages"]), str(len(lock["vulnerabilities"])))
        for name, lock in audit["locks"].items()
    ]
    title = f"vulnerabilities that OSV listed on {audit['date']}"
    return _format_table(("lock", "packages", title), rows)


def _plan_table(report: Mapping[str, Any]) -> list[str]:
    """Return the figures of recorded plans that moved, and the plans that do not compile."""
    rows = []
    for plan in report["plans"]:
        if plan["state"] == comparison.FAILED:
            rows.append((plan["name"], plan["problem"], "", "", ""))
        if plan["state"] != comparison.MOVED:
            continue
        for entry in plan["moves"]:
            move = figures.Move(entry["figure"], entry["old"], entry["new"])
            if move.exceeds_tolerance:
                rows.append((plan["name"], *figures.format_move(move)))
    return _format_table(("plan", "figure", "recorded", "now", "change"), rows) if rows else []


def _project_table(report: Mapping[str, Any]) -> list[str]:
    """Return the table of the projects built on the distributions."""
    rows = project_checks.table_rows({"projects": report["projects"]})
    return _format_table(project_checks.TABLE_HEAD, rows) if rows else []


def _format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table in Markdown."""
    return [_format_row(row) for row in (head, ["---"] * len(head), *rows)]


def _format_row(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
    return f"| {' | '.join(escaped)} |"
