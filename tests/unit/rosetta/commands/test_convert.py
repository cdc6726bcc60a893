"""`rosetta convert llama`: every layout into every other, and what it refuses."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("ml_dtypes", "tensorstore")

import ml_dtypes
import numpy as np

from rosetta import cli
from rosetta.convert import (
    huggingface,
    llama,
    meta_llama,
    pax_checkpoint,
    pax_llama,
    weight_files,
    zarr_arrays,
)
from tests.support import errors, llama_weights

SOURCES: dict[str, Any] = {
    "meta": meta_llama.Source,
    "hf": huggingface.Source,
    "pax": pax_llama.Source,
}


def _convert(*words: object) -> int:
    return cli.main(["convert", "llama", *map(str, words)])


def _same(source: Any, tensors: dict[str, Any]) -> bool:
    return all(
        np.array_equal(source.read(name).astype(np.float32), tensor.astype(np.float32))
        for name, tensor in tensors.items()
    )


@pytest.fixture(params=llama_weights.MODELS)
def model(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[llama.ModelSizes, dict[str, Any], Path]:
    sizes = llama_weights.MODELS[request.param]
    tensors = llama_weights.make_weights(sizes)
    return sizes, tensors, llama_weights.write_meta_folder(tmp_path / "meta", sizes, tensors)


@pytest.mark.parametrize(
    "path",
    [("pax", "meta"), ("hf", "pax", "hf", "meta"), ("pax --repeated", "hf", "meta")],
    ids=str,
)
def test_there_and_back(model: Any, path: tuple[str, ...], tmp_path: Path) -> None:
    sizes, tensors, at = model
    for number, layout in enumerate(path):
        out = tmp_path / str(number)
        assert _convert(at, out, "--to", *layout.split()) == 0
        source = SOURCES[layout.split()[0]](out)
        assert source.sizes == sizes
        assert _same(source, tensors)
        at = out
    assert json.loads((at / "params.json").read_text())["n_heads"] == sizes.heads
    ours, theirs = (meta_llama.Source(folder).parts[0] for folder in (at, tmp_path / "meta"))
    assert all(
        np.array_equal(ours[name]().view(np.uint16), theirs[name]().view(np.uint16))
        for name in theirs
    )


def test_number_of_meta_files(model: Any, tmp_path: Path) -> None:
    sizes, tensors, at = model
    assert _convert(at, tmp_path / "two", "--to", "meta", "--parts", 2) == 0
    source = meta_llama.Source(tmp_path / "two")
    assert len(source.parts) == 2
    assert source.parts[0]["layers.0.attention.wo.weight"].shape == (32, 16)
    assert source.parts[0]["layers.0.attention_norm.weight"].shape == (32,)
    assert source.sizes == sizes
    assert _same(source, tensors)
    # LLaMA 3's embedding is split by rows.
    whole = tensors["tok_embeddings"]
    for part in range(2):
        held = {name: source.parts[part][f"{name}.weight"]() for name in tensors} | {
            "tok_embeddings": np.split(whole, 2)[part]
        }
        folder = llama_weights.write_meta_folder(tmp_path / f"part{part}", sizes, held)
        shutil.copy(folder / "consolidated.00.pth", tmp_path / "two" / f"consolidated.0{part}.pth")
    again = meta_llama.Source(tmp_path / "two")
    assert again.sizes == sizes
    assert _same(again, tensors)


def test_files_of_hugging_face(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, tensors, at = model
    monkeypatch.setattr(weight_files, "LARGEST_FILE", 20_000)
    assert _convert(at, tmp_path / "hf", "--to", "hf") == 0
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    assert index["metadata"]["total_size"] == 2 * sum(tensor.size for tensor in tensors.values())
    assert _same(huggingface.Source(tmp_path / "hf"), tensors)
    (tmp_path / "hf" / min(index["weight_map"].values())).unlink()
    assert _convert(tmp_path / "hf", tmp_path / "out") == 2


def test_halves_are_pairs_permuted() -> None:
    rows = np.arange(16).reshape(16, 1)
    assert huggingface.permute_to_halves(rows, 2)[:, 0].tolist() == [
        0,
        2,
        4,
        6,
        1,
        3,
        5,
        7,
        8,
        10,
        12,
        14,
        9,
        11,
        13,
        15,
    ]
    assert np.array_equal(
        huggingface.permute_to_pairs(huggingface.permute_to_halves(rows, 2), 2), rows
    )


def test_rounding_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = llama_weights.MODELS["heads"]
    tensors = llama_weights.make_weights(sizes, np.float16)
    at = llama_weights.write_meta_folder(tmp_path / "meta", sizes, tensors)
    assert _convert(at, tmp_path / "pax") == 0
    assert "all values are unchanged" in capsys.readouterr().out
    assert _convert(tmp_path / "pax", tmp_path / "half", "--to", "meta", "--dtype", "float16") == 0
    assert _same(meta_llama.Source(tmp_path / "half"), tensors)
    assert "all values are unchanged" in capsys.readouterr().out
    assert _convert(at, tmp_path / "rounded", "--to", "hf", "--json") == 0
    changed = sum(
        int(
            (
                tensor.astype(ml_dtypes.bfloat16).astype(np.float32) != tensor.astype(np.float32)
            ).sum()
        )
        for tensor in tensors.values()
    )
    assert json.loads(capsys.readouterr().out)["result"]["rounded"] == changed > 1000


def test_values_beyond_float16(tmp_path: Path) -> None:
    sizes = llama_weights.MODELS["heads"]
    tensors = llama_weights.make_weights(sizes)
    tensors["norm"][3] = 1e5
    at = llama_weights.write_meta_folder(tmp_path / "meta", sizes, tensors)
    with errors.expect_reported_error(
        errors.TOO_BIG, where="--dtype", value="norm", names="float16"
    ):
        assert _convert(at, tmp_path / "out", "--to", "hf", "--dtype", "float16") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meta"]


def test_lora_is_added(model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes, tensors, at = model
    rng = np.random.default_rng(2)
    for repeated in (False, True):
        out = tmp_path / f"pax{repeated}"
        assert _convert(at, out, *(["--repeated"] if repeated else [])) == 0
        state = out / "checkpoints" / "checkpoint_00000000" / "state"
        within = "transformer.repeat.sub.x_layers_0." if repeated else "transformer.x_layers_1."
        delta = {}
        for module, inputs, outputs in (
            ("self_attention.post", sizes.dim, sizes.dim),
            ("ff_layer.ffn_layer2.linear", sizes.hidden, sizes.dim),
        ):
            down, up = (
                rng.normal(size=(inputs, 4)).astype(np.float32),
                rng.normal(size=(outputs, 4)).astype(np.float32),
            )
            for which, value in (("a", down), ("b", up)):
                held = np.stack([np.zeros_like(value), value]) if repeated else value
                zarr_arrays.create_array(
                    state / f"mdl_vars.params.lm.{within}{module}.lora_{which}",
                    held.shape,
                    list(held.shape),
                    "<f4",
                ).write(held).result()
            delta[module] = down @ up.T
        assert (
            _convert(out, tmp_path / f"merged{repeated}", "--to", "hf", "--dtype", "float32") == 0
        )
        assert "LoRA's weights were added to those of 2 arrays" in capsys.readouterr().out
        merged = huggingface.Source(tmp_path / f"merged{repeated}")
        near = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)
        near(
            merged.read("layers.1.attention.wo"),
            tensors["layers.1.attention.wo"].astype(np.float32) + delta["self_attention.post"],
        )
        near(
            merged.read("layers.1.feed_forward.w2"),
            tensors["layers.1.feed_forward.w2"].astype(np.float32)
            + delta["ff_layer.ffn_layer2.linear"].T,
        )
        assert np.array_equal(
            merged.read("layers.0.attention.wo"),
            tensors["layers.0.attention.wo"].astype(np.float32),
        )


def test_a_killed_conversion_leaves_nothing(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tensors, at = model
    real = llama.read_tensors

    def dies(*words: Any) -> Any:
        for number, pair in enumerate(real(*words)):
            if number == 5:
                raise KeyboardInterrupt
            yield pair

    with monkeypatch.context() as patched:
        patched.setattr(llama, "read_tensors", dies)
        assert _convert(at, tmp_path / "out") == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meta"]
    assert _convert(at, tmp_path / "out") == 0
    assert _same(pax_llama.Source(tmp_path / "out"), tensors)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meta", "out"]
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "meta").stat().st_mode


@pytest.mark.parametrize(
    "name", ["a\nb", "a\x1b[31mb", "a\rb", "a\x9bb", "a\u202eb", "a\udcffb", "a\tb"]
)
def test_names_with_control_characters(
    name: str, model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names from the command line and from an index are printed escaped."""
    escaped = name.encode("unicode_escape").decode()
    assert _convert(model[2], tmp_path / name, "--to", "hf") == 0
    out = capsys.readouterr().out
    assert f"{escaped}: 21 tensors" in out
    assert name not in out
    assert _convert(model[2], tmp_path / name, "--to", "hf", "--json") == 2
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert (error["kind"], error["where"]) == (errors.EXISTS, str(tmp_path / name))
    assert f"{escaped}: " in captured.err
    assert captured.err.count("\n") == 1
    assert _convert(model[2], tmp_path / "json" / name, "--json") == 0
    assert json.loads(capsys.readouterr().out)["result"]["out"] == str(tmp_path / "json" / name)
    weights = {"weight_map": {"model.norm.weight": name}}
    (tmp_path / name / "model.safetensors.index.json").write_text(json.dumps(weights))
    (tmp_path / name).rename(tmp_path / "indexed")
    assert _convert(tmp_path / "indexed", tmp_path / "again") == 2
    err = capsys.readouterr().err
    assert name not in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("status", [0, 2])
