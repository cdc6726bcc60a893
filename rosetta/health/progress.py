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
    from collections.abc import Mapping, Sequence


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
      learning_rate: mean over these steps.
      gradient_norm: global norm of the gradients before they are clipped, mean over these steps.
      loss_scale: the scale of the loss after these steps, with float16.
      overflows: how many of these steps were left out because the loss scale was too large.
      device_memory: the most bytes that a device of this process has had in use.
      device_memory_limit: the bytes that a device has for the run.
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
    learning_rate: float | None = None
    gradient_norm: float | None = None
    loss_scale: float | None = None
    overflows: int | None = None
    device_memory: int | None = None
    device_memory_limit: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def scalars(self) -> dict[str, float]:
        """Return the known values that TensorBoard draws over the steps."""
        names = ("loss", "mfu", "input_wait", "tokens_per_second", "device_memory")
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
        return "  ".join([*self._format_parts().values(), *self.notes])

    def format_short_line(self, width: int) -> str:
        """Return as much of the line as fits into a width, in characters."""
        parts = self._format_parts()
        line = "  ".join([*parts.values(), *self.notes])
        for name in _SHORTENED:
            if len(line) <= width:
                break
            parts.pop(name, None)
            line = "  ".join(parts.values())
        return line

    def describe_end(self) -> str:
        """Return what people want to know of the run when it has ended with this report."""
        loss = "" if self.loss is None else f", loss {self.loss:.4f}"
        return f"step {self.step:,}" + (f" of {self.total:,}" if self.total else "") + loss

    def _format_parts(self) -> dict[str, str]:
        """Return the parts of the line by the names of their values."""
        parts = {"step": f"step {self.step:,}" + (f"/{self.total:,}" if self.total else "")}
        if self.loss is not None:
            parts["loss"] = f"loss {self.loss:.4f}"
        if self.learning_rate is not None:
            parts["learning_rate"] = f"rate {self.learning_rate:.3g}"
        if self.gradient_norm is not None:
            parts["gradient_norm"] = f"gradient {self.gradient_norm:.3g}"
        if self.loss_scale is not None:
            skipped = f" ({self.overflows} skipped)" if self.overflows else ""
            parts["loss_scale"] = f"loss scale {self.loss_scale:,.0f}{skipped}"
        parts["steps_per_second"] = f"{self.steps_per_second:.3g} steps/s"
        parts["tokens_per_second"] = f"{self.tokens_per_second:,.0f} tokens/s"
        if self.mfu is not None:
            parts["mfu"] = f"MFU {100 * self.mfu:.1f} %"
        if self.device_memory is not None:
            parts["device_memory"] = _format_memory(self.device_memory, self.device_memory_limit)
        parts["input_wait"] = f"input wait {100 * self.input_wait:.1f} %"
        if self.seconds_left is not None:
            parts["seconds_left"] = f"{format_duration(self.seconds_left)} left"
        return parts


# The parts that the line leaves out, in this order, to fit into the width of a terminal. The notes
# are left out with the first.
_SHORTENED = (
    "input_wait",
    "steps_per_second",
    "device_memory",
    "loss_scale",
    "gradient_norm",
    "learning_rate",
    "mfu",
    "tokens_per_second",
)


def _format_memory(used: int, limit: int | None) -> str:
    """Return the memory of a device, in GiB: "61.2/139.8 GiB"."""
    return f"{used / 2**30:.1f}" + (f"/{limit / 2**30:.1f}" if limit else "") + " GiB"


def measure_device_memory(devices: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of a ProgressReport about memory; none for the CPU, which does not tell.

    Args:
      devices: JAX's devices of this process.
    """
    statistics = [device.memory_stats() or {} for device in devices]
    used = [values["peak_bytes_in_use"] for values in statistics if "peak_bytes_in_use" in values]
    if not used:
        return {}
    limits = [values["bytes_limit"] for values in statistics if values.get("bytes_limit")]
    fields: dict[str, Any] = {"device_memory": int(max(used))}
    return {**fields, "device_memory_limit": int(min(limits))} if limits else fields


def write_evaluation(
    writer: ProgressWriter | None,
    step: int,
    name: str,
    values: Mapping[str, float],
    seconds: float | None = None,
) -> None:
    """Report the evaluation of a data set during training, as a line and in progress.jsonl.

    Args:
      writer: of the run's reports; None to write the line only.
      step: the steps of the run that are done.
      name: of the data set or task.
      values: by name, in the order in which they are shown.
      seconds: how long the evaluation took; None if that is not known.
    """
    shown = ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in values.items())
    duration = "" if seconds is None else f"  ({format_duration(seconds)})"
    log.info(f"evaluation at step {step:,}: {name}: {shown}{duration}", prefix=False)
    if writer:
        encoded = {key: encode_non_finite(float(value)) for key, value in values.items()}
        writer.append({"step": step, "evaluation": {name: encoded}})


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
    extra, notes = health
    return ProgressReport(
        step,
        total,
        loss,
        rate,
        rate * work.tokens,
        mfu,
        wait_share,
        left,
        extra=extra,
        notes=notes,
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
        log.info(report.format_line(), prefix=False, fit=report.format_short_line)
        self.append(report.to_json())

    def append(self, values: Mapping[str, Any]) -> None:
        """Append an object to the file, as `write` does."""
        if self._file:
            try:
                append_json_line(self._file, values)
            except OSError as error:
                line = f"{self._file}: {error.strerror}: progress is not written any more"
                log.warn(line)
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
