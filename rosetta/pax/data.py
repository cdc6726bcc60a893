"""The data of rosetta's experiments: a mixin for each kind of data, under upstream's names.

The kinds are synthetic data, running text, LAMBADA and BoolQ. If the hyper-parameters DATA,
EVAL_DATA and VOCAB are not set, the variables DATA, EVAL_DATA and VOCAB_PATH count. Sources
`tfds:` are in the folder TFDS_DATA_DIR, or `--tfds_data_dir`.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import jax
import numpy as np
from absl import flags
from paxml import base_experiment
from praxis import pax_fiddle

from rosetta.core import log
from rosetta.core.errors import INVALID, MISSING, TOO_BIG, UNSUPPORTED, UserError
from rosetta.data import (
    data_recipe,
    data_spec,
    objectives,
    row_sources,
    tfds,
    token_cache,
    vocabularies,
)
from rosetta.pax import inputs

VOCABULARY_REMEDY = (
    "set VOCAB_PATH (or --fdl.VOCAB) to a SentencePiece model, to a tokenizer.json, or to `byte`"
)


class Dataset(base_experiment.BaseExperiment):
    """What the mixins share.

    Attributes:
      DATA: The source of the training data (docs/reference/data-sources.md). None: the variable
        DATA, or else the data set that upstream reads.
      EVAL_DATA: The source of the evaluation data. None: the variable EVAL_DATA, or else the
        validation split of DATA, if DATA has splits.
      VOCAB: A SentencePiece model or `byte`. None: the variable VOCAB_PATH. It is not needed if
        nothing is tokenised.
      SEED: The seed of the order of the data.
      TRAIN_INPUT_RANDOM_SEED: Upstream's name for SEED, which wins if both are set.
      MAX_SEQ_LEN: The tokens of a row.
      PERCORE_BATCH_SIZE: The rows of a batch for one device. It may be a fraction.
      PACKED_INPUT: Whether documents that share a row are separate segments.
      TEXT_FIELD: The field of JSON lines and Example records that has the text.
      EVAL_BATCHES: The batches of an evaluation, -1 for all.
    """

    DATA: Any = None
    EVAL_DATA: Any = None
    VOCAB: Any = None
    SEED = 0
    TRAIN_INPUT_RANDOM_SEED: Any = None
    MAX_SEQ_LEN = 2048
    PERCORE_BATCH_SIZE: Any = 1
    PACKED_INPUT = False
    TEXT_FIELD = "text"
    EVAL_BATCHES = 1

    # These are not hyper-parameters: a mixin sets its objective, the source that upstream reads,
    # and the names of its inputs for training and evaluation.
    objective = "lm"
    upstream_data = ""
    dataset_names = ("train", "validation")

    def resolve_train_data(self) -> str:
        """Return the source of the training data, as one line in canonical form."""
        return data_spec.describe_data(self.DATA or os.environ.get("DATA") or self.upstream_data)

    def resolve_eval_data(self) -> tuple[str, str] | None:
        """Return the source and the split of the evaluation data; None for no evaluation."""
        eval_data = self.EVAL_DATA or os.environ.get("EVAL_DATA")
        if eval_data:
            return data_spec.describe_data(eval_data), "validation"
        data = self.resolve_train_data()
        kinds = {part.spec.kind for part in data_spec.parse_parts(data)}
        if kinds <= {"hf", "tfds", "synthetic"} and _has_split(data, "validation"):
            return data, "validation"
        return None

    def load_vocabulary(self, data: str) -> vocabularies.Vocabulary:
        """Return the vocabulary of the data, without T5's sentinels.

        Args:
          data: The source of the data.

        Raises:
          UserError: A vocabulary is needed and missing, or has more ids than the model.
        """
        kinds = {part.spec.kind for part in data_spec.parse_parts(data)}
        if kinds == {"synthetic"}:
            return vocabularies.load_vocabulary(f"ids:{self.VOCAB_SIZE}", 0)
        name = self.VOCAB or os.environ.get("VOCAB_PATH")
        if not name and kinds != {"cache"}:
            raise UserError(
                "there is no vocabulary, and text is to be tokenised",
                f"DATA={data}",
                VOCABULARY_REMEDY,
                kind=MISSING,
            )
        if not name and self.PACKED_INPUT:
            raise UserError(
                "packing looks for the vocabulary's end token",
                "PACKED_INPUT",
                VOCABULARY_REMEDY,
                kind=MISSING,
            )
        if not name:
            caches = [
                token_cache.TokenCache(part.spec.value) for part in data_spec.parse_parts(data)
            ]
            name = f"ids:{max(cache.recipe.vocab_size for cache in caches)}"
        vocabulary = vocabularies.load_vocabulary(name, 0, causal=True)
        if vocabulary.size > self.VOCAB_SIZE:
            raise UserError(
                f"the vocabulary has {vocabulary.size} ids, the model {self.VOCAB_SIZE}",
                vocabulary.name,
                f"set --fdl.VOCAB_SIZE={vocabulary.size}, or name the model's own vocabulary",
                kind=TOO_BIG,
                value=vocabulary.size,
            )
        return vocabulary

    def _make_input(self, data: str, split: str, *, training: bool) -> Any:
        """Return the configuration of an input.

        Args:
          data: The source of the data.
          split: The split of sets that have splits.
          training: Whether the input is for training.

        Raises:
          UserError: A hyper-parameter is wrong, or the data cannot be read.
        """
        _export_tfds_folder()
        if not isinstance(self.MAX_SEQ_LEN, int) or self.MAX_SEQ_LEN < 2:
            raise UserError(
                f"{self.MAX_SEQ_LEN!r} is not a valid number of tokens of a row",
                "MAX_SEQ_LEN",
                "give 2 or more",
                kind=INVALID,
                value=self.MAX_SEQ_LEN,
            )
        rows, hosts = inputs.assign_rows(
            self.PERCORE_BATCH_SIZE, jax.local_device_count(), jax.process_count()
        )
        vocabulary = self.load_vocabulary(data)
        check_data(
            inputs.make_recipe(
                data=data,
                objective=self.objective,
                vocab=vocabulary,
                length=self.MAX_SEQ_LEN,
                split=split,
            )
        )
        seed = self.SEED
        if self.TRAIN_INPUT_RANDOM_SEED is not None:
            seed = self.TRAIN_INPUT_RANDOM_SEED
        return pax_fiddle.Config(
            inputs.Input,
            name=self.dataset_names[0 if training else 1],
            is_training=training,
            batch_size=rows,
            num_infeed_hosts=hosts,
            infeed_host_index=jax.process_index() % hosts,
            input_random_seed=seed,
            reset_for_eval=not training,
            eval_loop_num_batches=1 if training else -1,
            data=data,
            objective=self.objective,
            vocab=vocabulary.name,
            seq_len=self.MAX_SEQ_LEN,
            packed=self.PACKED_INPUT and training,
            bos_id=getattr(self, "BOS_ID", vocabulary.bos),
            split=split,
            text_field=self.TEXT_FIELD,
            eval_batches=None if training else self._read_eval_batches(),
        )

    def _read_eval_batches(self) -> int | None:
        """Return the batches of an evaluation, None for all; UserError if the number is wrong."""
        if self.EVAL_BATCHES == -1:
            return None
        batches = int(self.EVAL_BATCHES)
        if batches < 1:
            raise UserError(
                f"{self.EVAL_BATCHES} is not a valid number of batches",
                "EVAL_BATCHES",
                "give 1 or more, or -1 for all",
                kind=INVALID,
                value=self.EVAL_BATCHES,
            )
        return batches

    def datasets(self) -> list[Any]:
        """Return the configurations of the inputs for training and evaluation.

        Raises:
          UserError: The data or the vocabulary is missing or does not fit the model, or the rows
            of a batch cannot be divided among the processes.
        """
        eval_data = self.resolve_eval_data()
        configs = [self._make_input(self.resolve_train_data(), "train", training=True)]
        if eval_data:
            configs.append(self._make_input(*eval_data, training=False))
        return configs

    def get_input_specs_provider_params(self) -> Any:
        """Return the configuration of the object that tells Paxml the shapes of a batch.

        No data is read for the shapes.
        """
        devices = jax.local_device_count()
        rows, _ = inputs.assign_rows(self.PERCORE_BATCH_SIZE, devices, jax.process_count())
        return pax_fiddle.Config(
            inputs.Shapes,
            objective=self.objective,
            seq_len=self.MAX_SEQ_LEN,
            batch_size=-(-rows // devices) * devices,
        )


class SyntheticDataset(Dataset):
    """Random tokens below VOCAB_SIZE, for benchmarks. They need no file and no vocabulary."""

    PERCORE_BATCH_SIZE: Any = 16
    MAX_SEQ_LEN = 1024
    dataset_names = ("SyntheticTrain", "SyntheticValidation")

    def resolve_train_data(self) -> str:
        """Return the source of random tokens."""
        return "synthetic"

    def resolve_eval_data(self) -> tuple[str, str] | None:
        """Return the source of random tokens, and a split."""
        return "synthetic", "validation"


class PileUnsupervisedDataset(Dataset):
    """Running text: any text that DATA names, or else a copy of the Pile."""

    upstream_data = "tfds:the_pile"
    dataset_names = ("PileTrain", "PileValidation")


class LambadaDataset(Dataset):
    """The last words of LAMBADA's passages, for zero-shot evaluation. Nothing is trained."""

    EVAL_BATCHES = -1
    objective = "lambada"
    upstream_data = "tfds:my_lambada"
    dataset_names = ("LambadaTrain", "LambadaValidation")

    def resolve_eval_data(self) -> tuple[str, str]:
        """Return the source and the split of the evaluation data."""
        eval_data = self.EVAL_DATA or os.environ.get("EVAL_DATA") or self.resolve_train_data()
        return data_spec.describe_data(eval_data), "test"

    def datasets(self) -> list[Any]:
        """Return the configuration of the input for evaluation."""
        return [self._make_input(*self.resolve_eval_data(), training=False)]


