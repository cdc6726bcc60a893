"""Train a SentencePiece vocabulary that has T5's special ids and sentinels.

`rosetta vocab train` calls it.
"""

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

# SentencePiece leaves out longer sentences, so documents are cut into pieces. A character has up to
# four bytes.
MAX_SENTENCE_BYTES = 4192
_MAX_SENTENCE_CHARACTERS = MAX_SENTENCE_BYTES // 4
_MIN_COVERAGE = 0.98
_SHOWN_SENTENCES = 10_000  # pieces between two counts on a terminal
_MAX_REASON = 160  # characters of SentencePiece's message that an error shows


def read_sentences(parts: tuple[Part, ...], field: str, limit: int) -> Iterator[str]:
    """Yield pieces of documents that are short enough for SentencePiece.

    The next document comes from the source that is furthest behind its rate, by characters read.

    Args:
        parts: The sources and their rates.
        field: The field of records that has the text.
        limit: The number of pieces after which no further document is read.
    """
    readers = [documents.read_documents(part.spec, field) for part in parts]
    characters_read = [0.0] * len(parts)
    count = 0

    def find_next_source() -> int:
        return min(
            range(len(readers)), key=lambda number: characters_read[number] / parts[number].rate
        )

    while readers and count < limit:
        number = find_next_source()
        text = next(readers[number], None)
        if text is None:
            characters_read[number] = float("inf")
            if min(characters_read) == float("inf"):
                return
            continue
        for start in range(0, len(text), _MAX_SENTENCE_CHARACTERS):
            yield text[start : start + _MAX_SENTENCE_CHARACTERS]
            count += 1
        characters_read[number] += len(text)


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
    """Train a vocabulary and write it to a file.

    Args:
        parts: The sources of text and their rates.
        out: The model file, which must not exist.
        size: The number of all ids, with the three special ids, the sentinels and the 256 bytes of
            byte_fallback.
        extra_ids: The number of sentinels. They are the last pieces of the file, spelled as T5
            spells them.
        model_type: "unigram" or "bpe".
        field: The field of JSON lines and Example records that has the text.
        limit: The most pieces of documents to learn from.
        coverage: The share of the characters that get an id of their own. The others become bytes,
            or unknown without byte_fallback.
        byte_fallback: Whether characters without an id are written as bytes.

    Returns:
        The vocabulary.

    Raises:
        UserError: The file exists or cannot be written, an option is not valid, or there is too
            little text for the size.
    """
    _check_output(out)
    byte_ids = 256 if byte_fallback else 0
    reserved = 3 + extra_ids + byte_ids
    least = reserved + 1
    if size <= least:
        raise UserError(
            f"a size of {size} leaves no room for text after {reserved} special ids, sentinels and "
            "bytes",
            "--size",
            f"give more than {least}",
            kind=INVALID,
            value=size,
        )
    if not _MIN_COVERAGE <= coverage <= 1:
        raise UserError(
            f"{coverage} is not a valid coverage",
            "--coverage",
            f"give a share from {_MIN_COVERAGE} to 1, as SentencePiece requires",
            kind=INVALID,
            value=coverage,
        )
    try:
        import sentencepiece  # type: ignore[import-not-found]
    except ImportError:
        raise UserError(
            "the sentencepiece package is not installed",
            "rosetta vocab train",
            "use an environment for t5x",
            kind=MISSING,
            value="sentencepiece",
        ) from None
    body = io.BytesIO()
    sizes = {"input_sentence_size": 0, "max_sentence_length": MAX_SENTENCE_BYTES}
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_show_count(read_sentences(parts, field, limit)),
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
        raise _describe_failure(error, size, extra_ids) from None
    model = body.getvalue() + vocabularies.make_sentinel_pieces(extra_ids)
    write_atomic(Path(out), model, None)
    # The file has its sentinels already: none are added.
    vocabulary = vocabularies.load_vocabulary(out, 0)
    if vocabulary.size != size or vocabulary.sentinel_count != extra_ids:
        log.warn(f"{out}: {vocabulary.size} ids, {vocabulary.sentinel_count} sentinels")
    return vocabulary


def _show_count(sentences: Iterator[str]) -> Iterator[str]:
    """Yield sentences, and show on a terminal how many there were, and when training begins."""
    count = 0
    for count, sentence in enumerate(sentences, 1):
        if count % _SHOWN_SENTENCES == 0:
            log.show_count(f"reading: {count:,} pieces of documents")
        yield sentence
    log.show_count(f"training on {count:,} pieces of documents", last=True)


def _check_output(out: str) -> None:
    """Raise UserError if a model file cannot be written."""
    if not out.endswith(".model"):
        raise UserError(
            "the name of a vocabulary file must end in .model",
            out,
            f"write {out}.model",
            kind=INVALID,
        )
    if os.path.exists(out):
        raise UserError(
            "the file exists already", out, "name another, or remove it yourself", kind=EXISTS
        )
    folder = os.path.dirname(os.path.abspath(out))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UserError(
            "the folder does not exist or cannot be written",
            folder,
            "make the folder first, or name another",
            kind=MISSING,
        )


def _describe_failure(error: RuntimeError, size: int, extra_ids: int) -> UserError:
    """Return the error for a training that SentencePiece refused."""
    largest_size = re.search(r"value <= (\d+)", str(error))
    if not largest_size:
        lines = (str(error).strip() or type(error).__name__).splitlines()
        return UserError(
            f"SentencePiece refuses to train: {lines[0][-_MAX_REASON:]}",
            "rosetta vocab train",
            "give other text, another --size or another --coverage",
            kind=FAILED,
        )
    return UserError(
        f"there is too little text for {size} ids",
        "--size",
        f"give more text, or at most {int(largest_size[1]) + extra_ids}",
        kind=TOO_BIG,
        value=size,
    )
