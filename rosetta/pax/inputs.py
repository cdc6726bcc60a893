"""Paxml's door to rosetta.data: batches by step in training, every example once in evaluation, none
of lingvo's or SeqIO's code.
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

ANSWER_LENGTH = 64  # tokens of a row kept for the answer, as upstream has it


def assign_rows(percore: float, devices: int, processes: int) -> tuple[int, int]:
    """Return (rows of a host, hosts that feed rows) for a global batch of PERCORE_BATCH_SIZE x
    devices x processes rows.

    Of a fractional batch with fewer rows than hosts, Paxml takes the rows of the first hosts.

    Args:
      percore: PERCORE_BATCH_SIZE; below 1, devices share a row.
      devices: of a process.
      processes: how many there are.

    Raises:
      UserError: the rows cannot be dealt out evenly.
    """
    total = experiment_checks.compute_batch(percore, devices * processes)
    if percore >= 1:
        own, hosts = total // processes, processes
    else:
        own = -(-total // processes)
        hosts = total // own
    if own * hosts != total or (processes > 1 and own > devices and own % devices):
        do = (
            "give a whole number"
            if percore > 1
            else f"give a multiple of 1/{devices}, or one row for several processes"
        )
        raise UserError(
            f"{total} rows cannot be dealt out to {processes} processes of {devices} devices",
            f"PERCORE_BATCH_SIZE={percore}",
            do,
            kind=INVALID,
            value=total,
        )
    return own, hosts


def make_recipe(
    *,
    data: str,
    objective: str,
    vocab: vocabularies.Vocabulary,
    length: int,
    packed: bool = False,
    **more: Any,
) -> pipeline.Recipe:
    """Return rosetta.data's recipe for rows of `length` tokens; `more` are other fields of it."""
    pairs = objective in data_spec.PAIR_OBJECTIVES
    answer = min(ANSWER_LENGTH, length // 2) if pairs else length
    return pipeline.Recipe(
        data,
        objective,
        vocab.name,
        vocab.extra_ids,
        length - answer,
        answer,
        pack=packed and not pairs,
        **more,
    )


class Input(base_input.BaseInput):
    """Rows of a causal language model (rosetta.data.causal_features.make_causal_features) and
    eval_sample_weights (float32 [batch]).

    In training example i of step s depends on the seed, s and i alone, and the state is the
    position: restored on any number of hosts, it goes on with the next example. In evaluation each
    example comes once, in the data's own order; rows that only fill the last batch repeat the first
    example with weights of 0, and all hosts stop at the same batch.

    Attributes:
      data: a spec of rosetta.data, or {spec: rate} as JSON.
      objective: `lm`, `lambada` or `boolq`.
      vocab: "byte", "ids:SIZE" or a SentencePiece model.
      seq_len: tokens of a row; of prompts the last ANSWER_LENGTH of them are the answer's.
      packed: documents of running text are segments of their own.
      bos_id: the id read where a segment begins.
      split: of sets that have splits.
      text_field: where JSON lines and Example records have their text.
      eval_batches: at which batch evaluation stops; None: when every example came.
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
        super().__post_init__()
        made = make_recipe(
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
            made,
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
                "this data has no end to evaluate to",
                f"EVAL_DATA={self.data}",
                "set EVAL_BATCHES to a number of batches",
                kind=UNSUPPORTED,
            )

    @property
    def _example_count(self) -> int | None:
        """How many examples there are; None for synthetic data, streams and mixtures."""
        return getattr(self._batches.source, "count", None)

    def get_next(self) -> Any:
        """Return this host's rows of the next batch, a NestedMap; StopIteration after the last one
        of an evaluation.
        """
        if self._loader is not None:
            step = self._loader.step
            found = next(self._loader)
            self._log.record(step, found)
            return py_utils.NestedMap(
                **found, eval_sample_weights=np.ones(self.batch_size, np.float32)
            )
        first = self._step * self._batches.batch
        if self._step == self.eval_batches or (
            self._example_count is not None and first >= self._example_count
        ):
            raise StopIteration
        examples = self._batches.list_examples(self._step)
        real = (
            examples < self._example_count
            if self._example_count is not None
            else np.ones(len(examples), bool)
        )
        found = self._batches.make_features(
            self._batches.source.read_rows(np.where(real, examples, 0))
        )
        weights: Any = real.astype(np.float32)
        found["weights"] = found["weights"] * weights[:, None]
        self._step += 1
        return py_utils.NestedMap(**found, eval_sample_weights=weights)

    def describe_batch(self, behind: int) -> dict[str, Any] | None:
        """Return what names this host's rows of the batch that was read so many before the last
        one, see pipeline.Batches.describe_batch.
        """
        found: dict[str, Any] | None = self._batches.describe_batch(
            self._loader.step - 1 - (self._peek is not None) - behind
        )
        return found

    def reset(self) -> None:
        super().reset()
        self._seek(0)

    def _seek(self, step: int) -> None:
        self._step = step
        if self._loader is not None:
            self._loader.close()
            self._loader.step = step
            self._log.discard_pending()

    def _drop_unused_batch(self) -> None:
        if self._peek is not None:
            self._log.discard_pending()  # looked at, and not trained

    def restore(self, checkpoint_path: Any) -> None:
        """Go on from what `save` wrote.

        Every host's state says the same, so a run may go on with another number of them.
        """
        path = Path(checkpoint_path)
        if not path.exists():
            path = next(iter(sorted(path.parent.glob("process_*-of-*"))), path)
        super().restore(os.fspath(path))

    def _get_state_internal(self) -> bytes:
        step = self._step if self._loader is None else self._loader.step
        return json.dumps(self._batches.make_state(step)).encode()

    def _set_state_internal(self, state: bytes) -> None:
        kept = json.loads(state)
        self._seek(kept["step"])
        line = self._batches.resume(kept, kept["step"])
        if line and jax.process_index() == 0:
            print(line, flush=True)

    def ids_to_strings(self, ids: Any, lengths: Any, key: str | None = None) -> list[str]:
        """Return the text of each row [batch, length] up to its length."""
        del key
        chosen = self._batches.recipe.vocabulary
        return [
            chosen.decode(row[: int(length)])
            for row, length in zip(np.atleast_2d(ids), np.atleast_1d(lengths), strict=True)
        ]


class Shapes(base_input.BaseInputSpecsProvider):
    """Shapes and types of a batch, from which Paxml shapes the model: no file is read for them.

    Attributes:
      objective, seq_len: as Input's.
      batch_size: rows of a process, those included that only fill it up.
    """

    objective: str = "lm"
    seq_len: int = 0
    batch_size: int = 0

    def get_input_specs(self) -> Any:
        """Return a NestedMap of jax.ShapeDtypeStruct."""
        made = make_recipe(
            data="synthetic",
            objective=self.objective,
            vocab=vocabularies.Vocabulary("ids:4", 0),
            length=self.seq_len,
        )
        empty = rows.make_unpacked_rows(
            np.zeros((self.batch_size, made.inputs), np.int32),
            np.zeros((self.batch_size, made.targets), np.int32),
        )
        found = causal_features.make_causal_features(empty, pack=False, bos=0, eos=vocabularies.EOS)
        found["eval_sample_weights"] = np.ones(self.batch_size, np.float32)
        return py_utils.NestedMap(
            {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in found.items()}
        )
