"""`rosetta convert gpt`: both layouts there and back, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("ml_dtypes", "tensorstore")

import numpy as np

from rosetta import cli
from rosetta.convert import gpt_config, huggingface_gpt, safetensors, weight_files, zarr_arrays
from tests.support import gpt_weights

ARCHITECTURES = gpt_weights.ARCHITECTURES
OPTIONS = {
    "gpt2": [],
    "untied": ["--activation", "ReLU"],
    "neox": [
        *("--activation", "ExactGELU", "--rotary-fraction", "0.25", "--positions", "20"),
        "--parallel-residual",
    ],
}


def convert(*words: object) -> int:
    return cli.main(["convert", "gpt", *map(str, words)])


def read_tensors(folder: Path) -> dict[str, Any]:
    return {name: np.array(tensor()) for name, tensor in weight_files.open_tensors(folder).items()}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that has each architecture in the files of Hugging Face, and in Pax's."""
    top = tmp_path_factory.mktemp("models")
    for name, architecture in ARCHITECTURES.items():
        gpt_weights.write_folder(top / name, architecture)
        assert convert(top / name, top / f"{name}-pax") == 0
    return top


def set_fields(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def add_tensors(folder: Path, added: dict[str, Any]) -> None:
    """Write the file of weights again, with more tensors or without those that are None."""
    tensors = read_tensors(folder) | added
    write_tensors(folder, {name: value for name, value in tensors.items() if value is not None})


def write_tensors(folder: Path, tensors: dict[str, Any]) -> None:
    """Write the file of weights."""
    shapes = {name: value.shape for name, value in tensors.items()}
    writer = safetensors.Writer(folder / "model.safetensors", shapes, np.dtype("<f4"))
    with contextlib.closing(writer):
        for name, value in tensors.items():
            writer.add(name, value.astype(np.float32))


def write_array(state: Path, name: str, values: Any) -> None:
    store = zarr_arrays.create_array(state / name, values.shape, values.shape, "<f4")
    store.write(values.astype(np.float32)).result()


def find_state(pax: Path) -> Path:
    return pax / "checkpoints" / "checkpoint_00000000" / "state"


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_there_and_back(name: str, repeated: bool, models: Path, tmp_path: Path) -> None:
    words = ["--repeated"] if repeated else []
    assert convert(models / name, tmp_path / "pax", *words) == 0
    assert convert(tmp_path / "pax", tmp_path / "back", *OPTIONS[name]) == 0
    before, after = read_tensors(models / name), read_tensors(tmp_path / "back")
    assert list(before) == list(after)
    for tensor, values in before.items():
        np.testing.assert_array_equal(after[tensor].view(np.uint32), values.view(np.uint32))
    back = huggingface_gpt.HuggingFaceGPT(tmp_path / "back")
    assert back.architecture == ARCHITECTURES[name]
    assert "checkpoint_00000000" in (tmp_path / "back" / "README.md").read_text()


def test_pax_has_gpt2s_matrices(models: Path) -> None:
    tensors = read_tensors(models / "gpt2")
    state = find_state(models / "gpt2-pax")
    prefix = "mdl_vars.params.lm"

    def read(name: str) -> Any:
        return zarr_arrays.read_array_folder(state, f"{prefix}.{name}").read()

    layer = "transformer.x_layers_1"
    fused = tensors["transformer.h.1.attn.c_attn.weight"]
    for number in range(3):
        expected = fused[:, 32 * number : 32 * (number + 1)].reshape(32, 4, 8)
        found = read(f"{layer}.self_attention.combined_qkv.w")[number]
        np.testing.assert_array_equal(found, expected)
    scale = tensors["transformer.h.1.ln_2.weight"]
    np.testing.assert_array_equal(read(f"{layer}.ff_layer.layer_norm.scale"), scale - 1)
    np.testing.assert_array_equal(
        read("softmax.logits_ffn.linear.w"), tensors["transformer.wte.weight"].T
    )


def test_the_files_of_the_base_class_and_its_masks(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(shutil.copytree(models / "gpt2", tmp_path / "source"))
    prefix = "transformer."
    renamed = {name.removeprefix(prefix): values for name, values in read_tensors(source).items()}
    mask = np.tril(np.ones((20, 20)))[None, None]
    masks = {"h.0.attn.bias": mask, "h.0.attn.masked_bias": np.full(1, -1e4)}
    write_tensors(source, renamed | masks)
    capsys.readouterr()
    assert convert(source, tmp_path / "pax", "--json") == 0
    (dropped,) = json.loads(capsys.readouterr().out)["result"]["dropped"]
    assert "transformer.h.0.attn.bias" in dropped


def test_the_output_of_a_neox_may_have_the_name_of_the_module(models: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(models / "neox", tmp_path / "source"))
    output = read_tensors(source)["embed_out.weight"]
    add_tensors(source, {"embed_out.weight": None, "lm_head.weight": output})
    assert convert(source, tmp_path / "pax") == 0
    add_tensors(source, {"embed_out.weight": output})
    with errors.expect_reported_error(errors.UNSUPPORTED, value="lm_head.weight"):
        assert convert(source, tmp_path / "out") == 2


def test_scales_that_lose_bits_are_counted(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(shutil.copytree(models / "gpt2", tmp_path / "source"))
    add_tensors(source, {"transformer.ln_f.weight": np.full(32, 0.1, np.float32)})
    capsys.readouterr()
    assert convert(source, tmp_path / "pax", "--json") == 0
    assert json.loads(capsys.readouterr().out)["result"]["changed_scales"] == 32
    assert convert(tmp_path / "pax", tmp_path / "back") == 0
    found = read_tensors(tmp_path / "back")["transformer.ln_f.weight"]
    np.testing.assert_allclose(found, 0.1, rtol=1e-6)


def test_states_are_left_out_and_named(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(shutil.copytree(models / "gpt2-pax", tmp_path / "source"))
    layer = "params.lm.transformer.x_layers_0.self_attention"
    write_array(find_state(source), f"opt_states_0.m.{layer}.post.w", np.ones(4))
    name = f"mdl_vars.{layer}.combined_qkv.einsum.kernel_amax_history"
    write_array(find_state(source), name, np.ones(4))
    capsys.readouterr()
    assert convert(source, tmp_path / "hf", "--json") == 0
    dropped = json.loads(capsys.readouterr().out)["result"]["dropped"]
    assert any("FP8" in line for line in dropped)
    assert any("optimizer" in line for line in dropped)


FIELDS: list[tuple[str, str, Any, str]] = [
    ("gpt2", "model_type", "gptj", errors.UNSUPPORTED),
    ("gpt2", "activation_function", "tanh", errors.UNSUPPORTED),
    ("gpt2", "activation_function", None, errors.UNSUPPORTED),
    ("gpt2", "scale_attn_weights", False, errors.UNSUPPORTED),
    ("gpt2", "scale_attn_by_inverse_layer_idx", True, errors.UNSUPPORTED),
    ("gpt2", "add_cross_attention", True, errors.UNSUPPORTED),
    ("gpt2", "architectures", ["GPT2ForSequenceClassification"], errors.UNSUPPORTED),
    ("gpt2", "something_of_2031", 1, errors.UNSUPPORTED),
    ("gpt2", "n_layer", "2", errors.INVALID),
    ("gpt2", "layer_norm_epsilon", 0, errors.INVALID),
    ("gpt2", "tie_word_embeddings", "yes", errors.INVALID),
    ("neox", "hidden_act", "mish", errors.UNSUPPORTED),
    ("neox", "attention_bias", False, errors.UNSUPPORTED),
    ("neox", "use_parallel_residual", 1, errors.INVALID),
    ("neox", "rotary_pct", "0.25", errors.INVALID),
    ("neox", "rotary_emb_base", -1, errors.INVALID),
    ("neox", "quantization_config", {"bits": 4}, errors.UNSUPPORTED),
]


@pytest.mark.parametrize(("name", "field", "value", "kind"), FIELDS)
def test_a_field_of_another_model_is_named(
    name: str, field: str, value: Any, kind: str, models: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(models / name, tmp_path / "source"))
    set_fields(source, **{field: value})
    if value is None:
        fields = json.loads((source / "config.json").read_text()) | {field: 3}
        (source / "config.json").write_text(json.dumps(fields))
    with errors.expect_reported_error(kind, where="config.json", value=field):
        assert convert(source, tmp_path / "out") == 2
    assert not list(tmp_path.glob("*out*"))


SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
SCALED |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"rope_scaling": SCALED}, errors.UNSUPPORTED),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, errors.UNSUPPORTED),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, errors.CONFLICT),
        ({"rope_theta": 20000}, errors.CONFLICT),
        ({"rotary_pct": 0.3, "partial_rotary_factor": 0.3}, errors.DIFFERS),
        ({"rotary_pct": 0.1}, errors.UNSUPPORTED),
        ({"hidden_size": 30}, errors.UNSUPPORTED),
        ({"num_hidden_layers": 10**9}, errors.UNSUPPORTED),
        ({"num_hidden_layers": 3}, errors.MISSING),
        ({"num_hidden_layers": 1}, errors.UNSUPPORTED),
        ({"vocab_size": 97}, errors.DIFFERS),
    ],
)
def test_a_config_of_another_neox_is_refused(
    fields: dict[str, Any], kind: str, models: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(models / "neox", tmp_path / "source"))
    set_fields(source, **fields)
    if kind == errors.DIFFERS and "rotary_pct" in fields:
        # 0.3 of 8 features are 2, as 0.25 of them: only the stored frequencies differ.
        name = "gpt_neox.layers.0.attention.rotary_emb.inv_freq"
        add_tensors(source, {name: np.array([0.5], np.float32)})
    with errors.collect_errors() as ended:
        assert convert(source, tmp_path / "out") == 2
    assert [error.kind for error in ended] == [kind]
    assert not list(tmp_path.glob("*out*"))


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (
        lambda folder: (folder / "model.safetensors").write_bytes(
            (folder / "model.safetensors").read_bytes()[:-4]
        ),
        errors.DAMAGED,
    ),
    "an index of a missing file": (
        lambda folder: (folder / "model.safetensors.index.json").write_text(
            '{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'
        ),
        errors.CONFLICT,
    ),
    "an extra tensor": (
        lambda folder: add_tensors(folder, {"transformer.h.0.attn.q_norm.weight": np.ones(3)}),
        errors.UNSUPPORTED,
    ),
    "a missing tensor": (
        lambda folder: add_tensors(folder, {"transformer.h.1.ln_1.bias": None}),
        errors.MISSING,
    ),
    "another shape": (
        lambda folder: add_tensors(folder, {"transformer.h.1.ln_1.bias": np.ones(31)}),
        errors.DIFFERS,
    ),
    "another output": (
        lambda folder: add_tensors(folder, {"lm_head.weight": np.ones((96, 32))}),
        errors.CONFLICT,
    ),
    "another mask": (
        lambda folder: add_tensors(folder, {"transformer.h.0.attn.bias": np.ones((1, 1, 20, 20))}),
        errors.DIFFERS,
    ),
    "float8": (
        lambda folder: (folder / "model.safetensors").write_bytes(
            (folder / "model.safetensors").read_bytes().replace(b'"F32"', b'"F8_"', 1)
        ),
        errors.UNSUPPORTED,
    ),
    "a list": (lambda folder: (folder / "config.json").write_text("[]"), errors.DAMAGED),
    "an adapter": (
        lambda folder: (folder / "adapter_config.json").write_text("{}"),
        errors.UNSUPPORTED,
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), errors.MISSING),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_model_is_refused(damage: str, models: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(models / "gpt2", tmp_path / "source"))
    change, kind = DAMAGED[damage]
    change(source)
    with errors.collect_errors() as ended:
        assert convert(source, tmp_path / "out") == 2
    assert [error.kind for error in ended] == [kind]
    assert not list(tmp_path.glob("*out*"))


