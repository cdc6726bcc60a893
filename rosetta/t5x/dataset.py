"""The data of rosetta.data in T5X: tasks, training batches by step, and the check of vocabularies.

The gin files set `train.get_dataset_fn = @dataset.get_dataset`,
`DatasetConfig.mixture_or_task_name = @dataset.task()` and
`train.verify_matching_vocabs_fn = @dataset.verify_vocabularies`. T5X's own function reads all other
tasks of SeqIO.
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
    data_recipe,
    data_spec,
    labelled_records,
    pipeline,
    prefetch,
    seqio_features,
    vocabularies,
)
from rosetta.health import phases
from rosetta.t5x import encoder_features, pretrained
from rosetta.t5x.seqio_vocabulary import TokenizerJsonVocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rosetta.data.pipeline import Batches

# The iterator that the training loop reads; T5X has one in each process. The record of a checkpoint
# has its position.
_train_iterator: TrainIterator | None = None
# What set_resume_position was given: the state of the data in a checkpoint's record, and the step.
_resume_position: tuple[Mapping[str, Any], int] | None = None
_task_definitions: dict[str, _TaskDefinition] = {}


@dataclasses.dataclass(frozen=True)
class _TaskDefinition:
    """What `task` made a task from; see its arguments."""

    data: str
    eval_data: str | None
    objective: str
    vocab: vocabularies.Vocabulary
    text_field: str
    mean_noise_span_length: float
    noise_density: float
    answered: bool = True
    scored: bool = False
    mode_tokens: str = data_spec.MODE_TOKENS
    input_prefix: str = ""
    labels: tuple[str, ...] = ()

    def _count_targets(self, lengths: Mapping[str, int]) -> int:
        """Return the length of the targets, which those of an encoder do not choose freely."""
        if self.objective in data_spec.MASKED_OBJECTIVES:
            return lengths["inputs"]
        return 1 if self.objective in data_spec.LABEL_OBJECTIVES else lengths["targets"]

    def make_recipe(
        self,
        lengths: Mapping[str, int],
        *,
        data: str,
        split: str,
        seed: int,
        pack: bool = False,
        shuffle: bool = True,
    ) -> data_recipe.Recipe:
        """Return the recipe of rows of these lengths, by feature, from a split of `data`."""
        return data_recipe.Recipe(
            data=data,
            objective=self.objective,
            vocab=self.vocab.name,
            extra_ids=self.vocab.extra_ids,
            inputs=lengths.get("inputs", 0) if self.objective != "lm" else 0,
            targets=self._count_targets(lengths),
            seed=seed,
            split=split,
            pack=pack,
            shuffle=shuffle,
            text_field=self.text_field,
            mean_noise_span_length=self.mean_noise_span_length,
            noise_density=self.noise_density,
            mode_tokens=self.mode_tokens,
            input_prefix=self.input_prefix,
            labels=self.labels,
        )


@functools.lru_cache
def vocabulary(
    name: str,
    extra_ids: int | None = None,
    *,
    checkpoint: str | None = None,
    model_dir: str | None = None,
) -> seqio.Vocabulary:
    """Return SeqIO's object for a vocabulary by name: "byte", a SentencePiece file, a
    tokenizer.json, or "ids:SIZE" (no text).

    Args:
      name: as for rosetta.data.vocabularies.load_vocabulary.
      extra_ids: the number of sentinels to add. None means as many as the run started with; a new
        run uses the default of rosetta.data.vocabularies.load_vocabulary.
      checkpoint: the checkpoint_N that the run starts from or reads, whose record has the
        vocabulary that it was trained with.
      model_dir: the folder where the run saves. The record of its newest checkpoint comes first.

    Raises:
      UserError: the file is missing, or is not a vocabulary that T5 can use.
    """
    recorded = (
        pretrained.read_vocabulary_fingerprint(checkpoint, model_dir) if extra_ids is None else ""
    )
    loaded = vocabularies.load_vocabulary(name, extra_ids, recorded=recorded)
    default = vocabularies.load_vocabulary(name, extra_ids)
    if loaded != default:
        log.info(
            f"sentinels: {vocabularies.describe_sentinels(loaded)}, as the run began; a new "
            f"run has {vocabularies.describe_sentinels(default)}",
            once=True,
        )
    if loaded.name == "byte":
        return seqio.ByteVocabulary(extra_ids=loaded.extra_ids)
    if loaded.name.startswith("ids:"):
        return seqio.PassThroughVocabulary(size=loaded.size, eos_id=vocabularies.EOS)
    if vocabularies.is_json_file(loaded.name):
        return TokenizerJsonVocabulary(loaded)
    return seqio.SentencePieceVocabulary(loaded.name, extra_ids=loaded.extra_ids)


def convert_vocabulary(vocabulary: seqio.Vocabulary) -> vocabularies.Vocabulary:
    """Return rosetta.data's description of a SeqIO vocabulary.

    Raises:
      UserError: vocabularies of this class are not supported.
    """
    if isinstance(vocabulary, seqio.ByteVocabulary):
        return vocabularies.Vocabulary("byte", vocabulary.extra_ids)
    if isinstance(vocabulary, TokenizerJsonVocabulary):
        return vocabulary.vocabulary
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        checked = vocabularies.load_vocabulary(vocabulary.sentencepiece_model_file)
        return dataclasses.replace(checked, extra_ids=vocabulary.extra_ids)
    if isinstance(vocabulary, seqio.PassThroughVocabulary):
        return vocabularies.Vocabulary(f"ids:{vocabulary.vocab_size}", 0)
    raise UserError(
        f"{type(vocabulary).__name__} is not supported",
        "VOCABULARY",
        "use a SentencePiece model, `byte` or ids:SIZE",
        kind=UNSUPPORTED,
        value=type(vocabulary).__name__,
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
    mode_tokens: str = data_spec.MODE_TOKENS,
    input_prefix: str = "",
    answered: bool = True,
    scored: bool = False,
    labels: str | None = None,
    module: str | None = None,
    train_files: str | None = None,
) -> seqio.Task | seqio.Mixture:
    """Register a SeqIO task of the data, and return it.

    A second call with the same arguments returns the same task. Training reads the task through
    get_dataset, by step. SeqIO reads the split "validation", with T5's metrics for mnli and squad.
    That split is `eval_data`, or the data set's own split if `data` is an hf or tfds set.

    Args:
      data: a spec string, or {spec: rate} for a mixture (see rosetta.data.data_spec). `task:NAME`
        returns SeqIO's own task or mixture of that name.
      vocabulary: the vocabulary of inputs and targets.
      objective: one of rosetta.data.data_spec.OBJECTIVES.
      eval_data: the data of evaluation, like `data`. If `data` is a task of GLUE or SuperGLUE, its
        files of JSON lines, see rosetta.data.glue_records.
      name: the task's name in logs and TensorBoard; default: the objective.
      text_field: the field of the text in JSON lines and Example records.
      mean_noise_span_length: the mean length of a span in span corruption, in tokens.
      noise_density: the share of tokens that span corruption replaces.
      mode_tokens: the texts that begin the inputs of the denoisers R, X and S of ul2, separated by
        blanks; "" for none.
      input_prefix: a text before the inputs of each record; "" for none.
      answered: whether to leave out records without a label or an answer. Inference makes a row of
        each record.
      scored: whether an evaluation also computes the loss of the expected answers.
      labels: the names of the classes with commas, for classification.
      module: a Python file or a module that registers SeqIO's tasks, see rosetta.t5x.seqio_tasks.
      train_files: the files of JSON lines to train on, if `data` is a task of GLUE or SuperGLUE.

    Raises:
      UserError: the data cannot be used, or another task has the name.
    """
    parts = data_spec.parse_parts(data)
    if parts[0].spec.kind == "task":
        from rosetta.t5x import glue_tasks, seqio_tasks

        files = {"train": train_files} if train_files else {}
        if isinstance(eval_data, str) and eval_data != data:
            files["validation"] = eval_data
        if files:
            return glue_tasks.register_tasks(parts[0].spec.value, files, vocabulary)
        return seqio_tasks.find_task(parts[0].spec.value, module)
    definition = _TaskDefinition(
        data_spec.describe_data(data),
        None if eval_data is None else data_spec.describe_data(eval_data),
        objective,
        convert_vocabulary(vocabulary),
        text_field,
        mean_noise_span_length,
        noise_density,
        answered,
        scored,
        mode_tokens,
        input_prefix,
        labelled_records.split_labels(labels),
    )
    name = name or objective
    if name in seqio.TaskRegistry.names():
        if _task_definitions.get(name) != definition:
            raise UserError(
                f"there is already another task named {name}",
                "dataset.task.name",
                "give this task another name",
                kind=CONFLICT,
                value=name,
            )
        return seqio.TaskRegistry.get(name)
    objectives = [name for name in data_spec.OBJECTIVES if name not in data_spec.ANSWER_OBJECTIVES]
    if objective not in objectives:
        raise UserError(
            f"{objective!r} is not a valid objective of T5X",
            "dataset.task.objective",
            "use one of " + ", ".join(objectives),
            kind=UNKNOWN,
            value=objective,
        )
    from rosetta.t5x import evaluation_data

    evaluation_data.register_task(name, definition, vocabulary)
    _task_definitions[name] = definition
    return seqio.TaskRegistry.get(name)


def find_feature_kind(converter: Any) -> str:
    """Return the kind of features that a feature converter of SeqIO makes.

    Raises:
      UserError: the converter is not supported.
    """
    cls = getattr(converter, "func", converter)
    if issubclass(cls, encoder_features.LabelFeatureConverter):
        return seqio_features.ENCODER
    if issubclass(cls, seqio.EncDecFeatureConverter):
        return seqio_features.ENCODER_DECODER
    if issubclass(cls, (seqio.DecoderFeatureConverter, seqio.LMFeatureConverter)):
        return seqio_features.DECODER
    raise UserError(
        f"{cls.__name__} is not supported",
        "get_dataset_fn",
        "set get_dataset_fn to t5x.utils.get_dataset for this model",
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
    """Return the training batches of a data set.

    Batches of a task that `task` made are read by step. T5X's own function reads other tasks. A
    missing seed (`cfg.seed` None) counts as 0, so that the order never depends on the time.

    Args:
      cfg: t5x.utils.DatasetConfig.
      shard_id: the number of this host's part of the global batch.
      num_shards: the number of parts.
      feature_converter_cls: the model's FEATURE_CONVERTER_CLS.
      num_epochs: None in training. With a number, as in inference, T5X reads every task.
      continue_from_last_checkpoint: as for T5X's function.
      workers: the number of processes that make batches; None for what the data needs.

    Raises:
      UserError: the data or the configuration of the data set is not supported.
    """
    global _train_iterator  # noqa: PLW0603 (one training iterator a process)
    if num_epochs is None:
        phases.begin_phase(f"reading data: {cfg.split}")
    name = getattr(cfg.mixture_or_task_name, "name", cfg.mixture_or_task_name)
    definition = _task_definitions.get(name)
    if definition is None or num_epochs is not None:
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
            "SeqIO's cache is not supported for this data",
            "DatasetConfig.use_cached",
            "make a cache with rosetta data cache, and set DATA=cache:FOLDER",
            kind=UNSUPPORTED,
        )
    recipe = definition.make_recipe(
        cfg.task_feature_lengths,
        data=definition.data,
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
        kind=find_feature_kind(feature_converter_cls),
    )
    _train_iterator = TrainIterator(batches, workers)
    return _train_iterator


class TrainIterator(clu.data.dataset_iterator.DatasetIterator):
    """An iterator over training batches that can be moved to any step.

    Attributes:
      batches: the batches by step.
      loader: makes the batches ahead, and has the next step.
      start_step: the step that `reset` goes to.
      placed: whether the iterator has been put at the step of the training.
      log: the log of the batches that were read.
    """

    def __init__(self, batches: Batches, workers: int | None = None) -> None:
        self.batches = batches
        self.loader = prefetch.Loader(batches, workers=workers)
        self.start_step = 0
        self.placed = False
        self.log = batch_log.BatchLog(batches)

    def __next__(self) -> Mapping[str, Array]:
        step = self.loader.step
        batch = next(self.loader)
        self.log.record(step, batch)
        return batch

    @property
    def element_spec(self) -> Mapping[str, Any]:
        """The shape and type of this host's part of each feature."""
        import numpy as np

        rows = self.batches.batch // self.batches.shards
        return {
            name: clu.data.dataset_iterator.ArraySpec(np.int32, (rows, length))
            for name, length in self.batches.feature_lengths.items()
        }

    def reset(self) -> None:
        """Go to `start_step`."""
        self.loader.close()
        self.loader.step = self.start_step
        self.log.discard_pending()

    def save(self, filename: Any) -> None:
        """Write the position to a file; T5X calls this with save_dataset=True."""
        with open(os.fspath(filename), "w", encoding="utf-8") as file:
            json.dump(self.batches.make_state(self.loader.step), file)

    def restore(self, filename: Any) -> None:
        """Continue from a position that `save` wrote."""
        with open(os.fspath(filename), encoding="utf-8") as file:
            position = json.load(file)
        self.loader.close()
        _print_line(self.batches.resume(position, position["step"]))
        self.loader.step = position["step"]
        self.placed = True


