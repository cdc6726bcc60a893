"""How a language model chooses the tokens of its answers."""

from __future__ import annotations

from dataclasses import dataclass

from rosetta.core.errors import CONFLICT, INVALID, MISSING, UserError

PROBABILITY_REMEDY = "give a number above 0 and at most 1"


@dataclass(frozen=True)
class Decoding:
    """How tokens are chosen: the likeliest one, one by chance, or the best text of a beam search.

    Attributes:
      max_tokens: The largest number of tokens of an answer.
      stop_ids: Tokens that end an answer.
      temperature: What logits are divided by before a token is drawn; 0 takes the likeliest token.
      top_k: Draw from so many of the likeliest tokens; 0 for all.
      top_p: Draw from the fewest tokens that together have this probability; None for all.
      samples: The number of answers to each prompt.
      beams: The number of texts that a beam search keeps; 0 for no beam search.
      length_penalty: The exponent of the length by which a beam search divides a text's score.
    """

    max_tokens: int
    stop_ids: tuple[int, ...] = ()
    temperature: float = 0.0
    top_k: int = 0
    top_p: float | None = None
    samples: int = 1
    beams: int = 0
    length_penalty: float = 0.8

    def check(self) -> Decoding:
        """Check the values, and return the decoding.

        Raises:
          UserError: A value is not valid, or two of them contradict each other.
        """
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(
                f"{self.top_p:g} is not a valid probability",
                "--top-p",
                PROBABILITY_REMEDY,
                kind=INVALID,
                value=self.top_p,
            )
        draws = bool(self.temperature or self.top_k or self.top_p is not None)
        if self.beams and (draws or self.samples > 1):
            raise UserError(
                "a beam search draws nothing by chance",
                f"--beams {self.beams}",
                "leave it out, or leave out --temperature, --top-k, --top-p and --samples",
                kind=CONFLICT,
                value=self.beams,
            )
        if self.beams and not self.stop_ids:
            raise UserError(
                "a beam search compares texts that have ended, and no token ends a text",
                f"--beams {self.beams}",
                "give the id of the end token: --stop-id ID",
                kind=MISSING,
                value=self.beams,
            )
        if not self.temperature and (draws or self.samples > 1):
            raise UserError(
                "with temperature 0 the likeliest token is taken, and nothing is drawn by chance",
                "--temperature 0",
                "leave it out, or leave out --top-k, --top-p and --samples",
                kind=CONFLICT,
            )
        return self