class BoolQDataset(Dataset):
    """BoolQ: questions that are answered by yes or no, for training and zero-shot evaluation."""

    PERCORE_BATCH_SIZE: Any = 8
    MAX_SEQ_LEN = 4096
    BOS_ID = 1
    TRUE_TOKEN: Any = None
    FALSE_TOKEN: Any = None
    EVAL_BATCHES = -1
    objective = "boolq"
    upstream_data = "tfds:super_glue/boolq"
    dataset_names = ("BoolQTrain", "BoolQ")

    def resolve_eval_data(self) -> tuple[str, str] | None:
        """Return the source and the split of the evaluation data: at worst the training data."""
        eval_data = super().resolve_eval_data()
        if eval_data is None:
            data = self.resolve_train_data()
            _warn_once(f"data: EVAL_DATA is not set: {data} itself is evaluated")
            return data, "train"
        return eval_data

    def find_answer_tokens(self) -> tuple[int, int]:
        """Return the tokens of `yes` and `no`, whose logits the accuracy compares.

        They are TRUE_TOKEN and FALSE_TOKEN, or else those of the vocabulary.

        Raises:
          UserError: The vocabulary does not have one token for each.
        """
        if self.TRUE_TOKEN is not None and self.FALSE_TOKEN is not None:
            return int(np.asarray(self.TRUE_TOKEN).item()), int(np.asarray(self.FALSE_TOKEN).item())
        vocabulary = self.load_vocabulary(self.resolve_train_data())
        yes, no = vocabulary.encode(["yes", "no"])
        if len(yes) != 1 or len(no) != 1:
            raise UserError(
                f"the vocabulary has {len(yes)} ids for yes and {len(no)} for no: the accuracy "
                "needs one for each",
                f"VOCAB={vocabulary.name}",
                "name a SentencePiece model that has a piece for each",
                kind=INVALID,
            )
        return int(yes[0]), int(no[0])


