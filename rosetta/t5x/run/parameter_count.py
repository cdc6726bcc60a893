"""The number of parameters of a T5 and the size of its checkpoints, from a run's gin files.

They are known before JAX starts, and where JAX is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core import disk_space
from rosetta.core.not_known import NOT_KNOWN
from rosetta.t5x.run import evaluation_history, network_fields
from rosetta.t5x.run.gin_text import Reference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.t5x.run.gin_reader import Configuration

_SIZES = (
    "vocab_size",
    "emb_dim",
    "num_heads",
    "head_dim",
    "mlp_dim",
    "num_encoder_layers",
    "num_decoder_layers",
)
TOTAL_STEPS = "__main__.train.total_steps"
SAVE_SETTING = "t5x.utils.CheckpointConfig.save"
SAVE_CONFIG = "t5x.utils.SaveCheckpointConfig"
TRACKER = "rosetta.t5x.best_checkpoint.make_tracker"
FINETUNING_STEPS = "rosetta.t5x.pretrained.total_steps"  # counts from the first checkpoint
# Optimizer -> the moments of a kernel in its state.
_MOMENTS = {
    Reference("rosetta.t5x.optimizer.adamw"): disk_space.ADAM_MOMENTS,
    Reference("rosetta.t5x.optimizer.adamw_rms"): disk_space.ADAM_MOMENTS,
    Reference("rosetta.t5x.muon.muon"): 1,
}
_LORA_RANK = "rosetta.t5x.adapters.make_lora.rank"


def count_kernel_parameters(configuration: Configuration) -> int | None:
    """Count the parameters of the embedding and of all matrix products.

    Norms and biases are left out. With V = vocab_size, d = emb_dim, w = num_heads x head_dim,
    f = mlp_dim, g kernels into the MLP, E encoder and D decoder layers, the number is
      V d (twice without logits_via_embedding) + E (4 d w + (g + 1) d f) + D (8 d w + (g + 1) d f).
    A decoder-only network (E = 0) has 4 d w instead of 8 d w.

    Returns:
      The number; None if the gin files leave a size open.
    """
    sizes: list[int] = []
    for name in _SIZES:
        size = network_fields.read_count(configuration, name)
        if size is None:
            return None
        sizes.append(size)
    activations = network_fields.read_field(configuration, "mlp_activations")
    is_shared = network_fields.read_field(configuration, "logits_via_embedding")
    if not isinstance(activations, (tuple, list)) or is_shared is NOT_KNOWN:
        return None
    vocabulary, width, heads, head_dim, mlp_dim, encoder_layers, decoder_layers = sizes
    if network_fields.find_network(configuration) == network_fields.DECODER_ONLY:
        encoder_layers = 0
    embeddings = (1 if is_shared else 2) * vocabulary * width
    attention_kernel = width * heads * head_dim
    mlp_kernels = (len(activations) + 1) * width * mlp_dim
    decoder_kernels = 8 if encoder_layers else 4
    return (
        embeddings
        + encoder_layers * (4 * attention_kernel + mlp_kernels)
        + decoder_layers * (decoder_kernels * attention_kernel + mlp_kernels)
    )


def find_last_step(configuration: Configuration, first_step: int) -> int | None:
    """Return the step at which a run ends; None if its gin files leave it open.

    Args:
      configuration: the run's gin files and bindings.
      first_step: the step of the checkpoint that finetuning starts from; 0 if it is not known.
    """
    relative = "__main__.train.relative_steps"
    if configuration.binds(relative) and configuration.value(relative) is not None:
        return None
    if configuration.value(TOTAL_STEPS) != Reference(FINETUNING_STEPS):
        return configuration.integer(TOTAL_STEPS)
    more = configuration.integer(f"{FINETUNING_STEPS}.more")
    return first_step + more if first_step and more is not None else None


def check_checkpoint_space(
    configuration: Configuration,
    folder: str,
    saved_steps: Sequence[int],
    first_step: int,
    name: str,
) -> tuple[str, ...]:
    """Check that a run's checkpoints fit on the disk.

    Nothing is checked if the run saves no checkpoints, or if the gin files leave open how long it
    trains. The trainer also compares the size of one checkpoint with the free space.

    Args:
      configuration: the run's gin files and bindings.
      folder: the folder where the run saves.
      saved_steps: the steps of the checkpoints in the folder.
      first_step: the step of the checkpoint that the run starts from if `saved_steps` is empty; 0
        for none.
      name: the name of the folder's variable.

    Returns:
      A line if not all checkpoints fit, else nothing.

    Raises:
      UserError: not even one checkpoint fits, or the evaluations of the run cannot be read.
    """
    count = count_kernel_parameters(configuration)
    end = find_last_step(configuration, first_step)
    period = configuration.integer(f"{SAVE_CONFIG}.period")
    keep = configuration.value(f"{SAVE_CONFIG}.keep")
    saves = configuration.value(SAVE_SETTING) == Reference(SAVE_CONFIG)
    if count is None or end is None or period is None or period < 1 or not saves:
        return ()
    if keep is not None and not isinstance(keep, int):
        return ()
    model = network_fields.find_model(configuration)
    optimizer = configuration.value(f"{model}.optimizer_def")
    moments = disk_space.FLOAT_BYTES * (
        _MOMENTS.get(optimizer, 0) if isinstance(optimizer, Reference) else 0
    )
    # A frozen parameter has no moments. How many are frozen is not known here.
    limits = (configuration.value(f"{model}.freeze"), configuration.value(_LORA_RANK))
    if any(limit not in (None, NOT_KNOWN) for limit in limits):
        moments = 0
    is_float = configuration.value(f"{SAVE_CONFIG}.dtype") == "float32"
    width = disk_space.FLOAT_BYTES if is_float else disk_space.FLOAT_BYTES // 2
    remaining_steps = max(end - max(saved_steps, default=first_step), 0)
    checkpoints = -(-remaining_steps // period)
    existing = len(saved_steps)
    if keep is not None and configuration.value(f"{TRACKER}.keep_best") not in (None, NOT_KNOWN):
        keep += 1  # the best one
        keeps_older = configuration.value(f"{TRACKER}.keeps_older") is True
        existing = evaluation_history.count_deletable(folder, saved_steps, keeps_older=keeps_older)
    return disk_space.check_checkpoints_fit(
        folder,
        count * (width + moments),
        disk_space.count_added_checkpoints(checkpoints, keep, existing),
        name,
    )
