r"""Compare a training step of rosetta's T5 network, without any switch, with upstream's network.

    PYTHONPATH=. JAX_PLATFORMS=cpu build/t5x-cpu/opt/rosetta/env/bin/python \\
        -m bench.network [--size small] [--turns 15]

Both networks have the same parameters, and take turns. Both compute the loss and the gradients of
T5X's model class, compiled by jax.jit. There is no optimizer, because both would use the same.

The program prints one JSON document. `ratio` is our time divided by upstream's, so a ratio below 1
is faster. `noise` is upstream's time divided by its own time in another place of the same turns.
Both are medians over the turns.
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


def _make_model(name: str, fields: dict[str, Any]) -> Any:
    import seqio
    from t5x import models

    network = importlib.import_module(name)
    vocabulary = seqio.PassThroughVocabulary(fields["vocab_size"])
    model_class = models.EncoderDecoderModel
    if name == OURS:
        from rosetta.t5x import model

        model_class = model.EncoderDecoderModel
    return model_class(
        network.Transformer(network.T5Config(**fields)), vocabulary, vocabulary, None, z_loss=1e-4
    )


def _jit_gradients(model: Any) -> Any:
    def compute_gradients(params: Any, batch: Any, key: Any) -> Any:
        return jax.value_and_grad(lambda params: model.loss_fn(params, batch, key)[0])(params)

    return jax.jit(compute_gradients)


def _make_batch(sequences: int, inputs: int, targets: int, vocabulary: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    lengths = {
        "encoder_input_tokens": inputs,
        "decoder_target_tokens": targets,
        "decoder_input_tokens": targets,
    }
    rows = {
        name: random.integers(2, vocabulary, (sequences, length), dtype=np.int32)
        for name, length in lengths.items()
    }
    return rows | {"decoder_loss_weights": np.ones((sequences, targets), np.int32)}


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
        help="layers of the encoder, and of the decoder; 0: as many as the size has (default: 2)",
    )
    parser.add_argument(
        "--batch",
        type=option_types.parse_count,
        default=4,
        help="sequences in a batch (default: 4)",
    )
    parser.add_argument(
        "--dtype", default="float32", help="the type of activations (default: float32)"
    )
    parser.add_argument(
        "--turns",
        type=option_types.parse_count,
        default=15,
        help="turns of each network (default: 15)",
    )
    args = parser.parse_args()
    fields = modes.read_size_fields(args.size) | {"dropout_rate": args.dropout, "dtype": args.dtype}
    if args.layers:
        fields |= {"num_encoder_layers": args.layers, "num_decoder_layers": args.layers}
    batch = _make_batch(args.batch, args.inputs, args.targets, fields["vocab_size"])
    key = jax.random.PRNGKey(0)
    models = {"upstream": _make_model(UPSTREAM, fields), "rosetta": _make_model(OURS, fields)}
    params = _initialize_params(models["upstream"], batch, key)
    steps: dict[str, Callable[[], object]] = {}
    report: dict[str, dict[str, float]] = {}
    for name, model in models.items():
        steps[name], report[name] = _compile_step(model, params, batch, key)
    timings = timing.time_in_turns(steps | {"again": steps["upstream"]}, args.turns)
    for name in models:
        report[name]["seconds"] = timings[name].median
    result = {
        "task": vars(args),
        "ratio": timings["rosetta"].ratio(timings["upstream"]),
        "noise": timings["again"].ratio(timings["upstream"]),
        "networks": report,
    }
    print(json.dumps(result, indent=2))


def _initialize_params(model: Any, batch: dict[str, Any], key: Any) -> Any:
    """Return the parameters that both networks use."""
    shapes = {name: array.shape for name, array in batch.items()}
    dtypes = {name: array.dtype for name, array in batch.items()}
    return jax.jit(lambda key: model.get_initial_variables(key, shapes, dtypes)["params"])(key)


def _compile_step(
    model: Any, params: Any, batch: Any, key: Any
) -> tuple[Callable[[], object], dict[str, float]]:
    """Return the compiled step of a model, warmed up, and its compile times and loss."""
    start = time.perf_counter()
    lowered = _jit_gradients(model).lower(params, batch, key)
    traced = time.perf_counter()
    compiled = lowered.compile()
    done = time.perf_counter()
    loss, _ = jax.block_until_ready(compiled(params, batch, key))
    report = {
        "trace_seconds": traced - start,
        "compile_seconds": done - traced,
        "loss": float(loss),
    }
    return lambda: jax.block_until_ready(compiled(params, batch, key)), report


if __name__ == "__main__":
    main()
