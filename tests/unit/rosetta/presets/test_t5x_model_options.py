from __future__ import annotations

from typing import Any

import pytest

from rosetta.core import transformer_engine
from rosetta.core.gpu_query import DetectedGpu
from rosetta.presets import t5x_model_options
from rosetta.presets.t5x_model_options import ModelOptions
from tests.support import errors

H100, A100, T4 = DetectedGpu("H100", (9, 0)), DetectedGpu("A100", (8, 0)), DetectedGpu("T4", (7, 5))

LAYOUT = {"FUSE_QKV": "1", "TRANSPOSE_BS": "1"}


def choose(*cards: DetectedGpu, on_cpu: bool = False, **given: str) -> ModelOptions:
    return t5x_model_options.choose_model_options(given, cards, on_cpu=on_cpu)


def test_documented_defaults_on_a_gpu_that_supports_everything() -> None:
    found = choose(H100, H100)
    assert found == ModelOptions(
        precision="bfloat16",
        fp8="xla",
        fuse_qkv=True,
        fuse_mlp=True,
        transpose_batch_sequence=True,
        attention="cudnn",
        remat="none",
        scan_layers=False,
        fsdp=False,
        pack=False,
        logits_dtype="bfloat16",
        notes=found.notes,
    )
    assert len(found.notes) == 1
    assert "LOGITS_DTYPE=bfloat16" in found.notes[0]


@pytest.mark.parametrize(
    ("cards", "on_cpu", "given", "fp8", "attention", "notes"),
    [
        ((A100,), False, LAYOUT, "off", "cudnn", ("FP8 is off: A100 has no FP8",)),
        ((H100, A100), False, LAYOUT, "off", "cudnn", ("FP8 is off: A100 has no FP8",)),
        ((T4,), False, {"ENABLE_FP8": "0"}, "off", "xla", ()),
        (
            (),
            False,
            {},
            "off",
            "xla",
            (
                "FP8 is off: the GPUs are not known, because there is no nvidia-smi (ENABLE_FP8=1 turns it on)",
            ),
        ),
        ((), False, {"ENABLE_FP8": "1"}, "xla", "xla", ()),
        (
            (H100,),
            True,
            {},
            "off",
            "xla",
            ("FP8 is off: the CPU would emulate it, which is slow (ENABLE_FP8=1 turns it on)",),
        ),
        (
            (),
            True,
            {"ENABLE_FP8": "1"},
            "xla",
            "xla",
            ("the CPU has no FP8: FP8 is emulated, which is slow",),
        ),
        (
            (H100,),
            False,
            {"PREC": "float32"},
            "off",
            "xla",
            ("FP8 is off: PREC=float32 is set (ENABLE_FP8=1 turns it on)",),
        ),
    ],
)
def test_a_default_that_is_not_used_is_reported(
    cards: tuple[DetectedGpu, ...],
    on_cpu: bool,
    given: dict[str, str],
    fp8: str,
    attention: str,
    notes: tuple[str, ...],
) -> None:
    found = choose(*cards, on_cpu=on_cpu, LOGITS_DTYPE="float32", **given)
    assert (found.fp8, found.attention, found.notes) == (fp8, attention, notes)


@pytest.mark.parametrize(
    ("given", "layout", "named"),
    [
        ({"ENABLE_FP8": "1"}, (True, True, True), ()),
        ({"ENABLE_FP8": "0"}, (False, True, False), ("FUSE_QKV=0", "TRANSPOSE_BS=0")),
        ({"ENABLE_FP8": "0", "ATTENTION": "xla"}, (True, True, True), ()),
        ({"ENABLE_FP8": "0", "FUSE_QKV": "1"}, (True, True, False), ("TRANSPOSE_BS=0",)),
        ({"ENABLE_FP8": "0", "FUSE_QKV": "0"}, (False, False, False), ("TRANSPOSE_BS=0",)),
        ({"ENABLE_FP8": "0", "TRANSPOSE_BS": "1"}, (False, True, True), ("FUSE_QKV=0",)),
        ({"ENABLE_FP8": "1", "FUSE_QKV": "0"}, (False, False, True), ()),
        ({"ENABLE_FP8": "0", **LAYOUT}, (True, True, True), ()),
    ],
)
def test_the_layout_follows_precision_and_attention(
    given: dict[str, str], layout: tuple[bool, bool, bool], named: tuple[str, ...]
) -> None:
    found = choose(H100, on_cpu=False, LOGITS_DTYPE="float32", **given)
    assert (found.fuse_qkv, found.fuse_mlp, found.transpose_batch_sequence) == layout
    assert len(found.notes) == bool(named)
    for variable in ("FUSE_QKV=0", "TRANSPOSE_BS=0"):
        assert (variable in " ".join(found.notes)) == (variable in named)


