"""T5X's door to rosetta.data: tasks, training batches by step, and the checks that T5X makes of
vocabularies.

In gin: `train.get_dataset_fn = @dataset.get_dataset`, `DatasetConfig.mixture_or_task_name =
@dataset.task()`, `train.verify_matching_vocabs_fn = @dataset.verify_vocabularies`. Tasks of SeqIO
go on to T5X's own function unchanged.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from typing import TYPE_CHECKING, Any

import clu.data.dataset_iterator
import seqio

from rosetta.core import log
from rosetta.core.errors import CONFLICT, DIFFERS, UNKNOWN, UNSUPPORTED, UserError
from rosetta.data import (
    Array,
    batch_log,
    data_spec,
    pipeline,
    prefetch,
    seqio_features,
    vocabularies,
)
from rosetta.t5x import pretrained

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rosetta.data.pipeline import Batches

# What the training loop reads from, for the checkpoint's record: T5X has one training iterator a
# process.
_train_iterator: TrainIterator | None = None
_resume_position: tuple[Mapping[str, Any], int] | None = None
_task_definitions: dict[str, _TaskDefinition] = {}


@dataclasses.dataclass(frozen=True)
class _TaskDefinition:
    """What a task was made from."""

    data: str
    eval_data: str | None
    objective: str
    vocab: vocabularies.Vocabulary
    text_field: str
    mean_noise_span_length: float
    noise_density: float
    answered: bool = True

    def recipe(
        self,
        lengths: Mapping[str, int],
        *,
        data: str,
        split: str,
        seed: int,
        pack: bool = False,
        shuffle: bool = True,
    ) -> pipeline.Recipe:
        return pipeline.Recipe(
            data=data,
            objective=self.objective,
            vocab=self.vocab.name,
            extra_ids=self.vocab.extra_ids,
            inputs=lengths.get("inputs", 0) if self.objective != "lm" else 0,
            targets=lengths["targets"],
            seed=seed,
            split=split,
            pack=pack,
            shuffle=shuffle,
            text_field=self.text_field,
            mean_noise_span_length=self.mean_noise_span_length,
            noise_density=self.noise_density,
        )


@functools.lru_cache
def vocabulary(
    name: str,
    extra_ids: int | None = None,
    *,
    checkpoint: str | None = None,
    model_dir: str | None = None,
) -> seqio.Vocabulary:
    """Return SeqIO's object for a vocabulary by name: "byte", a SentencePiece file, or "ids:SIZE"
    (no text).

    Args:
      name: see rosetta.data.vocabularies.load_vocabulary.
      extra_ids: sentinels to add; None: as many as the run began with, else as
        rosetta.data.vocabularies.load_vocabulary says.
      checkpoint: the checkpoint_N that the run starts from or reads; its record says what it was
        trained with.
      model_dir: where the run saves; the record of its newest checkpoint comes first.

    Raises:
      UserError: the file is missing or no vocabulary of T5's kind.
    """
    recorded = (
        pretrained.read_vocabulary_fingerprint(checkpoint, model_dir) if extra_ids is None else ""
    )
    found = vocabularies.load_vocabulary(name, extra_ids, recorded=recorded)
    usual = vocabularies.load_vocabulary(name, extra_ids)
    if found != usual:
        log.info(
            f"sentinels: {vocabularies.describe_sentinels(found)}, as the run began; a new "
            f"run has {vocabularies.describe_sentinels(usual)}",
            once=True,
        )
    if found.name == "byte":
        return seqio.ByteVocabulary(extra_ids=found.extra_ids)
    if found.name.startswith("ids:"):
        return seqio.PassThroughVocabulary(size=found.size, eos_id=vocabularies.EOS)
    return seqio.SentencePieceVocabulary(found.name, extra_ids=found.extra_ids)


def convert_vocabulary(theirs: seqio.Vocabulary) -> vocabularies.Vocabulary:
    """Return rosetta.data's name for a SeqIO vocabulary."""
    if isinstance(theirs, seqio.ByteVocabulary):
        return vocabularies.Vocabulary("byte", theirs.extra_ids)
    if isinstance(theirs, seqio.SentencePieceVocabulary):
        checked = vocabularies.load_vocabulary(theirs.sentencepiece_model_file)
        return dataclasses.replace(checked, extra_ids=theirs.extra_ids)
    if isinstance(theirs, seqio.PassThroughVocabulary):
        return vocabularies.Vocabulary(f"ids:{theirs.vocab_size}", 0)
    raise UserError(
        f"{type(theirs).__name__} is not supported",
        "VOCABULARY",
        "use a SentencePiece model, `byte` or ids:SIZE",
        kind=UNSUPPORTED,
        value=type(theirs).__name__,
    )


