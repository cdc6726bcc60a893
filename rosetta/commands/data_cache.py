"""The command `rosetta data cache`: tokenise the data once, for many runs."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from rosetta.commands import data_options
from rosetta.core import log
from rosetta.core.errors import CONFLICT, UNSUPPORTED, UserError
from rosetta.data import data_spec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from rosetta.data.token_cache import CacheRecipe


def add_options(action: argparse.ArgumentParser) -> None:
    """Add the options of `rosetta data cache`."""
    action.add_argument("--out", required=True, metavar="FOLDER", help="the folder for the tokens")
    action.add_argument(
        "--jobs", type=data_options.parse_count, help="processes (default: one for each core)"
    )
    action.add_argument(
        "--limit",
        type=data_options.parse_count,
        help="the largest number of documents, or of pairs of an input and a target",
    )


# The vocabulary of a worker process, set by _start_worker.
_worker_vocabulary: Any = None


def _start_worker(name: str, extra_ids: int) -> None:
    """Load the vocabulary in a worker process."""
    from rosetta.data import vocabularies

    global _worker_vocabulary  # noqa: PLW0603 (a worker process has one vocabulary)
    _worker_vocabulary = vocabularies.Vocabulary(name, extra_ids)


def _encode_texts(texts: list[str]) -> Any:
    """Return the ids of texts, in a worker process."""
    return _worker_vocabulary.encode(texts)


def _encode_ahead(batches: Iterator[list[str]], vocabulary: Any, jobs: int) -> Iterator[Any]:
    """Yield the ids of batches of texts, in order.

    Args:
      batches: The batches.
      vocabulary: The vocabulary.
      jobs: The number of worker processes. With more than one, up to four batches for each process
        are read ahead.
    """
    import collections
    import concurrent.futures
    import multiprocessing

    if jobs <= 1:
        yield from (vocabulary.encode(batch) for batch in batches)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        jobs, context, _start_worker, (vocabulary.name, vocabulary.extra_ids)
    ) as pool:
        waiting: collections.deque[Any] = collections.deque()
        for batch in batches:
            waiting.append(pool.submit(_encode_texts, batch))
            if len(waiting) >= 4 * jobs:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta data cache`."""
    import itertools

    from rosetta.data import row_sources, task_records, token_cache

    row_sources.check_can_be_cached(args.objective, f"--objective {args.objective}")
    source = _parse_cache_source(args.data)
    vocabulary = _load_cache_vocabulary(args)
    recipe = _make_cache_recipe(args, source, vocabulary)
    jobs = args.jobs or len(os.sched_getaffinity(0))
    texts = task_records.read_texts(source, args.objective, args.field, args.split)
    # A pair is two documents of the cache.
    unit, texts_per_unit = "documents", 1
    if recipe.pairs:
        unit, texts_per_unit = "pairs", 2
    if args.limit is not None:
        texts = itertools.islice(texts, args.limit * texts_per_unit)
    started = time.monotonic()
    meta = token_cache.write_cache(
        args.out,
        recipe,
        texts,
        lambda batches: _encode_ahead(batches, vocabulary, jobs),
        end=vocabulary.eos,
        report=lambda documents, tokens: log.show_count(
            f"{documents // texts_per_unit:,} {unit}, {tokens:,} tokens"
        ),
    )
    seconds = time.monotonic() - started
    folder = os.path.abspath(args.out)
    count = meta["documents"] // texts_per_unit
    text = (
        f"{args.out}: {count:,} {unit}, {meta['tokens']:,} tokens in "
        f"{len(meta['shards'])} files, {seconds:.1f} s; use it with DATA=cache:{folder}"
    )
    result = {"folder": folder, "seconds": round(seconds, 1), **meta}
    if recipe.pairs:
        result["pairs"] = count
    return result, text


def _parse_cache_source(data: str) -> Any:
    """Return the source to tokenise.

    Raises:
      UserError: The data is a mixture, or has no text.
    """
    parts = data_spec.parse_parts(data)
    if len(parts) > 1:
        raise UserError(
            "a cache has the tokens of one source only",
            "SPEC",
            'cache each source, and mix them: DATA={"cache:A": 0.7, "cache:B": 0.3}',
            kind=UNSUPPORTED,
            value=len(parts),
        )
    source = parts[0].spec
    if source.kind in data_options.KINDS_WITHOUT_TEXT:
        raise UserError(
            f"data of the kind {source.kind!r} has no text to tokenise",
            f"DATA={source}",
            "use " + ", ".join(data_spec.TEXT_KINDS),
            kind=UNSUPPORTED,
            value=source.kind,
        )
    return source


def _load_cache_vocabulary(args: argparse.Namespace) -> Any:
    """Return the vocabulary of the command line for a cache.

    Without --extra-ids, the number of sentinels is that of an unfinished cache in the folder, so
    that the command can continue there.

    Raises:
      UserError: The vocabulary is not valid, or cannot tokenise text.
    """
    from rosetta.data import token_cache, vocabularies

    vocabulary = vocabularies.load_vocabulary(
        args.vocab,
        args.extra_ids,
        causal=args.objective in data_spec.CAUSAL_OBJECTIVES,
        recorded=token_cache.read_vocabulary_fingerprint(args.out),
    )
    if vocabulary.name.startswith("ids:"):
        raise UserError(
            "tokenising text needs a vocabulary",
            f"--vocab {args.vocab}",
            "name a SentencePiece model, or byte",
            kind=CONFLICT,
            value=args.vocab,
        )
    return vocabulary


def _make_cache_recipe(args: argparse.Namespace, source: Any, vocabulary: Any) -> CacheRecipe:
    """Return the recipe of a cache: all that its tokens depend on."""
    from rosetta.data import tfds, token_cache

    paths = None
    if source.kind == "tfds":
        paths = tfds.find_shards(source, args.split)
    elif source.kind != "hf":
        paths = data_spec.find_files(source)
    limit = f":{args.limit}" if args.limit is not None else ""
    return token_cache.CacheRecipe(
        source=f"{source}@{args.split}:{args.field}{limit}",
        vocabulary=vocabulary.fingerprint(),
        vocabulary_name=os.path.basename(vocabulary.name),
        vocab_size=vocabulary.size,
        document_ends=args.objective == "lm",
        pairs=args.objective if args.objective in data_spec.PAIR_OBJECTIVES else "",
        files=token_cache.fingerprint_files(paths) if paths else "",
    )
