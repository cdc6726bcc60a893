"""Text as bytes, cut into windows: which ones make up the batch of a step on a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

EOS = 1  # 0 is padding, 2 an unknown token, as in ByT5
OFFSET = 3  # byte b has the id b + OFFSET
VOCABULARY = 264  # 256 bytes and the special ids, rounded up so that 8 devices can share the embedding


def tokens(texts: Iterable[bytes]) -> Any:
    """Return the ids of texts put one after the other, a line's end being the end of a document; shape [bytes], int32."""
    ids = np.frombuffer(b"".join(texts), np.uint8).astype(np.int32) + OFFSET
    ids[ids == ord("\n") + OFFSET] = EOS
    return ids


@dataclass(frozen=True)
class Windows:
    """`count` windows, shuffled anew each epoch, dealt out to `hosts` hosts, `batch` to each at a step.

    A last, incomplete batch of an epoch is left out. Raises ValueError where there is not one whole batch.
    """

    count: int
    batch: int
    hosts: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < self.batch * self.hosts:
            raise ValueError(
                f"the text holds {self.count} windows, fewer than one global batch of {self.batch * self.hosts}: "
                "give more text, shorter windows or a smaller batch"
            )

    def rows(self, step: int, host: int = 0) -> Any:
        """Return the numbers of the windows of `host`'s rows at `step`, shape [batch]; a function of its arguments alone."""
        together = self.batch * self.hosts
        epoch, at = divmod(step, self.count // together)
        order = np.random.default_rng((self.seed, epoch)).permutation(self.count)
        first = at * together + host * self.batch
        return order[first : first + self.batch]
