"""The command `rosetta data show`: print rows as the model gets them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.commands import data_options
from rosetta.core import option_types
from rosetta.data import data_checks, data_spec

if TYPE_CHECKING:
    import argparse


def add_options(action: argparse.ArgumentParser) -> None:
    """Add the options of `rosetta data show`."""
    action.add_argument(
        "--seed",
        type=data_options.parse_count,
        default=0,
        help="the seed of the order (default: 0)",
    )
    action.add_argument(
        "--step",
        type=data_options.parse_count,
        default=0,
        help="the step whose batch to show (default: 0)",
    )
    action.add_argument(
        "--batch", type=option_types.parse_count, default=4, help="rows of the batch (default: 4)"
    )
    action.add_argument("--pack", action="store_true", help="put several examples into one row")


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta data show`."""
    from rosetta.data import batch_hashes, data_recipe, pipeline

    data_checks.check_lengths({"inputs": args.inputs, "targets": args.targets})
    vocabulary = data_options.load_vocabulary(args)
    recipe = data_recipe.Recipe(
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
    digest = batch_hashes.hash_batch(batches.make_batch(args.step))
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