def task(
    data: str | Mapping[str, float],
    vocabulary: seqio.Vocabulary,
    *,
    objective: str = "span_corruption",
    eval_data: str | Mapping[str, float] | None = None,
    name: str | None = None,
    text_field: str = "text",
    mean_noise_span_length: float = 3.0,
    noise_density: float = 0.15,
    answered: bool = True,
) -> seqio.Task | seqio.Mixture:
    """Return a SeqIO task of the data, registered; the same one when asked for the same again.

    Training reads it through get_dataset, by step. Its split "validation" (of eval_data; of `data`
    where that is a hf or tfds set) goes through SeqIO, with T5's metrics for mnli and squad.

    Args:
      data: a spec string or {spec: rate} (rosetta.data.data_spec); `task:NAME` returns SeqIO's
        task or mixture of that name.
      vocabulary: of both sides.
      objective: one of rosetta.data.data_spec.OBJECTIVES.
      eval_data: what evaluation reads.
      name: in logs and TensorBoard; default: the objective.
      text_field: where JSON lines and Example records have their text.
      mean_noise_span_length: span corruption's.
      noise_density: span corruption's.
      answered: whether records without a label or an answer are left out. Without it, as in
        inference, each is a row.

    Raises:
      UserError: the data cannot be used; the name is taken by another task.
    """
    parts = data_spec.parse_parts(data)
    if parts[0].spec.kind == "task":
        try:
            return seqio.get_mixture_or_task(parts[0].spec.value)
        except ValueError:
            raise UserError(
                "SeqIO knows no such task or mixture",
                f"DATA={parts[0].spec}",
                "import the module that registers it in the gin file",
                kind=UNKNOWN,
            ) from None
    chosen = convert_vocabulary(vocabulary)
    made = _TaskDefinition(
        data_spec.describe_data(data),
        None if eval_data is None else data_spec.describe_data(eval_data),
        objective,
        chosen,
        text_field,
        mean_noise_span_length,
        noise_density,
        answered,
    )
    name = name or objective
    if name in seqio.TaskRegistry.names():
        if _task_definitions.get(name) != made:
            raise UserError(
                f"a task named {name} was made from something else",
                "dataset.task.name",
                "give this one another name",
                kind=CONFLICT,
                value=name,
            )
        return seqio.TaskRegistry.get(name)
    known = [name for name in data_spec.OBJECTIVES if name not in data_spec.ANSWER_OBJECTIVES]
    if objective not in known:
        raise UserError(
            f"no objective of T5X's is called {objective!r}",
            "dataset.task.objective",
            "use one of " + ", ".join(known),
            kind=UNKNOWN,
            value=objective,
        )
    from rosetta.t5x import evaluation_data

    evaluation_data.register_task(name, made, vocabulary)
    _task_definitions[name] = made
    return seqio.TaskRegistry.get(name)


def _find_feature_kind(converter: Any) -> str:
    cls = getattr(converter, "func", converter)
    if issubclass(cls, seqio.EncDecFeatureConverter):
        return seqio_features.ENCODER_DECODER
    if issubclass(cls, (seqio.DecoderFeatureConverter, seqio.LMFeatureConverter)):
        return seqio_features.DECODER
    raise UserError(
        f"no rows are made for {cls.__name__}",
        "get_dataset_fn",
        "leave get_dataset_fn at t5x.utils.get_dataset for this model",
        kind=UNSUPPORTED,
        value=cls.__name__,
    )


