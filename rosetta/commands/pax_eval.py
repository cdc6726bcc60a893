"""The command `rosetta pax eval`: evaluate a language model of Pax on evaluation sets."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

from rosetta.commands import pax_model_options
from rosetta.core import option_types
from rosetta.core.errors import CONFLICT, MISSING, UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rosetta.inference.evaluation_sets import QuestionSet

NAME = "eval"
SUMMARY = "evaluate a trained GPT or LLaMA on LAMBADA, BoolQ or records of your own"
DESCRIPTION = "--list shows all evaluation sets, with those of T5."
_DEFAULT_TOKENS = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.add_argument(
        "checkpoint", nargs="?", metavar="CHECKPOINT", help=pax_model_options.CHECKPOINT_HELP
    )
    parser.add_argument(
        "sets",
        nargs="*",
        metavar="SET",
        help="lambada, boolq, SET=FILE, or NAME=FILE.jsonl with records of your own",
    )
    parser.add_argument("--list", action="store_true", help="list the evaluation sets")
    parser.add_argument(
        "--limit",
        type=option_types.parse_count,
        metavar="N",
        help="evaluate on the first N records of each set",
    )
    parser.add_argument(
        "--metric",
        metavar="MODULE:FUNCTION",
        help=(
            "for records without choices: a function of the expected texts and the answers that "
            "returns numbers by name (default: the share of answers that are the expected ones)"
        ),
    )
    parser.add_argument(
        "--max-tokens",
        type=option_types.parse_count,
        default=_DEFAULT_TOKENS,
        metavar="N",
        help=f"for records without choices: the most tokens of an answer (default: "
        f"{_DEFAULT_TOKENS})",
    )
    pax_model_options.add_model_options(parser)


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta pax eval`; return its result and the text to print."""
    from rosetta.inference import evaluation_sets

    if args.list:
        return _list_sets()
    if not args.checkpoint or not args.sets:
        raise UserError(
            "no checkpoint or no evaluation set is named",
            "rosetta pax eval",
            "write CHECKPOINT SET, for example /runs/gpt lambada; --list shows the sets",
            kind=MISSING,
        )
    metric = None
    if args.metric:
        metric = (args.metric, evaluation_sets.load_metric(args.metric))
    sets = [evaluation_sets.read_set(word) for word in args.sets]
    has_texts = any(item.kind == evaluation_sets.TEXT for item in sets)
    if metric and not has_texts:
        raise UserError(
            "no set has records without choices",
            f"--metric {args.metric}",
            "leave it out",
            kind=CONFLICT,
        )
    return _evaluate(args, sets, metric)


def _list_sets() -> tuple[dict[str, Any], str]:
    """Return the evaluation sets."""
    from rosetta.inference import evaluation_sets

    lines = []
    for item in evaluation_sets.SETS:
        lines += [
            item.name,
            f"  {item.command}",
            f"  asked     {item.asked}",
            f"  measured  {item.metrics}",
            f"  data      {item.fetch}",
        ]
    return {"sets": [dataclasses.asdict(item) for item in evaluation_sets.SETS]}, "\n".join(lines)


def _evaluate(
    args: argparse.Namespace, sets: Sequence[QuestionSet], metric: Any
) -> tuple[dict[str, Any], str]:
    """Evaluate the model on sets; return the result and a table."""
    files, experiment = pax_model_options.open_experiment(args, "rosetta pax eval")
    from rosetta.inference import decoding, evaluation, evaluation_sets, model_files, pax_model

    vocabulary = model_files.load_vocabulary(files, args.vocab, os.environ, experiment.VOCAB_SIZE)
    first = model_files.find_first_id(files, experiment, vocabulary)
    evaluator = evaluation.Evaluator(
        pax_model.PaxModel(experiment, files.checkpoint),
        vocabulary,
        () if args.no_bos else (first,),
        args.batch,
    )
    greedy = decoding.Decoding(args.max_tokens, (vocabulary.eos,))
    results = []
    for item in sets:
        limited = dataclasses.replace(item, questions=item.questions[: args.limit])
        if item.kind == evaluation_sets.TEXT:
            metrics = evaluator.measure_answers(limited, greedy, metric)
        else:
            metrics = evaluator.measure_likelihoods(limited)
        results.append(
            {
                "name": item.name,
                "data": item.data,
                "records": len(limited.questions),
                "metrics": metrics,
            }
        )
    result = {"checkpoint": files.checkpoint.where, "sets": results}
    return result, format_table(results)


def format_table(results: Sequence[dict[str, Any]]) -> str:
    """Return a table with a line for each metric of each set."""
    rows = [("set", "records", "metric", "value")]
    for result in results:
        for name, value in result["metrics"].items():
            rows.append((result["name"], f"{result['records']:,}", name, f"{value:.4f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
