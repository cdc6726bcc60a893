"""One lock on a run's folder for all processes of the run."""

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
    """Hold a folder for a run: process 0 takes the lock, and all learn what came of it.

    Args:
      folder: see acquire.
      name: see acquire.
      environment: see acquire.
      rank: this process.
      ranks: processes of the run.

    Raises:
      UserError: another run holds it.
    """
    shared = key_value_store.open_store(ranks)
    if rank == 0:
        try:
            acquire_lock(folder, name, environment)
        except UserError as error:
            shared.put("lock/result", json.dumps([error.what, error.where, error.do, error.kind]))
            time.sleep(
                2 * POLL_INTERVAL if ranks > 1 else 0
            )  # the others read it from this process
            raise
        shared.put("lock/result", "[]")
        return
    while not (results := shared.under("lock")):
        time.sleep(POLL_INTERVAL / 2)
    if refused := json.loads(results["result"]):
        *words, kind = refused
        raise UserError(*words, kind=kind)
