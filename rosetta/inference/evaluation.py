"""Measure how well a language model of Pax answers evaluation sets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.core import log
from rosetta.core.errors import TOO_BIG, UserError
from rosetta.inference import evaluation_sets, generation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.data.vocabularies import Vocabulary
    from rosetta.inference.decoding import Decoding
    from rosetta.inference.evaluation_sets import MetricFunction, Question, QuestionSet
    from rosetta.inference.pax_model import PaxModel, Score


@dataclass(frozen=True)
class Evaluator:
    """A model, and how its texts become tokens.

    Attributes:
      model: The model.
      vocabulary: The vocabulary.
      begin: The tokens that begin each text.
      batch: The texts that are computed at the same time.
    """

    model: PaxModel
    vocabulary: Vocabulary
    begin: tuple[int, ...]
    batch: int

    def measure_likelihoods(self, questions: QuestionSet) -> dict[str, float]:
        """Return the metrics of a set of last words or choices, without generating text.

        An answer is likely if all of its tokens are, after the prompt. Prompt and answer are
        encoded apart, as in training. A prompt that is too long loses its beginning, and a warning
        says how often.

        Args:
          questions: The set.
        """
        scores = self._score_choices(questions)
        count = len(questions.questions)
        if questions.kind == evaluation_sets.LAST_WORD:
            correct = sum(score.likeliest for (score,) in scores)
            logprob = sum(score.logprob for (score,) in scores)
            return {"accuracy": correct / count, "perplexity": compute_perplexity(-logprob / count)}
        correct = sum(
            choose_likeliest(choice_scores) == question.answer
            for choice_scores, question in zip(scores, questions.questions, strict=True)
        )
        return {"accuracy": correct / count}

    def _score_choices(self, questions: QuestionSet) -> list[list[Score]]:
        """Return the score of each choice of each question."""
        texts, begins, shortened = list[list[int]](), list[int](), 0
        for question in questions.questions:
            (prompt,) = self.vocabulary.encode([question.prompt])
            for answer in self.vocabulary.encode(question.choices):
                room = self.model.length - len(self.begin) - len(answer)
                if room < 0 or not len(answer):
                    raise UserError(
                        f"an answer has {len(answer)} tokens, and the model's texts have at most "
                        f"{self.model.length}",
                        f"{questions.name}={questions.data}",
                        "leave the record out",
                        kind=TOO_BIG,
                        value=len(answer),
                    )
                shortened += len(prompt) > room
                kept = prompt[max(len(prompt) - room, 0) :]
                # A text without any token before the answer would have nothing to begin with.
                texts.append([*(self.begin or (self.vocabulary.bos,)), *kept, *answer])
                begins.append(len(texts[-1]) - len(answer))
        if shortened:
            log.warn(
                f"{questions.name}: {shortened:,} of {len(texts):,} texts are longer than the "
                "model's and lose their beginning"
            )
        flat = self._score_texts(questions.name, texts, begins)
        return _split_by_question(flat, questions.questions)

    def _score_texts(
        self, name: str, texts: Sequence[list[int]], begins: Sequence[int]
    ) -> list[Score]:
        """Return the scores of the ends of texts; `name` is shown as progress."""
        length = generation.choose_length(texts)
        batch = min(self.batch, len(texts))
        scores: list[Score] = []
        for first in range(0, len(texts), batch):
            log.show_progress(name, first, len(texts))
            rows, places = texts[first : first + batch], begins[first : first + batch]
            missing = batch - len(rows)
            batch_scores = self.model.score(
                [*rows, *[rows[-1]] * missing], [*places, *[places[-1]] * missing], length
            )
            scores += batch_scores[: len(rows)]
        log.show_progress(name, len(texts), len(texts))
        return scores

    def measure_answers(
        self, questions: QuestionSet, decoding: Decoding, metric: tuple[str, MetricFunction] | None
    ) -> dict[str, float]:
        """Return the metrics of a set of free answers, which the model writes greedily.

        Args:
          questions: The set.
          decoding: How tokens are chosen.
          metric: The name of the metric and its function; None for the share of answers that are
            the expected ones, but for white space around them.

        Raises:
          UserError: A prompt is too long, or the metric fails.
        """
        prompts = []
        for number, question in enumerate(questions.questions, 1):
            (ids,) = self.vocabulary.encode([question.prompt])
            prompts.append([*(self.begin or (self.vocabulary.bos,)), *ids.tolist()])
            if len(prompts[-1]) + decoding.max_tokens > self.model.length:
                raise UserError(
                    f"the prompt has {len(prompts[-1])} tokens, and the model's texts have at most "
                    f"{self.model.length}",
                    f"{questions.data}, record {number:,}",
                    "shorten the prompt, or lower --max-tokens",
                    kind=TOO_BIG,
                    value=len(prompts[-1]),
                )
        stops = generation.Stops(self.vocabulary, ("\n",))
        generated = generation.generate_answers(
            self.model, prompts, decoding, stops, batch=self.batch
        )
        answers = [(first.text or "").strip() for first, *_ in generated]
        targets = [question.target for question in questions.questions]
        if metric:
            return evaluation_sets.compute_metric(*metric, targets, answers)
        same = sum(
            answer == target.strip() for answer, target in zip(answers, targets, strict=True)
        )
        return {"accuracy": same / len(answers)}


def compute_perplexity(loss: float) -> float:
    """Return the perplexity of a mean loss; infinity if it is too large for a number."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def choose_likeliest(scores: Sequence[Score]) -> int:
    """Return the number of the likeliest choice; the first one of several."""
    return max(range(len(scores)), key=lambda number: scores[number].logprob)


def _split_by_question(scores: Sequence[Score], questions: Sequence[Question]) -> list[list[Score]]:
    """Return the scores of each question's choices."""
    result: list[list[Score]] = []
    first = 0
    for question in questions:
        end = first + len(question.choices)
        result.append(list(scores[first:end]))
        first = end
    return result