LAYER = "mdl_vars.params.lm.transformer.x_layers_0."
CHECKPOINTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no positions": (
        lambda state: shutil.rmtree(state / "mdl_vars.params.lm.position_emb.emb_var"),
        errors.MISSING,
    ),
    "gated": (
        lambda state: write_array(
            state, f"{LAYER}ff_layer.ffn_layer1_gate.linear.w", np.ones((32, 48))
        ),
        errors.UNSUPPORTED,
    ),
    # Its name ends as those of the state of FP8 do, but it is a weight.
    "a scale of each feature": (
        lambda state: write_array(
            state, f"{LAYER}self_attention.per_dim_scale.per_dim_scale", np.ones(8)
        ),
        errors.UNSUPPORTED,
    ),
    "no biases": (
        lambda state: shutil.rmtree(state / f"{LAYER}self_attention.combined_qkv.b"),
        errors.UNSUPPORTED,
    ),
    "another array": (
        lambda state: write_array(state, f"{LAYER}ff_layer.gate", np.ones(3)),
        errors.UNSUPPORTED,
    ),
    "a missing array": (
        lambda state: shutil.rmtree(state / f"{LAYER}ff_layer.layer_norm.bias"),
        errors.MISSING,
    ),
    "a missing chunk": (
        lambda state: (state / f"{LAYER}ff_layer.layer_norm.bias" / "0").unlink(),
        errors.MISSING,
    ),
    "not a GPT": (
        lambda state: shutil.rmtree(state / "mdl_vars.params.lm.softmax.logits_ffn.linear.w"),
        errors.UNSUPPORTED,
    ),
}


