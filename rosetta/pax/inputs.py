"""Inputs for Paxml's programs, which read their batches from rosetta.data.

rosetta.pax.data creates their configurations for an experiment. Training reads a batch for each
step, and an evaluation reads every example once. No code of lingvo or SeqIO is used.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from praxis import base_input, py_utils

from rosetta.core import log
from rosetta.core.errors import INVALID, UNSUPPORTED, UserError
from rosetta.data import (
    batch_log,
    causal_features,
    data_recipe,
    data_spec,
    prefetch,
    rows,
    vocabularies,
)
from rosetta.pax.run import experiment_checks

# The tokens at the end of a row that are reserved for the answer, as in upstream's inputs.
ANSWER_LENGTH = 64


def assign_rows(percore: float, devices: int, processes: int) -> tuple[int, int]:
    """Return how many rows a process reads, and how many processes read rows.

    The global batch has percore x devices x processes rows. If that is fewer rows than processes,
    only the first processes read rows: Paxml uses those.

    Args:
      percore: PERCORE_BATCH_SIZE. Below 1, several devices share a row.
      devices: The number of devices of a process.
      processes: The number of processes of the run.

    Raises:
      UserError: The rows cannot be divided evenly among the processes that read, or among the
        devices of a process.
    """
    total = experiment_checks.compute_batch(percore, devices * processes)
    if percore >= 1:
        process_rows, readers = total // processes, processes
    else:
        process_rows = -(-total // processes)  # rounded up
        readers = total // process_rows
    # Devices may share a row, but each device must have equally many whole rows otherwise.
    splits_unevenly = processes > 1 and process_rows > devices and process_rows % devices
    if process_rows * readers != total or splits_unevenly:
        if percore > 1:
            remedy = "give a whole number"
        else:
            remedy = f"give a multiple of 1/{devices}, or one row for several processes"
        raise UserError(
            f"{total} rows cannot be divided among {processes} processes of {devices} devices",
            f"PERCORE_BATCH_SIZE={percore}",
            remedy,
            kind=INVALID,
            value=total,
        )
    return process_rows, readers


def make_recipe(
    *,
    data: str,
    objective: str,
    vocab: vocabularies.Vocabulary,
    length: int,
    packed: bool = False,
    **more: Any,
) -> data_recipe.Recipe:
    """Return the recipe of rosetta.data for rows of a causal language model.

    Args:
      data: The source of the data.
      objective: The objective, such as "lm".
      vocab: The vocabulary.
      length: The tokens of a row. A prompt and its answer share a row: the answer has the last
        ANSWER_LENGTH tokens, or half of a short row.
      packed: Whether documents that share a row are separate segments. Ignored for prompts.
      **more: Other fields of the recipe.
    """
    has_prompt = objective in data_spec.PAIR_OBJECTIVES
    answer_length = min(ANSWER_LENGTH, length // 2) if has_prompt else length
    return data_recipe.Recipe(
        data,
        objective,
        vocab.name,
        vocab.extra_ids,
        length - answer_length,
        answer_length,
        pack=packed and not has_prompt,
        **more,
    )


class Input(base_input.BaseInput):
    """The input of a causal language model.

    A batch has the features of rosetta.data.causal_features.make_causal_features, and
    eval_sample_weights, float32 [batch].

    In training, example i of step s depends only on the seed, s and i. A checkpoint stores the
    step, so a run can be restored on any number of hosts, and continues with the next example.

    In evaluation, each example comes once, in the order of the data. The last batch is padded with
    copies of the first example whose weights are 0, so that all hosts stop at the same batch.

    Attributes:
      data: A source of rosetta.data, or {source: rate} as JSON.
      objective: "lm", "lambada" or "boolq".
      vocab: "byte", "ids:SIZE", a SentencePiece model or a tokenizer.json.
      seq_len: The tokens of a row. A prompt shares it with its answer, see `make_recipe`.
      packed: Whether documents that share a row are separate segments; only in training.
      bos_id: The token that the model reads at the start of a segment.
      split: The split to read, for data sets that have splits.
      text_field: The field of JSON lines and Example records that has the text.
      eval_batches: The number of batches of an evaluation; None for all examples.
    """

    data: str = "synthetic"
    objective: str = "lm"
    vocab: str = "byte"
    seq_len: int = 0
    packed: bool = False
    bos_id: int = 0
    split: str = "train"
    text_field: str = "text"
    eval_batches: int | None = None
    _batches: Any = dataclasses.field(init=False, repr=False)
    _loader: Any = dataclasses.field(init=False, repr=False)
    _log: Any = dataclasses.field(init=False, repr=False)
    _step: int = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Open the data.

        Raises:
          UserError: The data is too small for a training batch, or an evaluation would not end.
        """
        super().__post_init__()
        recipe = make_recipe(
            data=self.data,
            objective=self.objective,
            vocab=vocabularies.load_vocabulary(self.vocab, 0, causal=True),
            length=self.seq_len,
            packed=self.packed and self.is_training,
            seed=self.input_random_seed or 0,
            split=self.split,
            shuffle=self.is_training,
            text_field=self.text_field,
        )
        hosts = self.num_infeed_hosts
        self._batches = causal_features.CausalBatches(
            recipe,
            self.batch_size * hosts,
            shard=self.infeed_host_index,
            shards=hosts,
            bos=self.bos_id,
        )
        self._step = 0
        self._loader = prefetch.Loader(self._batches) if self.is_training else None
        self._log = batch_log.BatchLog(self._batches) if self.is_training else None
        if self._log is not None:
            atexit.register(self._discard_peeked_batch)
        count = self._example_count
        if self.is_training:
            experiment_checks.check_row_count(count, self._batches.batch, self.seq_len, self.data)
        if not self.is_training and count is None and self.eval_batches is None:
            raise UserError(
                "this data has no end, so an evaluation would not end",
                f"EVAL_DATA={self.data}",
                "set EVAL_BATCHES to a number of batches",
                kind=UNSUPPORTED,
            )

    @property
    def _example_count(self) -> int | None:
        """The number of examples; None for synthetic data, streams and mixtures."""
        return getattr(self._batches.source, "count", None)

    def get_next(self) -> Any:
        """Return this host's rows of the next batch, a NestedMap.

        Raises:
          StopIteration: The evaluation has read its last batch.
        """
        if self._loader is not None:
            step = self._loader.step
            features = next(self._loader)
            self._log.record(step, features)
            return py_utils.NestedMap(
                **features, eval_sample_weights=np.ones(self.batch_size, np.float32)
            )
        count = self._example_count
        first_example = self._step * self._batches.batch
        if self._step == self.eval_batches or (count is not None and first_example >= count):
            raise StopIteration
        examples = self._batches.list_examples(self._step)
        is_real = np.ones(len(examples), bool) if count is None else examples < count
        features = self._batches.make_features(
            self._batches.source.read_rows(np.where(is_real, examples, 0))
        )
        weights: Any = is_real.astype(np.float32)
        features["weights"] = features["weights"] * weights[:, None]
        self._step += 1
        return py_utils.NestedMap(**features, eval_sample_weights=weights)

    def describe_batch(self, behind: int) -> dict[str, Any] | None:
        """Return what identifies this host's rows of an earlier batch.

        Args:
          behind: How many later batches the training has taken; 0 for the newest batch.

        Returns:
          See pipeline.Batches.describe_batch.
        """
        # A batch that Paxml has only peeked at is not taken yet.
        step = self._loader.step - 1 - (self._peek is not None) - behind
        description: dict[str, Any] | None = self._batches.describe_batch(step)
        return description

    def reset(self) -> None:
        """Start again with the first example."""
        super().reset()
        self._seek(0)

    def _seek(self, step: int) -> None:
        """Continue with the batch of a step."""
        self._step = step
        if self._loader is not None:
            self._loader.close()
            self._loader.step = step
            self._log.discard_pending()

    def _discard_peeked_batch(self) -> None:
        """Leave a batch that was peeked at, but not trained on, out of the batch log."""
        if self._peek is not None:
            self._log.discard_pending()

    def restore(self, checkpoint_path: Any) -> None:
        """Continue from the state that `save` wrote.

        The states of all hosts are the same, so a run may continue with another number of hosts.

        Args:
          checkpoint_path: The file of this host. If it does not exist, the file of another host
            beside it is read.
        """
        path = Path(checkpoint_path)
        if not path.exists():
            host_files = sorted(path.parent.glob("process_*-of-*"))
            path = host_files[0] if host_files else path
        super().restore(os.fspath(path))

    def _get_state_internal(self) -> bytes:
        """Return the state of the input as JSON."""
        step = self._step if self._loader is None else self._loader.step
        return json.dumps(self._batches.make_state(step)).encode()

    def _set_state_internal(self, state: bytes) -> None:
        """Continue from a state, and print a notice if the data or the batch size has changed."""
        fields = json.loads(state)
        self._seek(fields["step"])
        notice = self._batches.resume(fields, fields["step"])
        if notice and jax.process_index() == 0:
            log.info(notice, prefix=False)

    def ids_to_strings(self, ids: Any, lengths: Any, key: str | None = None) -> list[str]:
        """Return the text of each row.

        Args:
          ids: Tokens [batch, length].
          lengths: The number of tokens of each row, [batch].
          key: Not used.
        """
        del key
        vocabulary = self._batches.recipe.vocabulary
        return [
            vocabulary.decode(row[: int(length)])
            for row, length in zip(np.atleast_2d(ids), np.atleast_1d(lengths), strict=True)
        ]


class Shapes(base_input.BaseInputSpecsProvider):
    """The shapes and types of a batch, which Paxml initialises the model with.

    No data is read.

    Attributes:
      objective: The objective, as in Input.
      seq_len: The tokens of a row, as in Input.
      batch_size: The rows of a process, including padding.
    """

    objective: str = "lm"
    seq_len: int = 0
    batch_size: int = 0

    def get_input_specs(self) -> Any:
        """Return a NestedMap of jax.ShapeDtypeStruct."""
        recipe = make_recipe(
            data="synthetic",
            objective=self.objective,
            vocab=vocabularies.Vocabulary("ids:4", 0),
            length=self.seq_len,
        )
        empty_rows = rows.make_unpacked_rows(
            np.zeros((self.batch_size, recipe.inputs), np.int32),
            np.zeros((self.batch_size, recipe.targets), np.int32),
        )
        features = causal_features.make_causal_features(
            empty_rows, pack=False, bos=0, eos=vocabularies.EOS
        )
        features["eval_sample_weights"] = np.ones(self.batch_size, np.float32)
        specs = {
            name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in features.items()
        }
        return py_utils.NestedMap(specs)
