"""The command `rosetta pax generate`: continue prompts with a language model of Pax."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

from rosetta.commands import pax_model_options
from rosetta.core import option_types
from rosetta.core.errors import CONFLICT, INVALID, UserError
from rosetta.core.printable_text import escape
from rosetta.core.value_parsing import parse_decimal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rosetta.inference.decoding import Decoding
    from rosetta.inference.generation import Answer
    from rosetta.inference.prompts import Prompt

NAME = "generate"
SUMMARY = "continue prompts with a trained GPT or LLaMA"
DESCRIPTION = (
    "Without --temperature, --top-k, --top-p, --samples and --beams, the likeliest token is taken "
    "at each step."
)
_DEFAULT_TOKENS = 64
_MAX_BEAMS = 64
_HEAD = 60  # characters of a prompt that name its answers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help=pax_model_options.CHECKPOINT_HELP)
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="a text to continue")
    parser.add_argument(
        "--file",
        metavar="FILE",
        help=(
            "a file with a prompt on each line, or with JSON lines (prompt, id) if its name ends "
            "in .jsonl; - for standard input"
        ),
    )
    parser.add_argument(
        "--ids", action="store_true", help="prompts are ids with spaces between them, not text"
    )
    pax_model_options.add_model_options(parser)
    _add_decoding_options(parser)


def _add_decoding_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how tokens are chosen."""
    parser.add_argument(
        "--max-tokens",
        type=option_types.parse_count,
        metavar="N",
        help=f"the most tokens of an answer (default: {_DEFAULT_TOKENS}, or what the model has)",
    )
    parser.add_argument(
        "--temperature",
        type=option_types.parse_number,
        metavar="T",
        help="draw tokens by chance, with logits divided by T; 0 takes the likeliest (default: 0, "
        "or 1 if another option draws)",
    )
    parser.add_argument(
        "--top-k",
        type=option_types.make_whole_number_type(0),
        default=0,
        metavar="K",
        help="draw from the K likeliest tokens (default: 0, from all)",
    )
    parser.add_argument(
        "--top-p",
        type=_parse_probability,
        metavar="P",
        help="draw from the fewest tokens that together have the probability P",
    )
    parser.add_argument(
        "--samples",
        type=option_types.parse_count,
        default=1,
        metavar="N",
        help="answers that are drawn for each prompt (default: 1)",
    )
    parser.add_argument(
        "--seed",
        type=option_types.make_whole_number_type(0, 2**32 - 1),
        default=0,
        help="the seed of what is drawn (default: 0)",
    )
    parser.add_argument(
        "--beams",
        type=option_types.make_whole_number_type(1, _MAX_BEAMS),
        metavar="N",
        help="search the best text with N beams; the N best are the answers",
    )
    parser.add_argument(
        "--length-penalty",
        type=option_types.parse_number,
        metavar="A",
        help="with --beams: divide the score by ((5 + length) / 5) ** A (default: 0.8)",
    )
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end an answer before this text; may be given again",
    )
    parser.add_argument(
        "--stop-id",
        action="append",
        default=[],
        type=option_types.make_whole_number_type(0),
        metavar="ID",
        help="end an answer with this token (default: the vocabulary's end token); may be given "
        "again",
    )


