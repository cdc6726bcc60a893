"""`rosetta data check|cache|show` and `rosetta vocab train|show`."""

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

_PROGRESS_PERIOD = 0.2  # s between counts on a terminal
_EXTRA_IDS = (
    "sentinels to add (default: 100; none for bytes, and none if the vocabulary has sentinels)"
)
_parse_count = option_types.make_whole_number_type(minimum=0)


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the two commands to the top parser's subcommands."""
    data = commands.add_parser("data", parents=[common])
    actions = data.add_subparsers(dest="action", metavar="ACTION")
    sources = "; ".join(f"{kind}: {what}" for kind, what in data_spec.KINDS.items())
    about = f'the data, as one of these kinds, or a mixture {{"SPEC": RATE, ...}}. {sources}'
    for name, text, more in (
        (
            "check",
            "check whether a run can use this data, and count records and tokens",
            "The command reads every record.",
        ),
        ("show", "print rows as the model gets them, and the hash of the batch", ""),
        (
            "cache",
            "tokenise the data once, for many runs",
            "If you stop the command and start it again, it continues where it stopped.",
        ),
    ):
        action = actions.add_parser(name, help=text, description=more)
        action.add_argument("data", metavar="SPEC", help=about.replace("%", "%%"))
        action.add_argument(
            "--vocab", default="byte", help="a SentencePiece model, or byte (default: byte)"
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
        if name == "cache":
            action.add_argument(
                "--out", required=True, metavar="FOLDER", help="the folder for the tokens"
            )
            action.add_argument(
                "--jobs", type=_parse_count, help="processes (default: one for each core)"
            )
            action.add_argument(
                "--limit", type=_parse_count, help="the largest number of documents"
            )
            continue
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
        if name == "check":
            action.add_argument(
                "--vocab-size", type=_parse_count, help="the rows of the model's embedding"
            )
            action.add_argument(
                "--head", action="store_true", help="read only the first record of each source"
            )
        else:
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
                "--batch", type=_parse_count, default=4, help="rows of the batch (default: 4)"
            )
            action.add_argument(
                "--pack", action="store_true", help="put several examples into one row"
            )
    vocab = commands.add_parser("vocab", parents=[common])
    actions = vocab.add_subparsers(dest="action", metavar="ACTION")
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
        help="the share of letters that get an id of their own (default: 0.9995)",
    )
    train.add_argument(
        "--no-byte-fallback",
        action="store_true",
        help="make letters without an id unknown, as T5's own vocabulary does",
    )
    train.add_argument(
        "--limit",
        type=_parse_count,
        default=10_000_000,
        help="pieces of documents to learn from (default: 10 million)",
    )
    train.add_argument(
        "--field",
        default="text",
        help="the field that holds the text of JSON lines and Example records (default: text)",
    )
    show = actions.add_parser("show", help="show sizes, sentinels and fingerprint of a vocabulary")
    show.add_argument("vocab", help="a SentencePiece model, or byte")
    show.add_argument("--extra-ids", type=_parse_count, help=_EXTRA_IDS)
    show.add_argument("text", nargs="?", help="a text whose ids to show")


