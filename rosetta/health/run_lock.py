"""Keep a second run out of a folder in which a run trains, without letting a dead one hold it for
ever.

The file `run.lock` in the folder says who holds it. On one machine the kernel's lock on the file
decides: it goes with the process. Between machines the holder renews the file, and one that was not
renewed for a while is taken over. Process 0 holds it for a run.
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

from rosetta.core import exit_status, log, run_folders
from rosetta.core.errors import IN_USE, UserError
from rosetta.core.value_parsing import is_address, parse_digits, parse_path
from rosetta.health import stop_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOCK_FILE = "run.lock"
HEARTBEAT_INTERVAL = 10.0  # s between signs of life
LEASE_SECONDS = 60.0  # s without one, after which a holder on another machine counts as dead
POLL_INTERVAL = 1.0
_JOIN_TIMEOUT = 5.0
_FILE_SIZE = 1024  # of the file: a sign of life overwrites all of it in one call

_held_locks: dict[str, RunLock] = {}


@dataclass(frozen=True)
class Holder:
    """Who holds a folder: a process, and what tells whether it can still be alive."""

    token: str
    host: str
    boot: str  # of the machine's kernel
    pid: int
    pids: str  # the namespace that the process id belongs to: a container has its own
    started: str  # of the process, by the kernel's clock; process ids come again
    since: str
    job: str = ""
    restarts: int = 0

    def describe(self) -> str:
        """Return the holder as people find it."""
        job = f", Slurm job {self.job}" if self.job else ""
        return f"host {self.host}, process {self.pid}{job}, since {self.since}"


def _describe_this_process(environment: Mapping[str, str]) -> Holder:
    job = environment.get("SLURM_JOB_ID", "")
    since = time.strftime("%F %H:%M UTC", time.gmtime())
    return Holder(
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        boot=_read_boot_id(),
        pid=os.getpid(),
        pids=_read_pid_namespace(),
        started=_read_start_time(os.getpid()),
        since=since,
        job=job,
        restarts=parse_digits(environment.get("SLURM_RESTART_COUNT", "")) or 0,
    )


def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _read_pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _read_start_time(pid: int) -> str:
    """Return when a process began, "" where there is none."""
    try:
        return (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()[19]
        )
    except (OSError, IndexError):
        return ""


def _parse_lock_file(text: str) -> tuple[Holder | None, int]:
    """Return who a file names, and the count of its signs of life; None where it names nobody."""
    try:
        found = json.loads(text)
        return Holder(**found["holder"]), int(found["signs"])
    except (ValueError, KeyError, TypeError):
        return None, 0


class RunLock:
    """A folder that is held until `release`.

    Args:
      folder: on this machine or in an object store.
      own: who holds it.
      file: a descriptor of its file, which holds the kernel's lock; None in an object store.
    """

    def __init__(self, folder: str, own: Holder, file: int | None) -> None:
        self._folder, self._own, self._file = folder, own, file
        self._signs = 0
        self._released = threading.Event()
        self._thread: threading.Thread | None = None
        self._write()

    def start(self, renewal: float = HEARTBEAT_INTERVAL) -> None:
        """Begin to give signs of life, in a thread of its own."""
        self._thread = threading.Thread(
            target=self._renew, args=(renewal,), name="rosetta-run-lock", daemon=True
        )
        self._thread.start()

    def _write(self) -> None:
        text = json.dumps({"holder": asdict(self._own), "signs": self._signs}).ljust(_FILE_SIZE)
        if self._file is None:
            run_folders.make_path(f"{self._folder}/{LOCK_FILE}").write_text(text)
        else:
            os.pwrite(self._file, text.encode(), 0)

    def taken_by(self) -> Holder | None:
        """Return who has taken the folder over meanwhile, as from a process that stood still for
        long; None where nobody has.
        """
        if self._file is None:
            found = _parse_lock_file(
                run_folders.make_path(f"{self._folder}/{LOCK_FILE}").read_text()
            )[0]
        else:
            # Opening the file a second time and closing it would give up the kernel's lock.
            found = _parse_lock_file(os.pread(self._file, _FILE_SIZE, 0).decode(errors="replace"))[
                0
            ]
        return found if found and found.token != self._own.token else None

    def _renew(self, renewal: float) -> None:
        while not self._released.wait(renewal):
            try:
                other = self.taken_by()
                if other is None:
                    self._signs += 1
                    self._write()
                    continue
            except (
                OSError,
                ValueError,
            ):  # a full disk or a store that is gone for a while: the next sign may arrive
                continue
            except Exception:  # noqa: BLE001, S112 (object stores raise their own)
                continue
            stop_signals.exit_with_line(
                (
                    f"{self._folder}: another run has taken it over ({other.describe()}), as this "
                    f"one gave no sign for {LEASE_SECONDS:.0f} s"
                ),
                exit_status.FAILED,
            )

    def release(self) -> None:
        """Give the folder free.

        What goes wrong in it does not matter: a holder that is gone is noticed.
        """
        if self._released.is_set():
            return
        self._released.set()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join(
                _JOIN_TIMEOUT
            )  # an object store's library must not run when Python ends
        _held_locks.pop(self._folder, None)
        try:
            if self.taken_by() is None:
                run_folders.make_path(f"{self._folder}/{LOCK_FILE}").unlink()
        except Exception:  # noqa: BLE001, S110 (see above)
            pass
        if self._file is not None:
            os.close(self._file)


def check_not_in_use(folder: str, name: str) -> tuple[()]:
    """Raise UserError where a run on this machine trains in a folder. Cheap, takes nothing, and
    sees no other machine.

    Args:
      folder: of the run.
      name: of the variable that names it, for the error.
    """
    path = Path(folder, LOCK_FILE)
    if is_address(folder) or not path.is_file():
        return ()
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        return ()
    try:
        holder, _ = _parse_lock_file(os.pread(file, _FILE_SIZE, 0).decode(errors="replace"))
        if holder and holder.boot == _read_boot_id() and _try_kernel_lock(file) is False:
            raise _make_refusal(folder, name, holder)
    finally:
        os.close(file)
    return ()


def acquire_lock(
    folder: str, name: str, environment: Mapping[str, str], *, lease: float = LEASE_SECONDS
) -> RunLock:
    """Return the lock of a folder, which this process then holds.

    Args:
      folder: of the run; made where it is missing.
      name: of the variable that names it, for the error.
      environment: Slurm's variables: a job that was requeued takes over from itself at once.
      lease: s that a holder on another machine is given for a sign of life.

    Raises:
      UserError: another run holds it.
    """
    folder = parse_path("MODEL_DIR", folder).rstrip("/")
    if folder in _held_locks:
        return _held_locks[folder]
    own = _describe_this_process(environment)
    file, locked = None, False
    if is_address(folder):
        _wait_until_free(lambda: _read_lock_file(folder), own, folder, name, lease)
    else:
        file, locked = _acquire_lock_file(folder, own, name, lease)
    lock = RunLock(folder, own, file)
    if not locked:
        time.sleep(
            2 * POLL_INTERVAL
        )  # another one may come in the same moment: the last to write has it
    if other := lock.taken_by():
        raise _make_refusal(folder, name, other)
    _held_locks[folder] = lock
    lock.start()
    atexit.register(lock.release)
    stop_signals.call_before_exit(lock.release)
    return lock


def _acquire_lock_file(folder: str, own: Holder, name: str, lease: float) -> tuple[int, bool]:
    """Return a descriptor of the folder's file, and whether it has the kernel's lock: not every
    file system has such.
    """
    path = Path(folder, LOCK_FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    watched = _HolderWatch(own, folder, name, lease)
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            locked = _try_kernel_lock(file)
            if not _is_same_file(file, path):  # it was released, and removed, meanwhile
                os.close(file)
                continue
            free = watched.is_free(os.pread(file, _FILE_SIZE, 0).decode(errors="replace"), locked)
        except BaseException:
            os.close(file)
            raise
        if free:
            return file, locked is True
        os.close(file)
        time.sleep(POLL_INTERVAL)


def _read_lock_file(folder: str) -> str:
    path = run_folders.make_path(f"{folder}/{LOCK_FILE}")
    return str(path.read_text()) if path.exists() else ""


def _wait_until_free(
    read: Callable[[], str], own: Holder, folder: str, name: str, lease: float
) -> None:
    watched = _HolderWatch(own, folder, name, lease)
    while not watched.is_free(read(), None):
        time.sleep(POLL_INTERVAL)


class _HolderWatch:
    """Watches a holder until it is known to be dead, or gives a sign of life."""

    def __init__(self, own: Holder, folder: str, name: str, lease: float) -> None:
        self._own, self._folder, self._name, self._lease = own, folder, name, lease
        self._first: tuple[str, int] | None = None  # token and signs when it was first seen
        self._since = 0.0

    def is_free(self, text: str, locked: bool | None) -> bool:
        """Return whether the folder can be taken now; False where that has to be seen.

        Args:
          text: what the file says.
          locked: whether the kernel gave us the file's lock; None where the file system has none.

        Raises:
          UserError: its holder is alive.
        """
        holder, signs = _parse_lock_file(text)
        if holder is None:
            if locked is not False:
                return True
            time.sleep(POLL_INTERVAL)  # it is about to be written
            return False
        here = holder.boot == self._own.boot
        if here and locked is False:
            raise _make_refusal(self._folder, self._name, holder)
        if self._is_dead(holder, locked=locked):
            log.info(
                f"{self._folder}: taken over from a run that is gone ({holder.describe()})",
                terminal=True,
            )
            return True
        if self._first is None:
            self._first, self._since = (holder.token, signs), time.monotonic()
            log.info(
                f"{self._folder}: held by {holder.describe()}: waiting up to "
                f"{self._lease:.0f} s for a sign of it",
                terminal=True,
            )
        elif self._first != (holder.token, signs):
            raise _make_refusal(self._folder, self._name, holder)
        elif time.monotonic() - self._since >= self._lease:
            log.info(
                f"{self._folder}: taken over: {holder.describe()} gave no sign for "
                f"{self._lease:.0f} s",
                terminal=True,
            )
            return True
        return False

    def _is_dead(self, holder: Holder, *, locked: bool | None) -> bool:
        own = self._own
        if holder.boot == own.boot:  # the kernel knows; without its lock, by the process
            return locked is True or (
                holder.pids == own.pids and _read_start_time(holder.pid) != holder.started
            )
        return bool(holder.job) and holder.job == own.job and holder.restarts < own.restarts


def _make_refusal(folder: str, name: str, holder: Holder) -> UserError:
    what = f"another run trains in it ({holder.describe()})"
    return UserError(
        what, folder, f"wait for it or end it, or name another folder: {name}", kind=IN_USE
    )


def _try_kernel_lock(file: int) -> bool | None:
    """Return whether the kernel's lock of a file was got; None where there are no locks.

    It is one of POSIX's, which processes that this one forks do not hold.
    """
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def _is_same_file(file: int, path: Path) -> bool:
    try:
        there = path.stat()
    except OSError:
        return False
    held = os.fstat(file)
    return (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino)
