"""What CHECKPOINT_RESTORE_PATH may name, and whether what a run reads is its model's, which Paxml's own metadata say."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("jax", "paxml")

import jax
from absl import flags
from paxml import checkpoint_metadata, trainer_lib
from praxis import pax_fiddle

from rosetta.core.errors import UserError
from rosetta.pax import configs, restore
from rosetta.pax.run import stored_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (100, 200):
        (tmp_path / f"run/checkpoints/checkpoint_{step:08}").mkdir(parents=True)
    (tmp_path / "run/checkpoints/checkpoint_00000300.tmp").mkdir()
    return tmp_path / "run"


def test_a_path_may_name_a_run_its_checkpoints_or_one_of_them(run: Path) -> None:
    folder = str(run / "checkpoints")
    assert (
        restore.locate_checkpoint(str(run))
        == restore.locate_checkpoint(f"{run}/")
        == restore.locate_checkpoint(folder)
        == restore.locate_checkpoint(f"{folder}/")
        == (folder, None)
    )
    assert restore.locate_checkpoint(f"{folder}/checkpoint_00000100") == (folder, 100)
    assert restore.locate_checkpoint("gs://bucket/run/checkpoints") == (
        "gs://bucket/run/checkpoints",
        None,
    )
    assert restore.locate_checkpoint("gs://bucket/run/checkpoints/checkpoint_00000007") == (
        "gs://bucket/run/checkpoints",
        7,
    )


def test_a_path_without_checkpoint_is_refused(run: Path, tmp_path: Path) -> None:
    for path in (
        tmp_path,
        tmp_path / "gone",
        run / "checkpoints/checkpoint_00000300",
        run / "checkpoints/checkpoint_00000300.tmp",
    ):
        with errors.expect_user_error(errors.MISSING, remedy="checkpoint_N") as caught:
            restore.locate_checkpoint(str(path))
        assert caught.value.where == f"CHECKPOINT_RESTORE_PATH={path}"


def _make_experiment(name: str, **given: Any) -> Any:
    small = {
        "NUM_LAYERS": 2,
        "NUM_HEADS": 4,
        "MODEL_DIMS": 64,
        "HIDDEN_DIMS": 128,
        "DIMS_PER_HEAD": 16,
        "VOCAB_SIZE": 500,
        "MAX_SEQ_LEN": 32,
        "ICI_MESH_SHAPE": [1, 1, 1],
        "DCN_MESH_SHAPE": [1, 1, 1],
        "PERCORE_BATCH_SIZE": 4,
    }
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["test"])
    made = getattr(configs, name)()
    for hyper, value in {**small, **given}.items():
        setattr(made, hyper, value)
    return made


def _save_metadata(checkpoint: Path, experiment: Any) -> Path:
    """Paxml's own metadata of an experiment's model, in a checkpoint that has nothing else."""
    task = pax_fiddle.instantiate(experiment.task())
    specs = trainer_lib.get_train_input_specs_for_model_init(
        task, pax_fiddle.instantiate(experiment.get_input_specs_provider_params())
    )
    state = trainer_lib.create_train_state_metadata(task, specs)
    found = checkpoint_metadata.PaxMetadata.from_padded_and_unpadded(
        state.padded_global_shapes, state.unpadded_global_shapes, version=1.1
    ).to_dict()
    (checkpoint / "metadata").mkdir(parents=True)
    (checkpoint / "metadata" / "metadata").write_text(json.dumps(found))
    return checkpoint


_current = pytest.mark.skipif(
    not hasattr(jax.tree_util, "register_dataclass"),
    reason="NOT CHECKED on this line: pax-1.4 has neither switches nor GLaM with layers in a row",
)
_FAMILIES = [
    pytest.param("Synthetic126M", {"USE_REPEATED_LAYER": False}),
    pytest.param("Synthetic175B", {"DIMS_PER_HEAD": None}),
    pytest.param("SyntheticLLaMA7B", {}),
    pytest.param("SyntheticLLaMA70B", {"NUM_KV_HEADS": 2}),
    pytest.param("SyntheticGLaM64B64E", {"NUM_EXPERTS": 4, "GROUPS_PER_PART": 1}),
    pytest.param(
        "SyntheticGLaM126M64E", {"NUM_EXPERTS": 4, "USE_REPEATED_LAYER": False}, marks=_current
    ),
    pytest.param("Synthetic126M", {"USE_FP8": True, "USE_LORA": True}, marks=_current),
]


@pytest.mark.parametrize(("name", "given"), _FAMILIES)
def test_a_model_resumes_from_its_own_checkpoint(
    tmp_path: Path, name: str, given: dict[str, Any]
) -> None:
    """That is, of each family the shapes are Paxml's, with layers that repeat, in a row, of experts, and with a vocabulary that is padded."""
    made = _make_experiment(name, **given)
    checkpoint = _save_metadata(tmp_path / "checkpoint_00000002", made)
    assert restore.trace_variable_shapes(
        made.task(), made.get_input_specs_provider_params()
    ) == stored_checkpoint.read_shapes(str(checkpoint))
    restore.check_first_checkpoint(made, str(tmp_path), trains=True)


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    wide = _make_experiment(
        "Synthetic126M", MODEL_DIMS=128, DIMS_PER_HEAD=32, USE_REPEATED_LAYER=False
    )
    checkpoint = _save_metadata(tmp_path / "run" / "checkpoints" / "checkpoint_00000002", wide)
    folder = str(checkpoint.parent)
    small = _make_experiment("Synthetic126M", USE_REPEATED_LAYER=False)
    with errors.expect_user_error(
        errors.DIFFERS, where="checkpoint_00000002", names=("final_ln.bias", "[128]", "[64]", "25")
    ) as caught:
        restore.check_first_checkpoint(small, folder, trains=True)
    assert (caught.value.where, "another folder" in caught.value.do) == (str(checkpoint), True)
    with pytest.raises(UserError) as caught:
        restore.check_first_checkpoint(small, folder, trains=False)
    assert (caught.value.where, "another folder" in caught.value.do) == (str(checkpoint), False)
    small.CHECKPOINT_RESTORE_PATH = str(tmp_path / "run")
    with errors.expect_user_error(
        errors.DIFFERS, where="checkpoint_00000002", remedy="CHECKPOINT_IGNORE_RULES"
    ) as caught:
        restore.check_first_checkpoint(small, str(tmp_path / "new"), trains=True)
    assert caught.value.where == f"CHECKPOINT_RESTORE_PATH={checkpoint}"
    restore.check_first_checkpoint(
        small, str(tmp_path / "new"), trains=False
    )  # an evaluation does not begin with it
    small.CHECKPOINT_IGNORE_RULES = [".*"]
    restore.check_first_checkpoint(small, str(tmp_path / "new"), trains=True)
    with errors.expect_user_error(
        errors.DIFFERS, where="checkpoint_00000002", names=("x_layers_1", "11")
    ):
        restore.check_first_checkpoint(
            _make_experiment(
                "Synthetic126M",
                MODEL_DIMS=128,
                DIMS_PER_HEAD=32,
                USE_REPEATED_LAYER=False,
                NUM_LAYERS=1,
            ),
            folder,
            trains=True,
        )


