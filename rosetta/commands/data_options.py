"""The options that the commands of `rosetta data` share, and the vocabulary that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.core import option_types
from rosetta.data import data_spec

if TYPE_CHECKING:
    import argparse

EXTRA_IDS_HELP = (
    "sentinels to add (default: 100; none for bytes, and none if the vocabulary has sentinels)"
)
KINDS_WITHOUT_TEXT = ("synthetic", *data_spec.TOKEN_KINDS, "task")
parse_count = option_types.make_whole_number_type(minimum=0)


def add_data_options(action: argparse.ArgumentParser) -> None:
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
    action.add_argument("--extra-ids", type=parse_count, help=EXTRA_IDS_HELP)
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


def add_row_options(action: argparse.ArgumentParser) -> None:
    """Add the options of the rows that a run trains on, for `check` and `show`."""
    action.add_argument(
        "--inputs", type=parse_count, default=512, help="tokens of an input (default: 512)"
    )
    action.add_argument(
        "--targets", type=parse_count, default=128, help="tokens of a target (default: 128)"
    )
    action.add_argument(
        "--mean-span",
        type=option_types.parse_positive_number,
        default=3.0,
        help="tokens of a masked span (default: 3); runs on bytes use 20",
    )


def load_vocabulary(args: argparse.Namespace) -> Any:
    """Return the vocabulary of the command line, for its objective."""
    from rosetta.data import vocabularies

    is_causal = args.objective in data_spec.CAUSAL_OBJECTIVES
    return vocabularies.load_vocabulary(args.vocab, args.extra_ids, causal=is_causal)
