"""The batch log: a line for each trained batch in the file that ROSETTA_BATCH_LOG names.

The trainers of T5X and Pax write it. Two runs trained the same batches if their logs are equal.
"""

from __future__ import annotations

import atexit
import json
import os
from typing import TYPE_CHECKING

from rosetta.core.errors import DENIED, UserError
from rosetta.data import bad_records, batch_hashes
from rosetta.health import stop_signals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.data import Array
    from rosetta.data.pipeline import Batches

_VARIABLE = "ROSETTA_BATCH_LOG"


class BatchLog:
    """Write {"step", "hash", "shard", "shards"} for each batch that was trained.

    The line of a batch is written when the next batch is recorded, or at the end. So a batch that
    was only read ahead leaves no line.

    Attributes:
        batches: The batches of this host.
        pending: The line of the last recorded batch, which is not written yet.
        path: The value of ROSETTA_BATCH_LOG; nothing is written if it is empty or unset.

    Raises:
        UserError: The file that ROSETTA_BATCH_LOG names cannot be written.
    """

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        atexit.register(bad_records.report_skipped)
        stop_signals.call_before_exit(bad_records.report_skipped)
        self.pending: str | None = None
        self.path = os.environ.get(_VARIABLE)
        if self.path:
            try:
                with open(self.path, "a", encoding="utf-8"):
                    pass
            except OSError as error:
                raise UserError(
                    f"the file cannot be written ({error.strerror})",
                    f"{_VARIABLE}={self.path}",
                    "name a file in an existing folder, or unset the variable",
                    kind=DENIED,
                ) from None
            atexit.register(self.flush)
            stop_signals.call_before_exit(self.flush)

    def record(self, step: int, batch: Mapping[str, Array]) -> None:
        """Write the pending line, and keep the line of this batch as the pending one.

        Args:
            step: The step that trains the batch.
            batch: This host's rows: feature -> array [batch / shards, length].
        """
        self.flush()
        if not self.path:
            return
        shard, shards = self.batches.shard, self.batches.shards
        first_row = shard * (self.batches.batch // shards)
        line = {
            "step": step,
            "hash": batch_hashes.hash_batch(batch, first_row),
            "shard": shard,
            "shards": shards,
        }
        self.pending = json.dumps(line) + "\n"

    def discard_pending(self) -> None:
        """Forget the last recorded batch, because it is not trained."""
        self.pending = None

    def flush(self) -> None:
        """Write the pending line."""
        if self.path and self.pending:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(self.pending)
            self.pending = None
