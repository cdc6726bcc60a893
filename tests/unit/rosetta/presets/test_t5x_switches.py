from __future__ import annotations

import pytest

from rosetta.core import transformer_engine
from rosetta.core.errors import UserError
from rosetta.core.gpu_query import Card
from rosetta.presets import t5x_switches
from rosetta.presets.t5x_switches import Switches

H100, A100, T4 = Card("H100", (9, 0)), Card("A100", (8, 0)), Card("T4", (7, 5))


def choose(*cards: Card, on_cpu: bool = False, **given: str) -> Switches:
    return t5x_switches.choose(given, cards, on_cpu=on_cpu)


def test_documented_defaults_on_a_card_that_can_do_it_all() -> None:
    found = choose(H100, H100)
    assert found == Switches("bfloat16", "xla", True, True, "cudnn", "none", False, False, False)
    assert found.notes == ()


@pytest.mark.parametrize(
    ("cards", "on_cpu", "given", "fp8", "attention", "notes"),
    [
        ((A100,), False, {}, "off", "cudnn", ("FP8 is off: A100 has none",)),
        ((H100, A100), False, {}, "off", "cudnn", ("FP8 is off: A100 has none",)),
        ((T4,), False, {"ENABLE_FP8": "0"}, "off", "xla", ()),
        (
            (),
            False,
            {},
            "off",
            "xla",
            (
                "FP8 is off: a card that cannot be asked (no nvidia-smi) may have none (ENABLE_FP8=1 turns it on)",
            ),
        ),
        ((), False, {"ENABLE_FP8": "1"}, "xla", "xla", ()),
        (
            (H100,),
            True,
            {},
            "off",
            "xla",
            ("FP8 is off: the CPU computes it slowly (ENABLE_FP8=1 turns it on)",),
        ),
        (
            (),
            True,
            {"ENABLE_FP8": "1"},
            "xla",
            "xla",
            ("FP8 is computed as on a card, but slowly: the CPU has none",),
        ),
        (
            (H100,),
            False,
            {"PREC": "float32"},
            "off",
            "xla",
            ("FP8 is off: PREC=float32 was asked for (ENABLE_FP8=1 turns it on)",),
        ),
    ],
)
def test_what_is_decided_otherwise_is_said(
    cards: tuple[Card, ...],
    on_cpu: bool,
    given: dict[str, str],
    fp8: str,
    attention: str,
    notes: tuple[str, ...],
) -> None:
    found = choose(*cards, on_cpu=on_cpu, **given)
    assert (found.fp8, found.attention, found.notes) == (fp8, attention, notes)


def test_fp8_takes_the_precision_along() -> None:
    found = choose(H100, PREC="float32", ENABLE_FP8="1")
    assert (found.precision, found.fp8) == ("bfloat16", "xla")
    assert found.notes == (
        "with FP8 all else is in bfloat16, not in float32 (ENABLE_FP8=0 leaves it)",
    )


def test_every_variable_is_a_binding() -> None:
    found = choose(
        A100,
        FUSE_QKV="0",
        TRANSPOSE_BS="off",
        ATTENTION="xla",
        REMAT="full",
        SCAN_LAYERS="yes",
        FSDP="true",
        PACK="ON",
        GRADIENT_DTYPE="float32",
        PREC="float16",
    )
    assert found.training() == {
        "network.T5Config.dtype": "float16",
        "network.T5Config.fp8": "off",
        "network.T5Config.fuse_qkv": False,
        "network.T5Config.transpose_batch_sequence": False,
        "network.T5Config.attention": "xla",
        "network.T5Config.remat": "full",
        "network.T5Config.scan_layers": True,
        "partitioning.PjitPartitioner.fsdp": True,
        "PACK": True,
        "trainer.Trainer.gradient_dtype": "float32",
    }
    assert set(found.training()) - set(found.reading()) == {
        "partitioning.PjitPartitioner.fsdp",
        "PACK",
        "trainer.Trainer.gradient_dtype",
    }
    assert "trainer.Trainer.gradient_dtype" not in choose(A100).training()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"ENABLE_FP8": "1"}, "A100 has no FP8"),
        ({"ENABLE_FP8": "perhaps"}, "ENABLE_FP8: it is 'perhaps'; give 0 or 1"),
        ({"ATTENTION": "cudnn", "PREC": "float32"}, "it is for bfloat16 and float16"),
        ({"ATTENTION": "flash"}, "choose one of: xla, cudnn, te"),
        ({"REMAT": "1"}, "choose one of: none, minimal, full"),
        ({"PREC": "fp8"}, "PREC: it is 'fp8'"),
        (
            {"GRADIENT_DTYPE": "float16"},
            "GRADIENT_DTYPE: it is 'float16'; choose one of: bfloat16, float32",
        ),
        ({"ENABLE_TE": "1"}, "Transformer Engine: not in this environment"),
        ({"ATTENTION": "te"}, "Transformer Engine: not in this environment"),
    ],
)
def test_refused(given: dict[str, str], complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer_engine, "version", lambda: None)
    with pytest.raises(UserError, match=complaint):
        t5x_switches.choose(given, [A100], on_cpu=False)


def test_transformer_engine_does_both_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer_engine, "version", lambda: "2.0")
    found = choose(H100, ENABLE_TE="1")
    assert (found.fp8, found.attention) == ("te", "te")
    assert choose(H100, ENABLE_TE="1", ATTENTION="cudnn").attention == "cudnn"
    assert choose(A100, ENABLE_TE="1").fp8 == "off"
    with pytest.raises(UserError, match="Transformer Engine: it needs an NVIDIA card"):
        choose(on_cpu=True, ATTENTION="te")
    with pytest.raises(UserError, match="not scanned over"):
        choose(H100, ENABLE_TE="1", SCAN_LAYERS="1")
