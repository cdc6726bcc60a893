"""The training step, compiled in the background while the train state is made or read: neither
waits for the other.
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
    """Return what has to be equal for a compiled program to take a tree of arrays: structure,
    shapes and types.
    """
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((tuple(leaf.shape), np.dtype(leaf.dtype).name) for leaf in leaves)


@dataclass
class _Job:
    model: Any
    key: Any
    alike: tuple[object, ...]
    thread: threading.Thread
    compiled: Any = None
    error: BaseException | None = None


_jobs: list[_Job] = []


def derive_trainer_key(seed: int) -> Any:
    """Return the key that T5X's train() gives its trainer for a seed."""
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
    """Start to compile the step that a trainer of this class will want.

    Args:
      trainer_cls: makes a trainer, with its settings bound.
      model: the one that is trained.
      state: the train state's shapes.
      axes: its layout.
      partitioner: lays it out.
      shapes: of a global batch, by feature.
      types: of its arrays; None: float32.
      seed: of the run; None: chosen by T5X, and as the step depends on it, nothing is compiled
        ahead.
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

    def work() -> None:
        try:
            job.compiled = partitioner.compile(trainer._partitioned_train_step, state, batch)  # noqa: SLF001 (what compile_train does)
        except BaseException as error:  # noqa: BLE001 (the trainer meets it again, in the main thread)
            job.error = error
        finally:
            with contextlib.suppress(Exception):
                trainer.close()

    job = _Job(
        model,
        key,
        _describe_arrays((state, batch)),
        threading.Thread(target=work, name="compile-ahead", daemon=True),
    )
    _jobs[:] = [job]
    job.thread.start()
    # A program that ends while XLA compiles in another thread aborts (status 134): a run that has
    # no step left to do ends so soon.
    atexit.register(job.thread.join)


def take_compiled_step(*, model: Any, state: Any, batch: Any, key: Any) -> Any:
    """Return the compiled step for just these, waiting for it, or None where there is none; each is
    returned once.
    """
    if not _jobs:
        return None
    job = _jobs.pop()
    job.thread.join()
    if job.error is not None:
        return None
    if (
        job.model is not model
        or job.alike != _describe_arrays((state, batch))
        or not np.array_equal(job.key, key)
    ):
        log.info(
            "the training step is compiled again: the run is not what was expected when it began "
            "to be compiled"
        )
        return None
    return job.compiled
