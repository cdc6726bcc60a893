"""A trial without the card: `rosetta plan` says whether a step fits, and how much of its communication is waited for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from rosetta import xlaflags
from rosetta.plan import cards
from rosetta.presets import describe
from rosetta.tune.search import OK, Choice, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.launch.description import Run


class Plans:
    """Plans of a preset for a card.

    The rate has no unit: it is the batch, less the share of what is communicated that nothing hides. So a larger batch that fits is better, and so is
    a switch that hides more.

    Args:
      preset: its name or file; card: short name; nodes, gpus: of a node, None: the preset's.
      settings: NAME -> VALUE of the command line.
    """

    def __init__(self, preset: str, card: str, settings: Mapping[str, str], *, nodes: int | None, gpus: int | None) -> None:
        self.preset, self.card, self.settings, self.nodes, self.gpus = preset, card, settings, nodes, gpus

    def __call__(self, choice: Choice, _: int) -> Outcome:
        """Plan a choice. UserError where preset or settings are wrong."""
        run = describe.describe(self.preset, accelerator=self.card, settings={**self.settings, **choice.settings()}, nodes=self.nodes, gpus_per_node=self.gpus, environment=os.environ)
        argv = [sys.executable, "-P", "-m", "rosetta", "plan", *words(run, self.card), "--json"]
        flags = {name: value for name, value in run.xla_flags.items() if value is not None}
        env = {**os.environ, "XLA_FLAGS": xlaflags.joined(xlaflags.written(flags))}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        more: dict[str, Any] = {"command": argv, "xla_flags": flags}
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            return Outcome("failed", reason=f"rosetta plan ended with status {done.returncode}", more={**more, "end": done.stderr.splitlines()[-5:]})
        if not answer["ok"]:
            error = answer["error"]
            return Outcome("refused" if done.returncode == 2 else "failed", reason=f"{error['where']}: {error['what']}; {error['do']}", more=more)
        return judged(answer["result"], run, self.card, more)


def judged(result: Mapping[str, Any], run: Run, card: str, more: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a plan's figures: whether its peak fits into JAX's share of the card's memory, and the rate."""
    peak = result["memory"]["peak"]
    room = cards.named(card).memory * float(run.env.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75"))
    moved = sum(each["bytes"] for each in result["collectives"])
    waited = moved - sum(each["bytes_behind"] for each in result["collectives"])
    found = {**more, "peak_bytes": peak, "room_bytes": int(room), "communicated_bytes": moved, "waited_for_bytes": waited}
    if peak > room:
        return Outcome("out-of-memory", reason=f"it takes {peak / 1e9:.1f} GB of {room / 1e9:.1f}", more=found)
    return Outcome(OK, float(run.batch.get("per_gpu", 1)) * (1 - (waited / moved if moved else 0.0) / 2), more=found)


def words(run: Run, card: str) -> list[str]:
    """Return the words of `rosetta plan` for a run."""
    gpus = ["--card", card, "--gpus", str(run.nodes * run.gpus_per_node), "--gpus-per-node", str(run.gpus_per_node)]
    attention = run.env.get("ATTENTION", "cudnn")
    batch = {name: str(value) for name, value in run.batch.items()}
    if run.framework == "t5x":
        lengths = [word for name, option in (("ENC_SL", "--inputs"), ("DEC_SL", "--targets")) if name in run.env for word in (option, run.env[name])]
        options = {"--batch-per-gpu": batch.get("per_gpu"), "--microbatches": batch.get("microbatches"), "--tp": run.env.get("TP_SIZE")}
        given = [word for option, value in options.items() if value for word in (option, value)]
        fsdp = ["--fsdp"] if run.env.get("FSDP", "").lower() in ("1", "true") else []
        switches = [f"attention={attention}", *(["fp8=xla"] if run.precision == "fp8-xla" else []), *([f"remat={run.env['REMAT']}"] if run.env.get("REMAT") else [])]
        return ["t5x", "--size", run.model, *gpus, *given, *lengths, *fsdp, "--with", "fuse_qkv=true", *switches]
    hyper = {"PERCORE_BATCH_SIZE": batch.get("per_gpu"), "NUM_MICROBATCHES": batch.get("microbatches") if batch.get("microbatches") != "1" else None, "ATTENTION": attention}
    hyper |= {f"{name.upper()}_MESH_SHAPE": str(shape).replace(" ", "") for name, shape in run.mesh.items()}
    hyper |= {"USE_FP8": "True"} if run.precision == "fp8-xla" else {}
    return ["pax", run.model, *gpus, "--with", *(f"{name}={value}" for name, value in {**hyper, **{name: repr(value) for name, value in run.fdl.items()}}.items() if value)]
