from __future__ import annotations

import sys

import pytest

from rosetta.core import xla_flags
from rosetta.presets import preset_run
from rosetta.tune import trial_identity
from tests.support import required_modules
from tests.support.resolved_presets import NO_SITE


def identify(preset: str, accelerator: str, **settings: str) -> object:
    return trial_identity.identify_run(
        preset_run.describe_run(
            preset, accelerator=accelerator, settings=settings, environment={}, site=NO_SITE
        )
    )


def test_a_switch_that_the_precision_overrides_has_no_effect() -> None:
    assert identify("t5x-small", "h100", ROSETTA_WITH="pipelined-collectives") == identify(
        "t5x-small", "h100"
    )
    assert identify(
        "t5x-small", "h100", ROSETTA_WITH="pipelined-collectives", precision="bf16"
    ) != identify("t5x-small", "h100", precision="bf16")
    assert identify("t5x-small", "h100", combine="layers") != identify("t5x-small", "h100")
    assert identify("t5x-small", "h100", **{"batch.per_gpu": "8"}) != identify("t5x-small", "h100")
    assert identify("gpt-5b", "h100", ROSETTA_WITH="no-command-buffers") == identify(
        "gpt-5b", "h100"
    )


def test_without_jaxlib_the_flags_are_compared() -> None:
    assert trial_identity.list_xla_options("--xla_b=2 --xla_a=1", "/bin/false") == (
        "--xla_a=1",
        "--xla_b=2",
    )


@pytest.mark.parametrize(("accelerator", "default"), [("h100", True), ("b200", False)])
def test_command_buffers_are_the_default_except_on_gpus_with_fewer(
    accelerator: str, default: bool
) -> None:
    required_modules.need_current("jaxlib")
    assert len(trial_identity.list_xla_options("", sys.executable)) > 100
    assert (
        identify("t5x-small", accelerator, ROSETTA_WITH="command-buffers")
        == identify("t5x-small", accelerator)
    ) == default
    assert identify("t5x-small", accelerator, ROSETTA_WITH="no-command-buffers") != identify(
        "t5x-small", accelerator
    )
    assert trial_identity.list_xla_options(
        xla_flags.join_flags(["--xla_gpu_enable_command_buffer="])
    ) == trial_identity.list_xla_options("--xla_gpu_enable_command_buffer=''")
