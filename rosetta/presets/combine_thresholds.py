"""Up to how many bytes XLA combines collectives, from the bytes of a model's own layers.

A combiner joins neighbours of a kind until their outputs together are larger than a threshold. One
layer's worth is the point of it: its arrays go in one call, and the call runs while another layer
computes. For a layer of P parameters, with gradients in float32 and kernels that are gathered in
bfloat16:

  all-reduce      4 P / tensor          gradients of a layer, whole on each device
  all-gather      2 P / tensor          kernels of a layer, as they come out
  reduce-scatter  4 P / tensor / fsdp   gradients of a layer, a device's share

P is that of the largest layer; what is small in it (norms, biases, a router) is left out. Of a
layer of experts the experts are, too: they stay on the devices that they are routed to, and are not
reduced over them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.core.errors import MISSING, UserError
from rosetta.core.variables.setting_values import read_setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.presets.resolution import ResolvedPreset

GRADIENT_BYTES, GATHERED_BYTES = (
    4,
    2,
)  # bytes of a parameter's gradient, and of what is gathered of it
PLACE = "combine: layers"


def compute_thresholds(parameters: int, tensor: int, fsdp: int) -> dict[str, int]:
    """Return the options of XLA for a layer of so many parameters, each of them split `tensor`
    ways, and kept in `fsdp` parts; bytes.
    """
    part = parameters // tensor
    return {
        "xla_gpu_all_reduce_combine_threshold_bytes": GRADIENT_BYTES * part,
        "xla_gpu_all_gather_combine_threshold_bytes": GATHERED_BYTES * part,
        "xla_gpu_reduce_scatter_combine_threshold_bytes": GRADIENT_BYTES * part // fsdp,
    }


def derive_thresholds(
    found: ResolvedPreset, model: str, mesh: Mapping[str, list[int]], devices: int
) -> dict[str, int]:
    """Return the options of XLA for a run of a model.

    Args:
      found: the run's values.
      model: T5_SIZE, or an experiment.
      mesh: of Pax, "ici" and "dcn".
      devices: GPUs of the run.

    Raises:
      UserError: the model's sizes, or its mesh, are not known here.
    """
    if found.framework == "t5x":
        settings = {name: found.get(f"settings.{name}") or "" for name in ("TP_SIZE", "FSDP")}
        tensor = read_setting(settings, "TP_SIZE")
        return compute_thresholds(
            _count_t5_layer_parameters(model),
            tensor,
            devices // tensor if read_setting(settings, "FSDP") else 1,
        )
    if missing := [name for name in ("ici", "dcn") if name not in mesh]:
        raise UserError(
            f"how a layer is split is not known: there is no mesh.{missing[0]}",
            PLACE,
            "name it, or leave out `combine: layers`",
            kind=MISSING,
        )
    fsdp, tensor = (mesh["ici"][axis] * mesh["dcn"][axis] for axis in (1, 2))
    return compute_thresholds(_count_pax_layer_parameters(model, found.group("fdl")), tensor, fsdp)


def _count_t5_layer_parameters(size: str) -> int:
    """Parameters of a decoder's layer: four products of attention, twice, and three of a gated
    feed-forward part.
    """
    from rosetta.t5x.run import gin_files, gin_reader, network_fields

    file = gin_files.ROOT / gin_files.find_model_file("t5_1_1", size)
    configuration = gin_reader.read_configuration([file], [gin_files.ROOT])
    embedding, heads, width, hidden = (
        _require_size(network_fields.read_field(configuration, name), name, size)
        for name in ("emb_dim", "num_heads", "head_dim", "mlp_dim")
    )
    return 8 * embedding * heads * width + 3 * embedding * hidden


def _count_pax_layer_parameters(config: str, fdl: Mapping[str, Any]) -> int:
    """Parameters of a layer: queries and output by heads, keys and values by theirs, and two
    products of a feed-forward part, three of a gated one.
    """
    from rosetta.pax.run import hyper_parameters

    known = {**hyper_parameters.resolve_values(config, {}), **fdl}
    dims, heads, hidden = (
        _require_size(known.get(name), name, config)
        for name in ("MODEL_DIMS", "NUM_HEADS", "HIDDEN_DIMS")
    )
    width = known.get("DIMS_PER_HEAD") or dims // heads
    shared = known.get("NUM_KV_HEADS") or heads
    # GLaM's experts are gated.
    gated = bool(known.get("USE_GATED_ACTIVATION")) or known.get("NUM_EXPERTS") is not None
    return (
        dims
        * _require_size(width, "DIMS_PER_HEAD", config)
        * 2
        * (heads + _require_size(shared, "NUM_KV_HEADS", config))
        + (3 if gated else 2) * dims * hidden
    )


def _require_size(value: object, name: str, model: str) -> int:
    if not isinstance(value, int):
        raise UserError(
            f"the size of {model}'s layers is not known: it states no {name}",
            PLACE,
            "set the thresholds themselves (xla_gpu_all_reduce_combine_threshold_bytes, ...)",
            kind=MISSING,
        )
    return value
