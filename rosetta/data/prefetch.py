"""Make batches ahead of the trainer, in a thread or in worker processes.

The trainers of T5X and Pax read their batches through a Loader. This module is also the program of
a worker process.
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

DEFAULT_AHEAD = 4  # the batches that are made before they are asked for
MAX_WORKERS = 8
# A host that makes fewer rows of a batch needs no worker processes.
_MIN_ROWS_FOR_WORKERS = 64
_MESSAGE_SIZE = struct.Struct("<Q")  # precedes each message between the processes
_QUEUE_TIMEOUT_S = 0.1
_WORKER_EXIT_TIMEOUT_S = 5


def choose_worker_count(batches: Batches) -> int:
    """Return how many processes should make batches; 0 for none.

    Batches that are cheap or read in order need none. Others get half the cores, at most 8. The
    variable ROSETTA_DATA_WORKERS overrides it.
    """
    workers: int | None = read_setting(os.environ, "ROSETTA_DATA_WORKERS")
    if workers is not None:
        return workers
    parts = data_spec.parse_parts(batches.recipe.data)
    is_cheap = all(part.spec.kind in ("synthetic", *data_spec.TOKEN_KINDS) for part in parts)
    # Pairs of texts are short, and every process would hold all of them.
    if batches.has_stream or is_cheap or batches.recipe.sized_objective.takes_pairs:
        return 0
    if batches.batch // batches.shards < _MIN_ROWS_FOR_WORKERS:
        return 0
    return min(MAX_WORKERS, len(os.sched_getaffinity(0)) // 2)


class Loader:
    """The batches of a run in order, some of them made ahead.

    Attributes:
        batches: The batches.
        step: The step of the next batch.
        seconds_waited: The time that the trainer waited for batches.
        workers: The number of worker processes; 0 for a thread.
    """

    def __init__(
        self,
        batches: Batches,
        step: int = 0,
        *,
        workers: int | None = None,
        ahead: int = DEFAULT_AHEAD,
    ) -> None:
        self.batches = batches
        batches.contents  # noqa: B018 (the files are fingerprinted before they are read)
        self.step = step
        self.seconds_waited = 0.0
        self.workers = choose_worker_count(batches) if workers is None else workers
        if batches.has_stream:
            self.workers = 0
        self._ahead = max(ahead, self.workers + 1)
        self._maker: _ThreadLoader | _ProcessLoader | None = None

    def __next__(self) -> dict[str, Array]:
        """Return the batch of the current step, and move on to the next step.

        An error that occurred while a batch was made is raised when that batch is asked for. Then
        the thread or the processes end, and the next call begins again at this step.

        Returns:
            Feature -> array [batch / shards, length].
        """
        begin = time.perf_counter()
        try:
            if self._maker is None:
                # A thread that still works when Python ends can abort the process.
                atexit.register(self.close)
                self._maker = self._start()
            batch = self._maker.get()
        except BaseException:
            self.close()
            raise
        self.seconds_waited += time.perf_counter() - begin
        self.step += 1
        return batch

    def _start(self) -> _ThreadLoader | _ProcessLoader:
        """Start to make batches from the current step."""
        if self.workers:
            return _ProcessLoader(self.batches, self.step, self.workers, self._ahead)
        return _ThreadLoader(self.batches, self.step, self._ahead)

    def close(self) -> None:
        """End the thread or the processes that make batches."""
        atexit.unregister(self.close)
        if self._maker is not None:
            self._maker.close()
            self._maker = None


class _ThreadLoader:
    """Make batches in a thread."""

    def __init__(self, batches: Batches, step: int, ahead: int) -> None:
        self.queue: queue.Queue[Any] = queue.Queue(ahead)  # batches, or an error at the end
        self.ended = threading.Event()
        self.thread = threading.Thread(
            target=self._make_batches, args=(batches, step), name="rosetta-data", daemon=True
        )
        self.thread.start()

    def _make_batches(self, batches: Batches, step: int) -> None:
        """Put the batches from a step on into the queue, until an error occurs or close is
        called.
        """
        while not self.ended.is_set():
            result = _make_result(batches, step)
            while not self.ended.is_set():
                with contextlib.suppress(queue.Full):
                    self.queue.put(result, timeout=_QUEUE_TIMEOUT_S)
                    break
            if isinstance(result, Exception):
                return
            step += 1

    def get(self) -> dict[str, Array]:
        """Return the next batch, or raise the error that occurred while it was made."""
        result = self.queue.get()
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the thread."""
        self.ended.set()
        self.thread.join()


