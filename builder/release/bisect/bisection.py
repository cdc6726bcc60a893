"""Run a bisect: from its request to the changes that make a build bad."""

from __future__ import annotations

import contextlib
import math
import platform
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import log, machine_architecture, manifest
from builder.packages import lock_file, python_interpreter
from builder.pipeline.step_plans import figures
from builder.release.bisect import changes, endpoints, repository, search
from builder.release.bisect.build_contents import read_build
from builder.release.bisect.build_mixing import mix_build
from builder.release.bisect.build_trials import TrialRunner, check_work_folder
from builder.release.bisect.endpoints import Endpoint
from builder.release.bisect.report import Culprits, report_as_json
from builder.upstream.source import configure_access
from rosetta.core.errors import CONFLICT, UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.core.command_context import Context
    from builder.packages.lock_file import Pin
    from builder.release.bisect.build_contents import Build
    from builder.release.bisect.changes import Change, ChangeList
    from builder.release.bisect.journal import Journal
    from builder.release.bisect.search import Answer, SearchResult
    from builder.release.bisect.upstream_history import HistoryStep
    from builder.upstream.breakage_search import Cause


@dataclass(frozen=True)
class _Interval:
    """A good and a bad build, and the ends that they were read from."""

    good_end: Endpoint
    bad_end: Endpoint
    good: Build
    bad: Build


def run_bisect(context: Context, journal: Journal) -> dict[str, Any]:
    """Find the changes that make a build bad. Every answer is added to the journal.

    Returns:
        The report, as `report_as_json` describes it.

    Raises:
        UserError: the two ends cannot be compared or do not differ, the command does not tell them
            apart, or the command gives up.
    """
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rosetta-")))
        bisection = _Bisection(context, journal, scratch, stack)
        culprits = bisection.find_culprits()
        report = report_as_json(culprits, journal)  # reads histories, which the stack closes
        journal.done = True
        journal.progress = "; ".join(str(change) for group in culprits.groups for change in group)
        journal.save()
        return report


