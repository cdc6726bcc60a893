"""The command `rosetta vocab`: show a vocabulary, or train one on data."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rosetta.commands import data_options
from rosetta.core import option_types
from rosetta.data import data_spec

if TYPE_CHECKING:
    import argparse


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the top parser's subcommands.

    Args:
        commands: The subcommands of the top parser.
        common: A parser with the options of all commands.
    """
    vocab = commands.add_parser("vocab", parents=[common])
    actions = vocab.add_subparsers(dest="action", metavar="ACTION")
    _add_train_parser(actions)
    _add_show_parser(actions)


def _add_train_parser(actions: Any) -> None:
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
        "--size",
        type=data_options.parse_count,
        default=32_000,
        help="ids, with the sentinels (default: 32000)",
    )
    train.add_argument(
        "--extra-ids", type=data_options.parse_count, default=100, help="sentinels (default: 100)"
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
        type=data_options.parse_count,
        default=10_000_000,
        help="the largest number of pieces of documents to learn from (default: 10 million)",
    )
    train.add_argument(
        "--field",
        default="text",
        help="the field that holds the text of JSON lines and Example records (default: text)",
    )


def _add_show_parser(actions: Any) -> None:
    """Add `rosetta vocab show`."""
    show = actions.add_parser("show", help="show sizes, sentinels and fingerprint of a vocabulary")
    show.add_argument("vocab", help="a SentencePiece model, a tokenizer.json, or byte")
    show.add_argument(
        "--extra-ids", type=data_options.parse_count, help=data_options.EXTRA_IDS_HELP
    )
    show.add_argument("text", nargs="?", help="a text whose ids to show")


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
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


RUN = {"vocab": run}
