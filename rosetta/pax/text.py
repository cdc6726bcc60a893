"""Local text files as an input of Pax: no vocabulary, no download, none of lingvo's ops."""

from __future__ import annotations

import dataclasses
import glob
import struct
from pathlib import Path
from typing import Any

import numpy as np
from praxis import base_input, py_utils

from rosetta.pax.windows import Windows, tokens

STATE = struct.Struct("<q")


class LocalText(base_input.BaseInput):
    """Batches of windows of text files' bytes, the same ones for the same seed and step.

    Its state is the number of batches given out, so a run that goes on from a checkpoint sees what it would have seen
    without the stop.

    Attributes:
        files: glob pattern of the files, read whole, in the order of their names.
        seq_len: tokens in a row.
    """

    files: str | None = None
    seq_len: int = 0
    _tokens: Any = dataclasses.field(init=False, repr=False)
    _windows: Any = dataclasses.field(init=False, repr=False)
    _given: Any = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        paths = sorted(glob.glob(self.files or ""))
        if not paths:
            raise ValueError(f"no text file matches {self.files!r}: set TEXT_FILES to a glob pattern of text files")
        self._tokens = tokens(Path(path).read_bytes() for path in paths)
        # A row takes one token more than it is long: each is the label of the one before.
        count = (len(self._tokens) - 1) // self.seq_len
        self._windows = Windows(count, self.batch_size, self.num_infeed_hosts, self.input_random_seed or 0)
        self._given = 0

    def get_next(self) -> py_utils.NestedMap:
        """Return ids, labels, paddings, weights, segment_ids, segment_pos [batch, seq_len] and eval_sample_weights [batch]."""
        first = self._windows.rows(self._given, self.infeed_host_index) * self.seq_len
        window = self._tokens[first[:, None] + np.arange(self.seq_len + 1)]
        self._given += 1
        shape = (self.batch_size, self.seq_len)
        return py_utils.NestedMap(
            ids=window[:, :-1],
            labels=window[:, 1:],
            paddings=np.zeros(shape, np.float32),
            weights=np.ones(shape, np.float32),
            segment_ids=np.ones(shape, np.int32),
            segment_pos=np.broadcast_to(np.arange(self.seq_len, dtype=np.int32), shape),
            eval_sample_weights=np.ones(self.batch_size, np.float32),
        )

    def reset(self) -> None:
        super().reset()
        self._given = 0

    def _get_state_internal(self) -> bytes:
        return STATE.pack(self._given)

    def _set_state_internal(self, state: bytes) -> None:
        (self._given,) = STATE.unpack(state)
