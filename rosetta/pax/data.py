"""What experiments read: a mixin each for synthetic data, running text, LAMBADA and BoolQ, under
upstream's names.

Where `--fdl.DATA=`, `--fdl.EVAL_DATA=` and `--fdl.VOCAB=` are not given, the variables DATA,
EVAL_DATA and VOCAB_PATH are looked at; TFDS_DATA_DIR, or `--tfds_data_dir`, is where `tfds:` sets
lie.
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
from rosetta.data import data_spec, objectives, pipeline, tfds, token_cache, vocabularies
from rosetta.pax import inputs

VOCABULARY_REMEDY = "set VOCAB_PATH (or --fdl.VOCAB) to a SentencePiece model, or to `byte`"


class Dataset(base_experiment.BaseExperiment):
    """What the mixins share.

    Attributes:
      DATA: a spec of rosetta.data (docs/reference/data-sources.md); None: the variable DATA, else
        the set that upstream reads.
      EVAL_DATA: what evaluation reads; None: the variable EVAL_DATA, else DATA's split for that,
        where it has splits.
      VOCAB: a SentencePiece model or `byte`; None: the variable VOCAB_PATH. Not needed where
        nothing is tokenised.
      SEED, TRAIN_INPUT_RANDOM_SEED: of the order; the second one, upstream's name, wins where it is
        set.
      PERCORE_BATCH_SIZE: rows a device, before they are laid over the mesh; may be a fraction.
      PACKED_INPUT: whether documents that share a row of running text are segments of their own.
      TEXT_FIELD: where JSON lines and Example records have their text.
      EVAL_BATCHES: batches of an evaluation, -1 for all.
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

    # Not hyper-parameters: what a mixin is.
    objective = "lm"
    upstream_data = ""
    dataset_names = ("train", "validation")

    def resolve_train_data(self) -> str:
        """Return DATA in one canonical line."""
        return data_spec.describe_data(self.DATA or os.environ.get("DATA") or self.upstream_data)

    def resolve_eval_data(self) -> tuple[str, str] | None:
        """Return the data and the split that evaluation reads; None for no evaluation."""
        if given := self.EVAL_DATA or os.environ.get("EVAL_DATA"):
            return data_spec.describe_data(given), "validation"
        data = self.resolve_train_data()
        if all(
            part.spec.kind in ("hf", "tfds", "synthetic") for part in data_spec.parse_parts(data)
        ):
            return (data, "validation") if _has_split(data, "validation") else None
        return None

    def load_vocabulary(self, data: str) -> vocabularies.Vocabulary:
        """Return the vocabulary that data is read with, none of T5's sentinels in it.

        Raises:
          UserError: it is needed and not there, or has more ids than the model.
        """
        size = self.VOCAB_SIZE
        kinds = {part.spec.kind for part in data_spec.parse_parts(data)}
        if kinds == {"synthetic"}:
            return vocabularies.load_vocabulary(f"ids:{size}", 0)
        name = self.VOCAB or os.environ.get("VOCAB_PATH")
        if not name:
            if kinds != {"cache"}:
                raise UserError(
                    "there is no vocabulary, and text is to be tokenised",
                    f"DATA={data}",
                    VOCABULARY_REMEDY,
                    kind=MISSING,
                )
            if self.PACKED_INPUT:
                raise UserError(
                    "packing looks for the vocabulary's end token",
                    "PACKED_INPUT",
                    VOCABULARY_REMEDY,
                    kind=MISSING,
                )
            sizes = (
                token_cache.TokenCache(part.spec.value).recipe.vocab_size
                for part in data_spec.parse_parts(data)
            )
            name = f"ids:{max(sizes)}"
        found = vocabularies.load_vocabulary(name, 0, causal=True)
        if found.size > size:
            raise UserError(
                f"the vocabulary has {found.size} ids, the model {size}",
                found.name,
                f"set --fdl.VOCAB_SIZE={found.size}, or name the model's own vocabulary",
                kind=TOO_BIG,
                value=found.size,
            )
        return found

    def _make_input(self, data: str, split: str, *, training: bool) -> Any:
        _export_tfds_folder()
        if not isinstance(self.MAX_SEQ_LEN, int) or self.MAX_SEQ_LEN < 2:
            raise UserError(
                f"a row has {self.MAX_SEQ_LEN!r} tokens",
                "MAX_SEQ_LEN",
                "give 2 or more",
                kind=INVALID,
                value=self.MAX_SEQ_LEN,
            )
        rows, hosts = inputs.assign_rows(
            self.PERCORE_BATCH_SIZE, jax.local_device_count(), jax.process_count()
        )
        vocab = self.load_vocabulary(data)
        check_data(
            inputs.make_recipe(
                data=data,
                objective=self.objective,
                vocab=vocab,
                length=self.MAX_SEQ_LEN,
                split=split,
            )
        )
        batches = None if training or self.EVAL_BATCHES == -1 else int(self.EVAL_BATCHES)
        if batches is not None and batches < 1:
            raise UserError(
                f"it is {self.EVAL_BATCHES}",
                "EVAL_BATCHES",
                "give 1 or more, or -1 for all",
                kind=INVALID,
                value=self.EVAL_BATCHES,
            )
        return pax_fiddle.Config(
            inputs.Input,
            name=self.dataset_names[0 if training else 1],
            is_training=training,
            batch_size=rows,
            num_infeed_hosts=hosts,
            infeed_host_index=jax.process_index() % hosts,
            input_random_seed=self.SEED
            if self.TRAIN_INPUT_RANDOM_SEED is None
            else self.TRAIN_INPUT_RANDOM_SEED,
            reset_for_eval=not training,
            eval_loop_num_batches=1 if training else -1,
            data=data,
            objective=self.objective,
            vocab=vocab.name,
            seq_len=self.MAX_SEQ_LEN,
            packed=self.PACKED_INPUT and training,
            bos_id=getattr(self, "BOS_ID", 0),
            split=split,
            text_field=self.TEXT_FIELD,
            eval_batches=batches,
        )

    def datasets(self) -> list[Any]:
        """Return the configurations of what is trained on and what is evaluated.

        Raises:
          UserError: data or vocabulary are not there, do not fit, or the batch cannot be dealt out.
        """
        read = self.resolve_eval_data()
        return [self._make_input(self.resolve_train_data(), "train", training=True)] + (
            [self._make_input(*read, training=False)] if read else []
        )

    def get_input_specs_provider_params(self) -> Any:
        """Return the configuration of what tells Paxml the shapes of a batch: no data is read for
        it.
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
    """Random ids below VOCAB_SIZE, for benchmarks: no file, no vocabulary."""

    PERCORE_BATCH_SIZE: Any = 16
    MAX_SEQ_LEN = 1024
    dataset_names = ("SyntheticTrain", "SyntheticValidation")

    def resolve_train_data(self) -> str:
        return "synthetic"

    def resolve_eval_data(self) -> tuple[str, str] | None:
        return "synthetic", "validation"


class PileUnsupervisedDataset(Dataset):
    """Windows of running text: the Pile for those who hold a copy, C4, or any text DATA names."""

    upstream_data = "tfds:the_pile"
    dataset_names = ("PileTrain", "PileValidation")


class LambadaDataset(Dataset):
    """LAMBADA's last words, for zero-shot evaluation."""

    EVAL_BATCHES = -1
    objective = "lambada"
    upstream_data = "tfds:my_lambada"
    dataset_names = ("LambadaTrain", "LambadaValidation")

    def resolve_eval_data(self) -> tuple[str, str] | None:
        return data_spec.describe_data(
            self.EVAL_DATA or os.environ.get("EVAL_DATA") or self.resolve_train_data()
        ), "test"

    def datasets(self) -> list[Any]:
        return (
            [self._make_input(*read, training=False)] if (read := self.resolve_eval_data()) else []
        )


