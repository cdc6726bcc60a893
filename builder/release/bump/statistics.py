"""How much of ours stands on each upstream, for how long, and how far behind the pins are: now and
over time.
"""

from __future__ import annotations

import collections
import re
import time
from typing import TYPE_CHECKING, Any

from builder.core.command_context import Result
from builder.core.manifest import GitSource
from builder.release.bump import branch_state
from builder.release.bump.patch_history import Ours, lines
from builder.release.bump.report import count
from builder.upstream import patch_series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.core.manifest import Manifest, WheelSource
    from builder.release.bump.branch_state import Upstream
    from builder.release.bump.patch_history import Moment
    from builder.upstream.patch_file import Patch
    from builder.upstream.source import Access

_DAY = 86400


class _Line:
    """The commits of an upstream's branch, newest first, with their committers' dates in seconds
    since 1970.
    """

    def __init__(self, upstream: Upstream) -> None:
        out = upstream.git.text(
            "log",
            "--first-parent",
            "--no-show-signature",
            "--format=%H %ct",
            "--end-of-options",
            upstream.tip,
        )
        self._rows = [
            (commit, int(date)) for commit, date in (line.split() for line in out.splitlines())
        ]
        self._place = {commit: index for index, (commit, _) in enumerate(self._rows)}

    def behind(self, pin: str | None, date: float) -> dict[str, int] | None:
        """How many commits there were on `date` that the pin had not, and how much newer the newest
        of them was; None for a pin off the branch.
        """
        if pin not in self._place:
            return None
        index = self._place[pin]
        newer = [when for _, when in self._rows[:index] if when <= date]
        return {
            "commits": len(newer),
            "days": max(0, max(newer, default=0) - self._rows[index][1]) // _DAY,
        }


def run(
    shipped: Manifest,
    manifest: str,
    sources: Sequence[GitSource | WheelSource],
    access: Access,
    now: float | None = None,
) -> Result:
    """`build.py patches stats`.

    `manifest` is the file's name; `now` the time that ages are told for.
    """
    as_of = time.time() if now is None else now
    ours = Ours(shipped.root)
    data = {source.name: _source(source, manifest, ours, access, as_of) for source in sources}
    text = "\n".join(line for name, one in data.items() for line in _text(name, one))
    return Result({"as_of": _day(as_of), "shallow": ours.cut_off, "sources": data}, text)


def _source(
    source: GitSource | WheelSource, manifest: str, ours: Ours, access: Access, now: float
) -> dict[str, Any]:
    moments = ours.moments(source, manifest)
    if not isinstance(source, GitSource):
        return _numbers(
            source, moments, ours, None, "a release wheel: no branch leads on from it", now
        )
    with branch_state.opened(source, access) as found:
        if isinstance(found, branch_state.Finding):
            return _numbers(source, moments, ours, None, f"{found.kind}: {found.what}", now)
        return _numbers(
            source, moments, ours, found, "the pin is not one of the branch's first parents", now
        )


def _numbers(
    source: GitSource | WheelSource,
    moments: Sequence[Moment],
    ours: Ours,
    upstream: Upstream | None,
    reason: str,
    now: float,
) -> dict[str, Any]:
    line = _Line(upstream) if upstream else None
    listed = []
    for patch in patch_series.load(source.patches):
        since = (
            None
            if ours.cut_off and moments and patch.name in moments[0].names
            else _since(patch.name, moments)
        )
        listed.append(_patch(patch, since or (_origin(patch, upstream) if upstream else None), now))
    pin = source.commit if isinstance(source, GitSource) else source.sha256
    behind = line.behind(pin, now) if line else None
    return {
        "pin": pin,
        "count": len(listed),
        "added": sum(one["added"] for one in listed),
        "removed": sum(one["removed"] for one in listed),
        "upstream_status": dict(
            sorted(collections.Counter(one["upstream_status"] for one in listed).items())
        ),
        "oldest_days": max(
            (one["days"] for one in listed if one["days"] is not None), default=None
        ),
        "behind": behind,
        "behind_unknown": None if behind else reason,
        "patches": listed,
        "over_time": [
            {
                "commit": moment.commit,
                "date": _day(moment.date),
                "pin": moment.pin,
                "count": len(moment.names),
                "added": moment.added,
                "removed": moment.removed,
                "behind": line.behind(moment.pin, moment.date) if line else None,
            }
            for moment in moments
        ],
    }


def _since(name: str, moments: Sequence[Moment]) -> int | None:
    """When the patch came, the last time if it was away in between."""
    since = None
    for moment in reversed(moments):
        if name not in moment.names:
            break
        since = moment.date
    return since


def _origin(patch: Patch, upstream: Upstream) -> int | None:
    """When the commit was made that the patch was taken from, where that is at hand."""
    commit = patch.fields.get("Origin", "")
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return None
    done = upstream.git.run(
        "log", "-1", "--no-show-signature", "--format=%ct", "--end-of-options", commit, check=False
    )
    return int(done.stdout) if done.returncode == 0 else None


def _patch(patch: Patch, since: int | None, now: float) -> dict[str, Any]:
    added, removed = lines(patch)
    return {
        "name": patch.name,
        "added": added,
        "removed": removed,
        "upstream_status": patch.fields["Upstream-Status"].split(" [")[0],
        "since": None if since is None else _day(since),
        "days": None if since is None else max(0, int(now - since)) // _DAY,
    }


def _text(name: str, data: dict[str, Any]) -> list[str]:
    states = (
        ", ".join(f"{number} {status}" for status, number in data["upstream_status"].items())
        or "none"
    )
    rows = [
        (
            f"{name}: {count(data['count'], 'patch', 'patches')} (+{data['added']} "
            f"-{data['removed']}): {states}; {_behind(data['behind']) or data['behind_unknown']}"
        )
    ]
    for patch in data["patches"]:
        age = (
            "age not known"
            if patch["days"] is None
            else f"{count(patch['days'], 'day')}, since {patch['since']}"
        )
        rows.append(
            f"  {patch['name']}  +{patch['added']} -{patch['removed']}  "
            f"{patch['upstream_status']}  {age}"
        )
    for point in data["over_time"]:
        size = (
            "lines not known"
            if point["added"] is None
            else f"+{point['added']} -{point['removed']}"
        )
        far = _behind(point["behind"])
        rows.append(
            f"  {point['date']} {point['commit'][:12]}: "
            f"{count(point['count'], 'patch', 'patches')}, {size}{f', {far}' if far else ''}"
        )
    return rows


def _behind(behind: dict[str, int] | None) -> str:
    return (
        f"{count(behind['commits'], 'commit')} and {count(behind['days'], 'day')} behind"
        if behind
        else ""
    )


def _day(date: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(date))