@pytest.mark.parametrize("name", ["out.rosetta-part", "rosetta-part-abc", "out.part", ".out"])
def test_other_files_of_the_folder_are_kept(
    name: str, status: int, model: Any, tmp_path: Path
) -> None:
    """Whatever lies beside OUT is the user's or another run's, also where the conversion fails."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine").write_text("mine")
    if status:
        (model[2] / "consolidated.00.pth").write_bytes(b"")
    assert _convert(model[2], tmp_path / "out") == status
    assert (tmp_path / name / "mine").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        {"meta", name} | ({"out"} if not status else set())
    )


@pytest.mark.parametrize("before", ["nothing", "an empty folder", "a link to an empty folder"])
def test_two_runs_into_one_folder(
    before: str,
    model: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first to finish has the folder; the other is refused and leaves nothing."""
    _, tensors, at = model
    out = tmp_path / "out"
    if before == "an empty folder":
        out.mkdir()
    elif before == "a link to an empty folder":
        (tmp_path / "elsewhere").mkdir()
        out.symlink_to(tmp_path / "elsewhere")
    real = llama.read_tensors
    statuses: list[int] = []

    def run_another(*words: Any) -> Any:
        for number, pair in enumerate(real(*words)):
            if number == 5:
                monkeypatch.setattr(llama, "read_tensors", real)
                statuses.append(_convert(at, out))
            yield pair

    monkeypatch.setattr(llama, "read_tensors", run_another)
    with errors.expect_reported_error(errors.EXISTS, where=out):
        assert _convert(at, out, "--to", "hf") == 2
    assert statuses == [0]
    assert capsys.readouterr().err.count("\n") == 1
    assert _same(pax_llama.Source(out), tensors)
    assert not list(tmp_path.glob("*part*"))