def test_fp8_sets_the_precision() -> None:
    found = choose(H100, PREC="float32", ENABLE_FP8="1", LOGITS_DTYPE="float32")
    assert (found.precision, found.fp8) == ("bfloat16", "xla")
    assert found.notes == (
        "with FP8, everything else is in bfloat16, not in float32 (ENABLE_FP8=0 turns FP8 off)",
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
        LOGITS_DTYPE="bfloat16",
        GRADIENT_DTYPE="float32",
        PREC="float16",
    )
    assert found.training_bindings() == {
        "network.T5Config.dtype": "float16",
        "network.T5Config.fp8": "off",
        "network.T5Config.fuse_qkv": False,
        "network.T5Config.fuse_mlp": False,
        "network.T5Config.transpose_batch_sequence": False,
        "network.T5Config.attention": "xla",
        "network.T5Config.remat": "full",
        "network.T5Config.scan_layers": True,
        "network.T5Config.logits_dtype": "bfloat16",
        "partitioning.PjitPartitioner.fsdp": True,
        "PACK": True,
        "trainer.Trainer.gradient_dtype": "float32",
    }
    assert set(found.training_bindings()) - set(found.evaluation_bindings()) == {
        "network.T5Config.logits_dtype",
        "partitioning.PjitPartitioner.fsdp",
        "PACK",
        "trainer.Trainer.gradient_dtype",
    }
    assert "trainer.Trainer.gradient_dtype" not in choose(A100).training_bindings()


@pytest.mark.parametrize(
    ("cards", "on_cpu", "finetune", "given", "logits"),
    [
        ((H100,), False, False, {}, "bfloat16"),
        ((A100,), False, False, {}, "bfloat16"),
        ((), False, False, {}, "bfloat16"),  # GPUs that are not known
        ((H100,), False, False, {"ENABLE_FP8": "0"}, "bfloat16"),
        ((H100,), False, False, {"PREC": "float32"}, None),
        ((H100,), False, False, {"PREC": "float16"}, None),
        ((H100,), False, False, {"LOGITS_DTYPE": "float32"}, "float32"),
        ((H100,), False, True, {}, None),
        ((H100,), False, True, {"LOGITS_DTYPE": "bfloat16"}, "bfloat16"),
        ((), True, False, {}, None),
        ((), True, False, {"LOGITS_DTYPE": "bfloat16"}, "bfloat16"),
    ],
)
def test_pretraining_on_gpus_has_narrow_logits(
    cards: tuple[DetectedGpu, ...],
    on_cpu: bool,
    finetune: bool,
    given: dict[str, str],
    logits: str | None,
) -> None:
    found = t5x_model_options.choose_model_options(given, cards, on_cpu=on_cpu, finetune=finetune)
    assert found.logits_dtype == logits
    named = "LOGITS_DTYPE" in " ".join(found.notes)
    assert named == (logits == "bfloat16" and "LOGITS_DTYPE" not in given)


@pytest.mark.parametrize(
    ("given", "kind", "facts"),
    [
        ({"ENABLE_FP8": "1"}, errors.UNSUPPORTED, {"where": "ENABLE_FP8=1", "value": "A100"}),
        (
            {"LOGITS_DTYPE": "float16"},
            errors.INVALID,
            {"where": "LOGITS_DTYPE", "value": "float16"},
        ),
        (
            {"ENABLE_FP8": "perhaps"},
            errors.INVALID,
            {"where": "ENABLE_FP8", "value": "perhaps", "remedy": ("0", "1")},
        ),
        (
            {"ATTENTION": "cudnn", "PREC": "float32"},
            errors.UNSUPPORTED,
            {"where": "ATTENTION=cudnn", "names": ("bfloat16", "float16")},
        ),
        (
            {"ATTENTION": "flash"},
            errors.INVALID,
            {"where": "ATTENTION", "value": "flash", "remedy": "cudnn"},
        ),
        ({"REMAT": "1"}, errors.INVALID, {"where": "REMAT", "value": "1", "remedy": "minimal"}),
        ({"PREC": "fp8"}, errors.INVALID, {"where": "PREC", "value": "fp8"}),
        (
            {"GRADIENT_DTYPE": "float16"},
            errors.INVALID,
            {"where": "GRADIENT_DTYPE", "value": "float16", "remedy": ("bfloat16", "float32")},
        ),
        ({"ENABLE_TE": "1"}, errors.MISSING, {"where": "Transformer Engine"}),
        ({"ATTENTION": "te"}, errors.MISSING, {"where": "Transformer Engine"}),
    ],
)
def test_refused(
    given: dict[str, str], kind: str, facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformer_engine, "find_installed_version", lambda: None)
    with errors.expect_user_error(kind, **facts):
        t5x_model_options.choose_model_options(given, [A100], on_cpu=False)


def test_transformer_engine_computes_fp8_and_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer_engine, "find_installed_version", lambda: "2.0")
    found = choose(H100, ENABLE_TE="1")
    assert (found.fp8, found.attention) == ("te", "te")
    assert choose(H100, ENABLE_TE="1", ATTENTION="cudnn").attention == "cudnn"
    assert choose(A100, ENABLE_TE="1").fp8 == "off"
    with errors.expect_user_error(errors.UNSUPPORTED, where="ATTENTION=te", names="NVIDIA"):
        choose(on_cpu=True, ATTENTION="te")
    with errors.expect_user_error(errors.CONFLICT, where="T5Config.scan_layers"):
        choose(H100, ENABLE_TE="1", SCAN_LAYERS="1")