class BoolQDataset(Dataset):
    """BoolQ's questions, answered by yes or no: for supervised fine-tuning and zero-shot
    evaluation.
    """

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
        read = super().resolve_eval_data()
        if read is None:
            data = self.resolve_train_data()
            _warn_once(f"data: EVAL_DATA is not set: {data} itself is evaluated")
            return data, "train"
        return read

    def find_answer_tokens(self) -> tuple[int, int]:
        """Return the ids of `yes` and `no`, by which the accuracy is counted: TRUE_TOKEN and
        FALSE_TOKEN, or the vocabulary's.

        Raises:
          UserError: the vocabulary has not one id for each.
        """
        given = [self.TRUE_TOKEN, self.FALSE_TOKEN]
        if None not in given:
            yes, no = (int(np.asarray(one).item()) for one in given)
            return yes, no
        found = self.load_vocabulary(self.resolve_train_data())
        ids = found.encode(["yes", "no"])
        if any(len(one) != 1 for one in ids):
            what = (
                f"it has {len(ids[0])} ids for yes and {len(ids[1])} for no: the accuracy "
                "compares one with one"
            )
            raise UserError(
                what,
                f"VOCAB={found.name}",
                "name a SentencePiece model that has a piece for each",
                kind=INVALID,
            )
        return int(ids[0][0]), int(ids[1][0])


@functools.lru_cache
def check_data(recipe: pipeline.Recipe) -> None:
    """Raise UserError where data is missing or cannot serve the objective; reads file names and
    heads only, once.
    """
    rule = objectives.make_objective(
        recipe.objective, {"inputs": recipe.inputs, "targets": recipe.targets}
    )
    for part in data_spec.parse_parts(recipe.data):
        if part.spec.kind == "task":
            raise UserError(
                "SeqIO gives this data, rosetta.data does not",
                f"DATA={part.spec}",
                "name files, or a tfds: or hf: set",
                kind=UNSUPPORTED,
            )
        pipeline.check_source(part.spec, rule, recipe.vocabulary, recipe.split)


def _warn_once(line: str) -> None:
    """Warn once for the run."""
    if jax.process_index() == 0:
        log.warn(line, once=True)


def _export_tfds_folder() -> None:
    """Give `--tfds_data_dir` to rosetta.data, and to the processes that make batches."""
    if flags.FLAGS.is_parsed() and getattr(flags.FLAGS, "tfds_data_dir", None):
        os.environ["TFDS_DATA_DIR"] = flags.FLAGS.tfds_data_dir


def _has_split(data: str, split: str) -> bool:
    """Say whether every tfds set of the data has the split; that it is missing is said."""
    _export_tfds_folder()
    lacking = [
        part.spec
        for part in data_spec.parse_parts(data)
        if part.spec.kind == "tfds"
        and not part.spec.split
        and split not in tfds.read_splits(tfds.find_set_folder(part.spec.value))
    ]
    for each in lacking:
        _warn_once(f"data: {each} has no split {split}: nothing is evaluated")
    return not lacking
