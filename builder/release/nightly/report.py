"""What came of a night: one JSON document, of which the status page is made, and the same in
Markdown for people.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder import __version__
from builder.release.counted_nouns import format_count
from builder.release.nightly import stages
from builder.release.nightly.night_folder import GOOD
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builder.core.manifest import Manifest
    from builder.release.nightly.night_folder import Night, Record


_UNASKED = "not-asked"
_HELD = (
    "held",
    "part-way",
    "unreachable",
    "branch-lost",
    "rewritten",
    "tag-moved",
    "unreadable",
    "error",
)


def document(night: Night, shipped: Manifest, commit: str | None) -> dict[str, Any]:
    """Return the report.

    `shipped` is the manifest as this night has moved it, `commit` that of our checkout.
    """
    records = {record.name: record for record in night.records()}
    listed = stages.images(shipped, (), (), ())
    images = [_image(image, records) for image in listed]
    published = [
        _published(title, records) for title in dict.fromkeys(image.title for image in listed)
    ]
    for entry in published:
        reds = [
            one for one in images if f"{one['distribution']}-{one['accelerator']}" == entry["title"]
        ]
        patched = records.get(f"patches-{reds[0]['distribution']}")
        states = [
            entry["state"],
            *(one[part]["state"] for one in reds for part in ("built", "trained")),
            *([patched.state] if patched else []),
        ]
        entry["green"] = entry["state"] == "ok" and all(state in GOOD for state in states)
    seconds: dict[str, float] = dict.fromkeys(stages.NAMES, 0.0)
    for record in records.values():
        seconds[record.stage] += record.seconds
    return {
        "schema": 1,
        "date": night.date,
        "builder": __version__,
        "commit": commit,
        "ok": bool(records) and all(record.state in GOOD for record in records.values()),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "steps": [
            {
                "name": one.name,
                "stage": one.stage,
                "state": one.state,
                "seconds": one.seconds,
                "error": one.error,
                "commands": [list(each) for each in one.commands],
            }
            for one in sorted(records.values(), key=_order)
        ],
        "sources": {name: _source(name, shipped, records) for name in shipped.sources},
        "lines": {
            name: {"until": line.until, "support": line.support}
            for name, line in shipped.lines.items()
        },
        "distributions": {
            name: {"line": entry.line, "sources": list(entry.sources)}
            for name, entry in shipped.distributions.items()
        },
        "images": images,
        "published": published,
    }


def _order(record: Record) -> tuple[int, str]:
    return stages.NAMES.index(record.stage), record.name


def _source(name: str, shipped: Manifest, records: Mapping[str, Record]) -> dict[str, Any]:
    """Where a pin stands, what the bump said of each patch, and how much of ours there is."""
    entry = shipped.sources[name]
    moved = records.get(f"bump-{name}")
    found = ((moved.result.get("sources") or {}).get(name) if moved else None) or {}
    now, past = (
        ((record.result.get("sources") or {}).get(name) if (record := records.get(which)) else None)
        or {}
        for which in ("debt", "stats")
    )
    state = (
        (moved.result.get("summary") or {}).get(name, moved.state)
        if moved
        else "release"
        if entry.wheel
        else _UNASKED
    )
    problem = (
        found.get("taken_back")
        or found.get("problem")
        or (found.get("finding") or {}).get("what")
        or (str(UserError(**moved.error)) if moved and moved.error else None)
    )
    return {
        "url": entry.git,
        "wheel": entry.wheel,
        "pin": entry.commit or entry.sha256,
        "state": state,
        "from": found.get("from"),
        "tip": found.get("tip"),
        "commits": found.get("commits"),
        "problem": problem,
        "patches": [
            {
                "name": one["name"],
                "outcome": one["outcome"],
                "detail": one["detail"],
                "culprit": _culprit(one),
            }
            for one in found.get("patches", [])
        ],
        "debt": {
            **{
                part: now.get(part)
                for part in ("count", "added", "removed", "behind", "upstream_status")
            },
            "oldest_days": past.get("oldest_days"),
        },
        "over_time": [
            {part: one.get(part) for part in ("date", "count", "added", "removed", "behind")}
            for one in past.get("over_time", [])
        ],
    }


def _culprit(patch: Mapping[str, Any]) -> dict[str, str] | None:
    by = (patch.get("culprit") or {}).get("by")
    return {part: by[part] for part in ("commit", "author", "date", "subject")} if by else None


def _image(image: stages.Image, records: Mapping[str, Record]) -> dict[str, Any]:
    built, trained = (records.get(f"{which}-{image.name}") for which in ("image", "training"))
    (one,) = (built.result.get("images") if built else None) or [{}]
    runs = [
        {
            "devices": run["devices"],
            "mesh": run.get("mesh", ""),
            "steps_per_second": run["steps_per_second"],
            "resumed_from": run["resumed_from"],
            "losses": {**run["losses"], **run["resumed_losses"]},
        }
        for run in (trained.result.get("runs") or [] if trained else [])
    ]
    return {
        **image.about,
        "size": one.get("size"),
        "unpacked": sum(each["unpacked"] for each in one.get("layers", [])) or None,
        "digest": one.get("digest"),
        "built": _state(built),
        "trained": {
            **_state(trained),
            "problems": (trained.result.get("problems") or [] if trained else []),
            "runs": runs,
        },
    }


def _state(record: Record | None) -> dict[str, Any]:
    if record is None:
        return {"state": _UNASKED, "seconds": None, "why": None}
    return {
        "state": record.state,
        "seconds": record.seconds,
        "why": str(UserError(**record.error)) if record.error else None,
    }


def _published(title: str, records: Mapping[str, Record]) -> dict[str, Any]:
    sent, checked, changes = (
        records.get(f"{which}-{title}") for which in ("publish", "check", "changelog")
    )
    state = _state(sent)
    if sent and sent.state == "ok" and (checked is None or checked.state != "ok"):
        state = {**_state(checked), "why": "was sent, and could not be verified"}
    result = sent.result if sent and sent.state == "ok" else {}
    return {
        "title": title,
        **state,
        "repository": result.get("repository"),
        "digest": result.get("digest"),
        "tags": result.get("tags", []),
        "changes": {
            name: {"from": one["from"], "to": one["to"]}
            for name, one in (changes.result.get("sources") or {}).items()
            if isinstance(one, dict) and {"from", "to"} <= set(one)
        }
        if changes
        else None,
    }


def markdown(report: Mapping[str, Any]) -> str:
    """Return the report for people: what is red first, then everything in tables."""
    red = [step for step in report["steps"] if step["state"] not in GOOD]
    held = [
        f"- **{name}** {one['state']}: {one['problem'] or 'its patches do not apply at the tip'}"
        for name, one in report["sources"].items()
        if one["state"] in _HELD
    ]
    lines = [f"# Night of {report['date']}: {'green' if report['ok'] else 'red'}", ""]
    lines += [
        (
            f"- **{step['name']}** {step['state']}: "
            f"{UserError(**step['error']) if step['error'] else 'a check said no; see its log'}"
        )
        for step in red
    ]
    lines += [*held, *([""] if red or held else [])]
    lines += _rows(
        ("source", "pin", "state", "commits", "patches"),
        [
            (
                name,
                one["wheel"] or one["pin"][:12],
                one["state"],
                "" if one["commits"] is None else str(one["commits"]),
                _patches(one),
            )
            for name, one in report["sources"].items()
        ],
    )
    for name, one in report["sources"].items():
        lines += [
            f"- {name}, {patch['name']}: {patch['outcome']}"
            + (
                (
                    f": {patch['culprit']['commit'][:12]} ({patch['culprit']['author']}, "
                    f"{patch['culprit']['date']}, {patch['culprit']['subject']!r})"
                )
                if patch["culprit"]
                else ""
            )
            for patch in one["patches"]
            if patch["outcome"] != "applies"
        ]
    lines += [
        "",
        *_rows(
            ("image", "built", "size", "trained", "last loss"),
            [
                (
                    f"{one['distribution']} {one['accelerator']} {one['architecture']}",
                    one["built"]["state"],
                    f"{one['size'] / 1e6:,.1f} MB" if one["size"] else "",
                    one["trained"]["state"],
                    _loss(one),
                )
                for one in report["images"]
                if one["built"]["state"] != _UNASKED
            ],
        ),
    ]
    lines += [
        "",
        *_rows(
            ("published", "state", "digest", "tags"),
            [
                (
                    one["title"],
                    one["state"],
                    one["digest"] or one["why"] or "",
                    " ".join(one["tags"]),
                )
                for one in report["published"]
                if one["state"] != _UNASKED
            ],
        ),
    ]
    lines += [
        "",
        *_rows(
            ("stage", "seconds"),
            [(name, f"{value:.1f}") for name, value in report["seconds"].items()],
        ),
    ]
    return "\n".join(lines) + "\n"


def _patches(source: Mapping[str, Any]) -> str:
    total = source["debt"]["count"]
    return format_count(total, "patch", "patches") if total is not None else ""


def _loss(image: Mapping[str, Any]) -> str:
    ends = [list(run["losses"].values())[-1] for run in image["trained"]["runs"] if run["losses"]]
    return ", ".join(f"{end:.4f}" for end in ends)


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_row(head), _row(["---"] * len(head)), *(_row(row) for row in rows)]


def _row(cells: Sequence[str]) -> str:
    return (
        "| "
        f"{' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in cells)} |"
    )
