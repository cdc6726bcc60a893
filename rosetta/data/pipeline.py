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

from rosetta.core.errors import CONFLICT, DIFFERS, INVALID, UNSUPPORTED, UserError
from rosetta.core.variables.setting_values import read_setting
from rosetta.data import (
    Array,
    array_records,
    compressed_files,
    data_spec,
    documents,
    file_fingerprints,
    labelled_records,
    megatron_files,
    objectives,
    remote_files,
    rows,
    saved_datasets,
    seqio_features,
    table_files,
    task_records,
    text_corpora,
    text_heads,
    tfds,
    vocabularies,
)
from rosetta.data.streaming import Stream
from rosetta.data.token_cache import TokenCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rosetta.data.data_spec import Spec
    from rosetta.data.objectives import Objective

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
# Each source of a mixture has a seed of its own. Otherwise two sources with equally many examples
# would be drawn in the same order.
_SEED_STEP = 1_000_003


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


def check_source(
    spec: Spec, objective: Objective, vocabulary: vocabularies.Vocabulary, split: str = "train"
) -> None:
    """Check that a source exists and can serve an objective.

    Only the names and the beginnings of files are read.

    Args:
        spec: The source.
        objective: The objective.
        vocabulary: The vocabulary.
        split: The split of an hf or tfds set whose spec names none.

    Raises:
        UserError: The source is missing, or cannot serve the objective.
    """
    if spec.kind in ("task", "synthetic"):
        return
    objective.check_fits(vocabulary)
    _check_other_windows(spec, objective)
    if spec.kind not in data_spec.TOKEN_KINDS and vocabulary.name.startswith("ids:"):
        raise UserError(
            "a vocabulary without text cannot tokenise this data",
            f"VOCAB={vocabulary.name}",
            "name a SentencePiece model or `byte`",
            kind=CONFLICT,
        )
    is_running_text = spec.kind == "megatron" or (
        spec.kind == "text" and objective.name != "lambada"
    )
    if objective.takes_pairs and is_running_text:
        raise UserError(
            f"{objective.name} needs records, not running text",
            f"DATA={spec}",
            "use " + ", ".join(data_spec.RECORD_KINDS),
            kind=CONFLICT,
            value=spec.kind,
        )
    if spec.kind in data_spec.FILE_KINDS:
        _check_files(spec)
    elif spec.kind == "tfds":
        tfds.find_shards(spec, split)
    elif spec.kind == "cache":
        _check_cache(spec, objective, vocabulary)
    elif spec.kind == "megatron":
        megatron_files.MegatronTokens(spec, vocabulary.size)
    elif saved_datasets.is_saved(spec):
        saved_datasets.find_files(spec, split)
    elif spec.kind == "hf":
        documents.open_hugging_face(spec, split)


def _check_other_windows(spec: Spec, objective: Objective) -> None:
    """Raise UserError if an objective takes text from anywhere, and the source is a stream."""
    if objective.needs_other_windows and spec.kind == "hf" and not saved_datasets.is_saved(spec):
        raise UserError(
            f"{objective.name} takes texts from anywhere in the data, and a stream has none",
            f"DATA={spec}",
            "use the objective with sop instead, or save the data set to a folder",
            kind=UNSUPPORTED,
            value=objective.name,
        )


def _check_files(spec: Spec) -> None:
    """Check the files of a source of data_spec.FILE_KINDS, see check_source."""
    paths = data_spec.find_files(spec)
    if spec.kind == "text":
        text_heads.check_text_heads(
            [path for path in paths if not path.endswith(compressed_files.SUFFIXES)]
        )
    elif spec.kind in table_files.KINDS:
        for path in paths:
            table_files.read_columns(path, spec.kind)
    elif spec.kind == "arrayrecord":
        for path in paths:
            array_records.open_reader(path).close()


def _check_cache(spec: Spec, objective: Objective, vocabulary: vocabularies.Vocabulary) -> None:
    """Check that a token cache was made for an objective and a vocabulary, see check_source."""
    cache = TokenCache(spec.value)
    cache_fingerprint = cache.recipe.vocabulary
    # The tokens of a cache have no added sentinels, so their number may differ. And ids:SIZE stands
    # for any vocabulary of that size, since nothing is tokenised.
    is_same_size = vocabulary.name == f"ids:{cache.recipe.vocab_size}"
    if vocabularies.has_same_tokens(vocabulary, cache_fingerprint) or is_same_size:
        fingerprint = cache_fingerprint
    else:
        fingerprint = vocabulary.fingerprint()
    cache.check_recipe(
        fingerprint,
        document_ends=objective.document_ends,
        pairs=objective.name if objective.takes_pairs else "",
    )