def _check_data(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from rosetta.data import bad_records, source_counts, task_records, tfds, vocabularies

    lengths = {"inputs": args.inputs, "targets": args.targets}
    data_checks.check_data(
        data=args.data,
        objective=args.objective,
        vocab=args.vocab,
        vocab_size=args.vocab_size,
        lengths=lengths,
        split=args.split,
        extra_ids=args.extra_ids,
        mean_noise_span_length=args.mean_span,
        from_variables=False,
    )
    found = {
        str(part.spec): tfds.check(part.spec, args.split)
        for part in data_spec.parse_parts(args.data)
        if part.spec.kind == "tfds"
    }
    lines = [
        f"{name}: {copy['files']} files, {copy['bytes']:,} bytes, {copy['examples']:,} examples"
        for name, copy in found.items()
    ]
    data = data_spec.describe_data(args.data)
    if args.head:
        for part in data_spec.parse_parts(args.data):
            if part.spec.kind not in ("synthetic", "cache", "task"):
                task_records.check_first_record(part.spec, args.objective, args.field, args.split)
        return {"ok": True, "data": data, "copies": found}, "\n".join(
            [*lines, f"{data}: usable for {args.objective}, by its first record"]
        )
    bad = bad_records.BadRecordSummary()
    chosen = vocabularies.load_vocabulary(
        args.vocab, args.extra_ids, causal=args.objective in data_spec.CAUSAL_OBJECTIVES
    )
    counts: dict[str, dict[str, int]] = {}
    for part in data_spec.parse_parts(args.data):
        counted = source_counts.count_source(
            part.spec, args.objective, args.field, args.split, chosen, bad, _make_progress_report()
        )
        if counted:
            counts[str(part.spec)] = counted
            lines.append(
                f"{part.spec}: {counted['records']:,} records, {counted['tokens']:,} tokens"
            )
    if not bad.total:
        lines.append(f"{data}: usable for {args.objective}")
    elif bad_records.read_policy() == "skip":
        lines += [
            *bad.lines,
            (
                f"{data}: usable for {args.objective}; {bad.total:,} bad records are skipped "
                f"({bad_records.VARIABLE}=skip)"
            ),
        ]
    else:
        shown = "" if len(bad.lines) == bad.total else f", of which {len(bad.lines)} are shown"
        lines += [
            *bad.lines,
            (
                f"{data}: {bad.total:,} bad records{shown}; mend them, or have a run skip them: "
                f"{bad_records.VARIABLE}=skip"
            ),
        ]
    ok = not bad.total or bad_records.read_policy() == "skip"
    return {
        "ok": ok,
        "data": data,
        "copies": found,
        "counts": counts,
        "bad": {"total": bad.total, "kinds": bad.kinds, "first": bad.lines},
    }, "\n".join(lines)


def _make_progress_report() -> Callable[[int, int], None]:
    """Return what shows counts of records and tokens on a terminal, and nothing elsewhere."""
    shown = time.monotonic()

    def report(documents: int, tokens: int) -> None:
        nonlocal shown
        if time.monotonic() - shown > _PROGRESS_PERIOD:
            shown = time.monotonic()
            log.show_count(f"{documents:,} records, {tokens:,} tokens")

    return report


def _show_batch(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from rosetta.data import pipeline, vocabularies

    data_checks.check_lengths({"inputs": args.inputs, "targets": args.targets})
    chosen = vocabularies.load_vocabulary(
        args.vocab, args.extra_ids, causal=args.objective in data_spec.CAUSAL_OBJECTIVES
    )
    recipe = pipeline.Recipe(
        data_spec.describe_data(args.data),
        args.objective,
        chosen.name,
        chosen.extra_ids,
        args.inputs if args.objective != "lm" else 0,
        args.targets,
        seed=args.seed,
        split=args.split,
        pack=args.pack,
        text_field=args.field,
        mean_noise_span_length=args.mean_span,
    )
    batches = pipeline.Batches(recipe, args.batch)
    batch = batches.make_batch(args.step)
    with_text = not chosen.name.startswith("ids:")
    # lm's rows have no inputs.
    sides = {
        name: what
        for name, what in (("encoder_input_tokens", "inputs"), ("decoder_target_tokens", "targets"))
        if batch[name].size
    }
    rows, lines = [], []
    for number in range(args.batch):
        row = {}
        for name in sides:
            ids = [int(one) for one in batch[name][number] if one]
            row[name] = (
                chosen.decode([one for one in ids if one != chosen.eos]) if with_text else ids
            )
            lines.append(f"{number} {name}: {row[name]}")
        rows.append(row)
    filled = {name: round(float((batch[name] != 0).mean()), 4) for name in sides}
    digest = pipeline.hash_batch(batch)
    lines.append(
        "filled: "
        f"{', '.join(f'{filled[name]:.1%} of {what}' for name, what in sides.items())}; step "
        f"{args.step} hash {digest}; data {batches.fingerprint()}"
    )
    return {
        "rows": rows,
        "filled": filled,
        "hash": digest,
        "fingerprint": batches.fingerprint(),
    }, "\n".join(lines)


_encoder: Any = None


def _start_worker(name: str, extra_ids: int) -> None:
    from rosetta.data import vocabularies

    global _encoder  # noqa: PLW0603 (one vocabulary a worker process)
    _encoder = vocabularies.Vocabulary(name, extra_ids)


def _encode_texts(texts: list[str]) -> Any:
    return _encoder.encode(texts)


def _encode_ahead(batches: Iterator[list[str]], chosen: Any, jobs: int) -> Iterator[Any]:
    """Encode batches in processes, in order, a bounded number of them ahead."""
    import collections
    import concurrent.futures
    import multiprocessing

    if jobs <= 1:
        yield from (chosen.encode(batch) for batch in batches)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        jobs, context, _start_worker, (chosen.name, chosen.extra_ids)
    ) as pool:
        waiting: collections.deque[Any] = collections.deque()
        for batch in batches:
            waiting.append(pool.submit(_encode_texts, batch))
            if len(waiting) >= 4 * jobs:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _cache_tokens(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    import itertools

    from rosetta.data import task_records, tfds, token_cache, vocabularies

    parts = data_spec.parse_parts(args.data)
    if len(parts) > 1:
        raise UserError(
            "a cache holds one source",
            "SPEC",
            'cache each, and mix them: DATA={"cache:A": 0.7, "cache:B": 0.3}',
            kind=UNSUPPORTED,
            value=len(parts),
        )
    one = parts[0].spec
    if one.kind in ("synthetic", "cache", "task"):
        raise UserError(
            f"{one.kind} has nothing to tokenise",
            f"DATA={one}",
            "use text, jsonl, tfrecord, tfds or hf",
            kind=UNSUPPORTED,
            value=one.kind,
        )
    chosen = vocabularies.load_vocabulary(
        args.vocab,
        args.extra_ids,
        causal=args.objective in data_spec.CAUSAL_OBJECTIVES,
        recorded=token_cache.read_vocabulary_fingerprint(args.out),
    )
    if chosen.name.startswith("ids:"):
        raise UserError(
            "text needs a vocabulary",
            f"--vocab {args.vocab}",
            "name a SentencePiece model or `byte`",
            kind=CONFLICT,
            value=args.vocab,
        )
    pairs = args.objective if args.objective in data_spec.PAIR_OBJECTIVES else ""
    named = "byte" if chosen.name == "byte" else os.path.basename(chosen.name)
    source = f"{one}@{args.split}:{args.field}" + (
        f":{args.limit}" if args.limit is not None else ""
    )
    paths = (
        tfds.find_shards(one, args.split)
        if one.kind == "tfds"
        else data_spec.find_files(one)
        if one.kind != "hf"
        else None
    )
    recipe = token_cache.CacheRecipe(
        source,
        chosen.fingerprint(),
        named,
        chosen.size,
        args.objective == "lm",
        pairs,
        token_cache.fingerprint_files(paths) if paths else "",
    )
    jobs = args.jobs or len(os.sched_getaffinity(0))
    texts = task_records.read_texts(one, args.objective, args.field, args.split)
    begun = time.monotonic()

    def report(documents: int, tokens: int) -> None:
        log.show_count(f"{documents:,} documents, {tokens:,} tokens")

    meta = token_cache.write_cache(
        args.out,
        recipe,
        itertools.islice(texts, args.limit * (2 if pairs else 1))
        if args.limit is not None
        else texts,
        lambda batches: _encode_ahead(batches, chosen, jobs),
        end=chosen.eos,
        report=report,
    )
    took = time.monotonic() - begun
    text = (
        f"{args.out}: {meta['documents']:,} documents, {meta['tokens']:,} tokens in "
        f"{len(meta['shards'])} files, {took:.1f} s; use it with "
        f"DATA=cache:{os.path.abspath(args.out)}"
    )
    return {"folder": os.path.abspath(args.out), "seconds": round(took, 1), **meta}, text


def run_data(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta data`; return its result and the text to print."""
    from rosetta.data import bad_records, json_lines

    json_lines.set_field_option("--field")
    done = {"check": _check_data, "show": _show_batch, "cache": _cache_tokens}[args.action](args)
    bad_records.report_skipped()
    return done


def run_vocab(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta vocab`; return its result and the text to print."""
    from rosetta.data import bad_records, json_lines, vocabularies, vocabulary_training

    if args.action == "show":
        chosen = vocabularies.load_vocabulary(args.vocab, args.extra_ids, causal=True)
        sizes = {
            "size": chosen.size,
            "sentinels": chosen.sentinel_count,
            "sentinel_ids": vocabularies.describe_sentinels(chosen),
        }
        found: dict[str, Any] = {
            **dataclasses.asdict(chosen),
            **sizes,
            "fingerprint": chosen.fingerprint(),
        }
        if args.text is not None:
            found["ids"] = [int(one) for one in chosen.encode([args.text])[0]]
        return found, "\n".join(f"{name}: {value}" for name, value in found.items())
    json_lines.set_field_option("--field")
    made = vocabulary_training.train_vocabulary(
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
    text = (
        f"{args.out}: {made.size} ids, of them {made.sentinel_count} sentinels; use it with "
        f"VOCAB={made.name}, in Pax VOCAB_PATH={made.name}"
    )
    return {
        "file": made.name,
        "size": made.size,
        "sentinels": made.sentinel_count,
        "fingerprint": made.fingerprint(),
    }, text


RUN = {"data": run_data, "vocab": run_vocab}
