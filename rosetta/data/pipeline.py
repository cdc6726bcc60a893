"""The input pipeline: the batch of each step, from a run's data, objective, vocabulary and seed.

The trainers of T5X and Pax read batches here. A batch depends on nothing else, so any host can make
any step's batch, and a resumed run reads the same batches. docs/explanation/data-order.md explains
the order.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.core.errors import DIFFERS, INVALID, UserError
from rosetta.core.variables.setting_values import read_setting
from rosetta.data import (
    Array,
    batch_hashes,
    data_spec,
    file_fingerprints,
    mixtures,
    remote_files,
    row_sources,
    rows,
    seqio_features,
)
from rosetta.data.streaming import Stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.data.data_recipe import Recipe

CHANGED_DATA_VARIABLE = "CHANGED_DATA"

# The fields of a recipe that name a difference between two runs.
_COMPARED_FIELDS = (
    "objective",
    "inputs",
    "targets",
    "pack",
    "shuffle",
    "mean_noise_span_length",
    "noise_density",
    "input_prefix",
)


@dataclasses.dataclass(frozen=True)
class Origin:
    """A step, and the running number of its first example, from which later steps are counted.

    Both are 0 unless the batch size was changed, or a stream was begun later. Checkpoints store the
    fields by their names.
    """

    step: int = 0
    example: int = 0


class Batches:
    """The batches of a run on one host of several.

    Attributes:
        recipe: What the rows are.
        batch: The number of rows of a global batch.
        shard: The number of this host. Its rows are one contiguous part of the batch.
        shards: The number of hosts.
        kind: The kind of features: seqio_features.ENCODER_DECODER, DECODER or ENCODER, or
            "causal".
        origin: The step and the example from which later ones are counted.
        source: The rows.

    Raises:
        UserError: The batch does not divide among the hosts, or see open_source.
    """

    def __init__(
        self,
        recipe: Recipe,
        batch: int,
        *,
        shard: int = 0,
        shards: int = 1,
        kind: str = seqio_features.ENCODER_DECODER,
    ) -> None:
        if batch < 1:
            raise UserError(
                f"{batch} is not a valid batch size",
                "BATCH_SIZE",
                "give at least 1",
                kind=INVALID,
                value=batch,
            )
        if batch % shards:
            raise UserError(
                f"a batch of {batch} does not divide among {shards} hosts",
                "BATCH_SIZE",
                f"use a multiple of {shards}, such as {max(1, round(batch / shards)) * shards}",
                kind=INVALID,
                value=batch,
            )
        self.recipe = recipe
        self.batch = batch
        self.shard = shard
        self.shards = shards
        self.kind = kind
        self.origin = Origin()
        self.source = row_sources.open_sources(recipe)

    @property
    def has_stream(self) -> bool:
        """Whether a source can only be read from its beginning."""
        if isinstance(self.source, mixtures.Mixture):
            return any(isinstance(source, Stream) for source in self.source.sources)
        return isinstance(self.source, Stream)

    @property
    def feature_lengths(self) -> dict[str, int]:
        """The length of each feature."""
        inputs: Array = np.zeros((1, self.recipe.inputs), np.int32)
        targets: Array = np.zeros((1, self.recipe.targets), np.int32)
        features = self.make_features(rows.make_unpacked_rows(inputs, targets))
        return {name: array.shape[1] for name, array in features.items()}

    def find_first_example(self, step: int) -> int:
        """Return the running number of the first example of a step's global batch."""
        return self.origin.example + (step - self.origin.step) * self.batch

    def make_batch(self, step: int) -> dict[str, Array]:
        """Return this host's rows of a step.

        Args:
            step: The step; the first one is 0.

        Returns:
            Feature -> int32 [batch / shards, length].

        Raises:
            UserError: A file cannot be read, or a record is bad and BAD_RECORDS is "stop".
        """
        return self.make_features(self.source.read_rows(self.list_examples(step)))

    def list_examples(self, step: int) -> Array:
        """Return the running numbers of this host's examples of a step, int64 [batch / shards]."""
        host_rows = self.batch // self.shards
        first = self.find_first_example(step) + self.shard * host_rows
        return first + np.arange(host_rows, dtype=np.int64)

    def describe_batch(self, step: int) -> dict[str, Any] | None:
        """Return the hash of this host's rows of a step, and the running numbers of its examples.

        Returns:
            {"step", "hash", "shard", "shards", "examples"}; None if the data has a stream, which
            cannot be read again.
        """
        if self.has_stream:
            return None
        examples = self.list_examples(step)
        return {
            "step": step,
            "hash": batch_hashes.hash_batch(self.make_batch(step), self.shard * len(examples)),
            "shard": self.shard,
            "shards": self.shards,
            "examples": examples.tolist(),
        }

    def make_features(self, source_rows: rows.Rows) -> dict[str, Array]:
        """Return the features that a model reads: feature -> [n, length]."""
        if self.kind == seqio_features.ENCODER:
            return seqio_features.make_encoder_features(source_rows)
        if self.kind == seqio_features.ENCODER_DECODER:
            return seqio_features.make_encoder_decoder_features(source_rows, pack=self.recipe.pack)
        return seqio_features.make_decoder_features(source_rows, pack=self.recipe.pack)

    @functools.cached_property
    def _fingerprint(self) -> str:
        """The fingerprint, see `fingerprint`."""
        return self._make_fingerprint(data_spec.describe_without_queries(self.recipe.data))

    def _make_fingerprint(self, data: str) -> str:
        """Return the fingerprint of the rows under the names that the data has in a line."""
        fields = dataclasses.asdict(self.recipe)
        del fields["vocab"]
        # Runs of earlier versions have fingerprints without these fields.
        if self.recipe.objective != "ul2":
            del fields["mode_tokens"]
        if not self.recipe.input_prefix:
            del fields["input_prefix"]
        if not fields["labels"]:
            del fields["labels"]
        if isinstance(self.source, mixtures.Mixture):
            description = self.source.describe(row_sources.list_specs(data))
        else:
            description = self.source.describe()
        fields["data"] = [
            _drop_folders(data),
            description,
            self.recipe.vocabulary.fingerprint(),
            self.kind,
        ]
        return hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()[:16]

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with the rows.

        They are the same on every host and for every batch size.
        """
        return self._fingerprint

    def _describe_recipe(self) -> dict[str, Any]:
        """Return the parts of the recipe that can name a difference between two runs."""
        description = {name: getattr(self.recipe, name) for name in _COMPARED_FIELDS}
        if self.recipe.objective == "ul2":
            description["mode_tokens"] = self.recipe.mode_tokens
        vocabulary_name = os.path.basename(self.recipe.vocab)
        description["vocabulary"] = f"{vocabulary_name} ({self.recipe.vocabulary.fingerprint()})"
        return description

    def make_state(self, step: int) -> dict[str, Any]:
        """Return what a checkpoint of a step stores, as JSON. `resume` reads it."""
        first_example = self.find_first_example(step)
        return {
            "data": data_spec.describe_without_queries(self.recipe.data),
            "told": self._describe_recipe(),
            "fingerprint": self.fingerprint(),
            "seed": self.recipe.seed,
            "batch": self.batch,
            "step": step,
            "example": first_example,
            "origin": dataclasses.asdict(self.origin),
            "streams": mixtures.get_stream_marks(self.source, first_example),
            "grid": mixtures.get_grid(self.source),
            "contents": self.contents,
        }

    def check_same_data(self, state: Mapping[str, Any]) -> None:
        """Check that a run can continue: with other data, examples would be repeated or left out.

        Args:
            state: What `make_state` returned.

        Raises:
            UserError: The seed or the data differs. Changed files are accepted if
                CHANGED_DATA=accept.
        """
        if state["seed"] != self.recipe.seed:
            raise UserError(
                f"the run began with data seed {state['seed']}, and the seed is now "
                f"{self.recipe.seed}",
                "the data's seed",
                f"set it to {state['seed']}, or begin a new folder",
                kind=DIFFERS,
                value=self.recipe.seed,
            )
        change = self._find_change(state)
        data = data_spec.describe_without_queries(self.recipe.data)
        if not self._has_fingerprint_of(state):
            check_same_recipe(state, self._describe_recipe(), data)
        if change and read_setting(os.environ, CHANGED_DATA_VARIABLE) != "accept":
            raise _describe_difference(
                f"{change} ({data_spec.describe_without_queries(state['data'])})",
                data,
                f"; if you changed it on purpose, continue with {CHANGED_DATA_VARIABLE}=accept",
            )

    def _find_change(self, state: Mapping[str, Any]) -> str | None:
        """Return what has changed in the files since `make_state`; None if nothing has.

        If possible, the corpora are cut into the same windows as then.
        """
        if state.get("grid") and state["grid"] != mixtures.get_grid(self.source):
            mixtures.set_grid(self.source, state["grid"])
            self.__dict__.pop("_fingerprint", None)
        changed_file = file_fingerprints.find_change(state.get("contents"), self.contents)
        if changed_file:
            return f"other content in {changed_file}"
        if self._has_fingerprint_of(state):
            return None
        return "other files, or the files have changed"

    def _has_fingerprint_of(self, state: Mapping[str, Any]) -> bool:
        """Return whether the rows have the fingerprint in a state of `make_state`.

        Earlier versions stored the data with the queries of web addresses, and the fingerprint of a
        mixture was made from them. Such a fingerprint is made again from the stored data.
        """
        if state["fingerprint"] == self.fingerprint():
            return True
        now, before = data_spec.describe_without_queries(self.recipe.data), state["data"]
        if before == now or data_spec.describe_without_queries(before) != now:
            return False
        return bool(state["fingerprint"] == self._make_fingerprint(before))

    @functools.cached_property
    def contents(self) -> dict[str, Any]:
        """The fingerprints of the data's files, see file_fingerprints.describe_contents."""
        return file_fingerprints.describe_contents(self.recipe.data, self.recipe.split)

    def resume(self, state: Mapping[str, Any], step: int) -> str | None:
        """Continue from the state that a checkpoint stores.

        Args:
            state: What `make_state` returned.
            step: The step to continue with.

        Returns:
            Lines to print if the data or the batch size has changed, else None.

        Raises:
            UserError: See check_same_data.
        """
        self.check_same_data(state)
        origin = Origin(**state["origin"])
        example = origin.example + (step - origin.step) * state["batch"]
        lines = []
        change = self._find_change(state)
        if change:
            is_same_grid = state.get("grid") and mixtures.get_grid(self.source) == state["grid"]
            if is_same_grid:
                order = "in the same order"
            else:
                order = (
                    "in a new order, so until this pass ends some rows may come twice and others "
                    "not"
                )
            lines.append(
                f"data: the run began with {change}; {CHANGED_DATA_VARIABLE}=accept: from step "
                f"{step} on with example {example}, {order}"
            )
        if state["batch"] != self.batch:
            lines.append(
                f"data: the batch was {state['batch']}, now {self.batch}: from step {step} on "
                f"with example {example}, none repeated or left out"
            )
            origin = Origin(step, example)
        self.origin = origin
        mixtures.restore_stream_marks(self.source, state["streams"])
        return "\n".join(lines) or None


