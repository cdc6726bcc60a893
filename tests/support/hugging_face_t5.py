"""Small T5s of every family: their configurations as the Hub has them, and what transformers makes.

The tests import the cases. A Python with PyTorch and transformers runs this file as a program:

    hugging_face_t5.py write ROOT [CASE...]
                                     make ROOT/CASE/hf, a model folder with random weights, of each
                                     case, and ROOT/CASE/hf.npz, what transformers computes from it
    hugging_face_t5.py read ROOT     compute ROOT/CASE/back.npz from the folder ROOT/CASE/back
    hugging_face_t5.py score ROOT    compute ROOT/scores.npy, the logarithm of the probability of
                                     each target of ROOT/rows.npz, by the model ROOT/hf
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

GREEDY_TOKENS = 50
# Sizes in which heads x head_dim is not d_model. The second vocabulary is odd.
SHAPES: dict[str, dict[str, int]] = {
    "wide": {"vocab_size": 128, "d_model": 32, "num_heads": 5, "d_kv": 16, "d_ff": 48},
    "odd": {"vocab_size": 131, "d_model": 40, "num_heads": 3, "d_kv": 8, "d_ff": 64},
    "deep": {"vocab_size": 256, "d_model": 48, "num_heads": 2, "d_kv": 32, "d_ff": 40},
}
_LAYERS = {
    "wide": {"num_layers": 2, "num_decoder_layers": 2},
    "odd": {"num_layers": 3, "num_decoder_layers": 1},
    "deep": {"num_layers": 3},  # as many as in the decoder, which is the default
}
# The fields of config.json of each family's public weights that decide what is computed, and a few
# old ones that do not.
_T5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "n_positions": 512}
_GATED_GELU = {"feed_forward_proj": "gated-gelu"}
_FAMILIES: dict[str, dict[str, Any]] = {
    "t5_1_0": {**_T5, "architectures": ["T5WithLMHeadModel"]},
    "t5_1_1": {**_T5, **_GATED_GELU},
    "lm_adapted": {**_T5, **_GATED_GELU, "dense_act_fn": "gelu_new", "is_gated_act": True},
    "flan_t5": {**_T5, **_GATED_GELU, "output_past": True},
    "ul2": {**_T5, "feed_forward_proj": "gated-silu"},
    "byt5": {**_T5, **_GATED_GELU, "tokenizer_class": "ByT5Tokenizer"},
    "mt5": {
        "model_type": "mt5",
        "architectures": ["MT5ForConditionalGeneration"],
        "feed_forward_proj": "gated-gelu",
    },
    "umt5": {
        "model_type": "umt5",
        "architectures": ["UMT5ForConditionalGeneration"],
        "feed_forward_proj": "gated-gelu",
        "scalable_attention": True,
    },
}
_TIED_SHAPES = {
    "t5_1_0": ("wide", "odd"),  # all others are published with an output layer of their own
    **dict.fromkeys(("t5_1_1", "lm_adapted", "flan_t5", "ul2", "byt5", "mt5", "umt5"), ("deep",)),
}


def _make_config(family: str, shape: str) -> dict[str, Any]:
    config = {**_FAMILIES[family], **SHAPES[shape], **_LAYERS[shape]}
    if family == "ul2" and shape == "wide":
        config |= {"num_heads": 2, "d_kv": 256}
    return config | {
        "tie_word_embeddings": shape in _TIED_SHAPES[family],
        "dropout_rate": 0.1,
        "layer_norm_epsilon": 1e-06,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "is_encoder_decoder": True,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


CASES = {
    f"{family}-{shape}": _make_config(family, shape) for family in _FAMILIES for shape in SHAPES
}


def _make_tokens(vocab_size: int) -> tuple[Any, Any]:
    """Return inputs and targets, int64 [rows, length], with padding at the ends of some rows."""
    rng = np.random.default_rng(0)
    inputs = rng.integers(2, vocab_size, (3, 140))  # 140: beyond the farthest relative distance
    targets = rng.integers(2, vocab_size, (3, 24))
    inputs[1, 100:] = 0
    inputs[2, 7:] = 0
    targets[1, 9:] = 0
    return inputs, targets


def _compute(folder: Path, output: Path) -> None:
    """Write the tokens, the logits and the greedy answers of the model in a folder."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    inputs, targets = _make_tokens(json.loads((folder / "config.json").read_text())["vocab_size"])
    decoder = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
    words = {"input_ids": torch.tensor(inputs), "attention_mask": torch.tensor(inputs > 0).long()}
    model.generation_config.eos_token_id = None  # so that each answer has all tokens
    with torch.no_grad():
        logits = model(**words, decoder_input_ids=torch.tensor(decoder)).logits
        answers = model.generate(
            **words, do_sample=False, num_beams=1, max_new_tokens=GREEDY_TOKENS
        )
    np.savez(
        output,
        inputs=inputs,
        targets=targets,
        decoder=decoder,
        logits=logits.numpy(),
        answers=answers.numpy()[:, 1:],
    )


def _write_model(folder: Path, config: dict[str, Any]) -> None:
    """Write a model folder with random weights, as those of the Hub are."""
    import torch
    import transformers
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    config = {**config, "transformers_version": transformers.__version__}
    (folder / "config.json").write_text(json.dumps(config))
    model = transformers.AutoModelForSeq2SeqLM.from_config(
        transformers.AutoConfig.from_pretrained(folder)
    )
    tied = config["tie_word_embeddings"]
    tensors = {}
    for name, value in model.state_dict().items():
        if "embed_tokens" in name or (tied and name.startswith("lm_head")):
            continue
        noise = 0.05 * torch.randn_like(value)  # norms and biases matter, too
        if name == "lm_head.weight":
            tensors[name] = torch.randn_like(value)
        elif name == "shared.weight" and tied:
            tensors[name] = 0.1 * value + noise  # else each answer repeats its first token
        else:
            tensors[name] = value + noise
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _score(root: Path) -> None:
    """Write the logarithm of the probability of each target."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(root / "hf", dtype=torch.float32).eval()
    rows = np.load(root / "rows.npz")
    inputs, targets = (torch.tensor(rows[name]) for name in ("inputs", "targets"))
    labels = targets.masked_fill(targets == 0, -100)
    with torch.no_grad():
        logits = model(input_ids=inputs, attention_mask=(inputs > 0).long(), labels=labels).logits
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), labels, ignore_index=-100, reduction="none"
    )
    np.save(root / "scores.npy", -losses.sum(dim=1).numpy())


def main(action: str, root: str, *cases: str) -> None:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    if action == "score":
        _score(Path(root))
        return
    for name in cases or CASES:
        folder, config = Path(root, name), CASES[name]
        if action == "write":
            _write_model(folder / "hf", config)
            _compute(folder / "hf", folder / "hf.npz")
        elif (folder / "back").is_dir():
            _compute(folder / "back", folder / "back.npz")


if __name__ == "__main__":
    main(*sys.argv[1:])
