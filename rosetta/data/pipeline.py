"""Batches by step: what a run's data, objective, vocabulary, lengths, seed and batch size make of
step s.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.core.errors import CONFLICT, DIFFERS, INVALID, UNSUPPORTED, UserError
from rosetta.core.variables.setting_values import read_setting
from rosetta.data import (
    Array,
    data_spec,
    documents,
    file_fingerprints,
    objectives,
    rows,
    seqio_features,
    task_records,
    text_corpora,
    tfds,
    vocabularies,
)
from rosetta.data.streaming import Stream
from rosetta.data.token_cache import TokenCache

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rosetta.data.data_spec import Spec
    from rosetta.data.objectives import Objective

CHANGED_DATA_VARIABLE = "CHANGED_DATA"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that decides what the rows are.

    Attributes:
      data: a spec string, or {spec: rate} as JSON.
      objective: one of data_spec.OBJECTIVES.
      vocab: "byte", "ids:N" or a SentencePiece model.
      extra_ids: sentinels added to the vocabulary.
      inputs, targets: lengths in tokens (inputs 0 for lm).
      seed: of order and of every random choice.
      split: of hf and tfds sets that name none.
      pack: several short examples a row (mnli, squad; a window of text fills its row alone).
      shuffle: False: in the data's own order, and nothing moves with the epoch.
      text_field: where a JSON line, Example or Hugging Face record has its text.
      mean_noise_span_length, noise_density: span corruption's.
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

    @property
    def rule(self) -> Objective:
        lengths = {"inputs": self.inputs, "targets": self.targets}
        return objectives.make_objective(
            self.objective,
            lengths,
            mean_noise_span_length=self.mean_noise_span_length,
            noise_density=self.noise_density,
        )

    @property
    def vocabulary(self) -> vocabularies.Vocabulary:
        return vocabularies.Vocabulary(self.vocab, self.extra_ids)


def check_source(
    spec: Spec, rule: Objective, vocab: vocabularies.Vocabulary, split: str = "train"
) -> None:
    """Raise UserError where a source is missing or cannot serve the objective; reads file names and
    heads only.
    """
    if spec.kind in ("task", "synthetic"):
        return
    rule.check_fits(vocab)
    if spec.kind != "cache" and vocab.name.startswith("ids:"):
        raise UserError(
            "text needs a vocabulary",
            f"VOCAB={vocab.name}",
            "name a SentencePiece model or `byte`",
            kind=CONFLICT,
        )
    if rule.takes_pairs and spec.kind == "text" and rule.name != "lambada":
        raise UserError(
            f"{rule.name} needs records, not running text",
            f"DATA={spec}",
            "use jsonl, tfrecord, tfds, hf or a cache",
            kind=CONFLICT,
            value=spec.kind,
        )
    if spec.kind in ("text", "jsonl", "tfrecord"):
        paths = data_spec.find_files(spec)
        if not rule.takes_pairs:
            text_corpora.check_uncompressed(paths)
        if spec.kind == "text":
            text_corpora.check_text_heads(
                [path for path in paths if not path.endswith(text_corpora.COMPRESSED_SUFFIXES)]
            )
    elif spec.kind == "tfds":
        tfds.find_shards(spec, split)
    elif spec.kind == "cache":
        tokens = TokenCache(spec.value)
        kept = tokens.recipe.vocabulary
        # A cache's tokens have no added sentinels; ids:SIZE stands for any vocabulary of that size,
        # since nothing is tokenised.
        same = (
            vocabularies.has_same_tokens(vocab, kept)
            or vocab.name == f"ids:{tokens.recipe.vocab_size}"
        )
        fingerprint = kept if same else vocab.fingerprint()
        tokens.check_recipe(
            fingerprint,
            document_ends=rule.document_ends,
            pairs=rule.name if rule.takes_pairs else "",
        )
    elif spec.kind == "hf":
        documents.open_hugging_face(spec, split)


def open_source(spec: Spec, recipe: Recipe) -> rows.Source:
    """Return the rows of one source."""
    rule, vocab, seed = recipe.rule, recipe.vocabulary, recipe.seed
    check_source(spec, rule, vocab, recipe.split)
    if spec.kind == "synthetic":
        return rows.Synthetic(rule, vocab, seed)
    if spec.kind == "cache":
        cache = TokenCache(spec.value)
        if rule.takes_pairs:
            count = int(cache.document_ends[-1])
            found = [
                (cache.read_document(number), cache.read_document(number + 1))
                for number in range(0, count, 2)
            ]
            return rows.Pairs(
                found,
                rule,
                seed,
                pack=recipe.pack,
                shuffle=recipe.shuffle,
                name=os.path.basename(spec.value.rstrip("/")),
            )
        return rows.CachedWindows(cache, rule, vocab, seed, shuffle=recipe.shuffle)
    if rule.takes_pairs:
        worded = [
            (record["inputs"], record["targets"])
            for record in task_records.read_examples(spec, rule.name, recipe.split)
        ]
        return rows.Pairs(
            task_records.EncodedPairs(worded, vocab),
            rule,
            seed,
            pack=recipe.pack,
            shuffle=recipe.shuffle,
            name=os.path.basename(spec.value.rstrip("/")),
        )
    if spec.kind == "hf":
        return Stream(spec, rule, vocab, seed, field=recipe.text_field, split=recipe.split)
    if spec.kind == "task":
        raise UserError(
            "SeqIO gives this data, rosetta.data does not",
            f"DATA={spec}",
            "use it in a T5X run",
            kind=UNSUPPORTED,
        )
    return rows.Windows(
        text_corpora.open_corpus(spec, recipe.text_field, recipe.split),
        rule,
        vocab,
        seed,
        shuffle=recipe.shuffle,
    )


def open_sources(recipe: Recipe) -> rows.Source:
    """Return the rows of the recipe's source, or of its mixture."""
    parts = data_spec.parse_parts(recipe.data)
    if len(parts) == 1:
        return open_source(parts[0].spec, recipe)
    # Each source has a seed of its own, or two with equally many examples would be drawn in the
    # same order.
    made = [
        open_source(part.spec, dataclasses.replace(recipe, seed=recipe.seed + 1_000_003 * number))
        for number, part in enumerate(parts)
    ]
    return rows.Mixture(
        made, [part.rate for part in parts], [str(part.spec) for part in parts], recipe.seed
    )


