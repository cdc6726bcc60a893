"""Small causal language models: their configurations, and what transformers computes from them.

The tests import the cases. A Python with PyTorch and transformers runs this file as a program:

    hugging_face_causal.py write ROOT CASE...   make ROOT/CASE/hf, a model folder with random
                                                weights, and ROOT/CASE/hf.npz, what transformers
                                                computes from it
    hugging_face_causal.py read ROOT CASE...    compute ROOT/CASE/back.npz from ROOT/CASE/back
    hugging_face_causal.py score ROOT           compute ROOT/loss.npy, the mean loss of ROOT/rows.npz
                                                by the model ROOT/hf
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

GREEDY_TOKENS, PROMPT_LENGTH, LENGTH = 50, 6, 56
# The second vocabulary is odd.
_SHAPES: dict[str, dict[str, int]] = {
    "wide": {"vocab": 128, "dim": 64, "heads": 4, "hidden": 48, "layers": 2},
    "odd": {"vocab": 131, "dim": 40, "heads": 5, "hidden": 72, "layers": 3},
    "deep": {"vocab": 256, "dim": 48, "heads": 2, "hidden": 40, "layers": 4},
}
_LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # So short that the 4 to 12 frequencies of a head are kept, interpolated and divided.
    "original_max_position_embeddings": 64,
}


def _make_llama_fields(shape: str, key_heads: int) -> dict[str, Any]:
    sizes = _SHAPES[shape]
    return {
        "vocab_size": sizes["vocab"],
        "hidden_size": sizes["dim"],
        "intermediate_size": sizes["hidden"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": key_heads,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _make_llama2(shape: str, key_heads: int) -> dict[str, Any]:
    fields = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu"}
    return {**fields, **_make_llama_fields(shape, key_heads)}


def _make_llama3(shape: str, key_heads: int) -> dict[str, Any]:
    base = {"rope_theta": 500000.0, "rope_scaling": _LLAMA3_SCALING}
    return {**_make_llama2(shape, key_heads), **base, "tie_word_embeddings": shape == "deep"}


def _make_mistral(shape: str, key_heads: int, window: int | None) -> dict[str, Any]:
    fields = {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "hidden_act": "silu",
        "rope_theta": 1000000.0,
        "sliding_window": window,
    }
    return {**_make_llama_fields(shape, key_heads), **fields}


LLAMA_CASES: dict[str, dict[str, Any]] = {
    "llama2-wide": _make_llama2("wide", 4),
    "llama2-odd": _make_llama2("odd", 1),
    "llama2-deep": _make_llama2("deep", 2),
    "llama3-wide": _make_llama3("wide", 2),
    "llama3-odd": _make_llama3("odd", 5),
    "llama3-deep": _make_llama3("deep", 1),
    "mistral-wide": _make_mistral("wide", 2, None),
    "mistral-odd": _make_mistral("odd", 1, 64),
    "mistral-deep": _make_mistral("deep", 2, 4096),
}


def _make_gpt2(shape: str, activation: str, *, tied: bool) -> dict[str, Any]:
    sizes = _SHAPES[shape]
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": sizes["vocab"],
        "n_embd": sizes["dim"],
        "n_layer": sizes["layers"],
        "n_head": sizes["heads"],
        "n_inner": sizes["hidden"],
        "n_positions": LENGTH + 8,
        "activation_function": activation,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _make_neox(shape: str, activation: str, fraction: float, **fields: Any) -> dict[str, Any]:
    sizes = _SHAPES[shape]
    return {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "vocab_size": sizes["vocab"],
        "hidden_size": sizes["dim"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "intermediate_size": sizes["hidden"],
        "max_position_embeddings": LENGTH + 8,
        "hidden_act": activation,
        "rotary_pct": fraction,
        "rotary_emb_base": 10000,
        "use_parallel_residual": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **fields,
    }


GPT_CASES: dict[str, dict[str, Any]] = {
    "gpt2-wide": _make_gpt2("wide", "gelu_new", tied=True),
    "gpt2-odd": _make_gpt2("odd", "gelu_new", tied=True),
    "gpt2-deep": _make_gpt2("deep", "gelu", tied=False),
    "neox-wide": _make_neox("wide", "gelu", 0.25),  # as Pythia
    "neox-odd": _make_neox("odd", "gelu_new", 1.0, use_parallel_residual=False),
    "neox-deep": _make_neox("deep", "gelu", 0.5, rotary_emb_base=20000),
}
CASES = {**LLAMA_CASES, **GPT_CASES}


def _make_tokens(vocab_size: int) -> tuple[Any, Any]:
    """Return ids and a mask, int64 [rows, length], with padding at the ends of some rows."""
    ids = np.random.default_rng(0).integers(3, vocab_size, (3, LENGTH))
    mask = np.ones_like(ids)
    mask[1, 29:] = 0
    mask[2, 7:] = 0
    return ids * mask, mask


def _compute(folder: Path, output: Path) -> None:
    """Write the tokens, the logits and the greedy answers of the model in a folder."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids, mask = _make_tokens(model.config.vocab_size)
    prompts = torch.tensor(ids[:, :PROMPT_LENGTH])
    model.generation_config.eos_token_id = None  # so that each answer has all tokens
    model.generation_config.pad_token_id = 0
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask)).logits
        answers = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            num_beams=1,
            max_new_tokens=GREEDY_TOKENS,
        )
    np.savez(
        output,
        ids=ids,
        mask=mask,
        logits=logits.numpy(),
        answers=answers.numpy()[:, PROMPT_LENGTH:],
    )


def _write_model(folder: Path, config: dict[str, Any]) -> None:
    """Write a model folder with random weights."""
    import torch
    import transformers
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    loaded = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(loaded)
    # What this version of transformers writes, with all its fields.
    loaded.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    written["architectures"] = config["architectures"]
    (folder / "config.json").write_text(json.dumps(written))
    output = model.get_output_embeddings().weight
    is_tied = output is model.get_input_embeddings().weight
    tensors = {}
    for module_name, value in model.named_parameters():
        name = module_name
        if config["model_type"] == "gpt_neox" and name == "lm_head.weight":
            name = "embed_out.weight"  # in files; only the module has another name in version 5
        # Norms and biases matter, too.
        tensors[name] = value.detach() + 0.1 * torch.randn_like(value)
        if value is output and not is_tied:
            tensors[name] = torch.randn_like(value)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _score(root: Path) -> None:
    """Write the mean loss of the tokens of rows, of which the first one is not predicted."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(root / "hf", dtype=torch.float32).eval()
    rows = torch.tensor(np.load(root / "rows.npz")["ids"])
    with torch.no_grad():
        logits = model(input_ids=rows).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:])
    np.save(root / "loss.npy", loss.numpy())


def run_transformers(python: str, action: str, root: Path, *cases: str) -> None:
    """Run this file as a program.

    Args:
        python: The Python that has PyTorch and transformers.
        action: "write", "read" or "score".
        root: The folder of the cases.
        cases: The names of the cases.
    """
    done = subprocess.run(
        [python, __file__, action, str(root), *cases],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(root)},
    )
    assert done.returncode == 0, done.stderr[-2000:]


def main(action: str, root: str, *cases: str) -> None:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    if action == "score":
        _score(Path(root))
        return
    for name in cases:
        folder = Path(root, name)
        if action == "write":
            _write_model(folder / "hf", CASES[name])
            _compute(folder / "hf", folder / "hf.npz")
        else:
            _compute(folder / "back", folder / "back.npz")


if __name__ == "__main__":
    main(*sys.argv[1:])
