"""How many parameters a T5 has, by what its gin files bind: enough to know a checkpoint's size
before JAX is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core import disk_space
from rosetta.t5x.run import gin_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SIZES = (
    "vocab_size",
    "emb_dim",
    "num_heads",
    "head_dim",
    "mlp_dim",
    "num_encoder_layers",
    "num_decoder_layers",
)
_ADAM = "@optimizer.adamw()"


def kernels(bound: Mapping[str, str]) -> int | None:
    """Return the parameters of the embedding and of all matrix products; None where a size is no
    number in the files. Norms and biases are left out.

    With d = emb_dim, w = num_heads x head_dim, f = mlp_dim, g kernels into the MLP, E and D layers:
      V d (twice without logits_via_embedding) + E (4 d w + (g + 1) d f) + D (8 d w + (g + 1) d f);
      a decoder alone (E = 0) has 4 d w.
    """
    found = {name: gin_text.value(bound, f"network.T5Config.{name}") for name in _SIZES}
    activations = gin_text.value(bound, "network.T5Config.mlp_activations")
    sizes = [each for each in found.values() if isinstance(each, int)]
    if len(sizes) < len(_SIZES) or not isinstance(activations, tuple):
        return None
    vocabulary, d, heads, head, mlp, encoder, decoder = sizes
    wide, feed = d * heads * head, (len(activations) + 1) * d * mlp
    tables = 1 if gin_text.value(bound, "network.T5Config.logits_via_embedding") else 2
    return (
        tables * vocabulary * d
        + encoder * (4 * wide + feed)
        + decoder * ((8 if encoder else 4) * wide + feed)
    )


def find_last_step(bound: Mapping[str, str], begun: int) -> int | None:
    """Return the step at which a run ends, or None where its gin files do not say it as a number.

    Args:
      bound: what its gin files and its bindings bind, as ginread reads them.
      begun: the step of the checkpoint that a finetuning starts from.
    """
    end, more = gin_text.value(bound, "TRAIN_STEPS"), gin_text.value(bound, "FT_STEPS")
    if "@" in bound.get("TRAIN_STEPS", "") and isinstance(more, int):
        return begun + more
    return end if isinstance(end, int) else None


def room(
    bound: Mapping[str, str], folder: str, own: Sequence[int], begun: int, name: str
) -> tuple[str, ...]:
    """Return a line where a run's checkpoints do not all fit, see space.check; nothing where the
    files do not say how long it trains, or it saves none.

    Args:
      bound: what its gin files and its bindings bind, as ginread reads them.
      folder: where it saves.
      own: the steps of the checkpoints there.
      begun: the step of the checkpoint that it starts from where `own` is empty, 0 without.
      name: of the folder's variable.

    Raises:
      UserError: there is no room for one.
    """
    count = kernels(bound)
    end, period, keep = (
        find_last_step(bound, begun),
        gin_text.value(bound, "SAVE_PERIOD"),
        gin_text.value(bound, "KEEP"),
    )
    if (
        count is None
        or end is None
        or not isinstance(period, int)
        or period < 1
        or bound.get("utils.CheckpointConfig.save") == "None"
    ):
        return ()
    moments = (
        disk_space.ADAM * disk_space.FLOAT if bound.get("OPTIMIZER", "").strip() == _ADAM else 0
    )
    width = (
        disk_space.FLOAT
        if gin_text.value(bound, "utils.SaveCheckpointConfig.dtype") == "float32"
        else disk_space.FLOAT // 2
    )
    saves = -(-max(end - max(own, default=begun), 0) // period)
    return disk_space.check(
        folder,
        count * (width + moments),
        disk_space.at_once(saves, keep if isinstance(keep, int) else None, len(own)),
        name,
    )
