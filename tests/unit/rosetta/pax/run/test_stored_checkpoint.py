"""Whether a run can go on from, or begin with, what a checkpoint holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rosetta.core import run_folders
from rosetta.core.errors import UserError
from rosetta.pax.run import stored_checkpoint
from tests.support import errors

_KERNEL = "params.lm.transformer.x_layers_0.ff_layer.ffn_layer1.linear"
_FP8, _LORA = f"{_KERNEL}.einsum.input_amax_history", f"{_KERNEL}.lora_a"
_MODEL = {
    f"{_KERNEL}.w": (64, 256),
    "params.lm.final_ln.scale": (64,),
    "params.lm.softmax.w": (64, 264),
}


def _write_metadata(path: Path, shapes: dict[str, tuple[int, ...]]) -> str:
    """What Paxml says of a checkpoint in it."""
    tree: dict[str, Any] = {}
    for name, shape in shapes.items():
        at = tree
        *above, last = name.split(".")
        for part in above:
            at = at.setdefault(part, {})
        at[last] = {
            "_array_metadata_tag": True,
            "is_optax_masked_node": False,
            "unpadded_shape": shape,
            "dtype": "float32",
        }
    (path / "metadata").mkdir(parents=True)
    (path / "metadata" / "metadata").write_text(
        json.dumps({"version": 1.1, "train_state_metadata": {"mdl_vars": tree}})
    )
    return str(path)


def _make_run(folder: Path, *variables: str) -> str:
    """A folder with an older plain checkpoint and a newer one with these variables."""
    for step, names in (("00000002", ()), ("00000010", variables)):
        _write_metadata(
            folder / "checkpoints" / f"checkpoint_{step}",
            dict.fromkeys((f"{_KERNEL}.w", *names), (64,)),
        )
    return str(folder)


@pytest.mark.parametrize(
    ("variables", "fp8", "lora"),
    [
        ((), False, False),
        ((_FP8,), True, False),
        ((_FP8, _LORA), True, True),
        ((_LORA,), False, True),
    ],
)
def test_a_run_resumes_with_the_switches_it_was_started_with(
    tmp_path: Path, variables: tuple[str, ...], fp8: bool, lora: bool
) -> None:
    stored_checkpoint.check_switches(_make_run(tmp_path, *variables), fp8=fp8, lora=lora)
    with errors.expect_user_error(errors.CONFLICT, names="checkpoint_00000010"):
        stored_checkpoint.check_switches(str(tmp_path), fp8=not fp8, lora=lora)
    with errors.expect_user_error(errors.CONFLICT, names="LoRA", remedy="CHECKPOINT_RESTORE_PATH"):
        stored_checkpoint.check_switches(str(tmp_path), fp8=fp8, lora=not lora)


def test_a_run_without_checkpoints_is_fine(tmp_path: Path) -> None:
    stored_checkpoint.check_switches(str(tmp_path), fp8=True, lora=True)


def test_shapes_are_those_of_paxmls_metadata(tmp_path: Path) -> None:
    assert stored_checkpoint.read_shapes(_write_metadata(tmp_path / "a", _MODEL)) == _MODEL
    assert stored_checkpoint.read_shapes(str(tmp_path)) is None, "without metadata"
    path = tmp_path / "a" / "metadata" / "metadata"
    path.write_text('{"version": 1.0}')
    assert stored_checkpoint.read_shapes(str(tmp_path / "a")) is None, "before there were shapes"
    for damaged in (
        "{",
        "[]",
        '{"train_state_metadata": {"mdl_vars": {"params": [64]}}}',
        '{"train_state_metadata": {}}',
    ):
        path.write_text(damaged)
        with errors.expect_user_error(errors.DAMAGED, where="metadata") as caught:
            stored_checkpoint.read_shapes(str(tmp_path / "a"))
        assert caught.value.where == str(path)


def test_an_object_store_is_read_like_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make_run(tmp_path, _FP8)
    monkeypatch.setattr(
        run_folders, "make_path", lambda name: Path(name.replace("gs://bucket", str(tmp_path)))
    )
    found = stored_checkpoint.find_newest("gs://bucket/checkpoints")
    assert found == "gs://bucket/checkpoints/checkpoint_00000010"
    assert set(stored_checkpoint.read_shapes(found) or ()) == {f"{_KERNEL}.w", _FP8}
    with errors.expect_user_error(errors.CONFLICT, where="gs://bucket", names="FP8"):
        stored_checkpoint.check_switches("gs://bucket", fp8=False, lora=False)


def _refusal(there: dict[str, tuple[int, ...]], ignored: tuple[str, ...] = ()) -> str | None:
    try:
        stored_checkpoint.check_shapes(there, _MODEL, "where", "do", ignored)
    except UserError as error:
        return error.what
    return None


def test_the_first_variable_that_differs_is_named_and_the_others_counted() -> None:
    assert _refusal(_MODEL) is None
    assert (
        _refusal({**_MODEL, "params.lm.softmax.w": (64, 256)})
        == "the checkpoint has params.lm.softmax.w in the shape [64, 256], "
        "the model needs [64, 264]"
    )
    wide = {name: tuple(2 * size for size in shape) for name, shape in _MODEL.items()}
    assert (
        _refusal(wide)
        == "the checkpoint has params.lm.final_ln.scale in the shape [128], the model needs [64], and 2 more differ (2 in shape)"
    )
    del wide["params.lm.softmax.w"]
    assert (
        _refusal({**wide, "params.lm.b": (1,)})
        == "the checkpoint has params.lm.final_ln.scale in the shape [128], the model needs [64], and 3 more differ (1 in shape, 1 missing, 1 additional)"
    )


def test_missing_and_additional_variables_are_refused_too() -> None:
    assert (
        _refusal({name: shape for name, shape in _MODEL.items() if "softmax" not in name})
        == "the checkpoint has no params.lm.softmax.w, the model needs it in the shape [64, 264]"
    )
    assert (
        _refusal({**_MODEL, "params.lm.b": (1,), "params.lm.c": ()})
        == "the checkpoint has params.lm.b in the shape [1], the model has none, "
        "and 1 more differs (1 additional)"
    )


def test_ignored_variables_may_differ() -> None:
    there = {name: shape for name, shape in _MODEL.items() if "softmax" not in name} | {
        "params.lm.final_ln.scale": (1,),
        _FP8: (1024,),
    }
    assert (
        _refusal(there, ("params/lm/(softmax|final_ln)/.*", r"^.*[/.]input_amax_history$")) is None
    )
    assert (
        _refusal(there, ("softmax/.*", ".*amax.*", ".*final_ln.*"))
        == "the checkpoint has no params.lm.softmax.w, the model needs it in the shape [64, 264]"
    ), "from the start of the name"


def test_checkpoints_are_named_as_paxml_names_them(tmp_path: Path) -> None:
    assert (
        stored_checkpoint.find_newest(f"{_make_run(tmp_path)}/checkpoints")
        == f"{tmp_path}/checkpoints/checkpoint_00000010"
    )
    assert stored_checkpoint.find_newest(str(tmp_path / "none")) is None
