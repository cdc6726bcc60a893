"""Compare recorded plans with what their steps compile to now, and record them again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.pipeline.step_plans import figures, goldens, plan_runs
from rosetta.core.errors import DIFFERS, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from builder.core.command_context import Context
    from builder.pipeline.step_plans.goldens import Golden
    from builder.pipeline.step_plans.plan_runs import PlanEnvironment

SAME, MOVED, RENEWED, FAILED = "same", "moved", "renewed", "failed"
UNRECORDED = "not recorded yet"


@dataclass(frozen=True)
class Comparison:
    """What became of a golden.

    Attributes:
        golden: The golden as it was recorded before.
        state: SAME: no figure moved beyond the tolerance; MOVED: one did; RENEWED: the plan was
            recorded again; FAILED: the step does not compile; UNRECORDED: it was not compiled.
        moves: The figures that are not what was recorded.
        problem: Why the step does not compile.
        jaxlib: The version of jaxlib that compiled the step.
    """

    golden: Golden
    state: str
    moves: list[figures.Move] = field(default_factory=list)
    problem: str = ""
    jaxlib: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing has to be done."""
        return self.state in (SAME, RENEWED, UNRECORDED)

    def as_json(self) -> dict[str, Any]:
        """Return the comparison for --json."""
        return {
            "name": self.golden.name,
            "state": self.state,
            "moves": [move.as_json() for move in self.moves],
            "problem": self.problem or None,
            "jaxlib": self.jaxlib or None,
        }


def select_for_environment(
    selection: Sequence[Golden], names: Iterable[str], environment: PlanEnvironment
) -> list[Golden]:
    """Return the goldens that an environment can compile.

    Args:
        selection: The goldens.
        names: What the user gave, which may be the names of goldens.
        environment: The environment.

    Raises:
        UserError: The user named a golden of another distribution, or none is left.
    """
    suitable = [golden for golden in selection if golden.distribution == environment.distribution]
    named = set(names)
    for golden in selection:
        if golden.name in named and golden not in suitable:
            raise UserError(
                f"a step of {golden.distribution}, and the environment is one of "
                f"{environment.distribution}",
                f"test --plans {golden.name}",
                f"give --inside env:DIR with an environment of {golden.distribution}",
                kind=DIFFERS,
                value=golden.distribution,
            )
    if not suitable:
        raise UserError(
            f"no golden has steps of {environment.distribution}",
            "test --plans",
            "give --inside env:DIR with another environment, or leave it out",
            kind=MISSING,
            value=environment.distribution,
        )
    return suitable


def check_recorded(
    selection: Iterable[Golden], names: Iterable[str], environment: PlanEnvironment
) -> list[Comparison]:
    """Refuse goldens that cannot be compared.

    Args:
        selection: The goldens.
        names: What the user gave, which may be the names of goldens.
        environment: The environment that will compile.

    Returns:
        The goldens that were not recorded yet, and that the user did not name.

    Raises:
        UserError: The user named a golden that was not recorded yet, or a golden was recorded with
            another jaxlib.
    """
    unrecorded, named = [], set(names)
    for golden in selection:
        if golden.record is None and golden.name in named:
            raise UserError(
                "not recorded yet", golden.name, f"record it: {golden.renewal}", kind=MISSING
            )
        if golden.record is None:
            unrecorded.append(Comparison(golden, UNRECORDED))
        elif golden.record.jaxlib != environment.jaxlib:
            raise UserError(
                f"recorded with jaxlib {golden.record.jaxlib}, and the environment has "
                f"{environment.jaxlib or 'none'}",
                golden.name,
                f"record it again: {golden.renewal}",
                kind=DIFFERS,
                value=environment.jaxlib,
            )
    return unrecorded


def compare_at_pins(
    context: Context, selection: Iterable[Golden], environments: Path
) -> list[Comparison]:
    """Compare goldens at the pins of a manifest, whichever jaxlib its packages have.

    The environment of each distribution is baked first. If that fails, its goldens have FAILED.

    Args:
        context: The context with the manifest.
        selection: The goldens. Those that were not recorded yet are left out.
        environments: The folder of the environments.
    """
    groups: dict[str, list[Golden]] = {}
    for golden in selection:
        if golden.record:
            groups.setdefault(golden.distribution, []).append(golden)
    comparisons: list[Comparison] = []
    for distribution, group in groups.items():
        try:
            environment = plan_runs.bake_environment(context, distribution, environments)
        except UserError as error:
            comparisons += [Comparison(golden, FAILED, [], str(error)) for golden in group]
        else:
            comparisons += compare_goldens(group, environment, context.root)
    return comparisons


