"""Progress of training: one line for people, one JSON object a line for programs, and scalars for
TensorBoard.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rosetta.core import log
from rosetta.core.value_parsing import is_address

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class ProgressReport:
    """The state of a run after some steps; rates are means over them. None where it is not known.

    Attributes:
      step: steps done; total: of the whole run.
      loss: per target token that is not padding.
      steps_per_second, tokens_per_second: of all devices; tokens are input and target positions,
        padding included.
      mfu: model FLOP utilisation: FLOPs of the model's forward and backward pass over the peak of
        all devices.
      input_wait: share of the time that the loop waited for data.
      seconds_left: at this speed.
      more: what else is known, name -> value: goodput, and the host that holds up the others
        (rosetta.health).
      said: of these, what people should read, at the end of the line.
    """

    step: int
    total: int | None
    loss: float | None
    steps_per_second: float
    tokens_per_second: float
    mfu: float | None
    input_wait: float
    seconds_left: float | None
    more: Mapping[str, Any] = field(default_factory=dict)
    said: tuple[str, ...] = ()

    def scalars(self) -> dict[str, float]:
        """Return what is drawn over the steps, of what is known."""
        names = ("loss", "mfu", "input_wait", "tokens_per_second")
        found = {name: getattr(self, name) for name in names} | {
            name: self.more.get(name) for name in ("goodput",)
        }
        return {name: value for name, value in found.items() if value is not None}

    def json(self) -> dict[str, Any]:
        """Return it for programs."""
        found = {
            name: value for name, value in asdict(self).items() if name not in ("more", "said")
        } | dict(self.more)
        return {name: encode_non_finite(value) for name, value in found.items()}

    def line(self) -> str:
        """Return it for people."""
        parts = [f"step {self.step:,}" + (f"/{self.total:,}" if self.total else "")]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        parts += [f"{self.steps_per_second:.3g} steps/s", f"{self.tokens_per_second:,.0f} tokens/s"]
        if self.mfu is not None:
            parts.append(f"MFU {100 * self.mfu:.1f} %")
        parts.append(f"input wait {100 * self.input_wait:.1f} %")
        if self.seconds_left is not None:
            parts.append(f"{format_duration(self.seconds_left)} left")
        return "  ".join([*parts, *self.said])


def format_duration(seconds: float) -> str:
    """Return a time as people say it: "3 d 4 h", "2 h 05 min", "40 s"."""
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole % 86400 // 3600, whole % 3600 // 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole % 60:02d} s" if minutes else f"{whole} s"


@dataclass(frozen=True)
class StepWork:
    """What one step is: its FLOPs, its tokens, and the peak of the devices that share it (None
    where it is not known).
    """

    flops: float
    tokens: int
    devices: int
    peak: float | None


def compute_mfu(
    step_flops: float, seconds: float, devices: int, peak: float | None
) -> float | None:
    """Return the share of the peak that a step uses, or None without a known peak.

    Args:
      step_flops: train_flops of the global batch.
      seconds: that the step took.
      devices: of the run.
      peak: FLOP/s of one device, see rosetta.core.gpus.
    """
    if peak is None or seconds <= 0:
        return None
    return step_flops / (seconds * devices * peak)


def make_report(
    work_: StepWork,
    step: int,
    total: int | None,
    steps: int,
    seconds: float,
    waited: float,
    loss: float | None,
    more: tuple[Mapping[str, Any], tuple[str, ...]] = ({}, ()),
) -> ProgressReport:
    """Return the report on `steps` steps that ended with `step` and took `seconds`, `waited` of
    them for data; `more` and what is said of it are Report's.
    """
    rate = steps / seconds
    left = (total - step) / rate if total is not None and total >= step else None
    used = compute_mfu(work_.flops, seconds / steps, work_.devices, work_.peak)
    return ProgressReport(
        step, total, loss, rate, rate * work_.tokens, used, min(waited / seconds, 1.0), left, *more
    )


class ProgressWriter:
    """Says reports where people look, and appends them to FOLDER/progress.jsonl.

    Only the first process of a run has one.
    """

    def __init__(self, folder: str | None) -> None:
        self._file = (
            None if folder is None or is_address(folder) else os.path.join(folder, "progress.jsonl")
        )

    def say(self, found: ProgressReport) -> None:
        """Print a report, and append it as one JSON object.

        Where that cannot be written, this is said once and the run goes on.
        """
        log.info(found.line(), prefix=False, terminal=True)
        if self._file:
            try:
                append_json_line(self._file, found.json())
            except OSError as error:
                line = f"{self._file}: {error.strerror}: progress is not written any more"
                log.warn(line, terminal=True)
                self._file = None


def append_json_line(path: str, found: Mapping[str, Any]) -> None:
    """Append a JSON object in one write, so that a kill leaves whole lines; after half a line, as a
    full disk leaves it, on a new one.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "ab+", buffering=0) as out:
        if out.tell():
            out.seek(-1, os.SEEK_END)
        broken = out.read(1) not in (b"", b"\n")
        out.write((b"\n" if broken else b"") + json.dumps(found, allow_nan=False).encode() + b"\n")


def encode_non_finite(value: Any) -> Any:
    """Return the value, or as a string what is not finite: JSON has no word for that, and
    float("nan") reads this one.
    """
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
