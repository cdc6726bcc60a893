"""A SentencePiece vocabulary of one's own, with T5's special ids and sentinels."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import log
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import EXISTS, FAILED, INVALID, MISSING, TOO_BIG, UserError
from rosetta.data import documents, vocabularies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rosetta.data.data_spec import Part

MAX_SENTENCE_BYTES = 4192  # SentencePiece leaves out longer sentences: documents are cut to pieces


def read_sentences(parts: tuple[Part, ...], field: str, limit: int) -> Iterator[str]:
    """Yield pieces of documents no longer than SentencePiece takes, from all sources in turn by
    rate, `limit` in all.
    """
    readers = [documents.read_documents(part.spec, field) for part in parts]
    drawn = [0.0] * len(parts)
    count = 0
    while readers and count < limit:
        number = min(range(len(readers)), key=lambda which: drawn[which] / parts[which].rate)
        text = next(readers[number], None)
        if text is None:
            drawn[number] = float("inf")
            if min(drawn) == float("inf"):
                return
            continue
        for place in range(0, len(text), MAX_SENTENCE_BYTES // 4):  # letters of up to four bytes
            yield text[place : place + MAX_SENTENCE_BYTES // 4]
            count += 1
        drawn[number] += len(text)


def train_vocabulary(
    parts: tuple[Part, ...],
    out: str,
    *,
    size: int,
    extra_ids: int = vocabularies.EXTRA_IDS,
    model_type: str = "unigram",
    field: str = "text",
    limit: int = 10_000_000,
    coverage: float = 0.9995,
    byte_fallback: bool = True,
) -> vocabularies.Vocabulary:
    """Train a vocabulary and write it to `out`; return it.

    Args:
      parts: where the text comes from, and how much of each.
      out: the model file; must not exist.
      size: ids in all, the three specials, the sentinels and 256 bytes of byte_fallback included.
      extra_ids: sentinels, which stand in the file as its last pieces, spelt as T5 spells them.
      model_type: "unigram" or "bpe".
      field: where JSON lines and Example records have their text.
      limit: pieces of documents to learn from, at most.
      coverage: share of the letters that get an id of their own; the rest are bytes, or unknown
        without byte_fallback.
      byte_fallback: whether letters without an id are written as bytes.

    Raises:
      UserError: the file exists or cannot be written, the text is too little for the size.
    """
    if not out.endswith(".model"):
        raise UserError(
            "the vocabulary's file has to end in .model", out, f"write {out}.model", kind=INVALID
        )
    if os.path.exists(out):
        raise UserError(
            "the file exists already", out, "name another, or remove it yourself", kind=EXISTS
        )
    folder = os.path.dirname(os.path.abspath(out))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UserError(
            "the folder is not there or cannot be written", folder, "make it first", kind=MISSING
        )
    least = 3 + extra_ids + (256 if byte_fallback else 0) + 1
    if size <= least:
        raise UserError(
            f"a size of {size} leaves no room beside {least - 1} specials, sentinels and bytes",
            "--size",
            f"give more than {least}",
            kind=INVALID,
            value=size,
        )
    if not 0.98 <= coverage <= 1:
        raise UserError(
            f"a coverage of {coverage}",
            "--coverage",
            "give a share from 0.98 to 1, which SentencePiece takes",
            kind=INVALID,
            value=coverage,
        )
    try:
        import sentencepiece  # type: ignore[import-not-found]
    except ImportError:
        raise UserError(
            "the sentencepiece package is not installed",
            "rosetta vocab train",
            "use an environment baked for t5x",
            kind=MISSING,
            value="sentencepiece",
        ) from None
    body = io.BytesIO()
    sizes = {"input_sentence_size": 0, "max_sentence_length": MAX_SENTENCE_BYTES}
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=read_sentences(parts, field, limit),
            model_writer=body,
            vocab_size=size - extra_ids,
            model_type=model_type,
            character_coverage=coverage,
            byte_fallback=byte_fallback,
            pad_id=vocabularies.PAD,
            eos_id=vocabularies.EOS,
            unk_id=vocabularies.UNK,
            bos_id=-1,
            num_threads=len(os.sched_getaffinity(0)),
            minloglevel=2,
            **sizes,
        )
    except RuntimeError as error:
        most = re.search(r"value <= (\d+)", str(error))
        if not most:
            said = (str(error).strip() or type(error).__name__).splitlines()[0][-160:]
            raise UserError(
                f"SentencePiece refuses: {said}",
                "rosetta vocab train",
                "give other text, another --size or another --coverage",
                kind=FAILED,
            ) from None
        raise UserError(
            f"the text is too little for {size} ids",
            "--size",
            f"give more text, or at most {int(most[1]) + extra_ids}",
            kind=TOO_BIG,
            value=size,
        ) from None
    model = body.getvalue() + vocabularies.make_sentinel_pieces(extra_ids)
    write_atomic(Path(out), model, None)
    made = vocabularies.load_vocabulary(out)
    if made.size != size or made.sentinel_count != extra_ids:
        log.warn(f"{out}: {made.size} ids, {made.sentinel_count} sentinels")
    return made
