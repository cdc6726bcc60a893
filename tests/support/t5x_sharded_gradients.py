"""Print as JSON how gradients with FSDP differ from those without.

test_fsdp.py runs this with four virtual devices.
"""

from __future__ import annotations

import dataclasses
import json
import operator
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from t5x import adafactor, utils

from rosetta.t5x import model, muon, optimizer
from rosetta.t5x.network import Transformer
from rosetta.t5x.partial_optimizer import split_params
from rosetta.t5x.partitioning import PjitPartitioner
from rosetta.t5x.run.model_config import Lora
from rosetta.t5x.trainer import compute_gradients
from tests.support.t5x_topologies import BATCH, CONFIG, LENGTH, NAMES, VOCABULARY, make_batch

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bfloat16": {"dtype": "bfloat16"},
    "fused": {"fuse_qkv": True, "transpose_batch_sequence": True},
    "tied": {"logits_via_embedding": True},
    "narrow logits": {"logits_dtype": "bfloat16"},
    "scanned": {"scan_layers": True, "remat": "minimal", "num_encoder_layers": 2},
    "fp8": {"fp8": "xla"},
    "fused fp8": {"fp8": "xla", "fuse_qkv": True, "remat": "full"},
    "tensor parallel": {},
    "adafactor": {},
    "adamw_rms": {},
    "muon": {},
    "scanned muon": {"scan_layers": True, "num_encoder_layers": 2},
    "adapters": {"lora": Lora(4, 8, ("all",)), "fuse_qkv": True},
    "adapters, tensor parallel": {"lora": Lora(4, 8, ("all",))},
    "adapters, fp8": {"lora": Lora(4, 8), "fp8": "xla", "scan_layers": True},
}
# Variant -> the optimizer whose updates are compared, instead of the gradients.
UPDATES: dict[str, Any] = {
    "adafactor": lambda: adafactor.Adafactor(
        decay_rate=0.8,
        step_offset=0,
        min_dim_size_to_factor=16,
        logical_factor_rules=adafactor.standard_logical_factor_rules(),
    ),
    "adamw_rms": optimizer.adamw_rms,
    "muon": muon.muon,
    "scanned muon": muon.muon,
}


def compute(
    settings: dict[str, Any], *, fsdp: bool, tensor: int, update: Any
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the gradients of a batch on four devices, and each array's share on a device.

    With an optimizer as `update`, it is the change of the parameters instead of the gradients.
    """
    config = dataclasses.replace(CONFIG, **settings)
    made = model.EncoderDecoderModel(
        module=Transformer(config),
        input_vocabulary=VOCABULARY,
        output_vocabulary=VOCABULARY,
        optimizer_def=update() if update else optimizer.adamw(),
    )
    partitioner = PjitPartitioner(tensor, devices=jax.devices()[:4], fsdp=fsdp)
    initializer = utils.TrainStateInitializer(
        made.optimizer_def,
        made.get_initial_variables,
        dict.fromkeys(NAMES, (BATCH, LENGTH)),
        partitioner,
        dict.fromkeys(NAMES, np.int32),
    )
    state = initializer.from_scratch(jax.random.PRNGKey(0))
    if config.lora:  # which begins with zeros, and so do its gradients
        state = state.replace_params(jax.tree.map(lambda leaf: leaf + 0.01, state.params))
    axes = initializer.train_state_axes

    def differentiate(train_state: Any, batch: Any) -> Any:
        trained, frozen = split_params(made.optimizer_def, train_state.params)
        gradients = compute_gradients(
            made,
            trained,
            dict(train_state.flax_mutables),
            batch,
            jax.random.PRNGKey(1),
            2,
            partitioner.data_partition_spec,
            frozen,
        )[0]
        if not update:
            return gradients
        after = train_state.apply_gradient(gradients, learning_rate=0.01)
        return jax.tree.map(operator.sub, after.params, train_state.params)

    gradients = partitioner.partition(
        differentiate,
        in_axis_resources=(axes, partitioner.data_partition_spec),
        out_axis_resources=split_params(made.optimizer_def, axes.params)[0],
    )(state, make_batch(0, BATCH))
    held = {
        name: leaf.addressable_shards[0].data.size / leaf.size
        for name, leaf in flatten_dict(state.state_dict(), sep="/").items()
    }
    return flatten_dict(jax.device_get(gradients), sep="/"), held


def main() -> None:
    found = {}
    for name, settings in VARIANTS.items():
        tensor = 2 if "tensor parallel" in name else 1
        update = UPDATES.get(name)
        plain, whole = compute(settings, fsdp=False, tensor=tensor, update=update)
        sharded, held = compute(settings, fsdp=True, tensor=tensor, update=update)
        found[name] = {
            "difference": max(
                float(np.max(np.abs(plain[leaf] - sharded[leaf])) / np.max(np.abs(plain[leaf])))
                for leaf in plain
            ),
            "held": {leaf: held[leaf] / whole[leaf] for leaf in held},
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