def get_dataset(
    cfg: Any,
    shard_id: int,
    num_shards: int,
    feature_converter_cls: Callable[..., Any],
    num_epochs: int | None = None,
    continue_from_last_checkpoint: bool = False,
    *,
    workers: int | None = None,
) -> Any:
    """Return the training batches of a t5x DatasetConfig: of tasks made by `task` by step, of
    others as T5X does.

    `cfg.seed` None counts as 0: the order is never left to the clock.

    Args:
      cfg: t5x.utils.DatasetConfig.
      shard_id: this host's part of the global batch.
      num_shards: into how many it is divided.
      feature_converter_cls: the model's FEATURE_CONVERTER_CLS.
      num_epochs: None in training. A number, which inference asks for, has T5X read tasks of ours
        too.
      continue_from_last_checkpoint: as in t5x.
      workers: processes that make batches; None: what the data needs.
    """
    global _train_iterator  # noqa: PLW0603 (one training iterator a process)
    named = cfg.mixture_or_task_name
    name = named if isinstance(named, str) else named.name
    made = _task_definitions.get(name)
    if made is None or num_epochs is not None:
        from t5x import utils

        return utils.get_dataset(
            cfg,
            shard_id,
            num_shards,
            feature_converter_cls,
            num_epochs,
            continue_from_last_checkpoint,
        )
    if cfg.use_cached:
        raise UserError(
            "use_cached is SeqIO's cache",
            "DatasetConfig.use_cached",
            "make one with rosetta data cache and set DATA=cache:FOLDER",
            kind=UNSUPPORTED,
        )
    recipe = made.recipe(
        cfg.task_feature_lengths,
        data=made.data,
        split=cfg.split,
        seed=cfg.seed or 0,
        pack=cfg.pack,
        shuffle=cfg.shuffle,
    )
    batches = pipeline.Batches(
        recipe,
        cfg.batch_size,
        shard=shard_id,
        shards=num_shards,
        kind=_find_feature_kind(feature_converter_cls),
    )
    _train_iterator = TrainIterator(batches, workers)
    return _train_iterator


class TrainIterator(clu.data.dataset_iterator.DatasetIterator):
    """Batches in the order of steps, which can be put at any step."""

    def __init__(self, batches: Batches, workers: int | None = None) -> None:
        self.batches = batches
        self.loader = prefetch.Loader(batches, workers=workers)
        self.begin = 0
        self.placed = False
        self.log = batch_log.BatchLog(batches)

    def __next__(self) -> Mapping[str, Array]:
        step = self.loader.step
        batch = next(self.loader)
        self.log.record(step, batch)
        return batch

    @property
    def element_spec(self) -> Mapping[str, Any]:
        """Shape and type of this host's part of each feature."""
        import numpy as np

        own = self.batches.batch // self.batches.shards
        return {
            name: clu.data.dataset_iterator.ArraySpec(np.int32, (own, length))
            for name, length in self.batches.feature_lengths.items()
        }

    def reset(self) -> None:
        """Go to the step set as `begin`."""
        self.loader.close()
        self.loader.step = self.begin
        self.log.discard_pending()

    def save(self, filename: Any) -> None:
        """Write the position as T5X asks for it with save_dataset=True."""
        with open(os.fspath(filename), "w", encoding="utf-8") as file:
            json.dump(self.batches.make_state(self.loader.step), file)

    def restore(self, filename: Any) -> None:
        """Go on from a position that `save` wrote."""
        with open(os.fspath(filename), encoding="utf-8") as file:
            kept = json.load(file)
        self.loader.close()
        _print_line(self.batches.resume(kept, kept["step"]))
        self.loader.step, self.placed = kept["step"], True


def _print_line(line: str | None) -> None:
    import jax

    if line and jax.process_index() == 0:
        print(line, flush=True)


