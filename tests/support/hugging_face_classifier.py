"""A small BERT of transformers with a tokenizer, and what transformers says of pairs of texts.

A Python with PyTorch and transformers runs this file as a program:

    hugging_face_classifier.py write FOLDER TEXT      make a model with random weights, whose word
                                                      pieces are learned from the lines of a file
    hugging_face_classifier.py classify FOLDER RECORDS OUT LENGTH
                                                      write the probabilities of the classes of each
                                                      record, JSON lines with `first` and `second`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
}
_PIECES = 1000


def write_model(folder: Path, text: Path) -> None:
    """Write a model folder of Hugging Face."""
    import tokenizers  # type: ignore[import-not-found]
    import torch
    import transformers

    torch.manual_seed(0)
    trained = tokenizers.BertWordPieceTokenizer()
    trained.train([str(text)], vocab_size=_PIECES, show_progress=False)
    folder.mkdir()
    trained.save_model(str(folder))
    # transformers 5 has one class for both; the file tokenizer.json is what rosetta reads.
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    config = transformers.BertConfig(vocab_size=len(tokenizer), **SIZES)
    transformers.BertForPreTraining(config).save_pretrained(folder)


def classify(folder: Path, records: Path, out: Path, length: int) -> None:
    """Write a line {name of a class: probability} for each record."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32
    ).eval()
    lines = []
    for line in records.read_text().splitlines():
        record = json.loads(line)
        words = tokenizer(
            record["first"],
            record["second"],
            truncation="longest_first",
            max_length=length,
            return_tensors="pt",
        )
        with torch.no_grad():
            (probabilities,) = model(**words).logits.softmax(-1).tolist()
        lines.append(json.dumps(probabilities))
    out.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    action, *paths = sys.argv[1:]
    if action == "write":
        write_model(Path(paths[0]), Path(paths[1]))
    else:
        classify(Path(paths[0]), Path(paths[1]), Path(paths[2]), int(paths[3]))
