"""Run by a Python with PyTorch and transformers, for test_hugging_face.py: writes weights, inputs and logits of a small T5 of random weights."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

SIZES = {
    "vocab_size": 128,
    "d_model": 32,
    "num_heads": 4,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "d_kv": 8,
    "d_ff": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "t5_1_1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "t5_1_0": {"feed_forward_proj": "relu", "tie_word_embeddings": True},
}


def main(which: str, output: str) -> None:
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    model = T5ForConditionalGeneration(
        T5Config(
            **SIZES, **MODELS[which], dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0
        )
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so that norms and biases matter, too
            parameter.add_(0.1 * torch.randn_like(parameter))
    rng = np.random.default_rng(0)
    inputs, targets = (
        rng.integers(2, 128, (3, 140)),
        rng.integers(2, 128, (3, 9)),
    )  # 140: beyond the farthest relative distance
    inputs[1, 100:] = 0
    decoder = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
    with torch.no_grad():
        logits = model(
            input_ids=torch.tensor(inputs),
            attention_mask=torch.tensor(inputs > 0),
            decoder_input_ids=torch.tensor(decoder),
        ).logits
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    np.savez(
        output,
        inputs=inputs,
        targets=targets,
        decoder=decoder,
        logits=logits.numpy(),
        **{f"w:{name}": value for name, value in weights.items()},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
