"""`rosetta convert llama` drops nothing in silence: each tensor and each field of a configuration is used, harmless, or refused by its name."""

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
from rosetta.commands import convert_llama as convert_command
from rosetta.convert import (
    config_fields,
    huggingface,
    meta_llama,
    pax_llama,
    safetensors,
    torch_file,
)
from tests.support import llama_weights

SIZES = llama_weights.MODELS["heads"]


def convert(*words: object) -> int:
    return cli.main(["convert", "llama", *map(str, words)])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model in all layouts."""
    top = tmp_path_factory.mktemp("models")
    llama_weights.write_meta_folder(top / "meta", SIZES, llama_weights.make_weights(SIZES))
    assert convert(top / "meta", top / "hf", "--to", "hf") == 0
    assert convert(top / "meta", top / "pax") == 0
    return top


def copy_model(models: Path, layout: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(models / layout, tmp_path / layout))


def set_fields(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def refused(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Convert to what must be refused in one line, with nothing left behind; return the line."""
    capsys.readouterr()
    assert convert(source, tmp_path / "out", *words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert not list(tmp_path.glob("out*"))
    return captured.err


OTHER_MODELS: list[tuple[str, Any]] = [
    ("hidden_act", "relu"),
    ("hidden_act", "gelu"),
    ("hidden_act", "gelu_new"),
    ("attention_bias", True),
    ("attention_bias", 1),
    ("mlp_bias", True),
    ("partial_rotary_factor", 0.5),
    ("logit_scale", 0.0625),
    ("logits_scaling", 8),
    ("embedding_multiplier", 12.0),
    ("residual_multiplier", 0.22),
    ("attention_multiplier", 0.1),
    ("final_logit_softcapping", 30.0),
    ("attn_logit_softcapping", 50.0),
    ("query_pre_attn_scalar", 256),
    ("sliding_window", 4096),
    ("use_sliding_window", True),
    ("qk_layernorm", True),
    ("qk_norm", True),
    ("use_qk_norm", True),
    ("clip_qkv", 8.0),
    ("rope_theta", True),
    ("rope_interleaved", True),
    ("rope_scaling", {"type": "linear", "factor": 2.0}),
    ("rope_scaling", {"factor": 2.0}),
    ("rope_scaling", {"rope_type": "llama3", "factor": 8.0}),
    ("rope_scaling", "linear"),
    ("rope_scaling", []),
    ("rope_parameters", {"rope_type": "default", "rope_theta": 1000000.0}),
    ("rope_parameters", {"rope_type": "default", "partial_rotary_factor": 0.25}),
    ("quantization_config", {"bits": 4}),
    ("auto_map", {"AutoModelForCausalLM": "modeling.Other"}),
    ("architectures", ["LlamaForSequenceClassification"]),
    ("architectures", "LlamaForCausalLM"),
    ("model_type", "mistral"),
    ("model_type", None),
    ("is_encoder_decoder", True),
    ("use_bidirectional_attention", True),
    ("attention_dropout", 0.1),
    ("num_local_experts", 8),
    ("layer_types", ["sliding_attention"] * 2),
    ("tie_word_embeddings", "yes"),
    ("something_of_2031", 0),
    ("max_position_embeddings", float("nan")),
    ("rms_norm_eps", float("nan")),
    ("rms_norm_eps", 0),
    ("rms_norm_eps", "1e-5"),
    ("rms_norm_eps", -1e-5),
    ("head_dim", 6),
    ("head_dim", 0),
    ("num_key_value_heads", 0),
    ("num_key_value_heads", 2),
    ("vocab_size", 97),
    ("intermediate_size", 49),
    ("hidden_size", 32.0),
    ("num_hidden_layers", 1),
    ("num_hidden_layers", 3),
    ("num_hidden_layers", 10**9),
    ("num_hidden_layers", 10**30),
    ("vocab_size", 10**18),
    ("num_attention_heads", "4"),
    ("num_attention_heads", [4]),
    ("hidden_size", 1e400),
    ("num_hidden_layers", True),
]


@pytest.mark.parametrize(("field", "value"), OTHER_MODELS)
def test_a_config_of_another_model_is_refused(
    field: str, value: Any, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = copy_model(models, "hf", tmp_path)
    set_fields(source / "config.json", **{field: value})
    refused(source, tmp_path, capsys, "--to", "hf")


def test_an_unknown_field_is_named_with_its_value(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = copy_model(models, "hf", tmp_path)
    set_fields(source / "config.json", something_of_2031=[1, 2])
    line = refused(source, tmp_path, capsys)
    assert "'something_of_2031'" in line
    assert "[1, 2]" in line


SAME_MODEL: list[dict[str, Any]] = [
    {"hidden_act": "swish"},
    {"pretraining_tp": 2},
    {"attention_dropout": 0.0},
    {"rope_scaling": None},
    {"rope_scaling": {"type": "default"}},
    {"sliding_window": None, "use_sliding_window": False},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    {"rope_theta": 10000},
    {"partial_rotary_factor": 1.0, "logit_scale": 1.0},
    {"head_dim": None, "num_key_value_heads": None},
    {"something_of_2031": None},
    {"architectures": ["LLaMAForCausalLM"], "max_sequence_length": 2048},
    dict.fromkeys(sorted(config_fields.HF_RULES["llama"].harmless), 1),
]


@pytest.mark.parametrize("fields", SAME_MODEL, ids=lambda fields: "-".join(list(fields)[:3]))
def test_a_config_of_the_same_model_is_taken(
    fields: dict[str, Any], models: Path, tmp_path: Path
) -> None:
    source = copy_model(models, "hf", tmp_path)
    set_fields(source / "config.json", **fields)
    assert convert(source, tmp_path / "out", "--to", "meta") == 0


def test_each_field_has_one_meaning() -> None:
    groups = (
        config_fields.HF_RULES["llama"].read,
        frozenset(config_fields.HF_RULES["llama"].fixed),
        config_fields.HF_RULES["llama"].harmless,
    )
    assert len(frozenset().union(*groups)) == sum(map(len, groups))


def test_fields_on_lengths_and_tokens_are_copied(models: Path, tmp_path: Path) -> None:
    source = copy_model(models, "hf", tmp_path)
    fields = {
        "max_position_embeddings": 2048,
        "bos_token_id": 7,
        "eos_token_id": [8, 9],
        "pad_token_id": 0,
    }
    set_fields(source / "config.json", **fields)
    assert convert(source, tmp_path / "out", "--to", "hf", "--dtype", "float32") == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text()).items() >= fields.items()


META: list[tuple[str, Any]] = [
    ("rope_theta", "10000"),
    ("use_scaled_rope", True),
    ("vocab_size", 97),
    ("vocab_size", True),
    ("multiple_of", 4),
    ("multiple_of", 0),
    ("multiple_of", "256"),
    ("ffn_dim_multiplier", 1.3),
    ("ffn_dim_multiplier", float("nan")),
    ("lora_args", {"rank": 16}),
    ("quantization_args", {}),
    ("norm_eps", float("nan")),
    ("norm_eps", float("inf")),
    ("n_layers", 1),
    ("n_layers", 10**9),
    ("n_layers", -1),
    ("n_layers", 2.0),
    ("dim", 10**30),
    ("dim", 0),
    ("n_heads", 0),
    ("n_heads", None),
    ("n_kv_heads", 3),
    ("qk_norm", True),
    ("n_experts", 8),
]


@pytest.mark.parametrize(("field", "value"), META)
def test_params_of_another_model_are_refused(
    field: str, value: Any, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = copy_model(models, "meta", tmp_path)
    set_fields(source / "params.json", **{field: value})
    refused(source, tmp_path, capsys)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 10000},
        {"vocab_size": 96},
        {"max_seq_len": 4096, "max_batch_size": 4},
        {"multiple_of": 48, "ffn_dim_multiplier": 0.5},
        {"use_scaled_rope": False, "later": None},
    ],
)
def test_params_of_the_same_model_are_taken(
    fields: dict[str, Any], models: Path, tmp_path: Path
) -> None:
    source = copy_model(models, "meta", tmp_path)
    set_fields(source / "params.json", **fields)
    assert convert(source, tmp_path / "out") == 0