@functools.lru_cache
def check_data(recipe: data_recipe.Recipe) -> None:
    """Check that the data of a recipe exists and suits its objective.

    Only the names of files and their heads are read, and only once for each recipe.

    Raises:
      UserError: The data is missing or does not suit the objective.
    """
    objective = objectives.make_objective(
        recipe.objective, {"inputs": recipe.inputs, "targets": recipe.targets}
    )
    for part in data_spec.parse_parts(recipe.data):
        if part.spec.kind == "task":
            raise UserError(
                "SeqIO reads this data, rosetta.data does not",
                f"DATA={part.spec}",
                "name files, or a tfds: or hf: set",
                kind=UNSUPPORTED,
            )
        row_sources.check_source(part.spec, objective, recipe.vocabulary, recipe.split)


def _warn_once(line: str) -> None:
    """Warn once for the run."""
    if jax.process_index() == 0:
        log.warn(line, once=True)


def _export_tfds_folder() -> None:
    """Give `--tfds_data_dir` to rosetta.data, and to the processes that make batches."""
    if flags.FLAGS.is_parsed() and getattr(flags.FLAGS, "tfds_data_dir", None):
        os.environ["TFDS_DATA_DIR"] = flags.FLAGS.tfds_data_dir


def _has_split(data: str, split: str) -> bool:
    """Return whether every tfds set of the data has a split, and warn of each that lacks it."""
    _export_tfds_folder()
    has_all = True
    for part in data_spec.parse_parts(data):
        if part.spec.kind != "tfds" or part.spec.split:
            continue
        if split not in tfds.read_splits(tfds.find_set_folder(part.spec.value)):
            _warn_once(f"data: {part.spec} has no split {split}: nothing is evaluated")
            has_all = False
    return has_all