def _make_result(batches: Batches, step: int) -> dict[str, Array] | Exception:
    """Return the batch of a step, or the error that is raised again where it is asked for."""
    try:
        return batches.make_batch(step)
    except Exception as error:  # noqa: BLE001 (the caller raises it)
        return error


class _ProcessLoader:
    """Make batches in worker processes.

    Worker k of n makes the batches of the steps k, k + n, and so on. It is sent the number of each
    step, and answers in order.
    """

    def __init__(self, batches: Batches, step: int, workers: int, ahead: int) -> None:
        package_parent = os.path.dirname(os.path.dirname(os.path.abspath(rosetta.__file__)))
        python_path = os.pathsep.join([package_parent, os.environ.get("PYTHONPATH", "")])
        # One thread each: the processes are the parallelism. They are not forked, because the
        # trainer has threads and a GPU.
        environment = {
            **os.environ,
            "PYTHONPATH": python_path.rstrip(os.pathsep),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        # The processes have sessions of their own: Ctrl-C asks the trainer to end, and until then
        # it still needs batches.
        self.children = [
            subprocess.Popen(
                [sys.executable, "-m", "rosetta.data.prefetch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
            for _ in range(workers)
        ]
        body = pickle.dumps(batches)
        try:
            for child in self.children:
                _send_to_child(child, body)
            self.step = step  # of the next batch to return
            self.next_request = step  # the next step to ask a worker for
            for _ in range(ahead):
                self._request_batch()
        except BaseException:
            self.close()
            raise

    def _request_batch(self) -> None:
        """Ask the worker whose turn it is for a batch."""
        child = self.children[self.next_request % len(self.children)]
        _send_to_child(child, pickle.dumps(self.next_request))
        self.next_request += 1

    def get(self) -> dict[str, Array]:
        """Return the next batch, or raise the error that occurred while it was made."""
        child = self.children[self.step % len(self.children)]
        body = _read_message(child.stdout)
        if body is None:
            raise _describe_ended_child(child)
        result, notes = pickle.loads(body)  # noqa: S301 (from our own child)
        bad_records.add_notes(notes)
        if isinstance(result, Exception):
            raise result
        self.step += 1
        self._request_batch()
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the processes: they do so when their pipes are closed."""
        for child in self.children:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        for child in self.children:
            try:
                child.wait(timeout=_WORKER_EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _describe_ended_child(child: subprocess.Popen[bytes]) -> RuntimeError:
    """Return the error for a worker process that has ended."""
    return RuntimeError(f"a data process ended with status {child.wait()}: its message is above")


def _send_to_child(child: subprocess.Popen[bytes], body: bytes) -> None:
    """Send a message to a worker process."""
    try:
        _write_message(child.stdin, body)
    except BrokenPipeError:
        raise _describe_ended_child(child) from None


def _write_message(pipe: IO[bytes] | None, body: bytes) -> None:
    """Write the size of a message and the message."""
    assert pipe is not None  # noqa: S101 (opened as a pipe)
    pipe.write(_MESSAGE_SIZE.pack(len(body)))
    pipe.write(body)
    pipe.flush()


def _read_message(pipe: IO[bytes] | None) -> bytes | None:
    """Return the next message; None if the pipe was closed."""
    assert pipe is not None  # noqa: S101 (opened as a pipe)
    head = pipe.read(_MESSAGE_SIZE.size)
    if len(head) < _MESSAGE_SIZE.size:
        return None
    (size,) = _MESSAGE_SIZE.unpack(head)
    body = pipe.read(size)
    return body if len(body) == size else None


def _serve_batches() -> int:
    """Answer each request with a batch, until the parent process closes the pipe.

    Returns:
        The exit status.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What a library prints must not get between the batches.
    bad_records.mute_warnings()
    body = _read_message(sys.stdin.buffer)
    if body is None:
        return 0
    batches = pickle.loads(body)  # noqa: S301 (from our own parent)
    while (request := _read_message(sys.stdin.buffer)) is not None:
        result = _make_result(batches, pickle.loads(request))  # noqa: S301
        message = pickle.dumps((result, bad_records.take_notes()), protocol=5)
        with contextlib.suppress(BrokenPipeError):
            _write_message(answers, message)
    return 0


if __name__ == "__main__":
    sys.exit(_serve_batches())
