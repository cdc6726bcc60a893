"""The commands `rosetta data` and `rosetta vocab`.

`rosetta data` checks, shows and tokenises training data. `rosetta vocab` shows a vocabulary, or
trains one on such data.

The argument SPEC names the data. It is one source, written KIND:VALUE such as text:FILES, or a
mixture of sources. A part of a mixture is a source and its rate.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import TYPE_CHECKING, Any

from rosetta.core import log, option_types
from rosetta.core.errors import CONFLICT, UNSUPPORTED, UserError
from rosetta.data import data_checks, data_spec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from rosetta.data.bad_records import BadRecordSummary
    from rosetta.data.data_spec import Spec
    from rosetta.data.token_cache import CacheRecipe

_PROGRESS_PERIOD = 0.2  # seconds between counts on a terminal
_EXTRA_IDS = (
    "sentinels to add (default: 100; none for bytes, and none if the vocabulary has sentinels)"
)
_KINDS_WITHOUT_TEXT = ("synthetic", *data_spec.TOKEN_KINDS, "task")
_parse_count = option_types.make_whole_number_type(minimum=0)


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the two commands to the top parser's subcommands.

    Args:
        commands: The subcommands of the top parser.
        common: A parser with the options of all commands.
    """
    data = commands.add_parser("data", parents=[common])
    actions = data.add_subparsers(dest="action", metavar="ACTION")
    check = actions.add_parser(
        "check",
        help="check whether a run can use this data, and count records and tokens",
        description="The command reads every record.",
    )
    _add_data_options(check)
    _add_row_options(check)
    _add_check_options(check)
    show = actions.add_parser(
        "show",
        help="print rows as the model gets them, and the hash of the batch",
        description="",
    )
    _add_data_options(show)
    _add_row_options(show)
    _add_show_options(show)
    cache = actions.add_parser(
        "cache",
        help="tokenise the data once, for many runs",
        description="If you stop the command and start it again, it continues where it stopped.",
    )
    _add_data_options(cache)
    _add_cache_options(cache)
    vocab = commands.add_parser("vocab", parents=[common])
    actions = vocab.add_subparsers(dest="action", metavar="ACTION")
    _add_train_vocabulary_parser(actions)
    _add_show_vocabulary_parser(actions)


def _add_data_options(action: argparse.ArgumentParser) -> None:
    """Add SPEC and the options that say how the data is read."""
    kinds = "; ".join(f"{kind}: {meaning}" for kind, meaning in data_spec.KINDS.items())
    description = f'the data, as one of these kinds, or a mixture {{"SPEC": RATE, ...}}. {kinds}'
    action.add_argument("data", metavar="SPEC", help=description.replace("%", "%%"))
    action.add_argument(
        "--vocab",
        default="byte",
        help=(
            "a SentencePiece model, a tokenizer.json, hf:OWNER/NAME, a folder of that layout, or "
            "byte (default: byte)"
        ),
    )
    action.add_argument("--extra-ids", type=_parse_count, help=_EXTRA_IDS)
    action.add_argument(
        "--objective",
        choices=data_spec.OBJECTIVES,
        default="span_corruption",
        help="the objective of the run (default: span_corruption)",
    )
    action.add_argument(
        "--field",
        default="text",
        help="the field that holds the text of JSON lines and Example records (default: text)",
    )
    action.add_argument(
        "--split", default="train", help="the split of an hf or tfds data set (default: train)"
    )


def _add_cache_options(action: argparse.ArgumentParser) -> None:
    """Add the options of `rosetta data cache`."""
    action.add_argument("--out", required=True, metavar="FOLDER", help="the folder for the tokens")
    action.add_argument("--jobs", type=_parse_count, help="processes (default: one for each core)")
    action.add_argument(
        "--limit",
        type=_parse_count,
        help="the largest number of documents, or of pairs of an input and a target",
    )


def _add_row_options(action: argparse.ArgumentParser) -> None:
    """Add the options of the rows that a run trains on, for `check` and `show`."""
    action.add_argument(
        "--inputs", type=_parse_count, default=512, help="tokens of an input (default: 512)"
    )
    action.add_argument(
        "--targets", type=_parse_count, default=128, help="tokens of a target (default: 128)"
    )
    action.add_argument(
        "--mean-span",
        type=option_types.parse_positive_number,
        default=3.0,
        help="tokens of a masked span (default: 3); runs on bytes use 20",
    )