def _print_line(line: str | None) -> None:
    """Log a line, if there is one, on the first process only."""
    import jax

    if line and jax.process_index() == 0:
        log.info(line, prefix=False)


def _unwrap_iterator(iterator: Any) -> TrainIterator | None:
    """Return the TrainIterator inside T5X's wrappers; None if there is none."""
    while iterator is not None and not isinstance(iterator, TrainIterator):
        iterator = getattr(iterator, "_it", None) or getattr(iterator, "_iterator", None)
    return iterator


def set_resume_position(data_state: Mapping[str, Any] | None, step: int) -> None:
    """Remember the position in the data at which a run resumes; align_iterator goes there.

    Args:
      data_state: what get_data_state returned when the run's own checkpoint was saved; None if the
        checkpoint has no such state.
      step: the checkpoint's step.

    Raises:
      UserError: the run started with other data, another seed or another vocabulary.
    """
    # The trainer, and with it T5X's wrappers of the iterator, do not exist yet.
    global _resume_position  # noqa: PLW0603
    _resume_position = None
    if data_state is not None and _train_iterator is not None:
        _train_iterator.batches.check_same_data(data_state)
        _resume_position = data_state, step


def align_iterator(iterator: Any, step: int) -> None:
    """Put the trainer's iterator at a step, so that batch s is trained at step s.

    The trainer calls this after T5X has read its first batch. An iterator that is already at the
    step, or is not a TrainIterator, is left as it is.

    Args:
      iterator: the trainer's iterator, with T5X's wrappers.
      step: the step.
    """
    global _resume_position  # noqa: PLW0603 (one training iterator a process)
    train_iterator = _unwrap_iterator(iterator)
    if train_iterator is None:
        return
    # T5X reads one batch ahead before the first step. That batch is not trained yet.
    read_ahead = getattr(iterator, "_peek", None) is not None
    current_step = train_iterator.loader.step - read_ahead
    moved = False
    if _resume_position is not None and _resume_position[1] == step:
        train_iterator.loader.close()
        _print_line(train_iterator.batches.resume(_resume_position[0], step))
        moved = True
    elif train_iterator.batches.has_stream and step and not train_iterator.placed:
        train_iterator.loader.close()
        train_iterator.batches.origin = pipeline.Origin(step, 0)
        _print_line(f"data: no position is recorded for step {step}: the stream starts anew")
        moved = True
    _resume_position = None
    train_iterator.placed = True
    if moved or current_step != step:
        train_iterator.start_step = step
        iterator.reset()  # discards what the wrappers have read


