"""Lock the folder of a run, so that no second run trains in it.

The file `run.lock` in the folder names the holder, which is process 0 of a run. On one machine, the
kernel's lock on the file decides; it ends with the process. Between machines, the holder renews the
file as a heartbeat. If the file is not renewed for a while, another run takes the folder over, so a
dead run does not hold it for ever.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import exit_status, log, process_identity, run_folders
from rosetta.core.errors import IN_USE, UserError
from rosetta.core.value_parsing import is_address, parse_digits, parse_path
from rosetta.health import stop_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOCK_FILE = "run.lock"
HEARTBEAT_INTERVAL = 10.0  # seconds
LEASE_SECONDS = 60.0  # without a heartbeat, after which a holder on another machine counts as dead
POLL_INTERVAL = 1.0  # seconds
_JOIN_TIMEOUT = 5.0  # seconds
# Bytes of the file. A heartbeat overwrites all of it in one call.
_FILE_SIZE = 1024

_held_locks: dict[str, RunLock] = {}  # by folder


@dataclass(frozen=True)
class Holder:
    """The process that holds a folder, as `run.lock` describes it.

    Attributes:
      token: a random name of the holder.
      host: its host name.
      boot: the kernel's id of the machine's last boot.
      pid: its process id.
      pids: the namespace of the process id; a container has its own.
      started: when the process began, by the kernel's clock, since process ids are used again.
      since: when it took the folder, for people.
      job: its Slurm job; "" without Slurm.
      restarts: how often Slurm requeued the job.
    """

    token: str
    host: str
    boot: str
    pid: int
    pids: str
    started: str
    since: str
    job: str = ""
    restarts: int = 0

    def describe(self) -> str:
        """Return the holder as a message names it."""
        job = f", Slurm job {self.job}" if self.job else ""
        return f"host {self.host}, process {self.pid}{job}, since {self.since}"


def _describe_this_process(environment: Mapping[str, str]) -> Holder:
    """Return this process as a holder."""
    return Holder(
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        boot=process_identity.read_boot_id(),
        pid=os.getpid(),
        pids=process_identity.read_pid_namespace(),
        started=process_identity.read_start_time(os.getpid()),
        since=time.strftime("%F %H:%M UTC", time.gmtime()),
        job=environment.get("SLURM_JOB_ID", ""),
        restarts=parse_digits(environment.get("SLURM_RESTART_COUNT", "")) or 0,
    )


def _parse_lock_file(text: str) -> tuple[Holder | None, int]:
    """Return the holder that a file names and the count of its heartbeats; None without one."""
    try:
        record = json.loads(text)
        return Holder(**record["holder"]), int(record["signs"])
    except (ValueError, KeyError, TypeError):
        return None, 0


def _read_descriptor(file: int) -> str:
    """Return the text of a lock file that is open."""
    return os.pread(file, _FILE_SIZE, 0).decode(errors="replace")


class RunLock:
    """Holds a folder until `release`.

    Args:
      folder: on this machine or in an object store.
      own: this process.
      file: a descriptor of the lock file, which has the kernel's lock; None in an object store.
    """

    def __init__(self, folder: str, own: Holder, file: int | None) -> None:
        self._folder, self._own, self._file = folder, own, file
        self._heartbeat_count = 0
        self._released = threading.Event()
        self._thread: threading.Thread | None = None
        self._write()

    def start(self, interval: float = HEARTBEAT_INTERVAL) -> None:
        """Renew the file every so many seconds, in a thread of its own."""
        self._thread = threading.Thread(
            target=self._send_heartbeats, args=(interval,), name="rosetta-run-lock", daemon=True
        )
        self._thread.start()

    def _write(self) -> None:
        """Write the holder and the count of its heartbeats."""
        record = {"holder": asdict(self._own), "signs": self._heartbeat_count}
        text = json.dumps(record).ljust(_FILE_SIZE)
        if self._file is None:
            run_folders.make_path(f"{self._folder}/{LOCK_FILE}").write_text(text)
        else:
            os.pwrite(self._file, text.encode(), 0)

    def find_new_holder(self) -> Holder | None:
        """Return the run that has taken the folder over from this one, or None.

        That happens to a process that was stopped for longer than the lease.
        """
        if self._file is None:
            text = run_folders.make_path(f"{self._folder}/{LOCK_FILE}").read_text()
        else:
            # To open the file again and close it would release the kernel's lock.
            text = _read_descriptor(self._file)
        holder, _ = _parse_lock_file(text)
        return holder if holder and holder.token != self._own.token else None

    def _send_heartbeats(self, interval: float) -> None:
        """Renew the file at intervals; end the process if another run took the folder over."""
        while not self._released.wait(interval):
            try:
                new_holder = self.find_new_holder()
                if new_holder is None:
                    self._heartbeat_count += 1
                    self._write()
                    continue
            except (OSError, ValueError):
                # The disk is full or the store is unreachable: the next heartbeat may succeed.
                continue
            except Exception:  # noqa: BLE001, S112 (object stores raise classes of their own)
                continue
            stop_signals.exit_with_line(
                (
                    f"{self._folder}: another run has taken the folder over "
                    f"({new_holder.describe()}), because this run sent no heartbeat for "
                    f"{LEASE_SECONDS:.0f} s"
                ),
                exit_status.FAILED,
            )

    def release(self) -> None:
        """Release the folder.

        Errors are ignored, because a new run notices anyway that this one is gone.
        """
        if self._released.is_set():
            return
        self._released.set()
        if self._thread and self._thread is not threading.current_thread():
            # The library of an object store must not run while Python ends.
            self._thread.join(_JOIN_TIMEOUT)
        _held_locks.pop(self._folder, None)
        try:
            if self.find_new_holder() is None:
                run_folders.make_path(f"{self._folder}/{LOCK_FILE}").unlink()
        except Exception:  # noqa: BLE001, S110 (errors are ignored, see above)
            pass
        if self._file is not None:
            os.close(self._file)


def check_not_in_use(folder: str, name: str) -> tuple[()]:
    """Check that no run on this machine trains in a folder.

    The check is cheap and takes no lock. It does not see runs on other machines.

    Args:
      folder: of the run.
      name: the variable that sets the folder, for the error.

    Returns:
      Nothing, as a tuple of lines, since checks of a launch return lines.

    Raises:
      UserError: a run trains in the folder.
    """
    path = Path(folder, LOCK_FILE)
    if is_address(folder) or not path.is_file():
        return ()
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        return ()
    try:
        holder, _ = _parse_lock_file(_read_descriptor(file))
        if (
            holder
            and holder.boot == process_identity.read_boot_id()
            and _try_kernel_lock(file) is False
        ):
            raise _make_refusal(folder, name, holder)
    finally:
        os.close(file)
    return ()


def acquire_lock(
    folder: str, name: str, environment: Mapping[str, str], *, lease: float = LEASE_SECONDS
) -> RunLock:
    """Take the lock of a folder for this process, and return it.

    Args:
      folder: of the run; it is made if it is missing.
      name: the variable that sets the folder, for the error.
      environment: Slurm's variables: a job that was requeued takes over from itself at once.
      lease: how many seconds to wait for a heartbeat of a holder on another machine.

    Raises:
      UserError: another run holds the folder.
    """
    folder = parse_path("MODEL_DIR", folder).rstrip("/")
    if folder in _held_locks:
        return _held_locks[folder]
    own = _describe_this_process(environment)
    file, is_locked = None, False
    if is_address(folder):
        _wait_until_free(lambda: _read_lock_file(folder), own, folder, name, lease)
    else:
        file, is_locked = _acquire_lock_file(folder, own, name, lease)
    lock = RunLock(folder, own, file)
    if not is_locked:
        # Another run may come at the same moment: the last one to write holds the folder.
        time.sleep(2 * POLL_INTERVAL)
    if new_holder := lock.find_new_holder():
        raise _make_refusal(folder, name, new_holder)
    _held_locks[folder] = lock
    lock.start()
    atexit.register(lock.release)
    stop_signals.call_before_exit(lock.release)
    return lock


def _acquire_lock_file(folder: str, own: Holder, name: str, lease: float) -> tuple[int, bool]:
    """Wait until the folder is free; see acquire_lock.

    Returns:
      A descriptor of the lock file, and whether it has the kernel's lock. Some file systems have no
      locks.
    """
    path = Path(folder, LOCK_FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    watch = _HolderWatch(own, folder, name, lease)
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            lock_result = _try_kernel_lock(file)
            if not _is_same_file(file, path):  # The holder released and removed it meanwhile.
                os.close(file)
                continue
            is_free = watch.is_free(_read_descriptor(file), lock_result)
        except BaseException:
            os.close(file)
            raise
        if is_free:
            return file, lock_result is True
        os.close(file)
        time.sleep(POLL_INTERVAL)


def _read_lock_file(folder: str) -> str:
    """Return the text of a folder's lock file; "" without one."""
    path = run_folders.make_path(f"{folder}/{LOCK_FILE}")
    return str(path.read_text()) if path.exists() else ""