def add_tensors(path: Path, module: Any, added: dict[str, Any]) -> None:
    """Write a file of weights again, with more tensors."""
    held = {name: np.array(tensor()) for name, tensor in module.read_tensors(path).items()}
    dtype = next(iter(held.values())).dtype
    held |= {name: tensor.astype(dtype) for name, tensor in added.items()}
    with contextlib.closing(
        module.Writer(path, {name: tensor.shape for name, tensor in held.items()}, dtype)
    ) as writer:
        for name, tensor in held.items():
            writer.add(name, tensor)


FREQUENCIES = SIZES.rotary.compute_frequencies(SIZES.head_dim)
HF_EXTRA = {
    "bias": "model.layers.0.self_attn.q_proj.bias",
    "query norm": "model.layers.1.self_attn.q_norm.weight",
    "lora": "model.layers.0.mlp.up_proj.lora_A.weight",
    "adapter": "base_model.model.model.layers.0.mlp.up_proj.lora_B.default.weight",
    "layer": "model.layers.2.input_layernorm.weight",
    "score": "score.weight",
    "number": "model.layers.00.mlp.up_proj.weight",
}


@pytest.mark.parametrize("name", HF_EXTRA.values(), ids=HF_EXTRA)
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_an_unused_tensor_is_refused(
    kind: str, name: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = copy_model(models, "hf", tmp_path)
    add_tensors(source / "model.safetensors", safetensors, {name: np.ones(3)})
    if kind == "bin":
        held = safetensors.read_tensors(source / "model.safetensors")
        with contextlib.closing(
            torch_file.Writer(
                source / "pytorch_model.bin",
                {each: tensor.shape for each, tensor in held.items()},
                torch_file.BFLOAT16,
            )
        ) as writer:
            for each, tensor in held.items():
                writer.add(each, tensor())
        (source / "model.safetensors").unlink()
    assert name in refused(source, tmp_path, capsys)


def test_an_unused_tensor_of_meta_is_refused(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = copy_model(models, "meta", tmp_path)
    add_tensors(
        source / "consolidated.00.pth", torch_file, {"layers.0.attention.wq.bias": np.ones(3)}
    )
    assert "layers.0.attention.wq.bias" in refused(source, tmp_path, capsys)


ROTARY = {
    "hf": ("model.safetensors", safetensors, "model.layers.1.self_attn.rotary_emb.inv_freq"),
    "meta": ("consolidated.00.pth", torch_file, "rope.freqs"),
}


@pytest.mark.parametrize("layout", ROTARY)
def test_rotary_buffers(
    layout: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, module, name = ROTARY[layout]
    source = copy_model(models, layout, tmp_path)
    add_tensors(source / file, module, {name: FREQUENCIES})
    assert convert(source, tmp_path / "fine") == 0
    add_tensors(source / file, module, {name: FREQUENCIES / 2})
    assert name in refused(source, tmp_path, capsys)


def test_tied_embeddings(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = copy_model(models, "hf", tmp_path)
    set_fields(source / "config.json", tie_word_embeddings=True)
    assert "lm_head.weight differs" in refused(source, tmp_path, capsys)
    embedding = safetensors.read_tensors(source / "model.safetensors")[
        "model.embed_tokens.weight"
    ]()
    add_tensors(source / "model.safetensors", safetensors, {"lm_head.weight": np.array(embedding)})
    assert convert(source, tmp_path / "fine", "--to", "meta") == 0
    assert np.array_equal(meta_llama.Source(tmp_path / "fine").read("output"), embedding)


FILES: dict[str, Callable[[Path], object]] = {
    "an adapter beside the weights": lambda folder: (folder / "adapter_config.json").write_text(
        "{}"
    ),
    "a shard that the index does not name": lambda folder: shutil.copy(
        folder / "model.safetensors", folder / "model-00009-of-00009.safetensors"
    ),
}


@pytest.mark.parametrize("spoil", FILES.values(), ids=FILES)
def test_unused_files_are_refused(
    spoil: Callable[[Path], object],
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = copy_model(models, "hf", tmp_path)
    spoil(source)
    refused(source, tmp_path, capsys)


def test_a_tensor_in_two_files_is_refused(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = copy_model(models, "hf", tmp_path)
    names = ["model-1.safetensors", "model-2.safetensors"]
    for name in names:
        shutil.copy(source / "model.safetensors", source / name)
    (source / "model.safetensors").unlink()
    (source / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {str(number): name for number, name in enumerate(names)}})
    )
    assert "in another file" in refused(source, tmp_path, capsys)


def test_unused_arrays_of_pax_are_refused(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = copy_model(models, "pax", tmp_path)
    state = source / "checkpoints" / "checkpoint_00000000" / "state"
    norm = state / "mdl_vars.params.lm.transformer.x_layers_1.layer_norm.scale"
    shutil.copytree(
        norm, state / "opt_states_0.no_prefix_1.m.params.lm.transformer.x_layers_1.layer_norm.scale"
    )
    assert convert(source, tmp_path / "fine", "--to", "hf") == 0
    for name in (
        "mdl_vars.params.lm.transformer.x_layers_1.ff_layer.ffn_layer1.bias.b",
        "mdl_vars.params.lm.transformer.x_layers_1.self_attention.post.lora_a",
        "mdl_vars.params.other.w",
    ):
        shutil.copytree(norm, state / name)
        assert name in refused(source, tmp_path, capsys, "--to", "hf")
        shutil.rmtree(state / name)


def test_different_copies_of_a_tensor_are_refused(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(models / "meta", tmp_path / "two", "--to", "meta", "--parts", 2) == 0
    held = torch_file.read_tensors(tmp_path / "two" / "consolidated.01.pth")
    add_tensors(
        tmp_path / "two" / "consolidated.01.pth",
        torch_file,
        {"norm.weight": np.array(held["norm.weight"]()) * 2},
    )
    assert "norm.weight is not the same in all parts" in refused(tmp_path / "two", tmp_path, capsys)


@pytest.mark.parametrize("layout", ["hf", "meta", "pax"])
def test_what_is_written_is_read_back(
    layout: str,
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk that changes a bit must not be followed by "all values are unchanged"."""
    module: Any = {"hf": huggingface, "meta": meta_llama, "pax": pax_llama}[layout]
    function = "write_checkpoint" if layout == "pax" else "write_model"
    write = getattr(module, function)

    def spoil(part: Path, *words: Any, **options: Any) -> None:
        write(part, *words, **options)
        names = {
            "hf": "model.safetensors",
            "meta": "consolidated.00.pth",
            "pax": "checkpoints/checkpoint_00000000/state/mdl_vars.params.lm.final_ln.scale",
        }
        file = part / names[layout]
        if layout == "pax":
            import tensorstore  # type: ignore[import-not-found]

            store = tensorstore.open(
                {"driver": "zarr", "kvstore": {"driver": "file", "path": str(file)}}, open=True
            ).result()
            store[3].write(np.float32(5)).result()
            return
        body = bytearray(file.read_bytes())
        body[body.index(llama_weights.make_weights(SIZES)["norm"].tobytes())] ^= 1
        file.write_bytes(bytes(body))

    monkeypatch.setattr(module, function, spoil)
    line = refused(models / "meta", tmp_path, capsys, "--to", layout)
    assert ("CRC-32" if layout == "meta" else "norm ") in line
    assert "rosetta-part" not in line
    assert "check the disk" in line


def test_check_written_compares_sizes(models: Path) -> None:
    source, other = meta_llama.Source(models / "meta"), meta_llama.Source(models / "meta")
    other.sizes = llama_weights.MODELS["groups"]
    with errors.expect_user_error(errors.DIFFERS, where="out"):
        convert_command.check_written(source, other, torch_file.BFLOAT16, Path("out"))


TWO_MODELS: dict[str, tuple[str, str, str]] = {
    # the folder's layout, another model's file there, that file's layout
    "hf in meta": ("meta", "config.json", "hf"),
    "weights of hf in meta": ("meta", "model.safetensors", "hf"),
    "shards of hf in meta": ("meta", "model-00001-of-00002.safetensors", "hf"),
    "meta in hf": ("hf", "params.json", "meta"),
    "weights of meta in hf": ("hf", "consolidated.00.pth", "meta"),
    "pax in hf": ("hf", "checkpoints", "pax"),
    "meta in pax": ("pax", "params.json", "meta"),
    "weights of hf in pax": ("pax", "pytorch_model.bin", "hf"),
}


@pytest.mark.parametrize(("layout", "name", "other"), TWO_MODELS.values(), ids=TWO_MODELS)
def test_two_models_in_one_folder_are_refused(
    layout: str,
    name: str,
    other: str,
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = copy_model(models, layout, tmp_path)
    (source / name).touch()
    to = "meta" if layout == "hf" else "hf"
    line = refused(source, tmp_path, capsys, "--to", to)
    for words in (
        "more than one model",
        f"{name!r} ({other})",
        f"--from {layout}",
        f"--from {other}",
    ):
        assert words in line
    assert convert(source, tmp_path / "named", "--from", layout, "--to", to) == 0


STRAYS = [
    ("meta", "consolidated.0.pth"),
    ("meta", "consolidated.000.pth"),
    ("meta", "consolidated.pth"),
    ("meta", "consolidated.00-of-02.pth"),
    ("meta", "consolidated.safetensors"),
    ("hf", "pytorch_model.bin"),
    ("hf", "pytorch_model-00001-of-00002.bin"),
    ("hf", "model-00001-of-00002.safetensors"),
]


@pytest.mark.parametrize(("layout", "name"), STRAYS)
def test_stray_weights_are_refused(
    layout: str, name: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = copy_model(models, layout, tmp_path)
    (source / name).touch()
    assert name in refused(source, tmp_path, capsys)


@pytest.mark.parametrize(("parts", "there"), [(2, 1), (4, 1), (4, 2), (4, 3)])
def test_missing_last_parts_are_reported(
    parts: int, there: int, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(models / "meta", tmp_path / "split", "--to", "meta", "--parts", parts) == 0
    for part in range(there, parts):
        (tmp_path / "split" / f"consolidated.{part:02}.pth").unlink()
    line = refused(tmp_path / "split", tmp_path, capsys)
    assert f"{there} of the model's {parts} parts are there" in line
    assert f"consolidated.{there:02}.pth" in line


def test_too_many_parts_are_reported(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = copy_model(models, "meta", tmp_path)
    shutil.copy(source / "consolidated.00.pth", source / "consolidated.01.pth")
    assert "2 parts are there, and the model was split into 1" in refused(source, tmp_path, capsys)