class _Bisection:
    """One run of a bisect.

    Args:
        context: The context of the builder's command.
        journal: The request, and the answers so far.
        scratch: A folder for the files of the ends.
        stack: Closes what stays open until the bisect is done.
    """

    def __init__(
        self, context: Context, journal: Journal, scratch: Path, stack: contextlib.ExitStack
    ) -> None:
        self.context = context
        self.journal = journal
        self.scratch = scratch
        self.stack = stack
        self.access = configure_access(context, manifest.load(context.manifest_path))
        self.checkout = repository.find_repository(context.manifest_path.parent)

    def find_culprits(self) -> Culprits:
        """Return the changes that make a build bad."""
        good_end, bad_end = self._resolve_ends()
        self._check_work_folder()
        good, bad = self._read_ends(good_end, bad_end)
        self._check_ends(good, bad)
        interval = self._narrow_to_nightlies(_Interval(good_end, bad_end, good, bad))
        change_list = self._list_changes(interval)
        runner = self._runner(interval.good, interval.bad, change_list=change_list)
        result = self._search_changes(runner, change_list)
        groups, merges = _look_into_merges(runner, change_list, result)
        revisions = (interval.good.rosetta_commit, interval.bad.rosetta_commit)
        return Culprits(
            change_list,
            groups,
            merges,
            result.alone,
            revisions if all(revisions) else None,
            self.checkout,
            (interval.good_end.text, interval.bad_end.text),
        )

    def _resolve_ends(self) -> tuple[Endpoint, Endpoint]:
        """Return the two ends: from the journal, unless the bisect it describes is done."""
        request = self.journal.request
        if self.journal.ends and not self.journal.done:
            good_end, bad_end = (Endpoint(**end) for end in self.journal.ends)
        else:  # a branch may have moved since the last bisect was done
            good_end = endpoints.resolve_endpoint(request.good, self.context, "--good")
            bad_end = endpoints.resolve_endpoint(request.bad, self.context, "--bad")
            if request.metric:  # an answer compares a figure with that of the good end at that time
                self.journal.trials = []
        self.journal.ends = [dict(vars(good_end)), dict(vars(bad_end))]
        self.journal.done = False
        return good_end, bad_end

    def _check_work_folder(self) -> None:
        work = Path(self.journal.request.work)
        check_work_folder(work)
        if work.resolve().is_relative_to(self.context.cache.root.resolve()):
            raise UserError(
                "is inside the builder's cache, where it would be pruned",
                str(work),
                "give another --work DIR",
            )

    def _read_ends(self, good_end: Endpoint, bad_end: Endpoint) -> tuple[Build, Build]:
        """Return the builds of both ends; both have a commit of `rosetta/`, or neither has one.

        Raises:
            UserError: the ends are builds of different distributions or for different accelerators.
        """
        good = self._read_build(good_end, self.scratch / "good")
        bad = self._read_build(bad_end, self.scratch / "bad")
        if (good.distribution, good.accelerator) != (bad.distribution, bad.accelerator):
            raise UserError(
                f"{good.distribution} for {good.accelerator} and {bad.distribution} for "
                f"{bad.accelerator} cannot be compared",
                "--good, --bad",
                "name two ends with the same distribution and accelerator",
            )
        if good.rosetta_commit and bad.rosetta_commit:
            return good, bad
        return replace(good, rosetta_commit=""), replace(bad, rosetta_commit="")

    def _read_build(self, end: Endpoint, scratch: Path) -> Build:
        request = self.journal.request
        endpoint = endpoints.read_endpoint(end, self.context, scratch)
        for option, requested, actual in (
            ("--distribution", request.distribution, endpoint.distribution),
            ("--accelerator", request.accelerator, endpoint.accelerator),
        ):
            if requested and actual and requested != actual:
                raise UserError(
                    f"{end.text} is a build for {actual}",
                    f"{option} {requested}",
                    "leave the option out, or name another end",
                )
        available = list(endpoint.manifest.distributions)
        only = available[0] if len(available) == 1 else ""
        distribution = endpoint.distribution or request.distribution or only
        if not distribution:
            raise UserError(
                "the manifest has several distributions; choose one",
                "--distribution",
                f"one of: {', '.join(available)}",
            )
        accelerator = endpoint.accelerator or request.accelerator or "cpu"
        return read_build(endpoint, distribution, accelerator)

    def _runner(self, *builds: Build, change_list: ChangeList | None = None) -> TrialRunner:
        """Return a runner for builds with the sources of these builds.

        Sources with a history in `change_list` are fetched from the repository of their history.
        """
        source_access = {source.name: self.access for build in builds for source in build.sources}
        if change_list:
            for name, history in change_list.histories.items():
                if history.access:
                    source_access[name] = history.access
        work = Path(self.journal.request.work)
        return TrialRunner(self.context, self.journal, work, source_access, self.checkout)

    def _check_ends(self, good: Build, bad: Build) -> None:
        """Try both ends.

        Raises:
            UserError: the command does not tell them apart.
        """
        runner = self._runner(good, bad)
        for build, expected, option in ((good, "good", "--good"), (bad, "bad", "--bad")):
            answer = runner.try_build(build, f"the {expected} end", is_end=True)
            if answer != expected:
                self.journal.delete()
                raise _make_end_error(runner, expected, answer, option)

    def _narrow_to_nightlies(self, interval: _Interval) -> _Interval:
        """Return the last good and the first bad nightly image between two of them.

        If the ends are not nightly images of one repository, the interval stays as it is.
        """
        nightlies = endpoints.list_nightlies_between(interval.good_end, interval.bad_end)
        if not nightlies:
            return interval
        ends = [interval.good_end, *nightlies, interval.bad_end]
        builds = {0: interval.good, len(ends) - 1: interval.bad}

        def read_nightly(index: int) -> Build:
            if index not in builds:
                build = self._read_build(ends[index], self.scratch / f"night-{index}")
                builds[index] = replace(build, rosetta_commit="")
            return builds[index]

        def ask(index: int) -> Answer:
            try:
                build = read_nightly(index)
            except UserError as error:
                log.info(f"bisect: skip {ends[index].text} ({error})")
                return "skip"
            return self._runner(build).try_build(build, ends[index].text)

        self.journal.progress = f"{len(nightlies)} nightly images between the two ends"
        boundary = search.find_boundary(0, len(ends) - 1, ask)
        return _Interval(
            ends[boundary.good],
            ends[boundary.bad],
            read_nightly(boundary.good),
            read_nightly(boundary.bad),
        )

    def _list_changes(self, interval: _Interval) -> ChangeList:
        """List the changes between two builds, as far as they matter at the requested stage.

        Raises:
            UserError: there are none.
        """
        good, bad = interval.good, interval.bad
        if self.journal.request.stage == "tree":
            change_list = changes.list_changes(
                good.sources_only(), bad.sources_only(), lambda _: True, self.access, self.stack
            )
        else:
            change_list = changes.list_changes(
                good, bad, self._is_for_this_machine(good), self.access, self.stack
            )
            if self.checkout and good.rosetta_commit and bad.rosetta_commit:
                commits = self.checkout.commits_between(
                    good.rosetta_commit, bad.rosetta_commit, "rosetta"
                )
                change_list = changes.add_rosetta_commits(change_list, commits)
        if not change_list.changes:
            raise UserError(
                "the two builds have the same inputs",
                f"{interval.good_end.text} and {interval.bad_end.text}",
                "packages are compared with --stage env only; the rest of the machine never is",
            )
        return change_list

    def _is_for_this_machine(self, build: Build) -> Callable[[Pin], bool]:
        """Return a function that tells whether a locked package is installed on this machine."""
        interpreter = python_interpreter.find_interpreter(
            build.line["pythons"], build.line["python"], self.journal.request.python
        )
        architecture = machine_architecture.ARCHITECTURES.get(platform.machine(), "amd64")
        environment = lock_file.marker_environment(
            interpreter.version, interpreter.full, architecture
        )
        return lambda pin: pin.applies_to(environment)

    def _search_changes(self, runner: TrialRunner, change_list: ChangeList) -> SearchResult:
        """Find the positions of the changes that are needed."""
        all_changes = change_list.changes
        halvings = math.ceil(math.log2(len(all_changes)))
        build_count = self.journal.build_count
        self.journal.progress = (
            f"{len(all_changes)} changes; at most {build_count + halvings + 1} builds in total, "
            f"or {build_count + 2 * halvings + 2} if two changes are needed together"
        )
        self.journal.save()
        log.info(f"bisect: {self.journal.progress}")

        def ask(positions: frozenset[int]) -> Answer:
            description = "none of the changes"
            if positions:
                last = all_changes[max(positions)]
                description = f"{len(positions)} of {len(all_changes)} changes, the last is {last}"
            return runner.try_build(mix_build(change_list, positions), description)

        return search.find_needed_changes(len(all_changes), ask, change_list.with_prerequisites)


