"""Count the parameters of an experiment before JAX starts, to estimate the size of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core import disk_space, run_folders
from rosetta.core.not_known import NOT_KNOWN
from rosetta.core.value_parsing import is_address
from rosetta.pax.run import experiment_checks, hyper_parameters, preflight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NO_CHECKPOINTS = "--enable_checkpoint_saving=False"  # an option of Paxml
_SIZES = ("MODEL_DIMS", "HIDDEN_DIMS", "NUM_LAYERS", "NUM_HEADS", "VOCAB_SIZE")
_OPTIONAL_SIZES = (
    "DIMS_PER_HEAD",
    "NUM_KV_HEADS",
    "USE_MQA",
    "NUM_EXPERTS",
    "USE_GATED_ACTIVATION",
)


def count_parameters(known: Mapping[str, object]) -> int | None:
    """Return the parameters of the embedding and of all matrix products.

    With d = MODEL_DIMS, w = DIMS_PER_HEAD x (NUM_HEADS + NUM_KV_HEADS), f = HIDDEN_DIMS, k kernels
    into and out of an MLP, V = VOCAB_SIZE, and E experts in M = L / 2 of L layers, the count is
    V d + L 2 d w + (L - M) k d f + M E 2 d f. Norms, biases, positions, routers and the weights of
    a separate softmax are left out.

    Args:
      known: The hyper-parameters by name, as `hyper_parameters.resolve_values` returns them.

    Returns:
      The number, or None if a size is not known.
    """
    sizes = [size for size in map(known.get, _SIZES) if isinstance(size, int)]
    if len(sizes) != len(_SIZES):
        return None
    if any(known.get(name) is NOT_KNOWN for name in _OPTIONAL_SIZES):
        return None
    model_dims, hidden_dims, layers, heads, vocabulary = sizes
    head_dims = known.get("DIMS_PER_HEAD")
    if not isinstance(head_dims, int):
        head_dims = model_dims // heads
    kv_heads = known.get("NUM_KV_HEADS") if known.get("USE_MQA") else heads
    if not isinstance(kv_heads, int):
        kv_heads = heads
    width = head_dims * (heads + kv_heads)
    experts, moe_layers = known.get("NUM_EXPERTS"), layers // 2
    if not isinstance(experts, int):
        experts, moe_layers = 0, 0
    kernels = 3 if known.get("USE_GATED_ACTIVATION") or moe_layers else 2
    dense_mlp = kernels * model_dims * hidden_dims
    return (
        vocabulary * model_dims
        + layers * 2 * model_dims * width
        + (layers - moe_layers) * dense_mlp
        + moe_layers * experts * 2 * model_dims * hidden_dims
    )


def check_disk_space(
    config: str, folder: str, hyper: Mapping[str, str], words: Sequence[str] = ()
) -> tuple[str, ...]:
    """Check that the checkpoints of a training run fit on the disk.

    Nothing is known of an experiment of the user, or of a hyper-parameter that only Python can
    compute. The check then passes.

    Args:
      config: The experiment.
      folder: The folder of the run.
      hyper: The literals of the hyper-parameters that the run sets, by name.
      words: Other arguments of Paxml.

    Returns:
      A warning if one checkpoint fits but not all of them, else nothing.

    Raises:
      UserError: There is no space for one checkpoint.
    """
    known = hyper_parameters.resolve_values(config, hyper, words)
    parameters = count_parameters(known)
    last_step = known.get("MAX_STEPS")
    period = known.get("CHECKPOINT_EVERY_N_STEPS")
    keep = known.get("CHECKPOINT_MAX_TO_KEEP")
    lora = known.get("USE_LORA", False)
    if parameters is None or not isinstance(last_step, int) or NOT_KNOWN in (period, keep, lora):
        return ()
    steps = []
    if not is_address(folder):
        steps = run_folders.list_checkpoint_steps(f"{folder}/{preflight.CHECKPOINTS}")
    steps_left = last_step - max(steps, default=0)
    saves = 0
    if isinstance(period, int) and period > 0 and steps_left > 0:
        # A new run also saves its first step.
        saves = -(-steps_left // period) + (not steps)
    # With LoRA the optimizer keeps no moments of the frozen weights.
    frozen = experiment_checks.read_switch("USE_LORA", lora)
    moments = 0 if frozen else disk_space.ADAM_MOMENTS
    kept = keep if isinstance(keep, int) and keep > 0 else None
    return disk_space.check_checkpoints_fit(
        folder,
        parameters * (1 + moments) * disk_space.FLOAT_BYTES,
        disk_space.count_added_checkpoints(saves, kept, len(steps)),
        "LOG_DIR",
    )
