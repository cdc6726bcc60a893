"""Play the schedule of a compiled step: one stream computes, another one communicates.

XLA writes the instructions of a step in the order in which it launches them. Kernels run one after
another in the stream that computes. A collective that is split into a start and an end runs in the
other stream meanwhile, and the end waits for it. All times are predictions, see
rosetta.plan.roofline.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rosetta.plan import moved_bytes, roofline, step_kernels
from rosetta.plan.step_kernels import COLLECTIVE_OPCODES, Kernel

if TYPE_CHECKING:
    from rosetta.core.gpus import Gpu
    from rosetta.plan.hlo_text import HloModule, Instruction
    from rosetta.plan.roofline import Shares

LAUNCHES = "launches"
EXPOSED = "exposed communication"


@dataclass
class Timeline:
    """How far both streams are, in seconds since the step began.

    Attributes:
        compute: When the stream that computes is free.
        communication: When the stream that communicates is free.
        communicated: The time in which collectives ran.
        seconds: Kind of kernels, LAUNCHES or EXPOSED -> time of the stream that computes.
    """

    compute: float = 0.0
    communication: float = 0.0
    communicated: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)

    def spend(self, kind: str, seconds: float) -> None:
        """Let the stream that computes work or wait."""
        self.compute += seconds
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds

    def communicate(self, seconds: float) -> float:
        """Start a collective as soon as its stream is free; return when it ends."""
        self.communication = max(self.communication, self.compute) + seconds
        self.communicated += seconds
        return self.communication

    def wait_until(self, end: float) -> None:
        """Let the stream that computes wait for a collective."""
        if end > self.compute:
            self.spend(EXPOSED, end - self.compute)

    def copy(self) -> Timeline:
        """Return a copy."""
        return Timeline(self.compute, self.communication, self.communicated, dict(self.seconds))

    def repeat_since(self, before: Timeline, times: int) -> None:
        """Repeat what happened since another state of this timeline some more times."""
        shift = (self.compute - before.compute) * times
        self.compute += shift
        self.communication += shift
        self.communicated += (self.communicated - before.communicated) * times
        for kind, seconds in self.seconds.items():
            spent = seconds - before.seconds.get(kind, 0.0)
            self.seconds[kind] = seconds + spent * times


class Player:
    """Plays the schedule of a step for one set of shares.

    Args:
        module: The optimised module of the step.
        gpu: The GPU.
        per_node: GPUs of a node.
        shares: The shares of the GPU's figures that kernels reach.
    """

    def __init__(self, module: HloModule, gpu: Gpu, per_node: int, shares: Shares) -> None:
        self._module, self._gpu, self._per_node = module, gpu, per_node
        self._shares = shares
        self._durations: dict[tuple[int, str], tuple[float, str]] = {}

    def play_step(self) -> Timeline:
        """Return the timeline at the end of a step."""
        timeline = Timeline()
        self._play(self._module.entry, timeline)
        timeline.wait_until(timeline.communication)
        return timeline

    def _play(self, name: str, timeline: Timeline) -> None:
        """Play a computation."""
        computation = self._module.computations.get(name, {})
        ends: dict[str, float] = {}
        for instruction in computation.values():
            opcode = instruction.opcode
            if opcode == "while":
                self._play_loop(instruction, timeline)
            elif opcode in ("call", "async-start"):
                for called in instruction.find_called_computations():
                    self._play(called, timeline)
            elif opcode == "conditional":
                self._play_longest_branch(instruction, timeline)
            elif opcode.endswith("-done"):
                for operand in instruction.operands:
                    timeline.wait_until(ends.pop(operand, 0.0))
            elif step_kernels.launches_kernel(instruction):
                self._play_kernel(computation, instruction, timeline, ends)

    def _play_kernel(
        self,
        computation: dict[str, Instruction],
        instruction: Instruction,
        timeline: Timeline,
        ends: dict[str, float],
    ) -> None:
        """Play an instruction that launches a kernel.

        Args:
            computation: The computation that contains it.
            instruction: The instruction.
            timeline: The timeline.
            ends: Name of a collective that was started -> when it ends.
        """
        seconds, kind = self._estimate(computation, instruction)
        timeline.spend(LAUNCHES, roofline.LAUNCH_SECONDS)
        if kind:
            timeline.spend(kind, seconds)
            return
        end = timeline.communicate(seconds)
        if step_kernels.is_synchronous(Kernel(instruction, computation, 1, 0.0)):
            timeline.wait_until(end)
        else:
            ends[instruction.name] = end

    def _estimate(
        self, computation: dict[str, Instruction], instruction: Instruction
    ) -> tuple[float, str]:
        """Return the seconds of a kernel and its kind, "" for a collective."""
        key = id(computation), instruction.name
        if key not in self._durations:
            moved = moved_bytes.count_moved_bytes(self._module, computation, instruction)
            kernel = Kernel(instruction, computation, 1, moved)
            if instruction.opcode.removesuffix("-start") in COLLECTIVE_OPCODES:
                seconds = roofline.estimate_collective(
                    kernel, self._gpu, self._per_node, self._shares
                )
                self._durations[key] = seconds, ""
            else:
                time = roofline.estimate_kernel(self._module, kernel, self._gpu, self._shares)
                self._durations[key] = time.seconds, time.kind
        return self._durations[key]

    def _play_loop(self, instruction: Instruction, timeline: Timeline) -> None:
        """Play a loop: the first two runs of its body, and the others like the second."""
        body, trips = step_kernels.read_loop(instruction)
        for _ in range(min(trips, 2)):
            before = timeline.copy()
            self._play(body, timeline)
        if trips > 2:
            timeline.repeat_since(before, trips - 2)

    def _play_longest_branch(self, instruction: Instruction, timeline: Timeline) -> None:
        """Play the branch of a conditional that takes the longest."""
        ends = []
        for called in instruction.find_called_computations():
            branch = timeline.copy()
            self._play(called, branch)
            ends.append((branch.compute, called))
        if ends:
            self._play(max(ends)[1], timeline)
