"""Stands in for a framework's entry point: trains nothing, but leaves behind what a real one would, faults on request.

Usage: fake_trainer.py FOLDER STEPS FAULT
"""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path

from rosetta.nn import fallback_notice
from tests.support import event_files


def loss_at(step: int, fault: str) -> float:
    if fault == "nan" and step >= 15:
        return float("nan")
    return 5.0 if fault == "flat" else 6.0 - step * 0.1


def main(folder: Path, steps: int, fault: str) -> int:
    found = sorted(int(path.name[11:]) for path in folder.glob("checkpoint_*"))
    resuming = bool(found)
    start = found[-1] if found and fault != "restart" else 0
    if fault == "crash" or (fault == "crash-on-resume" and resuming):
        print("out of paper")
        return 7
    events = folder / "events" / f"events.out.tfevents.{len(list(folder.glob('events/*')))}"
    event_files.append_records(events, event_files.encode_version_event())
    for step in range(start + 5, steps + 1, 5):
        value = 5.9 if fault == "forgets" and resuming else loss_at(step, fault)
        event_files.append_records(
            events,
            event_files.encode_summary_event(
                step, 100.0 + step / 10, event_files.encode_simple_value("loss", value)
            ),
        )
    if fault != "no-checkpoint":
        state = folder / f"checkpoint_{steps}" / "state"
        state.mkdir(parents=True, exist_ok=True)
        devices = 1 if fault == "one-device" else int(os.environ["FAKE_DEVICES"])
        sharding = {
            "sharding_type": "NamedSharding",
            "shape": [devices, 1],
            "axis_names": ["data", "model"],
        }
        names = ["x"]
        if os.environ.get("FAKE_FP8", "off") != "off" and fault != "no-fp8":
            names.append("layer.kernel_amax_history")
        shardings = {
            base64.b64encode(name.encode()).decode(): json.dumps(sharding) for name in names
        }
        (state / "_sharding").write_text(json.dumps(shardings))
    if fault == "no-te":
        fallback_notice.warn_once(f"FP8 by XLA {fallback_notice.INSTEAD_OF_TE}", "a reason")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
