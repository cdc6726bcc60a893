"""Take the lock of a run's folder once for all processes of the run.

Process 0 takes the lock, and writes the result to the run's key-value store. The other processes
wait for the result.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from rosetta.core.errors import FAILED, UserError
from rosetta.health import key_value_store
from rosetta.health.run_lock import POLL_INTERVAL, acquire_lock

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDER, _NAME = "lock", "result"  # the key in the store
_ACQUIRED = "[]"  # the result if process 0 has the lock; otherwise it is the error as JSON


def acquire_shared_lock(
    folder: str, name: str, environment: Mapping[str, str], rank: int, ranks: int
) -> None:
    """Take the lock of a run's folder, or raise an error in every process of the run.

    Every process of the run has to call it. The lock is held until process 0 ends.

    Args:
      folder: the folder of the run, which is made if it is missing.
      name: the variable that sets the folder, for the error.
      environment: Slurm's variables, see run_lock.acquire_lock.
      rank: the number of this process.
      ranks: the number of processes.

    Raises:
      UserError: another run holds the folder.
      Exception: in process 0, any error of the file system; the others raise a UserError.
    """
    store = key_value_store.open_store(ranks)
    if rank == 0:
        try:
            acquire_lock(folder, name, environment)
        except Exception as error:
            problem = error
            if not isinstance(problem, UserError):
                problem = UserError(
                    f"process 0 cannot take the lock: {type(error).__name__}",
                    folder,
                    "see the message of process 0",
                    kind=FAILED,
                )
            fields = [problem.what, problem.where, problem.do, problem.kind]
            store.put(f"{_FOLDER}/{_NAME}", json.dumps(fields))
            if ranks > 1:
                # The store ends with this process, so the others get the time to read the result.
                time.sleep(2 * POLL_INTERVAL)
            raise
        store.put(f"{_FOLDER}/{_NAME}", _ACQUIRED)
        return
    while not (values := store.list_folder(_FOLDER)):
        time.sleep(POLL_INTERVAL / 2)
    result = values[_NAME]
    if result != _ACQUIRED:
        what, where, do, kind = json.loads(result)
        raise UserError(what, where, do, kind=kind)
