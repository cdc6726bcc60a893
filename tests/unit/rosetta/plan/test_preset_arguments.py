"""The arguments of `rosetta plan` are those of the step that a preset's run computes."""

from __future__ import annotations

import pytest

from rosetta import cli
from rosetta.commands import plan
from rosetta.core.run_description import Run
from rosetta.plan import preset_arguments
from rosetta.presets import preset_files, preset_run
from tests.support import errors


def described(name: str, **settings: str) -> Run:
    return preset_run.describe_run(
        name,
        accelerator="h100",
        settings=settings,
        environment={},
        site=preset_files.Layer("site", {}),
    )


@pytest.mark.parametrize(
    "name", [name for name in preset_files.load_presets() if name not in ("t5x", "pax")]
)
def test_rosetta_plan_accepts_the_arguments_of_every_preset(name: str) -> None:
    run = described(name)
    args = cli.build_parser().parse_args(
        ["plan", *preset_arguments.make_plan_arguments(run, "h100"), "--json"]
    )
    assert args.gpus == run.nodes * run.gpus_per_node
    assert (
        plan.parse_hyper_parameters(args.hyper)
        if run.framework == "pax"
        else plan.parse_switches(args.switches)
    ).keys() >= {"FPROP_DTYPE" if run.framework == "pax" else "dtype"}


def test_the_planned_step_has_the_settings_of_the_run() -> None:
    words = preset_arguments.make_plan_arguments(
        described(
            "t5x-large",
            ENC_SL="256",
            TRANSPOSE_BS="0",
            SCAN_LAYERS="1",
            FSDP="1",
            REMAT="full",
            precision="fp32",
        ),
        "h100",
    )
    assert {
        "--fsdp",
        "--inputs",
        "dtype=float32",
        "fp8=off",
        "transpose_batch_sequence=false",
        "attention=xla",
        "scan_layers=true",
        "remat=full",
        "fuse_qkv=true",
    } <= {*words}
    assert {"USE_REPEATED_LAYER=False", "MAX_SEQ_LEN=4096", 'ATTENTION="cudnn"'} <= {
        *preset_arguments.make_plan_arguments(described("llama-7b"), "h100")
    }
    assert 'ATTENTION="xla"' in preset_arguments.make_plan_arguments(described("gpt-126m"), "h100")
    assert {"USE_FP8=True", "NUM_LAYERS=2"} <= {
        *preset_arguments.make_plan_arguments(
            described("gpt-5b", precision="fp8-xla", **{"fdl.NUM_LAYERS": "2"}), "h100"
        )
    }


@pytest.mark.parametrize(
    ("name", "settings", "what"),
    [
        ("t5x-large", {"PACK": "1"}, "PACK=1"),
        ("t5x-large", {"GRADIENT_DTYPE": "bfloat16"}, "GRADIENT_DTYPE=bfloat16"),
        ("t5x-large", {"FT_TASK": "mnli2"}, "FT_TASK=mnli2"),
        ("gpt-5b", {"precision": "fp8-te"}, "ENABLE_TE=1"),
    ],
)
def test_what_is_not_planned_is_refused(name: str, settings: dict[str, str], what: str) -> None:
    with errors.expect_user_error(errors.UNSUPPORTED, where=what):
        preset_arguments.make_plan_arguments(described(name, **settings), "h100")
    assert preset_arguments.make_plan_arguments(described("t5x-large", PACK="0"), "h100")


def test_few_layers_replace_those_of_the_model() -> None:
    words = [*preset_arguments.make_plan_arguments(described("gpt-5b"), "h100")]
    words += preset_arguments.list_layer_words("pax", 2)
    assert plan.parse_hyper_parameters(words[words.index("--with") + 1 :])["NUM_LAYERS"] == 2
    switches = plan.parse_switches(preset_arguments.list_layer_words("t5x", 3))
    assert switches == {"num_encoder_layers": 3, "num_decoder_layers": 3}


def test_truth_values_that_are_open_by_default() -> None:
    """A field that may be None takes truth values, and not their text."""
    words = ["fuse_mlp=false", "fused_geglu=true"]
    assert plan.parse_switches(words) == {"fuse_mlp": False, "fused_geglu": True}


@pytest.mark.parametrize("name", ["lora", "sparse_attention"])
def test_fields_that_no_text_can_express(name: str) -> None:
    """A field whose value has fields of its own is refused like an unknown one."""
    word = f"{name}=true"
    with errors.expect_user_error(errors.INVALID, where="--with", value=word, remedy="fuse_mlp"):
        plan.parse_switches([word])
