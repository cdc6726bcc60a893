"""A training step of rosetta's T5 network, every switch off, against upstream's with the same
parameters: turn about, median of the pairs.

    PYTHONPATH=. JAX_PLATFORMS=cpu build/t5x-cpu/opt/rosetta/env/bin/python \\
        -m bench.network [--size small] [--turns 15]

Prints one JSON document; `ratio` is ours to upstream's (below 1 is faster), `noise` upstream's to
itself in the same turns. Both compute loss and gradients of T5X's own model class, jitted; no
optimizer, which is the same code.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rosetta.bench import modes, timing
from rosetta.core import option_types

if TYPE_CHECKING:
    from collections.abc import Callable

UPSTREAM = "t5x.contrib.gpu.t5.network"
OURS = "rosetta.t5x.network"


def _model(name: str, fields: dict[str, Any]) -> Any:
    import seqio
    from t5x import models

    network = importlib.import_module(name)
    vocabulary = seqio.PassThroughVocabulary(fields["vocab_size"])
    kind = models
    if name == OURS:
        from rosetta.t5x import model

        kind = model
    return kind.EncoderDecoderModel(
        network.Transformer(network.T5Config(**fields)), vocabulary, vocabulary, None, z_loss=1e-4
    )


def _step(model: Any) -> Any:
    def step(params: Any, batch: Any, key: Any) -> Any:
        return jax.value_and_grad(lambda p: model.loss_fn(p, batch, key)[0])(params)

    return jax.jit(step)


def _batch(batch: int, inputs: int, targets: int, vocabulary: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    shape = {
        "encoder_input_tokens": inputs,
        "decoder_target_tokens": targets,
        "decoder_input_tokens": targets,
    }
    rows = {
        name: random.integers(2, vocabulary, (batch, length), dtype=np.int32)
        for name, length in shape.items()
    }
    return rows | {"decoder_loss_weights": np.ones((batch, targets), np.int32)}


def main() -> None:
    """Run the benchmark that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    option_types.add_shape_options(
        parser,
        size="small",
        sizes=", ".join(modes.list_sizes()),
        inputs=128,
        targets=64,
        dropout=0.1,
    )
    parser.add_argument(
        "--layers",
        type=int,
        default=2,
        help="of encoder and of decoder each; 0: as the size has (default 2)",
    )
    parser.add_argument(
        "--batch", type=option_types.parse_count, default=4, help="sequences (default 4)"
    )
    parser.add_argument("--dtype", default="float32", help="of activations (default float32)")
    parser.add_argument("--turns", type=option_types.parse_count, default=15, help="(default 15)")
    args = parser.parse_args()
    fields = modes.read_size_fields(args.size) | {"dropout_rate": args.dropout, "dtype": args.dtype}
    if args.layers:
        fields |= {"num_encoder_layers": args.layers, "num_decoder_layers": args.layers}
    batch, key = (
        _batch(args.batch, args.inputs, args.targets, fields["vocab_size"]),
        jax.random.PRNGKey(0),
    )
    models = {"upstream": _model(UPSTREAM, fields), "rosetta": _model(OURS, fields)}
    shapes = {name: value.shape for name, value in batch.items()}
    types = {name: value.dtype for name, value in batch.items()}
    params = jax.jit(
        lambda k: models["upstream"].get_initial_variables(k, shapes, types)["params"]
    )(key)
    compiled, report = {}, {}
    for name, model in models.items():
        begin = time.perf_counter()
        lowered = _step(model).lower(params, batch, key)
        traced = time.perf_counter()
        compiled[name] = lowered.compile()
        report[name] = {
            "trace_seconds": traced - begin,
            "compile_seconds": time.perf_counter() - traced,
        }
        loss, _ = jax.block_until_ready(compiled[name](params, batch, key))
        report[name]["loss"] = float(loss)

    def run(name: str) -> Callable[[], object]:
        return lambda: jax.block_until_ready(compiled[name](params, batch, key))

    found = timing.time_in_turns(
        {"upstream": run("upstream"), "rosetta": run("rosetta"), "again": run("upstream")},
        args.turns,
    )
    for name in models:
        report[name]["seconds"] = found[name].median
    result = {
        "task": vars(args),
        "ratio": found["rosetta"].ratio(found["upstream"]),
        "noise": found["again"].ratio(found["upstream"]),
        "networks": report,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
