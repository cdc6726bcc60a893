"""Derive the thresholds up to which XLA combines collectives from the sizes of a model's layers.

XLA joins neighbouring collectives of one kind until the sum of their outputs exceeds a threshold.
`combine: layers` sets each threshold to the bytes of one layer. The arrays of a layer are then sent
in one call, and that call overlaps with the computation of another layer. For a layer of P
parameters, with gradients in float32 and kernels that are gathered in bfloat16:

  all-reduce      4 P / tensor          gradients of a layer, whole on each device
  all-gather      2 P / tensor          kernels of a layer, after they are gathered
  reduce-scatter  4 P / tensor / fsdp   gradients of a layer, the share of a device

P counts the largest layer, without its small arrays (norms, biases, a router). In a
mixture-of-experts layer, P does not count the experts: each stays on the device to which tokens are
routed, and is not reduced over the devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.core.errors import MISSING, UserError
from rosetta.core.variables.setting_values import read_setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.presets.resolution import ResolvedPreset

GRADIENT_BYTES = 4  # of the gradient of a parameter
GATHERED_BYTES = 2  # of a parameter in an all-gather
COMBINE_LAYERS = "combine: layers"


def compute_thresholds(parameters: int, tensor: int, fsdp: int) -> dict[str, int]:
    """Return the XLA flags for a layer, flag without dashes -> threshold in bytes.

    Args:
        parameters: The number of parameters of the layer.
        tensor: The number of parts into which tensor parallelism splits the layer.
        fsdp: The number of parts into which FSDP splits each of those.
    """
    part = parameters // tensor
    return {
        "xla_gpu_all_reduce_combine_threshold_bytes": GRADIENT_BYTES * part,
        "xla_gpu_all_gather_combine_threshold_bytes": GATHERED_BYTES * part,
        "xla_gpu_reduce_scatter_combine_threshold_bytes": GRADIENT_BYTES * part // fsdp,
    }


def derive_thresholds(
    resolved: ResolvedPreset, model: str, mesh: Mapping[str, list[int]], devices: int
) -> dict[str, int]:
    """Return the XLA flags for a run, flag without dashes -> threshold in bytes.

    Args:
        resolved: The values of the run.
        model: T5_SIZE, or the Pax experiment.
        mesh: The meshes "ici" and "dcn" of Pax.
        devices: The number of GPUs of the run.

    Raises:
        UserError: The sizes of the model or its mesh are not known.
    """
    if resolved.framework == "t5x":
        settings = {name: resolved.get(f"settings.{name}") or "" for name in ("TP_SIZE", "FSDP")}
        tensor = read_setting(settings, "TP_SIZE")
        fsdp = devices // tensor if read_setting(settings, "FSDP") else 1
        return compute_thresholds(_count_t5_layer_parameters(model), tensor, fsdp)
    for name in ("ici", "dcn"):
        if name not in mesh:
            raise UserError(
                f"the layers are split by a mesh that is not set: mesh.{name}",
                COMBINE_LAYERS,
                f"set mesh.{name}, or leave out `combine: layers`",
                kind=MISSING,
            )
    # A mesh is [data, fsdp, tensor].
    fsdp = mesh["ici"][1] * mesh["dcn"][1]
    tensor = mesh["ici"][2] * mesh["dcn"][2]
    parameters = _count_pax_layer_parameters(model, resolved.group("fdl"))
    return compute_thresholds(parameters, tensor, fsdp)


def _count_t5_layer_parameters(size: str) -> int:
    """Return the parameters of a decoder layer of T5 1.1.

    A layer has self-attention and cross-attention, of four matrices each, and a gated feed-forward
    part of three.
    """
    from rosetta.t5x.run import gin_files, gin_reader, network_fields

    file = gin_files.ROOT / gin_files.find_model_file("t5_1_1", size)
    configuration = gin_reader.read_configuration([file], [gin_files.ROOT])
    embedding, heads, head_size, hidden = (
        _require_size(network_fields.read_field(configuration, name), name, size)
        for name in ("emb_dim", "num_heads", "head_dim", "mlp_dim")
    )
    return 8 * embedding * heads * head_size + 3 * embedding * hidden


def _count_pax_layer_parameters(config: str, fdl: Mapping[str, Any]) -> int:
    """Return the parameters of a layer of a Pax experiment.

    Attention has the matrices of queries and output, and those of keys and values, which may have
    fewer heads. The feed-forward part has two matrices, or three if it is gated.
    """
    from rosetta.pax.run import hyper_parameters

    sizes = {**hyper_parameters.resolve_values(config, {}), **fdl}
    dims, heads, hidden = (
        _require_size(sizes.get(name), name, config)
        for name in ("MODEL_DIMS", "NUM_HEADS", "HIDDEN_DIMS")
    )
    head_size = _require_size(sizes.get("DIMS_PER_HEAD") or dims // heads, "DIMS_PER_HEAD", config)
    kv_heads = _require_size(sizes.get("NUM_KV_HEADS") or heads, "NUM_KV_HEADS", config)
    # GLaM is gated too: its experts are.
    gated = bool(sizes.get("USE_GATED_ACTIVATION")) or sizes.get("NUM_EXPERTS") is not None
    attention = 2 * dims * head_size * (heads + kv_heads)
    feed_forward = (3 if gated else 2) * dims * hidden
    return attention + feed_forward


def _require_size(value: object, name: str, model: str) -> int:
    """Return a size of a model.

    Raises:
        UserError: The model does not state it as a whole number.
    """
    if not isinstance(value, int):
        raise UserError(
            f"{model} does not state the size {name} of its layers",
            COMBINE_LAYERS,
            "set the thresholds themselves (xla_gpu_all_reduce_combine_threshold_bytes, ...)",
            kind=MISSING,
        )
    return value
