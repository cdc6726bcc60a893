"""What a run's rows of data are made from."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rosetta.data import data_spec, objectives, vocabularies

if TYPE_CHECKING:
    from rosetta.data.objectives import Objective


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that decides what the rows are.

    The names of the fields are part of fingerprints, and must not change.

    Attributes:
        data: A spec string, or {spec: rate} as JSON.
        objective: One of data_spec.OBJECTIVES.
        vocab: "byte", "ids:N" or a SentencePiece model.
        extra_ids: The number of sentinels added to the vocabulary.
        inputs: The length of inputs in tokens; 0 for lm.
        targets: The length of targets in tokens.
        seed: The seed of the order and of every random choice.
        split: The split of hf and tfds sets that name none.
        pack: Whether several short examples share a row (mnli, squad). A window of running text
            fills its row alone.
        shuffle: Whether the order is random. Otherwise it is that of the data, and windows begin at
            the same places in each epoch.
        text_field: The field of JSON lines, Examples and Hugging Face records that has the text.
        mean_noise_span_length: The mean length of masked spans, for span corruption.
        noise_density: The share of masked tokens, for span corruption.
        labels: The names of the classes, for classification. It is not part of the fingerprint of
            a recipe without classes.
        mode_tokens: The mode tokens of ul2, see objectives.split_mode_tokens.
        input_prefix: The text before the inputs of each record, see task_records.add_prefix.
    """

    data: str
    objective: str
    vocab: str
    extra_ids: int
    inputs: int
    targets: int
    seed: int = 0
    split: str = "train"
    pack: bool = False
    shuffle: bool = True
    text_field: str = "text"
    mean_noise_span_length: float = 3.0
    noise_density: float = 0.15
    labels: tuple[str, ...] = ()
    mode_tokens: str = data_spec.MODE_TOKENS
    input_prefix: str = ""

    @property
    def sized_objective(self) -> Objective:
        """The objective at the lengths of this recipe."""
        lengths = {"inputs": self.inputs, "targets": self.targets}
        return objectives.make_objective(
            self.objective,
            lengths,
            mean_noise_span_length=self.mean_noise_span_length,
            noise_density=self.noise_density,
            mode_tokens=self.mode_tokens,
            vocabulary=self.vocabulary,
        )

    @property
    def vocabulary(self) -> vocabularies.Vocabulary:
        """The vocabulary with its added sentinels."""
        return vocabularies.Vocabulary(self.vocab, self.extra_ids)