@pytest.mark.parametrize("damage", CHECKPOINTS)
def test_a_checkpoint_that_no_layout_has_is_refused(
    damage: str, models: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(models / "gpt2-pax", tmp_path / "source"))
    change, kind = CHECKPOINTS[damage]
    change(find_state(source))
    with errors.collect_errors() as ended:
        assert convert(source, tmp_path / "out") == 2
    assert [error.kind for error in ended] == [kind]
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize(
    ("source", "words", "where"),
    [
        ("gpt2", ["--to", "hf"], "--to"),
        ("gpt2-pax", ["--to", "pax"], "--to"),
        ("gpt2-pax", ["--repeated"], "--repeated"),
        ("gpt2", ["--dtype", "float16"], "--dtype"),
        ("gpt2", ["--tokenizer", "."], "--tokenizer"),
        ("gpt2", ["--activation", "GELU"], "--activation"),
        ("neox", ["--parallel-residual"], "--parallel-residual"),
        ("neox", ["--rotary-fraction", "0.25"], "--rotary-fraction"),
        ("gpt2-pax", ["--rotary-fraction", "1"], "checkpoint_"),
        ("gpt2-pax", ["--parallel-residual"], "checkpoint_"),
    ],
)
def test_options_that_contradict_the_source(
    source: str, words: list[str], where: str, models: Path, tmp_path: Path
) -> None:
    with errors.expect_reported_error(errors.CONFLICT, where=where):
        assert convert(models / source, tmp_path / "out", *words) == 2
    assert not list(tmp_path.glob("*out*"))


def test_ids_beyond_the_vocabulary_are_refused(models: Path, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    (tokenizer / "config.json").write_text('{"eos_token_id": 50256}')
    words = ["--tokenizer", tokenizer]
    with errors.expect_reported_error(errors.TOO_BIG, where=tokenizer, value="eos_token_id"):
        assert convert(models / "gpt2-pax", tmp_path / "out", *words) == 2
    (tokenizer / "config.json").write_text('{"eos_token_id": 95}')
    assert convert(models / "gpt2-pax", tmp_path / "out", *words) == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["eos_token_id"], config["bos_token_id"]) == (95, None)
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == {
        "eos_token_id": 95
    }


def test_both_versions_of_the_rotary_fields_are_read(models: Path) -> None:
    config = json.loads((models / "neox" / "config.json").read_text())
    expected = gpt_config.parse_config(config, "config.json")
    parameters = {"rope_theta": 10000.0, "partial_rotary_factor": 0.25, "rope_type": "default"}
    del config["rotary_pct"], config["rotary_emb_base"]
    later = config | {"rope_parameters": parameters}
    assert gpt_config.parse_config(later, "config.json") == expected
    assert gpt_config.parse_config(config, "config.json") == expected  # the defaults
