"""A report as a night writes it, small: one distribution on two architectures."""

from __future__ import annotations

from typing import Any

RUN = {
    "devices": 1,
    "mesh": "data=1",
    "steps_per_second": 12.5,
    "resumed_from": 20,
    "losses": {"5": 5.0, "20": 2.5, "30": 2.0},
}


def make_report(date: str = "2026-11-28", *, green: bool = True, **changes: Any) -> dict[str, Any]:
    built, trained = (
        {"state": "ok", "seconds": 1.0, "why": None},
        {"state": "ok", "seconds": 2.0, "why": None, "problems": [], "runs": [RUN]},
    )
    image = {
        "distribution": "thing",
        "accelerator": "cpu",
        "size": 1_500_000,
        "unpacked": 3_000_000,
        "digest": "sha256:1",
        "built": built,
        "trained": trained,
    }
    bad = {"state": "error", "seconds": 1.0, "why": "the disk is full -> free some space"}
    found: dict[str, Any] = {
        "schema": 1,
        "date": date,
        "builder": "0.1.0",
        "commit": "c" * 40,
        "ok": green,
        "seconds": {"bump": 1.0},
        "sources": {
            "up": {
                "url": "https://github.com/a/up.git",
                "wheel": None,
                "pin": "a" * 40,
                "state": "moved",
                "tip": "a" * 40,
                "commits": 3,
                "problem": None,
                "patches": [{"name": "mine", "outcome": "applies", "detail": "", "culprit": None}],
                "debt": {
                    "count": 1,
                    "added": 4,
                    "removed": 2,
                    "oldest_days": 9,
                    "behind": {"commits": 0, "days": 0},
                },
                "over_time": [
                    {
                        "date": "2026-01-01",
                        "count": 1,
                        "added": 4,
                        "removed": 2,
                        "behind": {"commits": each, "days": 1},
                    }
                    for each in (9, 0)
                ],
            }
        },
        "lines": {"line": {"support": "fixes of what stops it", "until": "2027-12-31"}},
        "distributions": {"thing": {"line": "line", "sources": ["up"]}},
        "images": [
            {**image, "architecture": "amd64", **({} if green else {"built": bad})},
            {**image, "architecture": "arm64"},
        ],
        "published": [
            {
                "title": "thing-cpu",
                "state": "ok" if green else "blocked",
                "seconds": 1.0,
                "why": None if green else "thing-cpu: linux/amd64: its image was not built",
                "green": green,
                "repository": "ghcr.io/a/thing-cpu",
                "digest": f"sha256:{'d' * 64}" if green else None,
                "tags": ["latest"] if green else [],
                "changes": None,
            }
        ],
    }
    return {**found, **changes}