def _make_end_error(runner: TrialRunner, expected: str, answer: Answer, option: str) -> UserError:
    """Return the error for an end whose answer is not the expected one."""
    request = runner.journal.request
    end = getattr(request, expected)
    if request.metric:
        reasons = [trial.reason for trial in runner.journal.trials if trial.is_end]
        return UserError(
            f"{request.metric} did not move by more than {figures.TOLERANCE:.0%}: "
            f"{' and '.join(reasons)}",
            f"{option} {end}",
            "name ends between which the figure moved, or another --metric",
            kind=CONFLICT,
            value=answer,
        )
    outcome = {"good": "succeeds", "bad": "fails", "skip": "skips"}[answer]
    wanted = "succeed" if expected == "good" else "fail"
    return UserError(
        f"COMMAND {outcome} at {end}",
        option,
        f"COMMAND must {wanted} there; the build is in {runner.environment}",
        kind=CONFLICT,
        value=answer,
    )


def _look_into_merges(
    runner: TrialRunner, change_list: ChangeList, result: SearchResult
) -> tuple[tuple[tuple[Change, ...], ...], dict[int, Cause]]:
    """Replace each culprit that is a merge by the commit that the merge brought.

    Returns:
        The groups of culprits, and the merges by the position of their group.
    """
    groups = []
    merges: dict[int, Cause] = {}
    for number, positions in enumerate(result.groups):
        group = tuple(change_list.changes[position] for position in positions)
        merged = _merged_commits(change_list, group) if result.alone else []
        if merged:
            boundary = _search_merged_commits(runner, change_list, result, group[0], merged)
            steps = merged[boundary.good : boundary.bad]
            if boundary.bad < len(merged):  # the last step is the merge itself
                merges[number] = merged[-1].cause
            group = tuple(changes.commit_change(group[0].source, step) for step in steps)
        groups.append(group)
    return tuple(groups), merges


def _merged_commits(change_list: ChangeList, group: tuple[Change, ...]) -> list[HistoryStep]:
    """Return the commits that the only change of a group brought by a merge, and the merge."""
    history = change_list.histories.get(group[0].source)
    if len(group) > 1 or group[0].kind != "commit" or group[0].step is None or history is None:
        return []
    return history.merged_commits(group[0].step)


def _search_merged_commits(
    runner: TrialRunner,
    change_list: ChangeList,
    result: SearchResult,
    merge: Change,
    merged: list[HistoryStep],
) -> search.Boundary:
    """Find the first of the merged commits with which a build is bad."""
    needed = [position for group in result.groups for position in group]
    positions = frozenset().union(
        *(change_list.with_prerequisites(position) for position in needed)
    )

    def ask(count: int) -> Answer:
        step = merged[count - 1]
        build = mix_build(change_list, positions, {merge.source: step.pin})
        return runner.try_build(build, f"{merge.source}: the merged {step.cause}")

    return search.find_boundary(0, len(merged), ask)
