"""Counts of what a source holds: every record is read and tokenised."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from rosetta.core import log
from rosetta.core.errors import MISSING, UserError
from rosetta.data import data_spec, task_records, token_cache

if TYPE_CHECKING:
    from collections.abc import Callable

    from rosetta.data.data_spec import Spec
    from rosetta.data.documents import Handler
    from rosetta.data.vocabularies import Vocabulary

TEXTS_PER_BATCH = 64  # texts tokenised at a time


def count_source(
    spec: Spec,
    objective: str,
    field: str,
    split: str,
    vocab: Vocabulary,
    handle: Handler,
    report: Callable[[int, int], None],
) -> dict[str, int]:
    """Return {"records", "tokens"} of a source; nothing for one without an end, or that others
    read.

    Args:
      spec: the source.
      objective: one of data_spec.OBJECTIVES. A record of pairs has two texts.
      field: where records have their text.
      split: of sets that have splits.
      vocab: what makes tokens of text.
      handle: is given each record that cannot be used.
      report: called with the counts so far.

    Raises:
      UserError: there is no text, or a file cannot be read.
    """
    if spec.kind in ("synthetic", "task"):
        return {}
    texts_each = 2 if objective in data_spec.PAIR_OBJECTIVES else 1
    if spec.kind == "cache":
        meta = token_cache.TokenCache(spec.value).meta
        return {"records": meta["documents"] // texts_each, "tokens": meta["tokens"]}
    texts = task_records.read_texts(spec, objective, field, split, handle)
    documents = tokens = 0
    shown = False
    while batch := list(itertools.islice(texts, TEXTS_PER_BATCH)):
        documents += len(batch)
        tokens += sum(len(ids) for ids in vocab.encode(batch))
        report(documents // texts_each, tokens)
        shown = True
    if shown:
        log.show_count("")
    if not documents and not getattr(handle, "total", 0):
        raise UserError(
            "there is no text in the data", str(spec), "name files with text in them", kind=MISSING
        )
    return {"records": documents // texts_each, "tokens": tokens}
