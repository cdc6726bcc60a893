"""Answer prompts with a language model of Pax, in batches."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rosetta.core import log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.data.vocabularies import Vocabulary
    from rosetta.inference.decoding import Decoding
    from rosetta.inference.pax_model import PaxModel

_LENGTH_STEP = 16  # texts are padded to a multiple, so that few programs are compiled
STOPPED, CUT = "stop", "length"  # why an answer ends


@dataclass(frozen=True)
class Answer:
    """One answer to a prompt.

    Attributes:
      text: The text up to the first stop; None without a vocabulary.
      ids: All tokens that the model chose, with the one that ends the answer.
      logprobs: The logarithm of the probability of each token, at temperature 1.
      score: The sum of `logprobs`; with a beam search, the sum divided by a power of the length.
      end: "stop" if the answer ends by itself, "length" if it was cut.
    """

    text: str | None
    ids: list[int]
    logprobs: list[float]
    score: float
    end: str


@dataclass(frozen=True)
class Stops:
    """What ends an answer in its text.

    Attributes:
      vocabulary: The vocabulary of the text; None if there is no text.
      texts: Texts that end an answer. The first one that comes counts, and is left out.
    """

    vocabulary: Vocabulary | None = None
    texts: tuple[str, ...] = ()


def choose_length(texts: Sequence[Sequence[int]]) -> int:
    """Return the length in tokens to which texts are padded."""
    return -(-max(map(len, texts)) // _LENGTH_STEP) * _LENGTH_STEP


def generate_answers(
    model: PaxModel,
    prompts: Sequence[Sequence[int]],
    decoding: Decoding,
    stops: Stops,
    *,
    seed: int = 0,
    batch: int = 8,
) -> list[list[Answer]]:
    """Return the answers to each prompt.

    Args:
      model: The model.
      prompts: The tokens of each prompt.
      decoding: How tokens are chosen.
      stops: What ends an answer in its text.
      seed: The seed of what is drawn by chance. An answer depends on the seed, on the number of
        its prompt and on the prompt alone.
      batch: The prompts that are answered at the same time.
    """
    length = choose_length(prompts)
    batch = min(batch, len(prompts))
    results: list[list[Answer]] = []
    for begin in range(0, len(prompts), batch):
        log.show_progress("generating", begin, len(prompts))
        rows = list(prompts[begin : begin + batch])
        padded_rows = rows + [rows[-1]] * (batch - len(rows))
        keys = make_keys(seed, begin, batch, decoding.samples)
        answers = model.generate(padded_rows, decoding, keys, length)
        for row, prompt in enumerate(rows):
            results.append(
                [
                    _make_answer(
                        prompt,
                        ids,
                        answers.logprobs[row][number],
                        None if answers.scores is None else answers.scores[row][number],
                        decoding,
                        stops,
                    )
                    for number, ids in enumerate(answers.ids[row])
                ]
            )
    log.show_progress("generating", len(prompts), len(prompts))
    return results


def make_keys(seed: int, first: int, count: int, samples: int) -> Any:
    """Return a random key for each answer, uint32 [count * samples, 2].

    Args:
      seed: The seed.
      first: The number of the first prompt.
      count: The number of prompts.
      samples: The number of answers to each prompt.
    """
    base = jax.random.PRNGKey(seed)
    numbers = np.arange(first, first + count)
    prompt_keys = jax.vmap(lambda number: jax.random.fold_in(base, number))(numbers)
    split = jax.vmap(
        lambda key: jax.vmap(lambda number: jax.random.fold_in(key, number))(np.arange(samples))
    )
    return np.asarray(split(prompt_keys)).reshape(count * samples, -1)


def _make_answer(
    prompt: Sequence[int],
    ids: list[int],
    logprobs: list[float],
    score: float | None,
    decoding: Decoding,
    stops: Stops,
) -> Answer:
    """Return an answer with its text; see generate_answers for the arguments."""
    ended = bool(ids) and ids[-1] in decoding.stop_ids
    answer = Answer(
        text=None,
        ids=ids,
        logprobs=logprobs,
        score=float(sum(logprobs)) if score is None else score,
        end=STOPPED if ended else CUT,
    )
    if stops.vocabulary is None:
        return answer
    text = decode_answer(stops.vocabulary, prompt, ids[:-1] if ended else ids)
    places = [text.find(stop) for stop in stops.texts if stop in text]
    if places:
        return dataclasses.replace(answer, text=text[: min(places)], end=STOPPED)
    return dataclasses.replace(answer, text=text)


def decode_answer(vocabulary: Vocabulary, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """Return the text of an answer, with the space that may begin it.

    Vocabularies leave out the space at the beginning of a text. So the answer is decoded after
    its prompt.
    """
    begin = [number for number in prompt if number not in (vocabulary.eos, vocabulary.bos)]
    before, whole = vocabulary.decode(begin), vocabulary.decode([*begin, *ids])
    return whole[len(before) :] if whole.startswith(before) else vocabulary.decode(ids)
