"""Report the progress of training, for both trainers and the benchmark.

A report is a line for people, a line of JSON for programs, and scalars for TensorBoard.
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
    """The state of a run after some steps; rates are means over these steps.

    A value is None if it is not known.

    Attributes:
      step: the steps that are done.
      total: the steps of the whole run.
      loss: per target token that is not padding.
      steps_per_second: of the whole run.
      tokens_per_second: of all devices; tokens are input and target positions, padding included.
      mfu: model FLOP utilisation: the FLOPs of the model's forward and backward pass over the peak
        of all devices.
      input_wait: the share of the time that the loop waited for data.
      seconds_left: at this speed.
      extra: further values by name: goodput, and the host that holds up the others, see
        rosetta.health.supervision.
      notes: what people should read of these values, at the end of the line.
    """

    step: int
    total: int | None
    loss: float | None
    steps_per_second: float
    tokens_per_second: float
    mfu: float | None
    input_wait: float
    seconds_left: float | None
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def scalars(self) -> dict[str, float]:
        """Return the known values that TensorBoard draws over the steps."""
        names = ("loss", "mfu", "input_wait", "tokens_per_second")
        values = {name: getattr(self, name) for name in names}
        values["goodput"] = self.extra.get("goodput")
        return {name: value for name, value in values.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """Return the report as an object for JSON."""
        own = asdict(self)
        del own["extra"], own["notes"]
        return {name: encode_non_finite(value) for name, value in {**own, **self.extra}.items()}

    def format_line(self) -> str:
        """Return the report as a line for people."""
        parts = [f"step {self.step:,}" + (f"/{self.total:,}" if self.total else "")]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        parts += [f"{self.steps_per_second:.3g} steps/s", f"{self.tokens_per_second:,.0f} tokens/s"]
        if self.mfu is not None:
            parts.append(f"MFU {100 * self.mfu:.1f} %")
        parts.append(f"input wait {100 * self.input_wait:.1f} %")
        if self.seconds_left is not None:
            parts.append(f"{format_duration(self.seconds_left)} left")
        return "  ".join([*parts, *self.notes])


def format_duration(seconds: float) -> str:
    """Return a time in its two largest units: "3 d 4 h", "2 h 05 min", "40 s"."""
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole % 86400 // 3600, whole % 3600 // 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole % 60:02d} s" if minutes else f"{whole} s"


@dataclass(frozen=True)
class StepWork:
    """The work of one step.

    Attributes:
      flops: of the global batch.
      tokens: input and target positions of the global batch, padding included.
      devices: the number of devices that share the work.
      peak: FLOP/s of one device; None if it is not known.
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
      step_flops: the FLOPs of training on the global batch.
      seconds: the duration of the step.
      devices: the number of devices of the run.
      peak: FLOP/s of one device, see rosetta.core.gpus.
    """
    if peak is None or seconds <= 0:
        return None
    return step_flops / (seconds * devices * peak)


def make_report(
    work: StepWork,
    step: int,
    total: int | None,
    steps: int,
    seconds: float,
    waited: float,
    loss: float | None,
    health: tuple[Mapping[str, Any], tuple[str, ...]] = ({}, ()),
) -> ProgressReport:
    """Return the report on the last steps.

    Args:
      work: what one step is.
      step: the steps of the run that are done.
      total: the steps of the whole run.
      steps: how many steps the report is about.
      seconds: how long these steps took.
      waited: how many of these seconds the loop waited for data.
      loss: per target token that is not padding.
      health: ProgressReport's `extra` and `notes`, as Supervisor.collect_report returns them.
    """
    rate = steps / seconds
    left = (total - step) / rate if total is not None and total >= step else None
    mfu = compute_mfu(work.flops, seconds / steps, work.devices, work.peak)
    wait_share = min(waited / seconds, 1.0)
    return ProgressReport(
        step, total, loss, rate, rate * work.tokens, mfu, wait_share, left, *health
    )


class ProgressWriter:
    """Prints reports, and appends them to FOLDER/progress.jsonl.

    Only the first process of a run has one.

    Args:
      folder: of the run. In an object store, or without a folder, reports are only printed.
    """

    def __init__(self, folder: str | None) -> None:
        self._file = (
            None if folder is None or is_address(folder) else os.path.join(folder, "progress.jsonl")
        )

    def write(self, report: ProgressReport) -> None:
        """Print a report, and append it to the file.

        If the file cannot be written, one warning says so, and the run goes on.
        """
        log.info(report.format_line(), prefix=False, terminal=True)
        if self._file:
            try:
                append_json_line(self._file, report.to_json())
            except OSError as error:
                line = f"{self._file}: {error.strerror}: progress is not written any more"
                log.warn(line, terminal=True)
                self._file = None


def append_json_line(path: str, values: Mapping[str, Any]) -> None:
    """Append a JSON object as one line to a file, in one write, so that a kill leaves whole lines.

    After half a line, which a full disk leaves, the object goes on a new line.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "ab+", buffering=0) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
        is_broken = file.read(1) not in (b"", b"\n")
        line = json.dumps(values, allow_nan=False).encode() + b"\n"
        file.write((b"\n" if is_broken else b"") + line)


def encode_non_finite(value: Any) -> Any:
    """Return a number that is not finite as a string, and any other value as it is.

    JSON cannot write such a number, and float("nan") reads the string.
    """
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