def _unwrap_iterator(iterator: Any) -> TrainIterator | None:
    """Return our iterator from inside the wrappers T5X puts around it."""
    while iterator is not None and not isinstance(iterator, TrainIterator):
        iterator = getattr(iterator, "_it", None) or getattr(iterator, "_iterator", None)
    return iterator


def set_resume_position(kept: Mapping[str, Any] | None, step: int) -> None:
    """Remember what a checkpoint of this run's own MODEL_DIR says of its data; `align` acts on it.
    `kept` is what `state` gave.

    Raises:
      UserError: the data, its seed or its vocabulary is another than the run began with.
    """
    global _resume_position  # noqa: PLW0603 (said before the trainer, and so its iterator's wrappers, exist)
    _resume_position = None
    if kept is not None and _train_iterator is not None:
        _train_iterator.batches.check_same_data(kept)
        _resume_position = kept, step


def align_iterator(iterator: Any, step: int) -> None:
    """Put the trainer's iterator at a step: batch s is trained at step s, whatever was restored or
    read ahead.

    Does nothing for iterators that are not ours, and nothing where it already stands there. To be
    called by the trainer, after T5X has taken its first batch.
    """
    global _resume_position
    found = _unwrap_iterator(iterator)
    if found is None:
        return
    # T5X takes one batch before the first step and holds it back: that one is still to be trained.
    moved, stands = False, found.loader.step - (getattr(iterator, "_peek", None) is not None)
    if _resume_position is not None and _resume_position[1] == step:
        found.loader.close()
        _print_line(found.batches.resume(_resume_position[0], step))
        moved = True
    elif found.batches.has_stream and step and not found.placed:
        found.loader.close()
        found.batches.origin = pipeline.Origin(step, 0)
        _print_line(
            f"data: no position is kept for step {step}: the stream begins at its beginning"
        )
        moved = True
    _resume_position, found.placed = None, True
    if moved or stands != step:
        found.begin = step
        iterator.reset()  # throws away what the wrappers hold


def get_data_state(step: int) -> dict[str, Any] | None:
    """Return what a checkpoint of step `step` should keep of the training data; None where it is
    not ours.
    """
    return None if _train_iterator is None else _train_iterator.batches.make_state(step)


def describe_batch(step: int) -> dict[str, Any] | None:
    """Return the hash and the examples of this host's rows of a step, None where they are not ours
    or, as a stream's, cannot be made again.
    """
    return None if _train_iterator is None else _train_iterator.batches.describe_batch(step)


def get_wait_seconds() -> float:
    """Return the seconds the training loop has waited for data so far."""
    return 0.0 if _train_iterator is None else _train_iterator.loader.seconds_waited


def verify_vocabularies(cfg: Any, model: Any) -> None:
    """Raise UserError where data and model disagree about ids: T5X's
    train.verify_matching_vocabs_fn.
    """
    from t5x import utils

    theirs = utils.get_vocabulary(cfg)
    name = getattr(cfg.mixture_or_task_name, "name", cfg.mixture_or_task_name)
    for side, of_data, of_model in zip(
        ("inputs", "targets"),
        theirs,
        (model.input_vocabulary, model.output_vocabulary),
        strict=True,
    ):
        if of_data != of_model:
            raise UserError(
                (
                    f"the {side} have vocabulary {_describe_vocabulary(of_data)}, "
                    f"the model has {_describe_vocabulary(of_model)}"
                ),
                f"task {name}",
                "set VOCAB (gin: VOCABULARY) to the same for both",
                kind=DIFFERS,
            )
        rows = getattr(getattr(model.module, "config", None), "vocab_size", None)
        if rows is not None and not isinstance(of_data, seqio.PassThroughVocabulary):
            vocabularies.check_model_size(convert_vocabulary(of_data), rows)


def _describe_vocabulary(vocabulary: seqio.Vocabulary) -> str:
    named = getattr(vocabulary, "sentencepiece_model_file", None) or type(vocabulary).__name__
    return f"{named} ({vocabulary.vocab_size} ids)"
