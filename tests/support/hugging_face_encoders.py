"""Small BERTs and T5 encoders: what transformers makes, and computes.

The tests import the cases. A Python with PyTorch and transformers runs this file as a program:

    hugging_face_encoders.py write ROOT    make ROOT/CASE/hf, a model folder with random weights, of
                                           each case, and ROOT/CASE/hf.npz, what transformers
                                           computes from it
    hugging_face_encoders.py read ROOT     compute ROOT/CASE/back.npz from the folder ROOT/CASE/back
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

_BERT: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 131,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 80,
    "max_position_embeddings": 40,
}
_T5: dict[str, Any] = {
    "model_type": "t5",
    "architectures": ["T5EncoderModel"],
    "vocab_size": 131,
    "d_model": 40,
    "num_heads": 3,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 3,
}
CASES: dict[str, dict[str, Any]] = {
    "pretraining": {**_BERT, "architectures": ["BertForPreTraining"]},
    "masked": {**_BERT, "architectures": ["BertForMaskedLM"], "hidden_act": "gelu_new"},
    "classes": {
        **_BERT,
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "a", "1": "b", "2": "c"},
        "layer_norm_eps": 1e-5,
    },
    "number": {
        **_BERT,
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "a"},
        "type_vocab_size": 4,
    },
    "plain": {**_BERT, "architectures": ["BertModel"], "hidden_act": "relu"},
    "t5": {**_T5, "feed_forward_proj": "relu"},
    "t5_gated": {**_T5, "feed_forward_proj": "gated-gelu"},
    "umt5": {
        **_T5,
        "model_type": "umt5",
        "architectures": ["UMT5EncoderModel"],
        "feed_forward_proj": "gated-gelu",
    },
}
SEPARATOR = 7


def is_bert(case: str) -> bool:
    """Return whether a case is a BERT."""
    return bool(CASES[case]["model_type"] == "bert")


def make_tokens(vocab_size: int) -> Any:
    """Return tokens, int64 [rows, length], of two texts each, with padding at the ends."""
    tokens = np.random.default_rng(0).integers(8, vocab_size, (3, 36))
    for row, (first, last) in enumerate(((9, 35), (20, 29), (3, 12))):
        tokens[row, [first, last]] = SEPARATOR
        tokens[row, last + 1 :] = 0
    return tokens


def make_types(tokens: Any) -> Any:
    """Return the number of each token's text, int64 [rows, length]; padding has 0."""
    is_end = tokens == SEPARATOR
    return np.where(tokens > 0, np.minimum(np.cumsum(is_end, axis=1) - is_end, 1), 0)


def _load(folder: Path) -> Any:
    import torch
    import transformers

    config = json.loads((folder / "config.json").read_text())
    model_class = getattr(transformers, config["architectures"][0])
    return model_class.from_pretrained(folder, dtype=torch.float32).eval()


def _compute(folder: Path, output: Path, *, bert: bool) -> None:
    """Write the tokens and what the model in a folder computes from them."""
    import torch

    tokens = make_tokens(131)
    words = {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(tokens > 0).long()}
    if bert:
        words["token_type_ids"] = torch.tensor(make_types(tokens))
    with torch.no_grad():
        made = _load(folder)(**words)
    arrays = {name: value.numpy() for name, value in made.items() if hasattr(value, "numpy")}
    np.savez(output, tokens=tokens, **arrays)


def _write_model(folder: Path, config: dict[str, Any]) -> None:
    """Write a model folder with random weights."""
    import torch
    import transformers

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    model_class = getattr(transformers, config["architectures"][0])
    model = model_class(transformers.AutoConfig.from_pretrained(folder))
    with torch.no_grad():
        for name, value in model.named_parameters():
            # Norms and biases matter, too. Large kernels make the attention sharp.
            scale = 1.0 if "word_embeddings" in name else 0.1
            value.add_(scale * torch.randn_like(value))
    model.save_pretrained(folder)


def main(action: str, root: str) -> None:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name, config in CASES.items():
        folder, bert = Path(root, name), is_bert(name)
        if action == "write":
            _write_model(folder / "hf", config)
            _compute(folder / "hf", folder / "hf.npz", bert=bert)
        else:
            _compute(folder / "back", folder / "back.npz", bert=bert)


if __name__ == "__main__":
    main(*sys.argv[1:])
