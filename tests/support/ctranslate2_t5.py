"""Run by a Python with ctranslate2 and transformers: what CTranslate2 computes from T5 folders.

ctranslate2_t5.py ROOT CASE...    read ROOT/CASE/back and ROOT/CASE/rows.npz, and write
                                  ROOT/CASE/ct2.npz, the scores of the targets and the greedy
                                  answers, or ROOT/CASE/refused.txt, why it is not converted
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np


def _pad(rows: list[list[Any]], length: int) -> Any:
    padded = np.zeros((len(rows), length), type(rows[0][0]))
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded


def _compute(folder: Path) -> None:
    import ctranslate2
    from ctranslate2.converters import TransformersConverter
    from transformers import AutoTokenizer

    model = str(folder / "ct2")
    TransformersConverter(str(folder / "back")).convert(model)
    tokenizer = AutoTokenizer.from_pretrained(folder / "back")
    rows = np.load(folder / "rows.npz")
    inputs, targets = (
        [tokenizer.convert_ids_to_tokens(row[row > 0].tolist()) for row in rows[name]]
        for name in ("inputs", "targets")
    )
    translator = ctranslate2.Translator(model, device="cpu", compute_type="float32")
    length = rows["targets"].shape[1]
    scores = [result.log_probs for result in translator.score_batch(inputs, targets)]
    answers = translator.translate_batch(
        inputs, beam_size=1, max_decoding_length=length, min_decoding_length=1
    )
    ids = [tokenizer.convert_tokens_to_ids(answer.hypotheses[0]) for answer in answers]
    # CTranslate2 adds the score of an end token to those of the targets.
    np.savez(
        folder / "ct2.npz",
        scores=_pad([row[:-1] for row in scores], length),
        answers=_pad(ids, length),
    )


if __name__ == "__main__":
    for case in sys.argv[2:]:
        _compute(Path(sys.argv[1], case))
