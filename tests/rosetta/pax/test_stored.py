"""Whether a run can go on from what its folder holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from rosetta.errors import UserError
from rosetta.pax import stored

_KERNEL = "mdl_vars.params.lm.transformer.x_layers_0.ff_layer.ffn_layer1.linear"
_FP8, _LORA = f"{_KERNEL}.einsum.input_amax_history", f"{_KERNEL}.lora_a"


def _run(folder: Path, *variables: str) -> str:
    """A folder with an older plain checkpoint and a newer one with these variables."""
    for step, names in (("00000002", []), ("00000010", variables)):
        for name in (f"{_KERNEL}.w", *names):
            (folder / "checkpoints" / f"checkpoint_{step}" / "state" / name).mkdir(parents=True)
    return str(folder)


@pytest.mark.parametrize(("variables", "fp8", "lora"), [((), False, False), ((_FP8,), True, False), ((_FP8, _LORA), True, True), ((_LORA,), False, True)])
def test_a_run_goes_on_as_it_was_begun(tmp_path: Path, variables: tuple[str, ...], fp8: bool, lora: bool) -> None:
    stored.agree(_run(tmp_path, *variables), fp8=fp8, lora=lora)
    with pytest.raises(UserError, match="checkpoint_00000010 has"):
        stored.agree(str(tmp_path), fp8=not fp8, lora=lora)
    with pytest.raises(UserError, match=r"LoRA's kernels.*CHECKPOINT_RESTORE_PATH"):
        stored.agree(str(tmp_path), fp8=fp8, lora=not lora)


def test_a_run_without_checkpoints_is_fine(tmp_path: Path) -> None:
    stored.agree(str(tmp_path), fp8=True, lora=True)
    stored.agree("gs://bucket/run", fp8=True, lora=True)