def open_source(spec: Spec, recipe: Recipe) -> rows.Source:
    """Return the rows of one source.

    Args:
        spec: The source.
        recipe: What the rows are made with. Its `data` is not used.

    Raises:
        UserError: See check_source, or SeqIO has to read the source.
    """
    objective, vocabulary = recipe.sized_objective, recipe.vocabulary
    check_source(spec, objective, vocabulary, recipe.split)
    if spec.kind == "synthetic":
        return rows.Synthetic(objective, vocabulary, recipe.seed)
    if objective.takes_pairs:
        return _open_pairs(spec, recipe)
    if spec.kind in data_spec.TOKEN_KINDS:
        tokens: rows.TokenSource
        if spec.kind == "cache":
            tokens = TokenCache(spec.value)
        else:
            tokens = megatron_files.MegatronTokens(spec, vocabulary.size)
        return rows.TokenWindows(tokens, objective, vocabulary, recipe.seed, shuffle=recipe.shuffle)
    if spec.kind == "hf" and not saved_datasets.is_saved(spec):
        return Stream(
            spec, objective, vocabulary, recipe.seed, field=recipe.text_field, split=recipe.split
        )
    if spec.kind == "task":
        raise UserError(
            "SeqIO reads this data, and rosetta.data does not",
            f"DATA={spec}",
            "use it in a T5X run",
            kind=UNSUPPORTED,
        )
    return rows.Windows(
        text_corpora.open_corpus(spec, recipe.text_field, recipe.split),
        objective,
        vocabulary,
        recipe.seed,
        shuffle=recipe.shuffle,
    )


def _open_pairs(spec: Spec, recipe: Recipe) -> rows.Pairs:
    """Return the rows of a source of inputs and targets, see open_source."""
    pairs: Sequence[tuple[Array, Array]]
    objective = recipe.sized_objective
    if spec.kind == "cache":
        cache = TokenCache(spec.value)
        count = int(cache.cumulative_documents[-1])
        pairs = [
            (cache.read_document(number), cache.read_document(number + 1))
            for number in range(0, count, 2)
        ]
    else:
        texts = [
            (task_records.add_prefix(recipe.input_prefix, example["inputs"]), example["targets"])
            for example in task_records.read_examples(
                spec, objective.name, recipe.split, field=recipe.text_field
            )
        ]
        if objective.name in data_spec.LABEL_OBJECTIVES:
            tokens = [
                labelled_records.encode_label(label, recipe.labels, objective.name, str(spec))
                for _, label in texts
            ]
            pairs = labelled_records.EncodedLabels(
                [text for text, _ in texts], tokens, recipe.vocabulary, objective.inputs
            )
        else:
            pairs = task_records.EncodedPairs(texts, recipe.vocabulary)
    return rows.Pairs(
        pairs,
        objective,
        recipe.seed,
        pack=recipe.pack,
        shuffle=recipe.shuffle,
        name=os.path.basename(remote_files.describe_address(spec.value).rstrip("/")),
    )


def open_sources(recipe: Recipe) -> rows.Source:
    """Return the rows of a recipe's source, or of its mixture of sources.

    Raises:
        UserError: See open_source.
    """
    parts = data_spec.parse_parts(recipe.data)
    if len(parts) == 1:
        return open_source(parts[0].spec, recipe)
    sources = []
    for number, part in enumerate(parts):
        source_recipe = dataclasses.replace(recipe, seed=recipe.seed + _SEED_STEP * number)
        sources.append(open_source(part.spec, source_recipe))
    rates = [part.rate for part in parts]
    names = _list_specs(data_spec.describe_without_queries(recipe.data))
    return rows.Mixture(sources, rates, names, recipe.seed)


def _list_specs(data: str) -> list[str]:
    """Return the specs of a run's data, in their order."""
    return [str(part.spec) for part in data_spec.parse_parts(data)]


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
        self.source = open_sources(recipe)

    @property
    def has_stream(self) -> bool:
        """Whether a source can only be read from its beginning."""
        if isinstance(self.source, rows.Mixture):
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
            "hash": hash_batch(self.make_batch(step), self.shard * len(examples)),
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
        if isinstance(self.source, rows.Mixture):
            description = self.source.describe(_list_specs(data))
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
            "streams": rows.get_stream_marks(self.source, first_example),
            "grid": rows.get_grid(self.source),
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
        if state.get("grid") and state["grid"] != rows.get_grid(self.source):
            rows.set_grid(self.source, state["grid"])
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
            is_same_grid = state.get("grid") and rows.get_grid(self.source) == state["grid"]
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
        rows.restore_stream_marks(self.source, state["streams"])
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


def hash_rows(batch: Mapping[str, Array], first: int = 0) -> list[int]:
    """Return a hash of 128 bits for each row.

    It covers the number of the row in the global batch, the names of the features and their values.

    Args:
        batch: Feature -> array [n, length].
        first: The number of the first row in the global batch.
    """
    count = len(next(iter(batch.values())))
    hashes = []
    for row in range(count):
        digest = hashlib.sha256(str(first + row).encode())
        for name in sorted(batch):
            values = np.ascontiguousarray(batch[name][row])
            digest.update(f"|{name}|{values.dtype.str}|{values.shape}|".encode())
            digest.update(values.tobytes())
        hashes.append(int.from_bytes(digest.digest()[:16]))
    return hashes


def hash_batch(batch: Mapping[str, Array], first: int = 0) -> str:
    """Return 32 hex digits for the rows of a batch.

    The sum of the hashes of all hosts (`add_hashes`) is that of the global batch.

    Args:
        batch: Feature -> array [n, length].
        first: The number of the first row in the global batch.
    """
    return f"{sum(hash_rows(batch, first)) % (1 << 128):032x}"


def add_hashes(parts: Iterable[str]) -> str:
    """Return the hash of a global batch from those of its hosts."""
    total = sum(int(part, 16) for part in parts)
    return f"{total % (1 << 128):032x}"
