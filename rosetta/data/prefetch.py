"""Works ahead of the trainer: batches of the coming steps, made by a thread or by processes of
their own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, Any

import rosetta
from rosetta.core.variables.setting_values import read_setting
from rosetta.data import bad_records, data_spec

if TYPE_CHECKING:
    from rosetta.data import Array
    from rosetta.data.pipeline import Batches

DEFAULT_AHEAD = 4
_MESSAGE_SIZE = struct.Struct("<Q")


def choose_worker_count(batches: Batches) -> int:
    """Return how many processes make batches: none for what costs little or is read in order, else
    half the cores, at most 8.

    ROSETTA_DATA_WORKERS overrides it.
    """
    workers: int | None = read_setting(os.environ, "ROSETTA_DATA_WORKERS")
    if workers is not None:
        return workers
    # Pairs of texts are short, and every process would hold all of them.
    cheap = all(
        part.spec.kind in ("synthetic", "cache")
        for part in data_spec.parse_parts(batches.recipe.data)
    )
    if batches.has_stream or cheap or batches.recipe.sized_objective.takes_pairs:
        return 0
    return min(8, len(os.sched_getaffinity(0)) // 2) if batches.batch // batches.shards >= 64 else 0


class Loader:
    """The batches from a step on, in order, some of them made ahead."""

    def __init__(
        self,
        batches: Batches,
        step: int = 0,
        *,
        workers: int | None = None,
        ahead: int = DEFAULT_AHEAD,
    ) -> None:
        self.batches = batches
        batches.contents  # noqa: B018 (what the files hold is looked at before they are read)
        self.step = step
        self.seconds_waited = 0.0
        self.workers = choose_worker_count(batches) if workers is None else workers
        if batches.has_stream:
            self.workers = 0
        self._ahead = max(ahead, self.workers + 1)
        self._run: _ThreadLoader | _ProcessLoader | None = None

    def __next__(self) -> dict[str, Array]:
        """Return the batch of the current step and go on to the next.

        What went wrong while making it is raised here, and ends what works ahead: who asks again
        begins again at this step.
        """
        begun = time.perf_counter()
        try:
            if self._run is None:
                atexit.register(
                    self.close
                )  # a thread that still works when Python ends can abort the process
                self._run = (
                    _ProcessLoader(self.batches, self.step, self.workers, self._ahead)
                    if self.workers
                    else _ThreadLoader(self.batches, self.step, self._ahead)
                )
            batch = self._run.get()
        except BaseException:
            self.close()
            raise
        self.seconds_waited += time.perf_counter() - begun
        self.step += 1
        return batch

    def close(self) -> None:
        """End what works ahead."""
        atexit.unregister(self.close)
        if self._run is not None:
            self._run.close()
            self._run = None


class _ThreadLoader:
    def __init__(self, batches: Batches, step: int, ahead: int) -> None:
        self.queue: queue.Queue[Any] = queue.Queue(ahead)
        self.ended = threading.Event()
        self.thread = threading.Thread(
            target=self._work, args=(batches, step), name="rosetta-data", daemon=True
        )
        self.thread.start()

    def _work(self, batches: Batches, step: int) -> None:
        while not self.ended.is_set():
            try:
                made: Any = batches.make_batch(step)
            except Exception as error:  # noqa: BLE001 (raised again where the batch is asked for)
                made = error
            while not self.ended.is_set():
                with contextlib.suppress(queue.Full):
                    self.queue.put(made, timeout=0.1)
                    break
            if isinstance(made, Exception):
                return
            step += 1

    def get(self) -> dict[str, Array]:
        made = self.queue.get()
        if isinstance(made, Exception):
            raise made
        return made  # type: ignore[no-any-return]

    def close(self) -> None:
        self.ended.set()
        self.thread.join()


class _ProcessLoader:
    """Process k of n makes the steps k, k + n, …: it is told each by number and answers in
    order.
    """

    def __init__(self, batches: Batches, step: int, workers: int, ahead: int) -> None:
        path = os.pathsep.join(
            [
                os.path.dirname(os.path.dirname(os.path.abspath(rosetta.__file__))),
                os.environ.get("PYTHONPATH", ""),
            ]
        )
        # One thread each: the processes are the parallelism. Not forked: the trainer has threads
        # and a GPU.
        env = {
            **os.environ,
            "PYTHONPATH": path.rstrip(os.pathsep),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        # In sessions of their own: Ctrl-C asks the trainer to end, which still needs batches.
        self.children = [
            subprocess.Popen(
                [sys.executable, "-m", "rosetta.data.prefetch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=env,
                start_new_session=True,
            )
            for _ in range(workers)
        ]
        body = pickle.dumps(batches)
        try:
            for child in self.children:
                _send_to_child(child, body)
            self.step, self.asked = step, step
            for _ in range(ahead):
                self._ask()
        except BaseException:
            self.close()
            raise

    def _ask(self) -> None:
        _send_to_child(self.children[self.asked % len(self.children)], pickle.dumps(self.asked))
        self.asked += 1

    def get(self) -> dict[str, Array]:
        child = self.children[self.step % len(self.children)]
        body = _read_message(child.stdout)
        if body is None:
            raise RuntimeError(
                f"a data process ended with status {child.wait()}: its message is above"
            )
        made, notes = pickle.loads(body)  # noqa: S301 (our own child's)
        bad_records.add_notes(notes)
        if isinstance(made, Exception):
            raise made
        self.step += 1
        self._ask()
        return made  # type: ignore[no-any-return]

    def close(self) -> None:
        for child in self.children:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        for child in self.children:
            try:
                child.wait(timeout=5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _send_to_child(child: subprocess.Popen[bytes], body: bytes) -> None:
    try:
        _write_message(child.stdin, body)
    except BrokenPipeError:
        raise RuntimeError(
            f"a data process ended with status {child.wait()}: its message is above"
        ) from None


def _write_message(pipe: IO[bytes] | None, body: bytes) -> None:
    assert pipe is not None  # noqa: S101 (opened as a pipe)
    pipe.write(_MESSAGE_SIZE.pack(len(body)))
    pipe.write(body)
    pipe.flush()


def _read_message(pipe: IO[bytes] | None) -> bytes | None:
    assert pipe is not None  # noqa: S101 (opened as a pipe)
    head = pipe.read(_MESSAGE_SIZE.size)
    if len(head) < _MESSAGE_SIZE.size:
        return None
    (size,) = _MESSAGE_SIZE.unpack(head)
    body = pipe.read(size)
    return body if len(body) == size else None


def _serve_batches() -> int:
    """Answer with batches until the parent closes the pipe."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the batches
    bad_records.mute_warnings()
    body = _read_message(sys.stdin.buffer)
    if body is None:
        return 0
    batches = pickle.loads(body)  # noqa: S301 (our own parent's)
    while (asked := _read_message(sys.stdin.buffer)) is not None:
        try:
            made: Any = batches.make_batch(pickle.loads(asked))  # noqa: S301
        except Exception as error:  # noqa: BLE001 (raised again where the batch is asked for)
            made = error
        with contextlib.suppress(BrokenPipeError):
            _write_message(answers, pickle.dumps((made, bad_records.take_notes()), protocol=5))
    return 0


if __name__ == "__main__":
    sys.exit(_serve_batches())
