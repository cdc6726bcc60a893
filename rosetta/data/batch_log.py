"""ROSETTA_BATCH_LOG: a line for each batch that was trained, by which runs can be compared."""

from __future__ import annotations

import atexit
import json
import os
from typing import TYPE_CHECKING

from rosetta.core.errors import DENIED, UserError
from rosetta.data import bad_records, pipeline
from rosetta.health import stop_signals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.data import Array
    from rosetta.data.pipeline import Batches


class BatchLog:
    """Writes {"step", "hash", "shard", "shards"} for a batch when the next one is asked for, or at
    the end: a batch that was only read ahead leaves no line.

    Raises:
      UserError: the file that ROSETTA_BATCH_LOG names cannot be written to.
    """

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        atexit.register(bad_records.report_skipped)
        stop_signals.last(bad_records.report_skipped)
        self.pending: str | None = None
        self.path = os.environ.get("ROSETTA_BATCH_LOG")
        if self.path:
            try:
                with open(self.path, "a", encoding="utf-8"):
                    pass
            except OSError as error:
                raise UserError(
                    f"it cannot be written to ({error.strerror})",
                    f"ROSETTA_BATCH_LOG={self.path}",
                    "name a file in a folder that is there, or unset it",
                    kind=DENIED,
                ) from None
            atexit.register(self.flush)
            stop_signals.last(self.flush)

    def record(self, step: int, batch: Mapping[str, Array]) -> None:
        """Write the line of the batch before, and keep this one's: int step, this host's rows."""
        self.flush()
        if self.path:
            shard, shards = self.batches.shard, self.batches.shards
            line = {
                "step": step,
                "hash": pipeline.hash_batch(batch, shard * (self.batches.batch // shards)),
                "shard": shard,
                "shards": shards,
            }
            self.pending = json.dumps(line) + "\n"

    def discard_pending(self) -> None:
        """Forget the batch that was read last: it is not trained."""
        self.pending = None

    def flush(self) -> None:
        """Write the line that is kept."""
        if self.path and self.pending:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(self.pending)
            self.pending = None
