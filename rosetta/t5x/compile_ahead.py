"""Compilation of the training step in the background, while the train state is made or restored.

checkpoint.Initializer starts it, and trainer.Trainer takes the compiled step.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rosetta.core import log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _describe_arrays(tree: Any) -> tuple[object, ...]:
    """Return the structure, shapes and types of a tree of arrays.

    A program that was compiled for one tree takes any other with the same description.
    """
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((tuple(leaf.shape), np.dtype(leaf.dtype).name) for leaf in leaves)


@dataclass
class _Job:
    """A compilation.

    Attributes:
      model: the model of the trainer.
      key: the trainer's random key.
      inputs: what _describe_arrays returned for the step's inputs.
      thread: the thread that compiles.
      compiled: the compiled step, once the thread has ended without an error.
      error: the error of the compilation.
    """

    model: Any
    key: Any
    inputs: tuple[object, ...]
    thread: threading.Thread
    compiled: Any = None
    error: BaseException | None = None


_jobs: list[_Job] = []


def derive_trainer_key(seed: int) -> Any:
    """Return the random key that T5X's train() gives its trainer for a seed."""
    return jax.random.split(jax.random.PRNGKey(seed), 2)[1]


def start_compilation(
    trainer_cls: Callable[..., Any],
    *,
    model: Any,
    state: Any,
    axes: Any,
    partitioner: Any,
    shapes: Mapping[str, Any],
    types: Mapping[str, Any] | None,
    seed: int | None,
) -> None:
    """Start to compile the training step in another thread.

    Args:
      trainer_cls: makes the run's trainer, with its settings bound.
      model: the model that is trained.
      state: the shapes of the train state.
      axes: the layout of the train state.
      partitioner: the run's partitioner.
      shapes: the shapes of a global batch, by feature.
      types: the types of its arrays, by feature; None for float32.
      seed: the run's seed. None means that T5X chooses it. The step depends on the seed, so that
        nothing is compiled in this case.
    """
    if seed is None:
        return
    key = derive_trainer_key(seed)
    trainer = trainer_cls(
        model=model,
        train_state=state,
        partitioner=partitioner,
        eval_names=[],
        summary_dir=None,
        train_state_axes=axes,
        rng=key,
    )
    batch = {
        name: jax.ShapeDtypeStruct(shape, types[name] if types else "float32")
        for name, shape in shapes.items()
    }

    def compile_step() -> None:
        try:
            job.compiled = partitioner.compile(trainer._partitioned_train_step, state, batch)  # noqa: SLF001 (as T5X's compile_train)
        except BaseException as error:  # noqa: BLE001 (the trainer compiles again, and raises it)
            job.error = error
        finally:
            with contextlib.suppress(Exception):
                trainer.close()

    job = _Job(
        model,
        key,
        _describe_arrays((state, batch)),
        threading.Thread(target=compile_step, name="compile-ahead", daemon=True),
    )
    _jobs[:] = [job]
    job.thread.start()
    # A program that ends while XLA compiles in another thread aborts with status 134. A run with
    # no step left to do would end so early.
    atexit.register(job.thread.join)


def take_compiled_step(*, model: Any, state: Any, batch: Any, key: Any) -> Any:
    """Wait for the compiled step and return it; None if none was compiled for these arguments.

    A compiled step is returned once.

    Args:
      model: the trainer's model.
      state: its train state.
      batch: a batch.
      key: its random key.
    """
    if not _jobs:
        return None
    job = _jobs.pop()
    job.thread.join()
    if job.error is not None:
        return None
    if (
        job.model is not model
        or job.inputs != _describe_arrays((state, batch))
        or not np.array_equal(job.key, key)
    ):
        log.info(
            "the training step is compiled again: the model, its inputs or the seed changed after "
            "the first compilation started"
        )
        return None
    return job.compiled