def get_data_state(step: int) -> dict[str, Any] | None:
    """Return the state of the training data at a step, for the checkpoint's record.

    It is None if T5X's own function reads the data.
    """
    return None if _train_iterator is None else _train_iterator.batches.make_state(step)


def describe_batch(step: int) -> dict[str, Any] | None:
    """Return the hash and the examples of this host's rows of a step.

    It is None if T5X's own function reads the data, or if the rows cannot be made again, as those
    of a stream.
    """
    return None if _train_iterator is None else _train_iterator.batches.describe_batch(step)


def get_wait_seconds() -> float:
    """Return the seconds for which the training loop has waited for data so far."""
    return 0.0 if _train_iterator is None else _train_iterator.loader.seconds_waited


def verify_vocabularies(cfg: Any, model: Any) -> None:
    """Check that data and model have the same vocabularies (train.verify_matching_vocabs_fn).

    Args:
      cfg: t5x.utils.DatasetConfig.
      model: the model.

    Raises:
      UserError: the vocabularies differ, or have more ids than the model.
    """
    from t5x import utils

    data_vocabularies = utils.get_vocabulary(cfg)
    name = getattr(cfg.mixture_or_task_name, "name", cfg.mixture_or_task_name)
    for side, data_vocabulary, model_vocabulary in zip(
        ("inputs", "targets"),
        data_vocabularies,
        (model.input_vocabulary, model.output_vocabulary),
        strict=True,
    ):
        if data_vocabulary != model_vocabulary:
            raise UserError(
                (
                    f"the {side} have vocabulary {_describe_vocabulary(data_vocabulary)}, "
                    f"the model has {_describe_vocabulary(model_vocabulary)}"
                ),
                f"task {name}",
                "set VOCAB (gin: VOCABULARY) to the same for both",
                kind=DIFFERS,
            )
        rows = getattr(getattr(model.module, "config", None), "vocab_size", None)
        if rows is not None and not isinstance(data_vocabulary, seqio.PassThroughVocabulary):
            vocabularies.check_model_size(convert_vocabulary(data_vocabulary), rows)


def _describe_vocabulary(vocabulary: seqio.Vocabulary) -> str:
    """Return the file or the class of a SeqIO vocabulary, and its number of ids."""
    name = getattr(vocabulary, "sentencepiece_model_file", None) or type(vocabulary).__name__
    return f"{name} ({vocabulary.vocab_size} ids)"