def compare_goldens(
    selection: Iterable[Golden], environment: PlanEnvironment, package_root: Path
) -> list[Comparison]:
    """Compile the step of each golden, and compare its figures with the recorded ones.

    Args:
        selection: Recorded goldens of the environment's distribution.
        environment: The environment that compiles.
        package_root: The folder with the package `rosetta` to use.
    """

    def compare(golden: Golden, plan: plan_runs.CompiledPlan) -> Comparison:
        moves = figures.list_moves(golden.figures, plan.figures)
        exceeding = any(move.exceeds_tolerance for move in moves)
        return Comparison(golden, MOVED if exceeding else SAME, moves, jaxlib=environment.jaxlib)

    return _compile_each(selection, environment, package_root, compare)


def renew_goldens(
    selection: Iterable[Golden], environment: PlanEnvironment, package_root: Path, folder: Path
) -> list[Comparison]:
    """Compile the step of each golden, and record its figures.

    A golden stays as it is if nothing but the time of the compilation is different.

    Args:
        selection: The goldens, of the environment's distribution.
        environment: The environment that compiles.
        package_root: The folder with the package `rosetta` to use.
        folder: The folder of the goldens.
    """

    def renew(golden: Golden, plan: plan_runs.CompiledPlan) -> Comparison:
        record = goldens.Record(
            golden.renewal, environment.jaxlib, environment.sources, plan.compile_s
        )
        moves = figures.list_moves(golden.figures, plan.figures)
        unchanged = golden.record and replace(record, compile_s=golden.record.compile_s)
        if not moves and unchanged == golden.record:
            return Comparison(golden, SAME, jaxlib=environment.jaxlib)
        goldens.write_golden(folder, replace(golden, record=record, figures=plan.figures))
        return Comparison(golden, RENEWED, moves, jaxlib=environment.jaxlib)

    return _compile_each(selection, environment, package_root, renew)


def _compile_each(
    selection: Iterable[Golden],
    environment: PlanEnvironment,
    package_root: Path,
    use: Callable[[Golden, plan_runs.CompiledPlan], Comparison],
) -> list[Comparison]:
    """Compile the step of each golden, and return what `use` makes of it.

    A step that does not compile does not stop the others.
    """
    comparisons = []
    for golden in selection:
        try:
            plan = plan_runs.compile_plan(environment.folder, golden.plan, package_root)
        except UserError as error:
            comparison = Comparison(golden, FAILED, [], str(error), environment.jaxlib)
        else:
            comparison = use(golden, plan)
        log.info("\n".join(format_comparison(comparison)))
        comparisons.append(comparison)
    return comparisons


def format_comparison(comparison: Comparison) -> list[str]:
    """Return lines: what became of a golden, and the figures that moved."""
    golden, moves = comparison.golden, comparison.moves
    if comparison.state == UNRECORDED:
        return [f"!!! NOT CHECKED: {golden.name}: {UNRECORDED} -> {golden.renewal}"]
    if comparison.state == FAILED:
        return [f"{golden.name}: {comparison.problem}"]
    if comparison.state == RENEWED:
        return [f"{golden.name}: recorded", *(figures.format_moves(moves) if moves else [])]
    if comparison.state == SAME:
        count = len(moves)
        within = f", {count} of them moved by at most {figures.TOLERANCE:.0%}" if count else ""
        return [f"{golden.name}: {len(golden.figures)} figures as recorded{within}"]
    exceeding = [move for move in moves if move.exceeds_tolerance]
    share = f"{len(exceeding)} of {len(golden.figures)} figures"
    return [
        f"{golden.name}: {share} moved by more than {figures.TOLERANCE:.0%}",
        *figures.format_moves(exceeding),
        f"  to record it again: {golden.renewal}",
    ]
