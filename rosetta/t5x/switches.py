"""The switches that people set by variables or positionals, what they default to on the card at hand, and the gin bindings they become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta import te
from rosetta.errors import UserError
from rosetta.t5x import card
from rosetta.t5x.config import ATTENTION, REMAT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.t5x.card import Card

ON, OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class Switches:
    """How a model is computed; see T5Config, and PjitPartitioner for fsdp. `notes` say what was decided instead of the documented default."""

    fp8: str
    fuse_qkv: bool
    transpose_batch_sequence: bool
    attention: str
    remat: str
    scan_layers: bool
    fsdp: bool
    pack: bool
    notes: tuple[str, ...] = ()

    def bindings(self) -> dict[str, object]:
        """Return them as gin bindings."""
        network = {name: getattr(self, name) for name in ("fp8", "fuse_qkv", "transpose_batch_sequence", "attention", "remat", "scan_layers")}
        return {**{f"network.T5Config.{name}": value for name, value in network.items()}, "partitioning.PjitPartitioner.fsdp": self.fsdp, "PACK": self.pack}


def flag(name: str, text: str) -> bool:
    """Return whether a variable switches something on.

    Raises:
      UserError: it says neither yes nor no.
    """
    if text.strip().lower() in ON:
        return True
    if text.strip().lower() in OFF:
        return False
    raise UserError(f"it is {text!r}", name, "give 0 or 1")


def choose(given: Mapping[str, str], cards: Sequence[Card], *, on_cpu: bool, precision: str) -> Switches:
    """Decide all switches from what was given, by the names of the variables (empty: not given), and from the cards.

    ENABLE_FP8, TRANSPOSE_BS and FUSE_QKV are on and PACK is off where nothing is said, as documented; FP8 only where every card has it.

    Raises:
      UserError: a value is none, or something was asked for that this machine or environment cannot do.
    """
    notes = list[str]()

    def on(name: str, default: bool) -> bool:
        return flag(name, given[name]) if given.get(name) else default

    able = bool(cards) and all(each.capability >= card.FP8 for each in cards)
    where = "the CPU" if on_cpu else cards[0].name if cards else "a card that cannot be asked (no nvidia-smi)"
    if given.get("ENABLE_FP8") and on("ENABLE_FP8", False) and not able and not on_cpu and cards:
        raise UserError(f"{where} has no FP8", "ENABLE_FP8=1", "set ENABLE_FP8=0; FP8 needs an Ada, Hopper or newer card")
    fp8 = on("ENABLE_FP8", able and not on_cpu)
    if not fp8 and not given.get("ENABLE_FP8"):
        notes.append(f"FP8 is off: {where} {'computes it slowly' if on_cpu else 'has none'} (ENABLE_FP8=0)")
    with_te = on("ENABLE_TE", False)
    if with_te:
        te.require()
    attention = given.get("ATTENTION") or ("te" if with_te else "xla" if on_cpu or precision == "float32" or not _fused(cards) else "cudnn")
    _one_of("ATTENTION", attention, ATTENTION)
    remat = given.get("REMAT") or "none"
    _one_of("REMAT", remat, REMAT)
    return Switches(
        fp8=("te" if with_te else "xla") if fp8 else "off",
        fuse_qkv=on("FUSE_QKV", True),
        transpose_batch_sequence=on("TRANSPOSE_BS", True),
        attention=attention,
        remat=remat,
        scan_layers=on("SCAN_LAYERS", False),
        fsdp=on("FSDP", False),
        pack=on("PACK", False),
        notes=tuple(notes),
    )


def _fused(cards: Sequence[Card]) -> bool:
    return bool(cards) and all(each.capability >= card.CUDNN for each in cards)


def _one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UserError(f"it is {value!r}", name, f"choose one of: {', '.join(known)}")