def check_same_recipe(state: Mapping[str, Any], now: Mapping[str, Any], data: str) -> None:
    """Check that the rows are made in the same way as when the run began.

    Args:
        state: What Batches.make_state returned.
        now: The entries of its "told" that are known today.
        data: Today's data, for the message.

    Raises:
        UserError: An entry differs.
    """
    changes = [
        f"{name} {before}, now {now[name]}"
        for name, before in state.get("told", {}).items()
        if name in now and before != now[name]
    ]
    if changes:
        raise _describe_difference("; ".join(changes), data)


def _describe_difference(difference: str, data: str, more_remedies: str = "") -> UserError:
    """Return the error for a run that cannot continue because its data differs."""
    return UserError(
        f"the run began with {difference}",
        f"DATA={data}",
        f"use the same, or begin a new folder from this checkpoint{more_remedies}",
        kind=DIFFERS,
    )


def _drop_folders(data: str) -> str:
    """Return the data without folders: a data set that was moved is the same one."""
    descriptions = []
    for part in data_spec.parse_parts(data):
        value = remote_files.describe_address(part.spec.value)
        name = os.path.basename(value.rstrip("/"))
        descriptions.append(f"{part.spec.kind}:{name}#{part.spec.split} {part.rate}")
    return " ".join(descriptions)
