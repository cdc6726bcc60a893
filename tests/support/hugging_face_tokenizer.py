"""Run by a Python with transformers: writes the ids that its tokenizers of a folder give for lines.

The words are the folder, a JSON file with the lines, and the JSON file to write.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(folder: str, lines_file: str, output: str) -> None:
    import transformers
    from transformers import AutoTokenizer, ByT5Tokenizer, T5Tokenizer

    lines = json.loads(Path(lines_file).read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    by_name = ByT5Tokenizer if isinstance(tokenizer, ByT5Tokenizer) else T5Tokenizer
    if not (Path(folder) / "spiece.model").exists() or (
        # The class T5Tokenizer of transformers 5 cannot hold a BPE.
        int(transformers.__version__.partition(".")[0]) > 4
        and '"type": "BPE"' in (Path(folder) / "tokenizer.json").read_text(encoding="utf-8")
    ):
        by_name = None if by_name is T5Tokenizer else by_name
    ids = {"auto": [tokenizer(line)["input_ids"] for line in lines]}
    if by_name:
        named = by_name.from_pretrained(folder)
        ids["by_name"] = [named(line)["input_ids"] for line in lines]
    document = {
        "version": transformers.__version__,
        "ids": ids,
        "decoded": [tokenizer.decode(row, skip_special_tokens=True) for row in ids["auto"]],
        "sentinels": tokenizer.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_1>"]),
        "special": [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id],
        "size": len(tokenizer),
        "inputs": sorted(tokenizer("a")),
    }
    Path(output).write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
