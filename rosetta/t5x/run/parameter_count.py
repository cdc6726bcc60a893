"""How many parameters a T5 has, by what its gin files bind: enough to know a checkpoint's size
before JAX is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core import disk_space
from rosetta.core.not_known import NOT_KNOWN
from rosetta.t5x.run import network_fields
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
FINETUNING_STEPS = "rosetta.t5x.pretrained.total_steps"  # counts from the checkpoint
_ADAM = Reference("rosetta.t5x.optimizer.adamw")


def count_kernel_parameters(configuration: Configuration) -> int | None:
    """Return the parameters of the embedding and of all matrix products; None where the files leave
    a size open. Norms and biases are left out.

    With d = emb_dim, w = num_heads x head_dim, f = mlp_dim, g kernels into the MLP, E and D layers:
      V d (twice without logits_via_embedding) + E (4 d w + (g + 1) d f) + D (8 d w + (g + 1) d f);
      a decoder alone (E = 0) has 4 d w.
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
    vocabulary, d, heads, head, mlp, encoder, decoder = sizes
    if network_fields.find_network(configuration) == network_fields.DECODER_ONLY:
        encoder = 0
    wide, feed = d * heads * head, (len(activations) + 1) * d * mlp
    return (
        (1 if is_shared else 2) * vocabulary * d
        + encoder * (4 * wide + feed)
        + decoder * ((8 if encoder else 4) * wide + feed)
    )


def find_last_step(configuration: Configuration, begun: int) -> int | None:
    """Return the step at which a run ends, or None where its gin files leave it open.

    Args:
      configuration: its gin files and its bindings.
      begun: the step of the checkpoint that a finetuning starts from; 0 if it is not known.
    """
    relative = "__main__.train.relative_steps"
    if configuration.binds(relative) and configuration.value(relative) is not None:
        return None
    if configuration.value(TOTAL_STEPS) != Reference(FINETUNING_STEPS):
        return configuration.integer(TOTAL_STEPS)
    more = configuration.integer(f"{FINETUNING_STEPS}.more")
    return begun + more if begun and more is not None else None


def check_checkpoint_space(
    configuration: Configuration, folder: str, own: Sequence[int], begun: int, name: str
) -> tuple[str, ...]:
    """Return a line where a run's checkpoints do not all fit, see disk_space; nothing where
    the files leave open how long it trains, or it saves none. The trainer compares one checkpoint
    with the disk, too.

    Args:
      configuration: its gin files and its bindings.
      folder: where it saves.
      own: the steps of the checkpoints there.
      begun: the step of the checkpoint that it starts from where `own` is empty, 0 without.
      name: of the folder's variable.

    Raises:
      UserError: there is no room for one.
    """
    count = count_kernel_parameters(configuration)
    end = find_last_step(configuration, begun)
    period = configuration.integer(f"{SAVE_CONFIG}.period")
    keep = configuration.value(f"{SAVE_CONFIG}.keep")
    saves = configuration.value(SAVE_SETTING) == Reference(SAVE_CONFIG)
    if count is None or end is None or period is None or period < 1 or not saves:
        return ()
    if keep is not None and not isinstance(keep, int):
        return ()
    model = network_fields.find_model(configuration)
    is_adam = configuration.value(f"{model}.optimizer_def") == _ADAM
    moments = disk_space.ADAM_MOMENTS * disk_space.FLOAT_BYTES if is_adam else 0
    is_float = configuration.value(f"{SAVE_CONFIG}.dtype") == "float32"
    width = disk_space.FLOAT_BYTES if is_float else disk_space.FLOAT_BYTES // 2
    checkpoints = -(-max(end - max(own, default=begun), 0) // period)
    return disk_space.check_checkpoints_fit(
        folder,
        count * (width + moments),
        disk_space.count_added_checkpoints(checkpoints, keep, len(own)),
        name,
    )
