"""The inputs of Paxml, made by rosetta.data.

rosetta.pax.data configures them for an experiment. Training reads a batch for each step, and an
evaluation reads every example once. No code of lingvo or SeqIO is used.
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

from rosetta.core.errors import INVALID, UNSUPPORTED, UserError
from rosetta.data import (
    batch_log,
    causal_features,
    data_spec,
    pipeline,
    prefetch,
    rows,
    vocabularies,
)
from rosetta.pax.run import experiment_checks

ANSWER_LENGTH = 64  # tokens of a row that are kept for the answer, as in upstream's inputs


def assign_rows(percore: float, devices: int, processes: int) -> tuple[int, int]:
    """Return how many rows a host reads, and how many hosts read rows.

    The global batch has percore x devices x processes rows. If a fractional batch has fewer rows
    than hosts, Paxml takes the rows of the first hosts.

    Args:
      percore: PERCORE_BATCH_SIZE. Below 1, several devices share a row.
      devices: The devices of a process.
      processes: The processes of the run.

    Raises:
      UserError: The rows cannot be divided evenly among the processes.
    """
    total = experiment_checks.compute_batch(percore, devices * processes)
    if percore >= 1:
        host_rows, hosts = total // processes, processes
    else:
        host_rows = -(-total // processes)
        hosts = total // host_rows
    splits_unevenly = processes > 1 and host_rows > devices and host_rows % devices
    if host_rows * hosts != total or splits_unevenly:
        remedy = (
            "give a whole number"
            if percore > 1
            else f"give a multiple of 1/{devices}, or one row for several processes"
        )
        raise UserError(
            f"{total} rows cannot be divided among {processes} processes of {devices} devices",
            f"PERCORE_BATCH_SIZE={percore}",
            remedy,
            kind=INVALID,
            value=total,
        )
    return host_rows, hosts


def make_recipe(
    *,
    data: str,
    objective: str,
    vocab: vocabularies.Vocabulary,
    length: int,
    packed: bool = False,
    **more: Any,
) -> pipeline.Recipe:
    """Return the recipe of rosetta.data for rows of a causal language model.

    Args:
      data: The source of the data.
      objective: The objective, such as "lm".
      vocab: The vocabulary.
      length: The tokens of a row. Of the row of a prompt, at most half is kept for the answer.
      packed: Whether documents that share a row are separate segments.
      **more: Other fields of the recipe.
    """
    is_prompt = objective in data_spec.PAIR_OBJECTIVES
    answer_length = min(ANSWER_LENGTH, length // 2) if is_prompt else length
    return pipeline.Recipe(
        data,
        objective,
        vocab.name,
        vocab.extra_ids,
        length - answer_length,
        answer_length,
        pack=packed and not is_prompt,
        **more,
    )


class Input(base_input.BaseInput):
    """The input of a causal language model.

    A batch has the features of rosetta.data.causal_features.make_causal_features, and
    eval_sample_weights, float32 [batch].

    In training, example i of step s depends only on the seed, s and i. The state of the input is
    the step, so a run that is restored on any number of hosts continues with the next example.

    In evaluation, each example comes once, in the order of the data. Rows that only fill the last
    batch repeat the first example with weights of 0, and all hosts stop at the same batch.

    Attributes:
      data: A source of rosetta.data, or {source: rate} as JSON.
      objective: "lm", "lambada" or "boolq".
      vocab: "byte", "ids:SIZE" or a SentencePiece model.
      seq_len: The tokens of a row. The last ANSWER_LENGTH tokens of a prompt are the answer's.
      packed: Whether documents that share a row are separate segments.
      bos_id: The token that is read at the start of a segment.
      split: The split of sets that have splits.
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
          UserError: The data is too small for a batch of training, or an evaluation has no end.
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
            atexit.register(self._drop_unused_batch)
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
          behind: How many batches were read after that batch.

        Returns:
          See pipeline.Batches.describe_batch.
        """
        # A batch that Paxml peeked at is not trained yet.
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

    def _drop_unused_batch(self) -> None:
        """Keep a batch that was peeked at, and not trained, out of the log of batches."""
        if self._peek is not None:
            self._log.discard_pending()

    def restore(self, checkpoint_path: Any) -> None:
        """Continue from the state that `save` wrote.

        The states of all hosts are the same, so a run may continue with another number of hosts.

        Args:
          checkpoint_path: The file of this host, or of a host that the run no longer has.
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
        """Continue from a state, and print a line if the batch size has changed."""
        fields = json.loads(state)
        self._seek(fields["step"])
        line = self._batches.resume(fields, fields["step"])
        if line and jax.process_index() == 0:
            print(line, flush=True)

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
    """The shapes and types of a batch, from which Paxml makes the model. No file is read.

    Attributes:
      objective: The objective, as in Input.
      seq_len: The tokens of a row, as in Input.
      batch_size: The rows of a process, with those that only fill the batch.
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
