"""Find the change that broke something: between a good and a bad build, by a command that tells
them apart, down to the one commit, patch or package.
"""

from __future__ import annotations

import contextlib
import math
import platform
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import log, machine_architecture, manifest
from builder.core.cache import remove_path
from builder.core.command_context import Context, Result
from builder.packages import lock_file, python_interpreter
from builder.release.bisect import attempt, changes, endpoints, journal, report, repository, search
from builder.release.bisect import build_contents as builds
from builder.release.bisect.attempt import Bench
from builder.release.bisect.journal import Journal, Request
from builder.upstream.source import access
from rosetta.core import option_types
from rosetta.core.errors import CONFLICT, MISSING, UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from builder.release.bisect.build_contents import Build
    from builder.release.bisect.changes import Between, Unit
    from builder.release.bisect.endpoints import Asked
    from builder.release.bisect.repository import Repository
    from builder.release.bisect.search import Answer
    from builder.release.bisect.upstream_history import Step
    from builder.upstream.breakage_search import Cause


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "--good",
        metavar="END",
        default="",
        help=f"a build in which COMMAND succeeds: {endpoints.FORMS}",
    )
    parser.add_argument(
        "--bad",
        metavar="END",
        default="",
        help="a build in which COMMAND fails; it may be older or newer",
    )
    parser.add_argument(
        "--distribution",
        metavar="NAME",
        default="",
        help=(
            "the distribution to build (default: the one of the environment or image, or the only "
            "one in the manifest)"
        ),
    )
    parser.add_argument(
        "--accelerator",
        default="",
        choices=["cpu", "cuda12", "cuda13"],
        help="the accelerator (default: the one of the environment or image, or cpu)",
    )
    parser.add_argument(
        "--stage",
        default="env",
        choices=["env", "tree"],
        help="env builds a whole environment, tree only the patched sources (default: env)",
    )
    parser.add_argument(
        "--python",
        metavar="VERSION|PATH",
        default="",
        help="the Python of the environments (default: as for a build)",
    )
    parser.add_argument(
        "--repeat",
        type=option_types.whole_number(maximum=100),
        default=1,
        metavar="N",
        help="run COMMAND N times in each build, and stop if the results differ (default: 1)",
    )
    parser.add_argument(
        "--work",
        metavar="DIR",
        default="build/bisect",
        help="the folder in which the builds are made (default: build/bisect)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--status", action="store_true", help="show how far the search is")
    what.add_argument("--log", action="store_true", help="show the result of every build")
    what.add_argument("--abort", action="store_true", help="end the search and remove its builds")
    parser.add_argument(
        "command",
        nargs="*",
        metavar="COMMAND",
        help=(
            "after --: the command to run in each build; status 0 is good, 1 to 124 is bad, 125 "
            "skips the build, and more ends the search"
        ),
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    file = journal.place(context.cache, context.manifest_path)
    if arguments.status or arguments.log:
        return _told(_waiting(file), whole=arguments.log)
    with context.cache.lock(f"bisect-{file.stem}"):
        if arguments.abort:
            return _abort(_waiting(file))
        kept = _journal(file, arguments)
        with contextlib.ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rosetta-")))
            return _bisect(context, kept, scratch, stack)


def _waiting(file: Path) -> Journal:
    kept = journal.load(file)
    if kept is None:
        raise UserError(
            "no bisect of this manifest is there",
            "bisect",
            "begin one: build.py bisect --good END --bad END -- COMMAND",
        )
    return kept


def _told(kept: Journal, *, whole: bool) -> Result:
    request = kept.request
    head = (
        f"{request.good} (good) to {request.bad} (bad): {'done' if kept.done else 'not done'}, "
        f"{kept.count} builds beside the two ends; {kept.left}"
    )
    rows = [
        (
            f"  {trial.answer:<5}{trial.seconds:>8.1f} s  "
            f"{trial.what}{f': {trial.why}' if trial.why else ''}"
        )
        for trial in kept.trials
    ]
    return Result(kept.as_json(), "\n".join([head, *(rows if whole else rows[-1:])]))


def _abort(kept: Journal) -> Result:
    work = Path(kept.request.work)
    attempt.refuse(work)
    remove_path(work)
    kept.close()
    return Result({"removed": str(work)}, f"forgotten; {work} is removed")


def _journal(file: Path, arguments: argparse.Namespace) -> Journal:
    """Return the journal that this run goes on with: the one there is, or a new one."""
    kept = journal.load(file)
    if not (arguments.good or arguments.bad or arguments.command):
        return _waiting(file)
    if not (arguments.good and arguments.bad and arguments.command):
        raise UserError(
            "needs two ends and a command",
            "bisect",
            "build.py bisect --good END --bad END -- COMMAND; to go on with one: build.py bisect",
            kind=MISSING,
        )
    asked = Request(
        arguments.good,
        arguments.bad,
        arguments.distribution,
        arguments.accelerator,
        arguments.stage,
        arguments.python,
        arguments.repeat,
        tuple(arguments.command),
        str(Path(arguments.work).absolute()),
    )
    if kept and kept.request != asked and not kept.done:
        raise UserError(
            f"another one, from {kept.request.good} to {kept.request.bad}, is not at its end",
            "bisect",
            "go on: build.py bisect; or give it up: build.py bisect --abort",
        )
    return kept if kept and kept.request == asked else Journal(file, asked)


def _bisect(context: Context, kept: Journal, scratch: Path, stack: contextlib.ExitStack) -> Result:
    known = (
        [] if kept.done else [endpoints.Asked(**each) for each in kept.ends]
    )  # one that is done may be asked again after a branch has moved
    ends = known or [
        endpoints.look(text, context, option)
        for text, option in ((kept.request.good, "--good"), (kept.request.bad, "--bad"))
    ]
    kept.ends, kept.done = [dict(vars(each)) for each in ends], False
    work = Path(kept.request.work)
    attempt.refuse(work)
    if work.resolve().is_relative_to(context.cache.root.resolve()):
        raise UserError(
            "lies inside the builder's cache, where it would be pruned",
            str(work),
            "give another --work DIR",
        )
    good, bad = _alike(
        [
            _opened(each, context, kept.request, scratch / name)
            for each, name in zip(ends, ("good", "bad"), strict=True)
        ]
    )
    reach = access(context, manifest.load(context.manifest_path))
    ours = repository.around(context.manifest_path.parent)
    bench = Bench(
        context, kept, work, {part.name: reach for part in (*good.parts, *bad.parts)}, ours
    )
    _check_ends(bench, good, bad)
    labels = [each.text for each in ends]
    if nights := endpoints.nights(*ends):
        good, bad, labels = _by_nights(
            bench, context, [ends[0], *nights, ends[1]], (good, bad), scratch
        )
    found = _between(context, kept, (good, bad), ours, stack)
    units = found.units
    if not units:
        raise UserError(
            "nothing that such a build is made of differs",
            " and ".join(labels),
            "with --stage tree packages do not count; what else the machine has never does",
        )
    bench = replace(
        bench,
        access={
            **bench.access,
            **{name: way.access for name, way in found.ways.items() if way.access},
        },
    )
    most = math.ceil(math.log2(len(units))) if len(units) > 1 else 0
    kept.left = (
        f"{len(units)} changes, told apart by at most {kept.count + most + 1} builds, or "
        f"{kept.count + 2 * most + 2} if it takes two"
    )
    kept.save()
    log.info(f"bisect: {kept.left}")

    def ask(chosen: frozenset[int]) -> Answer:
        return bench.answer(
            found.mix(chosen),
            f"{len(chosen)} of {len(units)} changes, the last {units[max(chosen)]}"
            if chosen
            else "none of the changes",
        )

    taken = search.needed(len(units), ask, found.closure)
    groups, merges = _unmerged(bench, found, taken)
    span = (good.ours, bad.ours) if good.ours and bad.ours else None
    culprits = report.Culprits(
        found, groups, merges, taken.alone, span, ours, (labels[0], labels[1])
    )
    told = report.data(culprits, kept)
    kept.done, kept.left = True, "; ".join(str(unit) for group in groups for unit in group)
    kept.save()
    return Result(told, report.text(told), ok=culprits.certain)


def _opened(asked: Asked, context: Context, request: Request, scratch: Path) -> Build:
    side, distribution, accelerator = endpoints.opened(asked, context, scratch)
    for option, given, own in (
        ("--distribution", request.distribution, distribution),
        ("--accelerator", request.accelerator, accelerator),
    ):
        if given and own and given != own:
            raise UserError(
                f"{asked.text} is {own}", f"{option} {given}", "leave it out, or name another end"
            )
    distribution = (
        distribution
        or request.distribution
        or (
            next(iter(side.manifest.distributions)) if len(side.manifest.distributions) == 1 else ""
        )
    )
    if not distribution:
        raise UserError(
            "no distribution was named",
            "--distribution",
            f"one of: {', '.join(side.manifest.distributions)}",
        )
    return builds.of(side, distribution, accelerator or request.accelerator or "cpu")


def _alike(ends: list[Build]) -> tuple[Build, Build]:
    """Both ends, of one distribution and accelerator; the commit of rosetta/ only where both have
    one.
    """
    good, bad = ends
    if (good.distribution, good.accelerator) != (bad.distribution, bad.accelerator):
        told = [f"{each.distribution} for {each.accelerator}" for each in ends]
        raise UserError(
            f"{told[0]} and {told[1]} cannot be compared",
            "--good, --bad",
            "name two ends of one distribution and accelerator",
        )
    return (
        (good, bad) if good.ours and bad.ours else (replace(good, ours=""), replace(bad, ours=""))
    )


def _check_ends(bench: Bench, good: Build, bad: Build) -> None:
    """Both ends first: a command that cannot tell them apart tells nothing."""
    for build, wanted, option in ((good, "good", "--good"), (bad, "bad", "--bad")):
        answer = bench.answer(build, f"the {wanted} end", end=True)
        if answer != wanted:
            why = {"good": "succeeds", "bad": "fails", "skip": "does not know"}[answer]
            bench.journal.close()
            raise UserError(
                f"COMMAND {why} at {getattr(bench.journal.request, wanted)}",
                option,
                (
                    f"it must {'succeed' if wanted == 'good' else 'fail'} there: what is built "
                    f"for it is in {bench.environment}"
                ),
                kind=CONFLICT,
                value=answer,
            )


def _by_nights(
    bench: Bench, context: Context, all_: list[Asked], ends: tuple[Build, Build], scratch: Path
) -> tuple[Build, Build, list[str]]:
    """Return the good and the bad night next to each other, or as near as can be told."""
    made: dict[int, Build] = {0: ends[0], len(all_) - 1: ends[1]}

    def build(index: int) -> Build:
        if index not in made:
            made[index] = replace(
                _opened(all_[index], context, bench.journal.request, scratch / f"night-{index}"),
                ours="",
            )
        return made[index]

    bench.journal.left = f"{len(all_) - 2} nights between the two ends"
    found = search.edge(
        0, len(all_) - 1, lambda index: _night(bench, build, index, all_[index].text)
    )
    return build(found.good), build(found.bad), [all_[found.good].text, all_[found.bad].text]


def _night(bench: Bench, build: Callable[[int], Build], index: int, text: str) -> Answer:
    try:
        one = build(index)
    except UserError as error:
        log.info(f"bisect: skip {text} ({error})")
        return "skip"
    known = {**bench.access} | {
        part.name: next(iter(bench.access.values()))
        for part in one.parts
        if part.name not in bench.access
    }
    return replace(bench, access=known).answer(one, text)


def _between(
    context: Context,
    kept: Journal,
    ends: tuple[Build, Build],
    ours: Repository | None,
    stack: contextlib.ExitStack,
) -> Between:
    """All that differs, as far as it is in what is built."""
    good, bad = ends
    reach = access(context, manifest.load(context.manifest_path))
    if kept.request.stage == "tree":
        return changes.between(
            good.sources_only(), bad.sources_only(), lambda _: True, reach, stack
        )
    interpreter = python_interpreter.find(
        good.line["pythons"], good.line["python"], kept.request.python
    )
    machine = lock_file.environment_of(
        interpreter.version,
        interpreter.full,
        machine_architecture.ARCHITECTURES.get(platform.machine(), "amd64"),
    )
    found = changes.between(good, bad, lambda pin: pin.holds(machine), reach, stack)
    return (
        changes.with_ours(found, ours.line(good.ours, bad.ours, "rosetta"))
        if ours and good.ours and bad.ours
        else found
    )


def _unmerged(
    bench: Bench, found: Between, taken: search.Found
) -> tuple[tuple[tuple[Unit, ...], ...], dict[int, Cause]]:
    """Return the changes that were found; where one is a merge, the commit that it brought stands
    for it, and the merge beside it.
    """
    groups = [tuple(found.units[each] for each in group) for group in taken.groups]
    chosen = frozenset(
        each for group in taken.groups for index in group for each in found.closure(index)
    )
    merges: dict[int, Cause] = {}
    for number, group in enumerate(groups):
        unit = group[0]
        way = found.ways.get(unit.place)
        if (
            len(group) > 1
            or unit.kind != "commit"
            or unit.step is None
            or way is None
            or not taken.alone
        ):
            continue
        inner = way.merged(unit.step)

        def ask(count: int, inner: list[Step] = inner, source: str = unit.place) -> Answer:
            step = inner[count - 1]
            return bench.answer(
                found.mix(chosen, {source: step.state}), f"{source}: the merged {step.cause}"
            )

        if inner:
            edge = search.edge(0, len(inner), ask)
            groups[number] = tuple(
                changes.commit_unit(unit.place, step) for step in inner[edge.good : edge.bad]
            )
            if edge.bad < len(inner):
                merges[number] = unit.step.cause
    return tuple(groups), merges