@_current
def test_variables_of_switches_may_come_and_go(tmp_path: Path) -> None:
    """In weights from another run, and in what is evaluated; a run's own checkpoints are held against all of it."""
    rich = _make_experiment("SyntheticLLaMA7B", USE_LORA=True, USE_FP8=True)
    checkpoint = _save_metadata(tmp_path / "rich" / "checkpoint_00000002", rich)
    plain = _make_experiment("SyntheticLLaMA7B", CHECKPOINT_RESTORE_PATH=str(checkpoint))
    restore.check_first_checkpoint(plain, str(tmp_path / "new"), trains=True)
    restore.check_first_checkpoint(plain, str(checkpoint.parent), trains=False)
    with errors.expect_user_error(errors.DIFFERS, where="checkpoint_00000002", names="einsum"):
        restore.check_first_checkpoint(plain, str(checkpoint.parent), trains=True)
    _save_metadata(tmp_path / "plain" / "checkpoint_00000002", _make_experiment("SyntheticLLaMA7B"))
    rich.CHECKPOINT_RESTORE_PATH = str(tmp_path / "plain")
    restore.check_first_checkpoint(rich, str(tmp_path / "new"), trains=True)
    rich.LORA_RANK = 4
    with errors.expect_user_error(
        errors.DIFFERS, where="checkpoint_00000002", names=("lora_a", "8]", "4]")
    ):
        restore.check_first_checkpoint(rich, str(checkpoint.parent), trains=True)


def test_shorter_rows_take_the_first_positions_and_longer_ones_are_refused(tmp_path: Path) -> None:
    checkpoint = _save_metadata(
        tmp_path / "run" / "checkpoint_00000002", _make_experiment("Synthetic126M")
    )
    for length in (16, 64):
        made = _make_experiment("Synthetic126M", MAX_SEQ_LEN=length)
        begun = _make_experiment(
            "Synthetic126M", MAX_SEQ_LEN=length, CHECKPOINT_RESTORE_PATH=str(checkpoint)
        )
        for experiment, folder, trains, refused in (
            (begun, "new", True, length > 32),
            (made, "run", False, length > 32),
            (made, "run", True, True),
        ):
            with (
                pytest.raises(
                    UserError,
                    match=rf"position_emb.emb_var in the shape \[32, 64\], the model needs \[{length}, 64\];",
                )
                if refused
                else contextlib.nullcontext()
            ):
                restore.check_first_checkpoint(experiment, str(tmp_path / folder), trains=trains)