def _add_check_options(action: argparse.ArgumentParser) -> None:
    """Add the options of `rosetta data check`."""
    action.add_argument("--vocab-size", type=_parse_count, help="the rows of the model's embedding")
    action.add_argument(
        "--head", action="store_true", help="read only the first record of each source"
    )


def _add_show_options(action: argparse.ArgumentParser) -> None:
    """Add the options of `rosetta data show`."""
    action.add_argument(
        "--seed", type=_parse_count, default=0, help="the seed of the order (default: 0)"
    )
    action.add_argument(
        "--step",
        type=_parse_count,
        default=0,
        help="the step whose batch to show (default: 0)",
    )
    action.add_argument(
        "--batch", type=option_types.parse_count, default=4, help="rows of the batch (default: 4)"
    )
    action.add_argument("--pack", action="store_true", help="put several examples into one row")


def _add_train_vocabulary_parser(actions: Any) -> None:
    """Add `rosetta vocab train`."""
    train = actions.add_parser(
        "train",
        help="train a SentencePiece vocabulary with T5's special ids and sentinels",
    )
    train.add_argument(
        "--data",
        required=True,
        metavar="SPEC",
        help="the data to learn from (docs/reference/data-sources.md)",
    )
    train.add_argument(
        "--out", required=True, metavar="FILE.model", help="the file for the vocabulary"
    )
    train.add_argument(
        "--size", type=_parse_count, default=32_000, help="ids, with the sentinels (default: 32000)"
    )
    train.add_argument(
        "--extra-ids", type=_parse_count, default=100, help="sentinels (default: 100)"
    )
    train.add_argument(
        "--type",
        choices=("unigram", "bpe"),
        default="unigram",
        help="the kind of SentencePiece model (default: unigram)",
    )
    train.add_argument(
        "--coverage",
        type=option_types.parse_positive_number,
        default=0.9995,
        help="the share of the text whose characters get their own ids (default: 0.9995)",
    )
    train.add_argument(
        "--no-byte-fallback",
        action="store_true",
        help="encode characters without an id as unknown, as T5's own vocabulary does",
    )
    train.add_argument(
        "--limit",
        type=_parse_count,
        default=10_000_000,
        help="the largest number of pieces of documents to learn from (default: 10 million)",
    )
    train.add_argument(
        "--field",
        default="text",
        help="the field that holds the text of JSON lines and Example records (default: text)",
    )


def _add_show_vocabulary_parser(actions: Any) -> None:
    """Add `rosetta vocab show`."""
    show = actions.add_parser("show", help="show sizes, sentinels and fingerprint of a vocabulary")
    show.add_argument("vocab", help="a SentencePiece model, a tokenizer.json, or byte")
    show.add_argument("--extra-ids", type=_parse_count, help=_EXTRA_IDS)
    show.add_argument("text", nargs="?", help="a text whose ids to show")


