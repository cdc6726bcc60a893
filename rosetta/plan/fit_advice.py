"""The smallest change with which a step that does not fit is estimated to fit.

The compiled step says how much memory it needs beside its state. The estimates of layout_estimate
say how a change alters both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rosetta.pax.run.experiment_checks import SAVE_DOT_AND_ATTENTION
from rosetta.plan import layout_estimate, search_space, searched_run
from rosetta.plan.search_space import NO_REMAT, PAX_REMAT, T5X, T5X_REMAT, Candidate, Split
from rosetta.t5x.run import shard_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rosetta.core.gpus import Gpu
    from rosetta.plan.search_space import Model

MOST_CHANGES = 3
# An estimate has to fit with this share of the memory.
CAUTION = 0.95


@dataclass(frozen=True)
class PlannedStep:
    """A step that was compiled.

    Attributes:
        model: Its model.
        candidate: Its settings.
        gpu: The GPU.
        nodes: The number of nodes.
        per_node: GPUs of each node.
        peak: The peak memory of a GPU, in bytes.
    """

    model: Model
    candidate: Candidate
    gpu: Gpu
    nodes: int
    per_node: int
    peak: float

    def estimate_peak(self, candidate: Candidate) -> float:
        """Return the memory that other settings are estimated to need, in bytes."""
        old = layout_estimate.estimate(self.model, self.candidate, self.gpu, self.per_node)
        new = layout_estimate.estimate(self.model, candidate, self.gpu, self.per_node)
        factor = max(self.peak - old.state, 0.0) / max(old.activations, 1.0)
        return new.state + factor * new.activations

    def estimate_rate(self, candidate: Candidate) -> float:
        """Return the sequences per second that settings are estimated to reach, to compare them."""
        estimate = layout_estimate.estimate(self.model, candidate, self.gpu, self.per_node)
        return candidate.sequences / estimate.seconds


def report_change(step: PlannedStep | None, usable: float) -> dict[str, Any] | None:
    """Return the smallest change as `run.change` of the JSON of `rosetta plan`; None for none.

    Args:
        step: The step that does not fit; None if the sizes of its model are not known.
        usable: The memory of a GPU that JAX takes, in bytes.
    """
    change = find_change(step, usable) if step else None
    return {"words": change[0], "estimated_peak": change[1]} if change else None


def find_change(step: PlannedStep, usable: float) -> tuple[list[str], float] | None:
    """Return the words of the smallest change that is estimated to fit, and its peak in bytes.

    One change is smaller than two. Of equally many, those that keep the batch come first, and then
    the fastest.

    Args:
        step: The step that does not fit.
        usable: The memory of a GPU that JAX takes, in bytes.

    Returns:
        None if no few changes are estimated to be enough.
    """
    changed = {step.candidate}
    seen = set(changed)
    for _ in range(MOST_CHANGES):
        changed = {other for candidate in changed for other in _list_changes(step, candidate)}
        changed -= seen
        seen |= changed
        fitting = [other for other in changed if step.estimate_peak(other) <= CAUTION * usable]
        if fitting:
            best = max(
                fitting,
                key=lambda other: (
                    other.sequences == step.candidate.sequences,
                    step.estimate_rate(other),
                    other,
                ),
            )
            return describe_change(step, best), step.estimate_peak(best)
    return None


def _list_changes(step: PlannedStep, candidate: Candidate) -> Iterator[Candidate]:
    """Yield the settings that differ from others in one thing, and need less memory."""
    split, rows = candidate.split, candidate.rows
    levels = T5X_REMAT if step.model.framework == T5X else (NO_REMAT, *PAX_REMAT)
    index = levels.index(candidate.remat) if candidate.remat in levels else len(levels)
    for remat in levels[index + 1 :]:
        scanned = candidate.scanned or step.model.framework != T5X
        yield replace(candidate, remat=remat, scanned=scanned)
    if rows % 2 == 0:
        yield replace(candidate, rows=rows // 2, microbatches=2 * candidate.microbatches)
        yield replace(candidate, rows=rows // 2)
    splits = search_space.list_splits(step.model, step.nodes * step.per_node, step.per_node)
    sharded = [
        other for other in splits if other.tensor == split.tensor and other.fsdp > split.fsdp
    ]
    if sharded:
        yield replace(candidate, split=max(sharded, key=lambda other: other.fsdp))
    wider = Split(split.data, split.fsdp // 2, 2 * split.tensor)
    if split.data % 2 == 0:
        wider = Split(split.data // 2, split.fsdp, 2 * split.tensor)
    if wider in splits:
        yield replace(candidate, split=wider, rows=2 * rows)


def describe_change(step: PlannedStep, changed: Candidate) -> list[str]:
    """Return the words of `rosetta plan` that make other settings of those of a step."""
    if step.model.framework == T5X:
        return _describe_t5x_change(step, changed)
    old = step.candidate
    within, across = searched_run.split_mesh(changed.split, step.nodes, step.per_node)
    words = (
        (_changes_batch(step, changed), f"PERCORE_BATCH_SIZE={_format_batch(step, changed)}"),
        (old.microbatches != changed.microbatches, f"NUM_MICROBATCHES={changed.microbatches}"),
        (old.split != changed.split, f"ICI_MESH_SHAPE={within}".replace(" ", "")),
        (old.split != changed.split, f"DCN_MESH_SHAPE={across}".replace(" ", "")),
        (old.scanned != changed.scanned, f"USE_REPEATED_LAYER={changed.scanned}"),
        (old.remat != changed.remat, f"CHECKPOINT_POLICY={changed.remat}"),
    )
    return ["--with", *(word for differs, word in words if differs)]


def _describe_t5x_change(step: PlannedStep, changed: Candidate) -> list[str]:
    """Return the words for a step of T5X."""
    old = step.candidate
    words = (
        (_changes_batch(step, changed), f"--batch-per-gpu {_format_batch(step, changed)}"),
        (old.microbatches != changed.microbatches, f"--microbatches {changed.microbatches}"),
        (old.split.tensor != changed.split.tensor, f"--tp {changed.split.tensor}"),
        (old.split.fsdp == 1 < changed.split.fsdp, "--fsdp"),
        (old.remat != changed.remat, f"--with remat={changed.remat}"),
    )
    return [word for differs, word in words if differs]


def _changes_batch(step: PlannedStep, changed: Candidate) -> bool:
    """Return whether other settings have another batch per GPU."""
    old = search_space.compute_batch_per_gpu(step.candidate, step.model)
    return old != search_space.compute_batch_per_gpu(changed, step.model)


def _format_batch(step: PlannedStep, changed: Candidate) -> str:
    """Return the batch per GPU of other settings."""
    return searched_run.format_batch(search_space.compute_batch_per_gpu(changed, step.model))


def read_t5x_candidate(
    gpus: int,
    per_node: int,
    tensor: int,
    batch_per_gpu: int,
    microbatches: int,
    *,
    fsdp: bool,
    remat: str,
    scanned: bool,
) -> Candidate:
    """Return the candidate that the options of `rosetta plan t5x` are."""
    groups = gpus // tensor
    local = max(per_node // tensor, 1)
    shards = shard_count.choose_shard_count(groups, local) if fsdp else 1
    split = Split(groups // shards, shards, tensor)
    return Candidate(split, remat, scanned, batch_per_gpu // microbatches, microbatches)


def read_pax_candidate(experiment: Any) -> Candidate:
    """Return the candidate that an experiment is.

    Args:
        experiment: An instance of an experiment class, with its hyper-parameters set.
    """
    within, across = experiment.ICI_MESH_SHAPE, experiment.DCN_MESH_SHAPE or (1, 1, 1)
    data, fsdp, tensor = (inner * outer for inner, outer in zip(within, across, strict=True))
    microbatches = getattr(experiment, "NUM_MICROBATCHES", 1)
    rows = max(round(experiment.PERCORE_BATCH_SIZE * tensor / microbatches), 1)
    repeated = bool(getattr(experiment, "USE_REPEATED_LAYER", False))
    policy = experiment.CHECKPOINT_POLICY
    remat = str(getattr(policy, "value", policy)) if repeated else NO_REMAT
    if repeated and getattr(experiment, "keeps_attention", False):
        remat = SAVE_DOT_AND_ATTENTION
    return Candidate(Split(data, fsdp, tensor), remat, repeated, rows, microbatches)
