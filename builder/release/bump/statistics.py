"""Statistics of the patches: how many there are, how old, and how far each pin is behind.

This is what `build.py patches stats` shows, for now and for each earlier state of the sources.
"""

from __future__ import annotations

import collections
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core.command_context import Result
from builder.core.manifest import GitSource
from builder.release.bump import branch_state
from builder.release.bump.patch_history import PatchHistory, count_lines
from builder.release.counted_nouns import format_count
from builder.upstream import patch_series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.core.manifest import Manifest, WheelSource
    from builder.release.bump.branch_state import Upstream
    from builder.release.bump.patch_history import SourceState
    from builder.upstream.patch_file import Patch
    from builder.upstream.source import Access

_DAY = 86400  # seconds


class _Branch:
    """The commits of an upstream's branch, newest first, with their times."""

    def __init__(self, upstream: Upstream) -> None:
        output = upstream.git.text(
            "log",
            "--first-parent",
            "--no-show-signature",
            "--format=%H %ct",
            "--end-of-options",
            upstream.tip,
        )
        rows = [line.split() for line in output.splitlines()]
        self._times = [int(seconds) for _, seconds in rows]
        self._positions = {commit: index for index, (commit, _) in enumerate(rows)}

    def measure_distance(self, pin: str | None, date: float) -> dict[str, int] | None:
        """Return how far a pin was behind the branch.

        Args:
            pin: The pin.
            date: The time to look at, in seconds since 1970.

        Returns:
            The number of newer commits at that time, and how many days newer the newest one was;
            None if the pin is not on the branch.
        """
        if pin not in self._positions:
            return None
        position = self._positions[pin]
        newer = [seconds for seconds in self._times[:position] if seconds <= date]
        age = max(newer, default=0) - self._times[position]
        return {"commits": len(newer), "days": max(0, age) // _DAY}


@dataclass(frozen=True)
class _Inputs:
    """What the statistics are computed from.

    Attributes:
        manifest: The file name of the manifest.
        history: The history of this repository.
        access: Where the sources can be fetched from.
        now: The time that ages are computed for, in seconds since 1970.
    """

    manifest: str
    history: PatchHistory
    access: Access
    now: float


def report_statistics(
    manifest: Manifest,
    file_name: str,
    sources: Sequence[GitSource | WheelSource],
    access: Access,
    now: float | None = None,
) -> Result:
    """Return the statistics of some sources: the result of `build.py patches stats`.

    Args:
        manifest: The manifest.
        file_name: The file name of the manifest.
        sources: The sources.
        access: Where the sources can be fetched from.
        now: The time that ages are computed for, in seconds since 1970. Default: now.
    """
    now = time.time() if now is None else now
    inputs = _Inputs(file_name, PatchHistory(manifest.root), access, now)
    statistics = {source.name: _source_statistics(source, inputs) for source in sources}
    lines: list[str] = []
    for name, numbers in statistics.items():
        lines += _source_lines(name, numbers)
    data = {
        "as_of": _format_day(now),
        "shallow": inputs.history.is_shallow,
        "sources": statistics,
    }
    return Result(data, "\n".join(lines))


def _source_statistics(source: GitSource | WheelSource, inputs: _Inputs) -> dict[str, Any]:
    if not isinstance(source, GitSource):
        return _compute_statistics(source, inputs, None, "a release wheel has no branch")
    with branch_state.open_upstream(source, inputs.access) as upstream:
        if isinstance(upstream, branch_state.BranchProblem):
            reason = f"{upstream.kind}: {upstream.what}"
            return _compute_statistics(source, inputs, None, reason)
        reason = "the pin is not a first-parent commit of the branch"
        return _compute_statistics(source, inputs, upstream, reason)


def _compute_statistics(
    source: GitSource | WheelSource, inputs: _Inputs, upstream: Upstream | None, reason: str
) -> dict[str, Any]:
    """Return the statistics of one source.

    Args:
        source: The source.
        inputs: What is common to all sources.
        upstream: The upstream, if it could be opened.
        reason: Why the distance to the branch may be unknown.
    """
    states = inputs.history.list_states(source, inputs.manifest)
    branch = _Branch(upstream) if upstream else None
    patches = []
    for patch in patch_series.load_patches(source.patches):
        since = None
        if not (inputs.history.is_shallow and states and patch.name in states[0].names):
            since = _find_first_date(patch.name, states)
        if not since and upstream:
            since = _read_origin_date(patch, upstream)
        patches.append(_patch_statistics(patch, since, inputs.now))
    pin = source.commit if isinstance(source, GitSource) else source.sha256
    behind = branch.measure_distance(pin, inputs.now) if branch else None
    statuses = collections.Counter(patch["upstream_status"] for patch in patches)
    ages = [patch["days"] for patch in patches if patch["days"] is not None]
    return {
        "pin": pin,
        "count": len(patches),
        "added": sum(patch["added"] for patch in patches),
        "removed": sum(patch["removed"] for patch in patches),
        "upstream_status": dict(sorted(statuses.items())),
        "oldest_days": max(ages, default=None),
        "behind": behind,
        "behind_unknown": None if behind else reason,
        "patches": patches,
        "over_time": [_state_statistics(state, branch) for state in states],
    }


def _state_statistics(state: SourceState, branch: _Branch | None) -> dict[str, Any]:
    return {
        "commit": state.commit,
        "date": _format_day(state.date),
        "pin": state.pin,
        "count": len(state.names),
        "added": state.added,
        "removed": state.removed,
        "behind": branch.measure_distance(state.pin, state.date) if branch else None,
    }


def _find_first_date(name: str, states: Sequence[SourceState]) -> int | None:
    """Return since when the patch has been in the series without a break."""
    since = None
    for state in reversed(states):
        if name not in state.names:
            break
        since = state.date
    return since


def _read_origin_date(patch: Patch, upstream: Upstream) -> int | None:
    """Return the time of the commit in the field Origin, or None if it is not available."""
    commit = patch.fields.get("Origin", "")
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return None
    done = upstream.git.run(
        "log", "-1", "--no-show-signature", "--format=%ct", "--end-of-options", commit, check=False
    )
    return int(done.stdout) if done.returncode == 0 else None


def _patch_statistics(patch: Patch, since: int | None, now: float) -> dict[str, Any]:
    added, removed = count_lines(patch)
    return {
        "name": patch.name,
        "added": added,
        "removed": removed,
        "upstream_status": patch.fields["Upstream-Status"].split(" [")[0],
        "since": None if since is None else _format_day(since),
        "days": None if since is None else max(0, int(now - since)) // _DAY,
    }


def _source_lines(name: str, numbers: dict[str, Any]) -> list[str]:
    statuses = [f"{count} {status}" for status, count in numbers["upstream_status"].items()]
    patch_count = format_count(numbers["count"], "patch", "patches")
    distance = _format_distance(numbers["behind"]) or numbers["behind_unknown"]
    lines = [
        f"{name}: {patch_count} ({_format_lines(numbers)}): {', '.join(statuses) or 'none'}; "
        + distance
    ]
    for patch in numbers["patches"]:
        age = "age unknown"
        if patch["days"] is not None:
            age = f"{format_count(patch['days'], 'day')}, since {patch['since']}"
        lines.append(
            f"  {patch['name']}  {_format_lines(patch)}  {patch['upstream_status']}  {age}"
        )
    for state in numbers["over_time"]:
        size = "lines unknown" if state["added"] is None else _format_lines(state)
        line = (
            f"  {state['date']} {state['commit'][:12]}: "
            f"{format_count(state['count'], 'patch', 'patches')}, {size}"
        )
        distance = _format_distance(state["behind"])
        lines.append(f"{line}, {distance}" if distance else line)
    return lines


def _format_lines(numbers: dict[str, Any]) -> str:
    return f"+{numbers['added']} -{numbers['removed']}"


def _format_distance(behind: dict[str, int] | None) -> str:
    if not behind:
        return ""
    commits, days = behind["commits"], behind["days"]
    return f"{format_count(commits, 'commit')} and {format_count(days, 'day')} behind"


def _format_day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