def _parse_probability(text: str) -> float:
    """Return the value of --top-p; `Decoding.check` checks its range."""
    from rosetta.inference import decoding

    number = parse_decimal(text)
    if number is None:
        raise UserError(f"{text!r} is not a valid probability", do=decoding.PROBABILITY_REMEDY)
    return number


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta pax generate`; return its result and the text to print."""
    from rosetta.inference import prompts

    prompt_list = prompts.read_prompts(args.prompts, args.file)
    _check_options(args)
    _make_decoding(args, (0,), _DEFAULT_TOKENS)  # before anything is loaded
    files, experiment = pax_model_options.open_experiment(args, "rosetta pax generate")
    return _generate(args, prompt_list, files, experiment)


def _check_options(args: argparse.Namespace) -> None:
    """Raise UserError if options contradict each other."""
    needless = {
        "--vocab": bool(args.vocab),
        "--no-bos": args.no_bos,
        "--stop": bool(args.stop),
    }
    for option, is_given in needless.items():
        if args.ids and is_given:
            raise UserError("works only with text", option, "leave out --ids", kind=CONFLICT)
    if args.length_penalty is not None and not args.beams:
        raise UserError(
            "works only with --beams", "--length-penalty", "add --beams N", kind=CONFLICT
        )
    if "" in args.stop:
        raise UserError("an empty text ends every answer", "--stop", "give a text", kind=INVALID)


def _make_decoding(args: argparse.Namespace, stop_ids: Sequence[int], max_tokens: int) -> Decoding:
    """Return how tokens are chosen; UserError if the options do not fit each other."""
    from rosetta.inference.decoding import Decoding

    draws = bool(args.top_k or args.top_p is not None or args.samples > 1)
    temperature = args.temperature
    if temperature is None:
        temperature = 1.0 if draws and not args.beams else 0.0
    decoding = Decoding(
        max_tokens=max_tokens,
        stop_ids=tuple(stop_ids),
        temperature=temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        samples=args.samples,
        beams=args.beams or 0,
    )
    if args.length_penalty is not None:
        decoding = dataclasses.replace(decoding, length_penalty=args.length_penalty)
    return decoding.check()


def _generate(
    args: argparse.Namespace, prompt_list: Sequence[Prompt], files: Any, experiment: Any
) -> tuple[dict[str, Any], str]:
    """Answer the prompts; return the result and the text to print."""
    from rosetta.inference import generation, model_files, pax_model, prompts

    vocab_size, length = experiment.VOCAB_SIZE, experiment.MAX_SEQ_LEN
    if args.ids:
        stops = generation.Stops()
        tokens = [prompts.parse_ids(prompt, vocab_size) for prompt in prompt_list]
        stop_ids = args.stop_id
    else:
        vocabulary = model_files.load_vocabulary(files, args.vocab, os.environ, vocab_size)
        stops = generation.Stops(vocabulary, tuple(args.stop))
        first = model_files.find_first_id(files, experiment, vocabulary)
        begin = [] if args.no_bos else [first]
        encoded = vocabulary.encode([prompt.text for prompt in prompt_list])
        tokens = [[*begin, *ids.tolist()] for ids in encoded]
        stop_ids = args.stop_id or [vocabulary.eos]
    for prompt, ids in zip(prompt_list, tokens, strict=True):
        prompts.check_length(prompt, len(ids), args.max_tokens, length)
    room = length - max(map(len, tokens))
    decoding = _make_decoding(args, stop_ids, args.max_tokens or min(_DEFAULT_TOKENS, room))
    model = pax_model.PaxModel(experiment, files.checkpoint)
    answers = generation.generate_answers(
        model, tokens, decoding, stops, seed=args.seed, batch=args.batch
    )
    result = {
        "checkpoint": files.checkpoint.where,
        "vocabulary": stops.vocabulary.name if stops.vocabulary else None,
        "decoding": dataclasses.asdict(decoding),
        "seed": args.seed,
        "prompts": [
            {
                "id": prompt.id,
                "prompt": prompt.text,
                "ids": ids,
                "answers": [dataclasses.asdict(answer) for answer in prompt_answers],
            }
            for prompt, ids, prompt_answers in zip(prompt_list, tokens, answers, strict=True)
        ],
    }
    return result, _render_text(prompt_list, answers)


def _render_text(prompt_list: Sequence[Prompt], answers: Sequence[Sequence[Answer]]) -> str:
    """Return the answers as text. If there are several, a line names the prompt of each."""
    texts = [[_render_answer(answer) for answer in prompt_answers] for prompt_answers in answers]
    if sum(map(len, texts)) == 1:
        return texts[0][0]
    blocks = []
    for prompt, prompt_texts in zip(prompt_list, texts, strict=True):
        for number, text in enumerate(prompt_texts, 1):
            place = f"{prompt.id}.{number}" if len(prompt_texts) > 1 else f"{prompt.id}"
            head = prompt.text[:_HEAD] + ("..." if len(prompt.text) > _HEAD else "")
            blocks.append(f"--- {escape(f'{place}: {head}', keep='')}\n{text}")
    return "\n".join(blocks)


def _render_answer(answer: Answer) -> str:
    """Return the text of an answer, or its ids."""
    if answer.text is None:
        return " ".join(map(str, answer.ids))
    return escape(answer.text)