@dataclasses.dataclass(frozen=True)
class Origin:
    """From which step on which running example number counts: (0, 0) unless a batch size was
    changed or a stream was begun later.
    """

    step: int = 0
    example: int = 0


class Batches:
    """The batches of a run, of one host of several.

    Attributes:
      recipe: what the rows are.
      batch: rows of a global batch.
      shard, shards: this host's number and how many there are; its rows are one contiguous part of
        the batch.
      kind: features.ENCODER_DECODER or features.DECODER.
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
                f"the batch has {batch} rows",
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
        self.recipe, self.batch, self.shard, self.shards, self.kind = (
            recipe,
            batch,
            shard,
            shards,
            kind,
        )
        self.origin = Origin()
        self.source = open_sources(recipe)

    @property
    def has_stream(self) -> bool:
        """Whether some source can only be read from its beginning on."""
        inner = self.source.sources if isinstance(self.source, rows.Mixture) else [self.source]
        return any(isinstance(one, Stream) for one in inner)

    @property
    def feature_lengths(self) -> dict[str, int]:
        """Feature -> length."""
        inputs: Array = np.zeros((1, self.recipe.inputs), np.int32)
        targets: Array = np.zeros((1, self.recipe.targets), np.int32)
        return {
            name: array.shape[1]
            for name, array in self.make_features(rows.make_unpacked_rows(inputs, targets)).items()
        }

    def first_example(self, step: int) -> int:
        """Return the running number of the global batch's first example at a step."""
        return self.origin.example + (step - self.origin.step) * self.batch

    def make_batch(self, step: int) -> dict[str, Array]:
        """Return this host's rows of step `step` (the first step is 0): feature -> int32 [batch /
        shards, length].
        """
        return self.make_features(self.source.read_rows(self.list_examples(step)))

    def list_examples(self, step: int) -> Array:
        """Return the running numbers of this host's rows of a step: int64 [batch / shards]."""
        own = self.batch // self.shards
        return self.first_example(step) + self.shard * own + np.arange(own, dtype=np.int64)

    def describe_batch(self, step: int) -> dict[str, Any] | None:
        """Return what names this host's rows of a step: their hash and the running numbers of their
        examples. None for a stream's, which cannot be read again.
        """
        if self.has_stream:
            return None
        examples = self.list_examples(step)
        return {
            "step": step,
            "hash": hash_batch(self.make_batch(step), self.shard * len(examples)),
            "shard": self.shard,
            "shards": self.shards,
            "examples": examples.tolist(),
        }

    def make_features(self, made: rows.Rows) -> dict[str, Array]:
        """Return what a model reads of the rows."""
        return (
            seqio_features.make_encoder_decoder_features
            if self.kind == seqio_features.ENCODER_DECODER
            else seqio_features.make_decoder_features
        )(made, pack=self.recipe.pack)

    @functools.cached_property
    def _fingerprint(self) -> str:
        told = dataclasses.asdict(self.recipe)
        del told["vocab"]
        told["data"] = [
            _drop_folders(told["data"]),
            self.source.describe(),
            self.recipe.vocabulary.fingerprint(),
            self.kind,
        ]
        return hashlib.sha256(repr(sorted(told.items())).encode()).hexdigest()[:16]

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with the rows: the same on every host and for every
        batch size.
        """
        return self._fingerprint

    def _told(self) -> dict[str, Any]:
        """Return what of the recipe a changed fingerprint can be told by."""
        told = {
            name: getattr(self.recipe, name)
            for name in (
                "objective",
                "inputs",
                "targets",
                "pack",
                "shuffle",
                "mean_noise_span_length",
                "noise_density",
            )
        }
        return {
            **told,
            "vocabulary": f"{os.path.basename(self.recipe.vocab)} "
            f"({self.recipe.vocabulary.fingerprint()})",
        }

    def make_state(self, step: int) -> dict[str, Any]:
        """Return what a checkpoint of step `step` keeps, as JSON."""
        return {
            "data": self.recipe.data,
            "told": self._told(),
            "fingerprint": self.fingerprint(),
            "seed": self.recipe.seed,
            "batch": self.batch,
            "step": step,
            "example": self.first_example(step),
            "origin": dataclasses.asdict(self.origin),
            "streams": rows.get_stream_marks(self.source, self.first_example(step)),
            "grid": rows.get_grid(self.source),
            "contents": self.contents,
        }

    def check_same_data(self, kept: Mapping[str, Any]) -> None:
        """Raise UserError where the seed or the data is another than `state` kept: examples would
        be repeated and left out.
        """
        if kept["seed"] != self.recipe.seed:
            raise UserError(
                f"the run began with data seed {kept['seed']}, now it is {self.recipe.seed}",
                "the data's seed",
                f"set it to {kept['seed']}, or begin a new folder",
                kind=DIFFERS,
                value=self.recipe.seed,
            )
        change = self._find_change(kept)
        if kept["fingerprint"] != self.fingerprint():
            check_same_recipe(kept, self._told(), self.recipe.data)
        if change and read_setting(os.environ, CHANGED_DATA_VARIABLE) != "accept":
            raise _describe_difference(
                f"{change} ({kept['data']})",
                self.recipe.data,
                f"; if you changed it on purpose, go on with {CHANGED_DATA_VARIABLE}=accept",
            )

    def _find_change(self, kept: Mapping[str, Any]) -> str | None:
        """Return what of the files changed since `state` kept it; None for nothing.

        The windows stay as they were cut, where they can.
        """
        if kept.get("grid") and kept["grid"] != rows.get_grid(self.source):
            rows.set_grid(self.source, kept["grid"])
            self.__dict__.pop("_fingerprint", None)
        changed = file_fingerprints.find_change(kept.get("contents"), self.contents)
        if changed:
            return f"another content of {changed}"
        return (
            None
            if kept["fingerprint"] == self.fingerprint()
            else "other files or another state of them"
        )

    @functools.cached_property
    def contents(self) -> dict[str, Any]:
        """What the data's files hold, by name."""
        return file_fingerprints.describe_contents(self.recipe.data, self.recipe.split)

    def resume(self, kept: Mapping[str, Any], step: int) -> str | None:
        """Go on at `step` from what `state` kept; return a line to print where the batch size
        changed, which a run may do.
        """
        self.check_same_data(kept)
        origin = Origin(**kept["origin"])
        line = None
        change = self._find_change(kept)
        if change:
            again = (
                "in the same order"
                if kept.get("grid") and rows.get_grid(self.source) == kept["grid"]
                else (
                    "in a new order, so until this pass ends some rows may come twice and others "
                    "not"
                )
            )
            line = (
                f"data: the run began with {change}; {CHANGED_DATA_VARIABLE}=accept: from step "
                f"{step} on with example "
                f"{origin.example + (step - origin.step) * kept['batch']}, {again}"
            )
        if kept["batch"] != self.batch:
            example = origin.example + (step - origin.step) * kept["batch"]
            line = (f"{line}\n" if line else "") + (
                f"data: the batch was {kept['batch']}, now {self.batch}: from step {step} on "
                f"with example {example}, none repeated or left out"
            )
            origin = Origin(step, example)
        self.origin = origin
        rows.restore_stream_marks(self.source, kept["streams"])
        return line


