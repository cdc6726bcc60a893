"""Take the lock of a run's folder once for all processes of the run."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from rosetta.core.errors import UserError
from rosetta.health import key_value_store
from rosetta.health.run_lock import POLL_INTERVAL, acquire_lock

if TYPE_CHECKING:
    from collections.abc import Mapping


def acquire_for_run(
    folder: str, name: str, environment: Mapping[str, str], rank: int, ranks: int
) -> None:
    """Hold a folder for a run: process 0 takes the lock, and tells the others the result.

    Args:
      folder: see acquire_lock.
      name: see acquire_lock.
      environment: see acquire_lock.
      rank: the number of this process.
      ranks: the number of processes.

    Raises:
      UserError: another run holds the folder.
    """
    store = key_value_store.open_store(ranks)
    if rank == 0:
        try:
            acquire_lock(folder, name, environment)
        except UserError as error:
            store.put("lock/result", json.dumps([error.what, error.where, error.do, error.kind]))
            # The others read the result from the store, which ends with this process.
            time.sleep(2 * POLL_INTERVAL if ranks > 1 else 0)
            raise
        store.put("lock/result", "[]")
        return
    while not (results := store.list_folder("lock")):
        time.sleep(POLL_INTERVAL / 2)
    if refusal := json.loads(results["result"]):
        *texts, kind = refusal
        raise UserError(*texts, kind=kind)
