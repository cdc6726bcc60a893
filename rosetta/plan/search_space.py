"""The settings that `rosetta plan --search` chooses from: splits, microbatches, remat, scan, batch.

A split divides the GPUs of a run into data x fsdp x tensor. The GPUs of a tensor axis share each
matrix product, those of an fsdp axis the parameters and the state of the optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.core.errors import INVALID, UserError
from rosetta.pax.run.experiment_checks import SAVE_DOT_AND_ATTENTION
from rosetta.t5x.run import shard_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

T5X, PAX = "t5x", "pax"
NO_REMAT = "none"
# What the backward pass computes again, the least first. In Pax, only repeated layers can.
T5X_REMAT = (NO_REMAT, "minimal", "full")
PAX_REMAT = (SAVE_DOT_AND_ATTENTION, "save_dot_with_no_batch_dims", "save_nothing")
# A step whose layers are neither scanned over nor repeated compiles for too long with more layers.
MOST_UNROLLED_LAYERS = 48
MOST_MICROBATCHES = 8
MOST_ROWS = 1024


@dataclass(frozen=True)
class Model:
    """The sizes of a model that decide which splits are possible, and what they need.

    Attributes:
        framework: T5X or PAX.
        name: The size of T5, or the experiment of Pax.
        parameters: The parameters of the embedding and of all matrix products.
        trained: Whether the optimizer keeps its state for all parameters (False for LoRA).
        layers: The layers, for T5 those of the encoder and those of the decoder.
        width: The features of activations.
        inner: The features inside the MLP.
        vocabulary: The rows of the embedding.
        tokens: The tokens of a row, of inputs and targets together.
        predicted: The tokens of a row that have logits.
        divided: Name -> size of each dimension that the tensor axis divides.
    """

    framework: str
    name: str
    parameters: int
    trained: bool
    layers: int
    width: int
    inner: int
    vocabulary: int
    tokens: int
    predicted: int
    divided: Mapping[str, int]


@dataclass(frozen=True, order=True)
class Split:
    """The GPUs along each axis of a run."""

    data: int
    fsdp: int
    tensor: int

    @property
    def parts(self) -> int:
        """The parts that the split makes of a batch."""
        return self.data * self.fsdp

    def describe(self) -> str:
        """Return the split as text."""
        return f"data {self.data} x fsdp {self.fsdp} x tensor {self.tensor}"


@dataclass(frozen=True, order=True)
class Candidate:
    """One choice of settings.

    Attributes:
        split: The split of the GPUs.
        remat: What the backward pass computes again, one of T5X_REMAT or PAX_REMAT.
        scanned: Whether one layer is compiled and repeated.
        rows: Sequences of a microbatch in each part of the batch.
        microbatches: The microbatches of a step.
    """

    split: Split
    remat: str
    scanned: bool
    rows: int
    microbatches: int

    @property
    def sequences(self) -> int:
        """The sequences of the global batch."""
        return self.rows * self.microbatches * self.split.parts

    @property
    def layout(self) -> tuple[Split, str, bool]:
        """What decides the program, apart from the batch."""
        return self.split, self.remat, self.scanned

    def describe(self) -> str:
        """Return the candidate as text."""
        layers = "scanned layers" if self.scanned else "unrolled layers"
        return (
            f"{self.split.describe()}, {self.rows} x {self.microbatches} sequences, "
            f"remat {self.remat}, {layers}"
        )


@dataclass(frozen=True)
class Fixed:
    """What the command line fixes; None for what is searched.

    Attributes:
        tensor: GPUs of the tensor axis.
        fsdp: Whether anything is sharded over an fsdp axis.
        remat: What the backward pass computes again.
        scanned: Whether one layer is compiled and repeated.
        microbatches: The microbatches of a step.
        batch_per_gpu: The batch per GPU, see `compute_batch_per_gpu`.
        sequences: Sequences of the global batch.
        split: The whole split.
    """

    tensor: int | None = None
    fsdp: bool | None = None
    remat: str | None = None
    scanned: bool | None = None
    microbatches: int | None = None
    batch_per_gpu: float | None = None
    sequences: int | None = None
    split: Split | None = None

    def allows(self, candidate: Candidate, model: Model) -> bool:
        """Return whether a candidate has what is fixed."""
        split = candidate.split
        checks = (
            (self.split, split),
            (self.tensor, split.tensor),
            (self.fsdp, split.fsdp > 1),
            (self.remat, candidate.remat),
            (self.scanned, candidate.scanned),
            (self.microbatches, candidate.microbatches),
            (self.batch_per_gpu, compute_batch_per_gpu(candidate, model)),
            (self.sequences, candidate.sequences),
        )
        return all(fixed is None or fixed == value for fixed, value in checks)


def compute_batch_per_gpu(candidate: Candidate, model: Model) -> float:
    """Return the batch per GPU as presets count it.

    For T5X, it is the sequences for each group of GPUs that share a model; for Pax, for each GPU.
    """
    rows = candidate.rows * candidate.microbatches
    return float(rows) if model.framework == T5X else rows / candidate.split.tensor


def list_divisors(number: int) -> list[int]:
    """Return the divisors of a number, the smallest first."""
    return [size for size in range(1, number + 1) if number % size == 0]


def list_splits(model: Model, gpus: int, per_node: int, tensor: int | None = None) -> list[Split]:
    """Return the splits of a number of GPUs that the model allows.

    The tensor axis stays within a node, because its communication cannot hide behind anything.

    Args:
        model: The model.
        gpus: GPUs of all nodes.
        per_node: GPUs of a node.
        tensor: The only size of the tensor axis to use; None for all.
    """
    local, nodes = min(gpus, per_node), max(gpus // per_node, 1)
    splits: list[Split] = []
    for size in list_divisors(local):
        fits = all(number % size == 0 for number in model.divided.values())
        if fits and tensor in (None, size):
            splits += _list_splits_of_groups(model, gpus // size, size, local // size, nodes)
    return splits


def _list_splits_of_groups(
    model: Model, groups: int, tensor: int, local: int, nodes: int
) -> Iterator[Split]:
    """Yield the splits of groups of GPUs that share each product.

    Args:
        model: The model.
        groups: The groups.
        tensor: GPUs of a group.
        local: Groups of a node.
        nodes: The nodes.
    """
    if model.framework == T5X:
        yield Split(groups, 1, tensor)
        shards = shard_count.choose_shard_count(groups, local)
        if shards > 1:
            yield Split(groups // shards, shards, tensor)
        return
    for fsdp in list_divisors(groups):
        is_within = fsdp <= local and local % fsdp == 0
        is_across = fsdp % local == 0 and nodes % max(fsdp // local, 1) == 0
        if is_within or is_across:
            yield Split(groups // fsdp, fsdp, tensor)


def list_layer_choices(model: Model) -> list[tuple[str, bool]]:
    """Return the pairs of remat and scan that the model allows."""
    unrolled = model.layers <= MOST_UNROLLED_LAYERS
    if model.framework == T5X:
        return [
            (remat, scan)
            for scan in ((False, True) if unrolled else (True,))
            for remat in T5X_REMAT
        ]
    repeated = [(remat, True) for remat in PAX_REMAT]
    return [(NO_REMAT, False), *repeated] if unrolled else repeated


def list_candidates(
    model: Model, gpus: int, per_node: int, fixed: Fixed, most_sequences: int
) -> list[Candidate]:
    """Return all candidates.

    Args:
        model: The model.
        gpus: GPUs of all nodes.
        per_node: GPUs of a node.
        fixed: What the command line fixes.
        most_sequences: The largest global batch, unless the batch is fixed.

    Raises:
        UserError: There is no candidate: the tensor axis does not divide the model, or no split
            divides the batch.
    """
    splits = list_splits(model, gpus, per_node, fixed.tensor)
    if fixed.split:
        splits = [fixed.split]
    if not splits:
        sizes = ", ".join(f"{size} {name}" for name, size in model.divided.items())
        raise UserError(
            f"{fixed.tensor} GPUs cannot share {model.name}: it has {sizes}, and a node "
            f"{min(gpus, per_node)} GPUs",
            f"--tp {fixed.tensor}",
            "choose one of: " + ", ".join(map(str, _list_tensor_sizes(model, gpus, per_node))),
            kind=INVALID,
            value=fixed.tensor,
        )
    candidates = [
        Candidate(split, remat, scanned, rows, microbatches)
        for split in splits
        for remat, scanned in _list_fixed_layer_choices(model, fixed)
        for rows, microbatches in _list_batches(split, model, fixed, most_sequences)
    ]
    candidates = [candidate for candidate in candidates if fixed.allows(candidate, model)]
    if not candidates:
        raise _make_batch_error(model, gpus, splits, fixed)
    return candidates


def _list_tensor_sizes(model: Model, gpus: int, per_node: int) -> list[int]:
    """Return the sizes of the tensor axis that the model and a node allow."""
    return sorted({split.tensor for split in list_splits(model, gpus, per_node)})


def _list_fixed_layer_choices(model: Model, fixed: Fixed) -> list[tuple[str, bool]]:
    """Return the pairs of remat and scan, with another pair if the command line fixes one."""
    choices = list_layer_choices(model)
    if fixed.remat is not None and fixed.remat not in dict(choices):
        return [(fixed.remat, fixed.scanned is not False)]
    if fixed.scanned is False and all(scanned for _, scanned in choices):
        return [(fixed.remat or NO_REMAT, False)]
    return choices


def _list_batches(
    split: Split, model: Model, fixed: Fixed, most_sequences: int
) -> Iterator[tuple[int, int]]:
    """Yield the rows of a part and the microbatches of each batch to try."""
    total = _find_fixed_rows(split, model, fixed)
    largest = max(most_sequences // split.parts, 1)
    if total is None:
        totals = [*_list_sizes(largest)]
        most = MOST_MICROBATCHES
    else:
        totals, most = [total] if total else [], total
    counts = [2**power for power in range(most.bit_length())]
    for rows_of_step in totals:
        for count in [fixed.microbatches] if fixed.microbatches else counts:
            if rows_of_step % count == 0 and rows_of_step // count <= MOST_ROWS:
                yield rows_of_step // count, count


def _list_sizes(largest: int) -> Iterator[int]:
    """Yield 1, 2, 3, 4, 6, 8, 12, ...: powers of two, and one and a half times as much."""
    size = 1
    while size <= largest:
        yield size
        if size > 1 and size * 3 // 2 <= largest:
            yield size * 3 // 2
        size *= 2


def _find_fixed_rows(split: Split, model: Model, fixed: Fixed) -> int | None:
    """Return the fixed rows of a part in all microbatches: None if free, 0 if impossible."""
    if fixed.sequences is not None:
        rows = fixed.sequences / split.parts
    elif fixed.batch_per_gpu is not None:
        rows = fixed.batch_per_gpu * (split.tensor if model.framework == PAX else 1)
    else:
        return None
    return round(rows) if rows == round(rows) else 0


def _make_batch_error(model: Model, gpus: int, splits: list[Split], fixed: Fixed) -> UserError:
    """Return the error for settings that no split allows."""
    if fixed.sequences is not None:
        parts = sorted({split.parts for split in splits})
        return UserError(
            f"{gpus} GPUs cannot share a batch of {fixed.sequences} sequences in any allowed way",
            f"--global-batch {fixed.sequences}",
            f"give a multiple of one of: {', '.join(map(str, parts))}",
            kind=INVALID,
            value=fixed.sequences,
        )
    return UserError(
        f"the options that are set leave no way to divide the model among {gpus} GPUs",
        "rosetta plan --search",
        f"set fewer of them; {model.name} can be split into "
        + "; ".join(split.describe() for split in splits[:4]),
        kind=INVALID,
    )