@pytest.mark.parametrize("words", [[], ["--repeated"], ["--to", "hf"], ["--to", "meta"]], ids=str)
@pytest.mark.parametrize("limit", [0, 100, 5000])
def test_files_that_cannot_be_written(
    limit: int, words: list[str], model: Any, tmp_path: Path
) -> None:
    """A limit of files' sizes fails as a full disk does. It holds for a whole process, so another one converts."""
    run = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from rosetta import cli
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
sys.exit(cli.main(sys.argv[1:]))
"""
    python = [
        sys.executable,
        "-c",
        run,
        "convert",
        "llama",
        str(model[2]),
        str(tmp_path / "out"),
        *words,
    ]
    done = subprocess.run(
        python, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[4]
    )
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meta"]


def test_a_mount_point_is_refused_first(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.setattr("os.path.ismount", lambda path: str(path) == str(tmp_path / "out"))
    with errors.expect_reported_error(errors.UNSUPPORTED, where=tmp_path / "out"):
        assert _convert(model[2], tmp_path / "out") == 2
    assert list((tmp_path / "out").iterdir()) == []


def test_the_tokenizer_is_copied(model: Any, tmp_path: Path) -> None:
    (model[2] / "tokenizer.model").write_bytes(b"pieces")
    assert _convert(model[2], tmp_path / "out") == 0
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == b"pieces"


def test_chunks() -> None:
    for size in ((32000, 4096), (8192, 28672), (3, 4096, 32, 128), (7,)):
        chunks = zarr_arrays.choose_chunks(size, 4)
        assert np.prod(chunks) * 4 <= 1 << 26
        assert all(chunk <= length for chunk, length in zip(chunks, size, strict=True))
    assert zarr_arrays.choose_chunks((5, 7), 4) == [5, 7]


BAD: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "missing part": (
        lambda at: (at / "consolidated.00.pth").rename(at / "consolidated.01.pth"),
        errors.MISSING,
        {"names": "consolidated.00.pth"},
    ),
    "no weights": (
        lambda at: (at / "consolidated.00.pth").unlink(),
        errors.MISSING,
        {"names": "consolidated.00.pth"},
    ),
    "params": (
        lambda at: (at / "params.json").write_text("{}"),
        errors.INVALID,
        {"value": "norm_eps"},
    ),
    "no JSON": (
        lambda at: (at / "params.json").write_text("{"),
        errors.DAMAGED,
        {"where": "params.json"},
    ),
    "rotary": (
        lambda at: (at / "params.json").write_text(
            (at / "params.json").read_text().replace("{", '{"use_scaled_rope": true, ', 1)
        ),
        errors.UNSUPPORTED,
        {"value": "use_scaled_rope"},
    ),
    "size": (
        lambda at: (at / "params.json").write_text(
            (at / "params.json")
            .read_text()
            .replace('"n_kv_heads": ', '"n_kv_heads": 1, "max_seq_len": ')
        ),
        errors.DIFFERS,
        {},
    ),
    "layers": (
        lambda at: (at / "params.json").write_text(
            (at / "params.json").read_text().replace('"n_layers": 2', '"n_layers": 3')
        ),
        errors.MISSING,
        {"names": "layers.2.attention.wq.weight"},
    ),
    "none of both": (
        lambda at: (at / "params.json").unlink(),
        errors.MISSING,
        {"names": "params.json"},
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_source(
    case: str, model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, kind, facts = BAD[case]
    spoil(model[2])
    with errors.expect_reported_error(kind, **facts):
        assert _convert(model[2], tmp_path / "out") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meta"]


@pytest.mark.parametrize(
    ("words", "kind", "facts"),
    [
        (["--to", "hf", "--repeated"], errors.CONFLICT, {"where": "--repeated"}),
        (["--parts", "2"], errors.CONFLICT, {"where": "--parts"}),
        (["--to", "meta", "--parts", "3"], errors.INVALID, {"where": "--parts", "value": 3}),
        (["--dtype", "bfloat16"], errors.CONFLICT, {"value": "bfloat16", "names": "float32"}),
    ],
)
def test_bad_options(
    words: list[str], kind: str, facts: dict[str, Any], model: Any, tmp_path: Path
) -> None:
    with errors.expect_reported_error(kind, **facts):
        assert _convert(model[2], tmp_path / "out", *words) == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("out", "words", "kind", "facts"),
    [
        ("meta/sub", [], errors.CONFLICT, {"where": "meta/sub"}),
        ("file/out", [], errors.INVALID, {"where": "file"}),
        ("out", ["--norm-epsilon", "-1"], errors.INVALID, {"names": "-1"}),
        ("out", ["--norm-epsilon", "nan"], errors.INVALID, {"names": "nan"}),
        ("out", ["--norm-epsilon", "1e-6"], errors.CONFLICT, {"where": "--norm-epsilon"}),
    ],
)
def test_bad_folders_and_numbers(
    out: str,
    words: list[str],
    kind: str,
    facts: dict[str, Any],
    model: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    with errors.expect_reported_error(kind, **facts):
        assert _convert(model[2], tmp_path / out, *words) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_out_is_not_overwritten(model: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with errors.expect_reported_error(errors.EXISTS, where=tmp_path / "out"):
        assert _convert(model[2], tmp_path / "out") == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_bad_checkpoints(model: Any, tmp_path: Path) -> None:
    _, _, at = model
    out = tmp_path / "pax"
    assert _convert(at, out) == 0
    with errors.expect_reported_error(errors.CONFLICT, where="--to", remedy=("meta", "hf")):
        assert _convert(out, tmp_path / "again") == 2
    state = out / "checkpoints" / "checkpoint_00000000" / "state"
    norm = state / "mdl_vars.params.lm.transformer.x_layers_1.layer_norm.scale"
    shutil.rmtree(norm)
    missing = norm.name.removeprefix("mdl_vars.params.lm.")
    with errors.expect_reported_error(errors.MISSING, value=missing):
        assert _convert(out, tmp_path / "again", "--to", "hf") == 2
    shutil.rmtree(state / "mdl_vars.params.lm.embedding_lookup.emb_var")
    with errors.expect_reported_error(errors.UNSUPPORTED, where=out, names="LLaMA"):
        assert _convert(out, tmp_path / "again", "--to", "hf") == 2
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    with errors.expect_reported_error(
        errors.MISSING, where=tmp_path / "empty", names="checkpoint_N"
    ):
        assert _convert(tmp_path / "empty", tmp_path / "again", "--to", "hf") == 2


def test_newest_checkpoint(tmp_path: Path) -> None:
    for step in (9, 100):
        (tmp_path / "checkpoints" / f"checkpoint_{step:08}").mkdir(parents=True)
    assert pax_checkpoint.find_checkpoint(tmp_path).name == "checkpoint_00000100"
    assert pax_checkpoint.find_checkpoint(tmp_path / "checkpoints").name == "checkpoint_00000100"
    assert (
        pax_checkpoint.find_checkpoint(tmp_path / "checkpoints" / "checkpoint_00000009").name
        == "checkpoint_00000009"
    )


def test_the_settings_of_the_experiment_are_printed() -> None:
    seven = llama.ModelSizes(32, 4096, 32, 32, 128, 11008, 32000)
    assert llama.count_parameters(seven) == 6_738_415_616  # LLaMA-2 7B, as its model card counts
    assert pax_llama.describe_experiment(seven) == "the experiment is LLaMA7B"
    assert "--fdl.NUM_KV_HEADS=2" in pax_llama.describe_experiment(llama_weights.MODELS["groups"])
