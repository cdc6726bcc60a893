"""Count the records and tokens of a source: every record is read and tokenised.

`rosetta data check` reports the counts.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from rosetta.core.errors import MISSING, UserError
from rosetta.data import (
    data_spec,
    megatron_files,
    saved_datasets,
    task_records,
    tfds,
    token_cache,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rosetta.data.data_spec import Spec
    from rosetta.data.documents import Handler
    from rosetta.data.vocabularies import Vocabulary

TEXTS_PER_BATCH = 64  # texts that are tokenised at a time


def list_files(spec: Spec, split: str) -> tuple[str, ...]:
    """Return the files that are read to count a source; () if they are not known, as of a stream.

    Args:
        spec: The source.
        split: The split of an hf or tfds set whose spec names none.

    Raises:
        UserError: A file is missing.
    """
    if spec.kind == "tfds":
        return tuple(tfds.find_shards(spec, split))
    if saved_datasets.is_saved(spec):
        return tuple(saved_datasets.find_files(spec, split))
    if spec.kind == "megatron":
        return tuple(path for path in data_spec.find_files(spec) if path.endswith(".bin"))
    return data_spec.find_files(spec) if spec.kind in data_spec.FILE_KINDS else ()


def count_source(
    spec: Spec,
    objective: str,
    field: str,
    split: str,
    vocabulary: Vocabulary,
    handle: Handler,
    report: Callable[[int, int], None],
) -> dict[str, int]:
    """Count the records and tokens of a source.

    Args:
        spec: The source.
        objective: One of data_spec.OBJECTIVES. A record of a pair objective has two texts.
        field: The field of records that has the text.
        split: The split of an hf or tfds set whose spec names none.
        vocabulary: The vocabulary that makes tokens of text.
        handle: Called with each record that cannot be used.
        report: Called with the records and tokens counted so far.

    Returns:
        {"records", "tokens"}; {} for synthetic data, which has no end, and for SeqIO tasks.

    Raises:
        UserError: There is no text, or a file cannot be read.
    """
    if spec.kind in ("synthetic", "task"):
        return {}
    texts_per_record = 2 if objective in data_spec.PAIR_OBJECTIVES else 1
    if spec.kind == "cache":
        meta = token_cache.TokenCache(spec.value).meta
        return {"records": meta["documents"] // texts_per_record, "tokens": meta["tokens"]}
    if spec.kind == "megatron":
        return megatron_files.count_tokens(spec, vocabulary.size, report)
    texts = task_records.read_texts(spec, objective, field, split, handle)
    documents = tokens = 0
    while batch := list(itertools.islice(texts, TEXTS_PER_BATCH)):
        documents += len(batch)
        tokens += sum(len(ids) for ids in vocabulary.encode(batch))
        report(documents // texts_per_record, tokens)
    if not documents and not getattr(handle, "total", 0):
        raise UserError(
            "there is no text in the data", str(spec), "name files with text in them", kind=MISSING
        )
    return {"records": documents // texts_per_record, "tokens": tokens}