def check_same_recipe(kept: Mapping[str, Any], now: Mapping[str, Any], data: str) -> None:
    """Raise UserError where what a run's rows are made by is other than it began with.

    Args:
      kept: what Batches.state gave.
      now: what is known of its `told` today.
      data: of today, for the line.
    """
    changed = [
        f"{name} {before}, now {now[name]}"
        for name, before in kept.get("told", {}).items()
        if name in now and before != now[name]
    ]
    if changed:
        raise _describe_difference("; ".join(changed), data)


def _describe_difference(what: str, data: str, more: str = "") -> UserError:
    return UserError(
        f"the run began with {what}",
        f"DATA={data}",
        f"use the same, or begin a new folder from this checkpoint{more}",
        kind=DIFFERS,
    )


def _drop_folders(data: str) -> str:
    """Return the data without folders: a data set that lies elsewhere is the same one."""
    return " ".join(
        (
            f"{part.spec.kind}:{os.path.basename(part.spec.value.rstrip('/'))}#{part.spec.split} "
            f"{part.rate}"
        )
        for part in data_spec.parse_parts(data)
    )


def hash_rows(batch: Mapping[str, Array], first: int = 0) -> list[int]:
    """Return 128 bits a row, of its number in the global batch, its features' names and its
    values.
    """
    count = len(next(iter(batch.values())))
    found = []
    for row in range(count):
        body = hashlib.sha256(str(first + row).encode())
        for name in sorted(batch):
            values = np.ascontiguousarray(batch[name][row])
            body.update(f"|{name}|{values.dtype.str}|{values.shape}|".encode())
            body.update(values.tobytes())
        found.append(int.from_bytes(body.digest()[:16]))
    return found


def hash_batch(batch: Mapping[str, Array], first: int = 0) -> str:
    """Return 32 hex digits of the rows of a batch.

    The sum of hosts' hashes (`add_hashes`) is the global batch's.
    """
    return f"{sum(hash_rows(batch, first)) % (1 << 128):032x}"


def add_hashes(parts: Iterator[str]) -> str:
    """Return the global batch's hash from its hosts'."""
    return f"{sum(int(part, 16) for part in parts) % (1 << 128):032x}"