def _check_data(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta data check`."""
    from rosetta.data import bad_records, tfds

    data_checks.check_data(
        data=args.data,
        objective=args.objective,
        vocab=args.vocab,
        vocab_size=args.vocab_size,
        lengths={"inputs": args.inputs, "targets": args.targets},
        split=args.split,
        extra_ids=args.extra_ids,
        mean_noise_span_length=args.mean_span,
        from_variables=False,
    )
    sources = [part.spec for part in data_spec.parse_parts(args.data)]
    prepared_sets = {
        str(source): tfds.check(source, args.split) for source in sources if source.kind == "tfds"
    }
    lines = [
        f"{name}: {facts['files']} files, {facts['bytes']:,} bytes, {facts['examples']:,} examples"
        for name, facts in prepared_sets.items()
    ]
    data = data_spec.describe_data(args.data)
    if args.head:
        _check_first_records(sources, args)
        lines.append(f"{data}: usable for {args.objective}, judging by the first records")
        return {"ok": True, "data": data, "copies": prepared_sets}, "\n".join(lines)
    bad = bad_records.BadRecordSummary()
    counts = _count_sources(sources, args, bad)
    for name, count in counts.items():
        lines.append(f"{name}: {count['records']:,} records, {count['tokens']:,} tokens")
    lines += _describe_usability(data, args.objective, bad)
    result = {
        "ok": not bad.total or bad_records.read_policy() == "skip",
        "data": data,
        "copies": prepared_sets,
        "counts": counts,
        "bad": {"total": bad.total, "kinds": bad.kinds, "first": bad.lines},
    }
    return result, "\n".join(lines)


def _check_first_records(sources: list[Spec], args: argparse.Namespace) -> None:
    """Check the first record of each source that has records.

    Raises:
        UserError: A run cannot use the record.
    """
    from rosetta.data import task_records

    for source in sources:
        if source.kind not in _KINDS_WITHOUT_TEXT:
            task_records.check_first_record(source, args.objective, args.field, args.split)


def _count_sources(
    sources: list[Spec], args: argparse.Namespace, bad: BadRecordSummary
) -> dict[str, dict[str, int]]:
    """Return source -> its records and tokens, for the sources that can be counted.

    Args:
        sources: The sources.
        args: The arguments of the command.
        bad: Collects the records that cannot be used.
    """
    from rosetta.data import source_counts

    vocabulary = _load_vocabulary(args)
    counts = {}
    for source in sources:
        count = source_counts.count_source(
            source,
            objective=args.objective,
            field=args.field,
            split=args.split,
            vocabulary=vocabulary,
            handle=bad,
            report=_make_progress_report(),
        )
        if count:
            counts[str(source)] = count
    return counts


def _load_vocabulary(args: argparse.Namespace) -> Any:
    """Return the vocabulary of the command line, for its objective."""
    from rosetta.data import vocabularies

    is_causal = args.objective in data_spec.CAUSAL_OBJECTIVES
    return vocabularies.load_vocabulary(args.vocab, args.extra_ids, causal=is_causal)


def _describe_usability(data: str, objective: str, bad: BadRecordSummary) -> list[str]:
    """Return lines about the bad records, and one that says whether a run can use the data."""
    from rosetta.data import bad_records

    if not bad.total:
        return [f"{data}: usable for {objective}"]
    if bad_records.read_policy() == "skip":
        verdict = (
            f"{data}: usable for {objective}; {bad.total:,} bad records are skipped "
            f"({bad_records.VARIABLE}=skip)"
        )
    else:
        shown = "" if len(bad.lines) == bad.total else f", of which {len(bad.lines)} are shown"
        verdict = (
            f"{data}: {bad.total:,} bad records{shown}; correct them, or set "
            f"{bad_records.VARIABLE}=skip for the run"
        )
    return [*bad.lines, verdict]


def _make_progress_report() -> Callable[[int, int], None]:
    """Return a function that shows the numbers of records and tokens on a terminal.

    The function shows them only if _PROGRESS_PERIOD has passed since it last did.
    """
    shown_at = time.monotonic()

    def report(records: int, tokens: int) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at > _PROGRESS_PERIOD:
            shown_at = time.monotonic()
            log.show_count(f"{records:,} records, {tokens:,} tokens")

    return report


def _show_batch(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta data show`."""
    from rosetta.data import pipeline

    data_checks.check_lengths({"inputs": args.inputs, "targets": args.targets})
    vocabulary = _load_vocabulary(args)
    recipe = pipeline.Recipe(
        data=data_spec.describe_data(args.data),
        objective=args.objective,
        vocab=vocabulary.name,
        extra_ids=vocabulary.extra_ids,
        inputs=args.inputs if args.objective != "lm" else 0,
        targets=args.targets,
        seed=args.seed,
        split=args.split,
        pack=args.pack,
        text_field=args.field,
        mean_noise_span_length=args.mean_span,
    )
    batches = pipeline.Batches(recipe, args.batch)
    tokens = batches.source.read_rows(batches.list_examples(args.step))
    sides = {
        "encoder_input_tokens": ("inputs", tokens.inputs, tokens.input_segments > 0),
        "decoder_target_tokens": ("targets", tokens.targets, tokens.target_segments > 0),
    }
    if not tokens.inputs.size:  # lm has no inputs
        del sides["encoder_input_tokens"]
    names = {feature: name for feature, (name, _, _) in sides.items()}
    rows, lines = [], []
    for number in range(args.batch):
        row = {
            feature: _decode_row(vocabulary, ids[number][is_token[number]])
            for feature, (_, ids, is_token) in sides.items()
        }
        lines += [f"{number} {feature}: {content}" for feature, content in row.items()]
        rows.append(row)
    filled = {
        feature: round(float(is_token.mean()), 4) for feature, (_, _, is_token) in sides.items()
    }
    digest = pipeline.hash_batch(batches.make_batch(args.step))
    shares = [f"{filled[feature]:.1%} of {name}" for feature, name in names.items()]
    lines.append(
        f"filled: {', '.join(shares)}; step {args.step} hash {digest}; data {batches.fingerprint()}"
    )
    result = {
        "rows": rows,
        "filled": filled,
        "hash": digest,
        "fingerprint": batches.fingerprint(),
    }
    return result, "\n".join(lines)


def _decode_row(vocabulary: Any, row: Any) -> Any:
    """Return the text of a row of ids without padding; the ids if there is no vocabulary."""
    ids = [int(token) for token in row]
    if vocabulary.name.startswith("ids:"):
        return ids
    return vocabulary.decode([token for token in ids if token != vocabulary.eos])


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


def _cache_tokens(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta data cache`."""
    import itertools

    from rosetta.data import task_records, token_cache

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
    if source.kind in _KINDS_WITHOUT_TEXT:
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


def run_data(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta data`; return its result and the text to print."""
    from rosetta.data import bad_records, json_lines

    json_lines.set_field_option("--field")
    actions = {"check": _check_data, "show": _show_batch, "cache": _cache_tokens}
    result_and_text = actions[args.action](args)
    bad_records.report_skipped()
    return result_and_text


def run_vocab(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta vocab`; return its result and the text to print."""
    return _show_vocabulary(args) if args.action == "show" else _train_vocabulary(args)


def _show_vocabulary(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta vocab show`."""
    from rosetta.data import vocabularies

    vocabulary = vocabularies.load_vocabulary(args.vocab, args.extra_ids, causal=True)
    sizes = {
        "size": vocabulary.size,
        "sentinels": vocabulary.sentinel_count,
        "sentinel_ids": vocabularies.describe_sentinels(vocabulary),
    }
    result: dict[str, Any] = {
        **dataclasses.asdict(vocabulary),
        **sizes,
        "fingerprint": vocabulary.fingerprint(),
    }
    if args.text is not None:
        result["ids"] = [int(token) for token in vocabulary.encode([args.text])[0]]
    return result, "\n".join(f"{name}: {value}" for name, value in result.items())


def _train_vocabulary(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta vocab train`."""
    from rosetta.data import bad_records, json_lines, vocabulary_training

    json_lines.set_field_option("--field")
    vocabulary = vocabulary_training.train_vocabulary(
        data_spec.parse_parts(args.data),
        args.out,
        size=args.size,
        extra_ids=args.extra_ids,
        model_type=args.type,
        field=args.field,
        limit=args.limit,
        coverage=args.coverage,
        byte_fallback=not args.no_byte_fallback,
    )
    bad_records.report_skipped()
    # Without EXTRA_IDS=0, T5 adds sentinels to a vocabulary that has none.
    option = "" if vocabulary.sentinel_count else " EXTRA_IDS=0"
    text = (
        f"{args.out}: {vocabulary.size} ids, {vocabulary.sentinel_count} of them sentinels; use it "
        f"with VOCAB={vocabulary.name}{option}, in Pax with VOCAB_PATH={vocabulary.name}"
    )
    result = {
        "file": vocabulary.name,
        "size": vocabulary.size,
        "sentinels": vocabulary.sentinel_count,
        "fingerprint": vocabulary.fingerprint(),
    }
    return result, text


RUN = {"data": run_data, "vocab": run_vocab}