def _wait_until_free(
    read: Callable[[], str], own: Holder, folder: str, name: str, lease: float
) -> None:
    """Wait until a folder in an object store is free; see acquire_lock."""
    watch = _HolderWatch(own, folder, name, lease)
    while not watch.is_free(read(), None):
        time.sleep(POLL_INTERVAL)


class _HolderWatch:
    """Watches a holder until it is known to be dead, or sends a heartbeat."""

    def __init__(self, own: Holder, folder: str, name: str, lease: float) -> None:
        self._own, self._folder, self._name, self._lease = own, folder, name, lease
        # The token and the heartbeat count when the holder was first seen.
        self._first_state: tuple[str, int] | None = None
        self._first_seen = 0.0

    def is_free(self, text: str, lock_result: bool | None) -> bool:
        """Return whether the folder can be taken now; False while that is not known.

        Args:
          text: of the lock file.
          lock_result: whether the kernel gave us the file's lock; None if the file system has no
            locks.

        Raises:
          UserError: the holder is alive.
        """
        holder, heartbeats = _parse_lock_file(text)
        if holder is None:
            if lock_result is not False:
                return True
            time.sleep(POLL_INTERVAL)  # The holder is about to write the file.
            return False
        if holder.boot == self._own.boot and lock_result is False:
            raise _make_refusal(self._folder, self._name, holder)
        if self._is_dead(holder, lock_result=lock_result):
            log.info(
                f"{self._folder}: taken over from a run that is gone ({holder.describe()})",
            )
            return True
        return self._is_lease_over(holder, heartbeats)

    def _is_lease_over(self, holder: Holder, heartbeats: int) -> bool:
        """Return whether a holder on another machine has sent no heartbeat for the lease.

        Raises:
          UserError: the holder sent a heartbeat.
        """
        state = (holder.token, heartbeats)
        if self._first_state is None:
            self._first_state, self._first_seen = state, time.monotonic()
            log.info(
                f"{self._folder}: held by {holder.describe()}: waiting up to "
                f"{self._lease:.0f} s for its heartbeat",
            )
        elif self._first_state != state:
            raise _make_refusal(self._folder, self._name, holder)
        elif time.monotonic() - self._first_seen >= self._lease:
            log.info(
                f"{self._folder}: taken over: {holder.describe()} sent no heartbeat for "
                f"{self._lease:.0f} s",
            )
            return True
        return False

    def _is_dead(self, holder: Holder, *, lock_result: bool | None) -> bool:
        """Return whether a holder is known to be dead, without waiting for its heartbeat."""
        own = self._own
        if holder.boot == own.boot:
            # The kernel's lock decides. Without locks, the process itself tells.
            if lock_result is True:
                return True
            return (
                holder.pids == own.pids
                and process_identity.read_start_time(holder.pid) != holder.started
            )
        # A requeued Slurm job takes over from its earlier start.
        return bool(holder.job) and holder.job == own.job and holder.restarts < own.restarts


def _make_refusal(folder: str, name: str, holder: Holder) -> UserError:
    """Return the error about a folder in which another run trains."""
    return UserError(
        f"another run trains in this folder ({holder.describe()})",
        folder,
        f"wait for the run or end it, or name another folder: {name}",
        kind=IN_USE,
    )


def _try_kernel_lock(file: int) -> bool | None:
    """Try to take the kernel's lock of a file.

    The lock is POSIX's, which the children of this process do not inherit.

    Returns:
      Whether the lock was taken; None if the file system has no locks.
    """
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def _is_same_file(file: int, path: Path) -> bool:
    """Return whether a path still leads to an open file."""
    try:
        current = path.stat()
    except OSError:
        return False
    opened = os.fstat(file)
    return (opened.st_dev, opened.st_ino) == (current.st_dev, current.st_ino)
