"""How many parameters an experiment has, by the hyper-parameters that it states: enough to know a
checkpoint's size before JAX is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core import disk_space, run_folders
from rosetta.core.not_known import NOT_KNOWN
from rosetta.core.value_parsing import is_address
from rosetta.pax.run import experiment_checks, hyper_parameters, preflight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NO_CHECKPOINTS = "--enable_checkpoint_saving=False"  # a word of Paxml's program
_WIDTHS = ("DIMS_PER_HEAD", "NUM_KV_HEADS", "USE_MQA", "NUM_EXPERTS", "USE_GATED_ACTIVATION")


def count_parameters(known: Mapping[str, object]) -> int | None:
    """Return the parameters of the embedding and of all matrix products of these hyper-parameters;
    None where one is not known.

    With d = MODEL_DIMS, w = DIMS_PER_HEAD x (NUM_HEADS + NUM_KV_HEADS), f = HIDDEN_DIMS, k kernels
    into and out of an MLP, E experts in every second of L layers: V d + L 2 d w + (L - M) k d f + M
    E k d f. Norms, biases, positions, routers and a softmax of its own are left out.
    """
    d, hidden, layers, heads, vocabulary = (
        known.get(name)
        for name in ("MODEL_DIMS", "HIDDEN_DIMS", "NUM_LAYERS", "NUM_HEADS", "VOCAB_SIZE")
    )
    if not (
        isinstance(d, int)
        and isinstance(hidden, int)
        and isinstance(layers, int)
        and isinstance(heads, int)
        and isinstance(vocabulary, int)
    ):
        return None
    if any(known.get(name) is NOT_KNOWN for name in _WIDTHS):
        return None
    head, shared, experts = (
        known.get("DIMS_PER_HEAD"),
        known.get("NUM_KV_HEADS") if known.get("USE_MQA") else None,
        known.get("NUM_EXPERTS"),
    )
    wide = (head if isinstance(head, int) else d // heads) * (
        heads + (shared if isinstance(shared, int) else heads)
    )
    sparse = layers // 2 if isinstance(experts, int) else 0
    feed = (3 if known.get("USE_GATED_ACTIVATION") or sparse else 2) * d * hidden
    return (
        vocabulary * d
        + layers * 2 * d * wide
        + (layers - sparse) * feed
        + (sparse * experts * 2 * d * hidden if isinstance(experts, int) else 0)
    )


def check_disk_space(
    config: str, folder: str, hyper: Mapping[str, str], words: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return a line where the checkpoints of a training run do not all fit, see disk_space;
    nothing for experiments that are not ours.

    Args:
      config: the experiment.
      folder: of the run.
      hyper: its hyper-parameters as --fdl has them.
      words: for Paxml's program.

    Raises:
      UserError: there is no room for one.
    """
    known = hyper_parameters.resolve_values(config, hyper, words)
    count, end = count_parameters(known), known.get("MAX_STEPS")
    periods = [known.get(name) for name in ("CHECKPOINT_EVERY_N_STEPS", "CHECKPOINT_MAX_TO_KEEP")]
    frozen = known.get("USE_LORA", False)
    if count is None or not isinstance(end, int) or NOT_KNOWN in (*periods, frozen):
        return ()
    every, keep = (period if isinstance(period, int) and period > 0 else None for period in periods)
    own = (
        []
        if is_address(folder)
        else run_folders.list_checkpoint_steps(f"{folder}/{preflight.CHECKPOINTS}")
    )
    left = end - max(own, default=0)
    saves = -(-left // every) + (not own) if every and left > 0 else 0  # the first step's, too
    moments = 0 if experiment_checks.read_switch("USE_LORA", frozen) else disk_space.ADAM_MOMENTS
    return disk_space.check_checkpoints_fit(
        folder,
        count * (1 + moments) * disk_space.FLOAT_BYTES,
        disk_space.count_added_checkpoints(saves, keep, len(own)),
        "LOG_DIR",
    )
