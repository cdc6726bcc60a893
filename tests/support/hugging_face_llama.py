"""Run by a Python with PyTorch and transformers, for test_llama_logits.py.

OUT KV_HEADS HIDDEN: writes a small LLaMA of random weights there, as safetensors and beside it (../bin) as pytorch_model.bin, with ids and logits.
compare HF BACK META: fails unless BACK holds HF's weights bit for bit, and META, in Meta's layout, is read and holds those that are not permuted.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def write_model(out: Path, kv_heads: int, hidden: int) -> None:
    import numpy as np
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": kv_heads,
    }
    model = LlamaForCausalLM(
        LlamaConfig(
            **sizes, rms_norm_eps=1e-5, max_position_embeddings=64, tie_word_embeddings=False
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.to(torch.bfloat16).save_pretrained(out, max_shard_size="20KB")
    (out.parent / "bin").mkdir()
    shutil.copy(out / "config.json", out.parent / "bin")
    torch.save(model.state_dict(), out.parent / "bin" / "pytorch_model.bin")
    model = LlamaForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    ids = np.random.default_rng(0).integers(3, 96, (2, 16))
    with torch.no_grad():
        np.savez(
            out / "reference.npz", ids=ids, logits=model(input_ids=torch.tensor(ids)).logits.numpy()
        )


def compare_models(before: Path, after: Path, meta: Path) -> None:
    import torch
    from transformers import LlamaForCausalLM

    ours, theirs = (
        LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()
        for folder in (after, before)
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    held = torch.load(meta / "consolidated.00.pth", weights_only=True)
    for name, other in (
        ("layers.1.feed_forward.w2", "model.layers.1.mlp.down_proj"),
        ("tok_embeddings", "model.embed_tokens"),
        ("norm", "model.norm"),
    ):
        assert torch.equal(held[f"{name}.weight"], theirs[f"{other}.weight"])


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        compare_models(*map(Path, sys.argv[2:]))
    else:
        write_model(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
