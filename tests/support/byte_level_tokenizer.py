"""Make a folder with a tokenizer.json as that of GPT-2: a byte-level BPE whose id 0 is "!"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

END = "<|endoftext|>"


def write_folder(folder: Path, texts: list[str], size: int = 400, **settings: Any) -> Path:
    """Train a tokenizer and write its folder.

    Args:
        folder: The folder to make.
        texts: Lines of text.
        size: The number of ids, with the end token, which is the highest id as in GPT-2.
        settings: More fields of tokenizer_config.json.
    """
    import tokenizers  # type: ignore[import-not-found]
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([END])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    special_tokens = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)
    document = {"tokenizer_class": "PreTrainedTokenizerFast", **special_tokens, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(document))
    return folder
