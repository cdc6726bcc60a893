"""Every gin file comes to the model, the data and the trainer it names."""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import re
from pathlib import Path
from typing import Any

import pytest

REASON = "NOT CHECKED: needs the packages of a baked environment"
jax = pytest.importorskip("jax", reason=REASON)
t5x_train = pytest.importorskip("t5x.train", reason=REASON)

import gin
import seqio

import rosetta.t5x
from rosetta.commands import new
from rosetta.t5x import gin_evaluation, model, optimizer, partitioning, trainer
from rosetta.t5x.run import checkpoint_record
from tests.support import errors

GIN = Path(rosetta.t5x.__file__).parent / "gin"
OVERLAY = Path(__file__).parents[4] / "overlay" / "t5x"
EXAMPLES = OVERLAY / "t5x/contrib/gpu/t5/t5_1_1/examples"
GATED, RELU = ("gelu", "linear"), ("relu",)

# emb_dim, heads, encoder layers, decoder layers, head_dim, mlp_dim; vocabulary, activations, tied; parameters.
# The dimensions of Raffel et al. (2020), Xue et al. (2021, 2022) and T5 1.1's release; the counts of the public checkpoints, of byT5 large and up by
# arithmetic (published: 1.23, 3.74 and 12.9 thousand million).
PUBLISHED = {
    "t5_1_1/small": ((512, 6, 8, 8, 64, 1024), (32128, GATED, False), 76_961_152),
    "t5_1_1/base": ((768, 12, 12, 12, 64, 2048), (32128, GATED, False), 247_577_856),
    "t5_1_1/large": ((1024, 16, 24, 24, 64, 2816), (32128, GATED, False), 783_150_080),
    "t5_1_1/xl": ((2048, 32, 24, 24, 64, 5120), (32128, GATED, False), 2_849_757_184),
    "t5_1_1/xxl": ((4096, 64, 24, 24, 64, 10240), (32128, GATED, False), 11_135_332_352),
    "t5_1_0/small": ((512, 8, 6, 6, 64, 2048), (32128, RELU, True), 60_506_624),
    "t5_1_0/base": ((768, 12, 12, 12, 64, 3072), (32128, RELU, True), 222_903_552),
    "t5_1_0/large": ((1024, 16, 24, 24, 64, 4096), (32128, RELU, True), 737_668_096),
    "t5_1_0/3B": ((1024, 32, 24, 24, 128, 16384), (32128, RELU, True), 2_851_598_336),
    "t5_1_0/11B": ((1024, 128, 24, 24, 128, 65536), (32128, RELU, True), 11_307_321_344),
    "mt5/small": ((512, 6, 8, 8, 64, 1024), (250112, GATED, False), 300_176_768),
    "mt5/base": ((768, 12, 12, 12, 64, 2048), (250112, GATED, False), 582_401_280),
    "mt5/large": ((1024, 16, 24, 24, 64, 2816), (250112, GATED, False), 1_229_581_312),
    "mt5/xl": ((2048, 32, 24, 24, 64, 5120), (250112, GATED, False), 3_742_619_648),
    "mt5/xxl": ((4096, 64, 24, 24, 64, 10240), (250112, GATED, False), 12_921_057_280),
    "umt5/small": ((512, 6, 8, 8, 64, 1024), (256384, GATED, False), 306_601_984),
    "umt5/base": ((768, 12, 12, 12, 64, 2048), (256384, GATED, False), 592_043_520),
    "umt5/xl": ((2048, 32, 24, 24, 64, 5120), (256384, GATED, False), 3_768_356_864),
    "umt5/xxl": ((4096, 64, 24, 24, 64, 10240), (256384, GATED, False), 12_972_531_712),
    "byt5/small": ((1472, 6, 12, 4, 64, 3584), (384, GATED, False), 299_637_760),
    "byt5/base": ((1536, 12, 18, 6, 64, 3968), (384, GATED, False), 581_653_248),
    "byt5/large": ((1536, 16, 36, 12, 64, 3840), (384, GATED, False), 1_228_183_552),
    "byt5/xl": ((2560, 32, 36, 12, 64, 6720), (384, GATED, False), 3_737_801_728),
    "byt5/xxl": ((4672, 64, 36, 12, 64, 12352), (384, GATED, False), 12_906_899_328),
}
DIMENSIONS = (
    "emb_dim",
    "num_heads",
    "num_encoder_layers",
    "num_decoder_layers",
    "head_dim",
    "mlp_dim",
)
SYNTHETIC = ("DATA = 'synthetic'", "MODEL_DIR = 'nowhere'", "TRAIN_STEPS = 10")


NUMBERS = itertools.count()


def _train(files: list[str | Path], *bindings: str) -> Any:
    # A name of its own for each task: SeqIO's registry lives as long as the process.
    return gin_evaluation.arguments(
        [str(file) for file in files], [f"dataset.task.name = 'task{next(NUMBERS)}'", *bindings]
    )


def _pretraining(name: str, *bindings: str) -> Any:
    family = name.split("/", maxsplit=1)[0]
    vocab = {"byt5": "byte", "mt5": "ids:250100", "umt5": "ids:256000"}.get(family, "ids:32100")
    return _train(
        [f"rosetta/t5x/gin/{name}.gin", "rosetta/t5x/gin/runs/pretrain.gin"],
        *SYNTHETIC,
        f"VOCAB = '{vocab}'",
        *bindings,
    )


def _count(config: Any) -> int:
    """The parameters of an encoder-decoder by arithmetic: embeddings, projections, norms, relative positions."""
    attention: int = 4 * config.emb_dim * config.num_heads * config.head_dim
    mlp: int = (len(config.mlp_activations) + 1) * config.emb_dim * config.mlp_dim
    encoder: int = config.num_encoder_layers * (attention + mlp + 2 * config.emb_dim)
    decoder: int = config.num_decoder_layers * (2 * attention + mlp + 3 * config.emb_dim)
    embeddings: int = (1 if config.logits_via_embedding else 2) * config.vocab_size * config.emb_dim
    layers = config.num_encoder_layers + config.num_decoder_layers
    tables: int = layers if config.relative_bias == "layer" else 2
    positions = tables * 32 * int(config.num_heads)
    return embeddings + encoder + decoder + 2 * int(config.emb_dim) + positions


def _initialised(built: Any) -> int:
    tokens = (
        "encoder_input_tokens",
        "decoder_input_tokens",
        "decoder_target_tokens",
        "decoder_causal_attention",
    )
    shapes = dict.fromkeys((*tokens, "decoder_loss_weights"), (1, 16))
    types = dict.fromkeys(shapes, "int32")
    initialise = functools.partial(
        built.get_initial_variables, input_shapes=shapes, input_types=types
    )
    variables = jax.eval_shape(initialise, jax.random.PRNGKey(0))
    return sum(math.prod(tuple(leaf.shape)) for leaf in jax.tree.leaves(variables["params"]))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_size_is_the_published_one(name: str) -> None:
    dimensions, (vocab_size, activations, tied), parameters = PUBLISHED[name]
    with _pretraining(name) as run:
        config = run["model"].module.config
    assert tuple(getattr(config, field) for field in DIMENSIONS) == dimensions
    assert (config.vocab_size, tuple(config.mlp_activations), config.logits_via_embedding) == (
        vocab_size,
        activations,
        tied,
    )
    assert _count(config) == parameters
    assert config.relative_bias == ("layer" if name.startswith("umt5") else "stack")


@pytest.mark.parametrize(
    ("size", "dimensions"),
    [
        ("base", (768, 12, 12)),
        ("large", (1024, 16, 24)),
        ("xl", (2048, 32, 24)),
        ("xxl", (4096, 64, 24)),
    ],
)
def test_decoder_only_sizes(size: str, dimensions: tuple[int, ...]) -> None:
    with _pretraining(f"decoder_only/{size}", "OBJECTIVE = 'lm'", "NUM_DECODES = 3") as run:
        config = run["model"].module.config
        assert isinstance(run["model"], model.DecoderOnlyModel)
    assert (config.emb_dim, config.num_heads, config.num_decoder_layers) == dimensions
    assert config.logits_via_embedding


@pytest.mark.parametrize("family", ["t5_1_1", "t5_1_0", "mt5", "umt5", "byt5", "decoder_only"])
def test_tiny_takes_any_vocabulary(family: str) -> None:
    for vocab, rows in (("byte", 384), ("ids:1000", 1024)):
        with _pretraining(f"{family}/tiny", "OBJECTIVE = 'lm'", f"VOCAB = '{vocab}'") as run:
            assert run["model"].module.config.vocab_size == rows
            assert run["model"].module.config.emb_dim == 64


@pytest.mark.parametrize("name", ["t5_1_1/small", "t5_1_0/small", "byt5/tiny", "umt5/small"])
def test_the_network_has_the_parameters_of_its_configuration(name: str) -> None:
    with _pretraining(name) as run:
        assert _initialised(run["model"]) == _count(run["model"].module.config)


def test_tiny_gpu_single() -> None:
    # 134,307,072 was reported for it in 2023, when each of the 12 layers had a table of relative positions of its own.
    with _train(
        [OVERLAY / "t5x/examples/decoder_only/examples/tiny_gpu_single.gin"],
        *SYNTHETIC,
        "VOCAB = 'ids:32100'",
    ) as run:
        assert _initialised(run["model"]) == 134_307_072 - 11 * 32 * 12
        one = run["train_dataset_cfg"].batch_size
    with _train(
        [OVERLAY / "t5x/examples/decoder_only/examples/tiny_gpu_4x.gin"],
        *SYNTHETIC,
        "VOCAB = 'ids:32100'",
    ) as run:
        assert run["train_dataset_cfg"].batch_size == 4 * one


def test_every_model_file_is_tested() -> None:
    there = {
        f"{path.parent.name}/{path.stem}"
        for family in ("t5_1_1", "t5_1_0", "mt5", "umt5", "byt5")
        for path in (GIN / family).glob("*.gin")
    }
    assert there == set(PUBLISHED) | {
        f"{family}/tiny" for family in ("t5_1_1", "t5_1_0", "mt5", "umt5", "byt5")
    }


def test_shared_settings_of_sizes_are_in_one_file() -> None:
    for path in GIN.rglob("*.gin"):
        text = path.read_text()
        if (
            path.parts[-3:-1] != ("gin", "sizes")
            and "sizes" not in path.parts
            and path.name != "tiny.gin"
        ):
            assert not re.search(r"\b(emb_dim|num_heads|head_dim|mlp_dim)\s*=", text), path


@pytest.mark.parametrize("path", sorted(OVERLAY.rglob("*.gin")), ids=lambda path: path.stem)
def test_an_old_name_is_an_include_of_the_new_one(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert 1 <= len(lines) <= 2
    for line in lines:
        included = re.fullmatch(r"include 'rosetta/t5x/gin/(.+\.gin)'", line)
        assert included
        assert (GIN / included[1]).is_file()


@pytest.mark.parametrize("size", ["tiny", "small", "base", "large", "xl", "xxl"])
def test_pretraining_by_its_old_name(size: str) -> None:
    with _train(
        [EXAMPLES / f"{size}_pile_pretrain.gin"],
        "DATA = 'synthetic'",
        "MODEL_DIR = 'nowhere'",
        "VOCAB = 'ids:32100'",
        "rosetta.t5x.network.T5Config.vocab_size = 32128",
    ) as run:
        config = run["model"].module.config
        assert isinstance(run["model"], model.EncoderDecoderModel)
        assert isinstance(run["partitioner"], partitioning.PjitPartitioner)
        assert issubclass(run["trainer_cls"], trainer.Trainer)
        assert isinstance(run["model"].optimizer_def, optimizer.ScheduledOptimizer)
        assert config.dropout_rate == (0.1 if size == "small" else 0.0)
        assert config.scale_attn_logits is True
        assert run["train_dataset_cfg"].batch_size == {"xxl": 2304, "tiny": 16}.get(size, 2048)
        assert run["train_dataset_cfg"].task_feature_lengths == {"inputs": 512, "targets": 128}
        assert run["total_steps"] == 1_000_000


@pytest.fixture
def records(tmp_path: Path) -> dict[str, str]:
    mnli = tmp_path / "mnli.jsonl"
    mnli.write_text('{"premise": "A man sleeps.", "hypothesis": "He is awake.", "label": 2}\n')
    squad = tmp_path / "squad.jsonl"
    squad.write_text(
        '{"id": "1", "question": "Who sleeps?", "context": "A man sleeps.", "answers": {"text": ["A man"], "answer_start": [0]}}\n'
    )
    return {"mnli2": str(mnli), "squad1": str(squad)}


def _on(file: str) -> list[str]:
    return [f"DATA = 'jsonl:{file}'", f"EVAL_DATA = 'jsonl:{file}'", "VOCAB = 'byte'"]


@pytest.mark.parametrize(
    ("task", "lengths", "metric"),
    [
        ("mnli2", {"inputs": 512, "targets": 16}, "accuracy"),
        ("squad1", {"inputs": 956, "targets": 256}, "squad"),
    ],
)
def test_finetuning_by_its_old_name(
    task: str, lengths: dict[str, int], metric: str, records: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "pretrained" / "checkpoint_20").mkdir(parents=True)
    start = f"INITIAL_CHECKPOINT_PATH = '{tmp_path}/pretrained'"
    with _train(
        [EXAMPLES / f"small_{task}_finetune_adam.gin"],
        *_on(records[task]),
        start,
        "MODEL_DIR = 'nowhere'",
    ) as run:
        assert run["total_steps"] == 20 + 15_000
        assert run["checkpoint_cfg"].restore.path == f"{tmp_path}/pretrained/checkpoint_20"
        assert run["train_dataset_cfg"].task_feature_lengths == lengths
        assert run["model"]._loss_normalizing_factor == 2048 * 114
        assert run["model"].module.config.scale_attn_logits is False
        assert run["model"].module.config.dropout_rate == 0.1
        evaluated = seqio.get_mixture_or_task(run["infer_eval_dataset_cfg"].mixture_or_task_name)
        assert metric in [function.__name__ for function in evaluated.metric_fns]
        rate = gin.query_parameter(
            "rosetta.t5x.trainer.Trainer.learning_rate_fn"
        ).scoped_configurable_fn()
        assert [float(rate(20 + step)) for step in (500, 1000, 15_000)] == pytest.approx(
            [5e-5, 1e-4, 1e-5]
        )


def test_finetuning_that_is_started_again_ends_where_it_was_to_end(
    records: dict[str, str], tmp_path: Path
) -> None:
    for step in (20, 30):
        (tmp_path / "pretrained" / f"checkpoint_{step}").mkdir(parents=True)
    (tmp_path / "ft" / "checkpoint_25").mkdir(parents=True)
    checkpoint_record.write_record(
        f"{tmp_path}/ft",
        checkpoint_record.Record(
            step=25, scale_attn_logits=False, start=f"{tmp_path}/pretrained/checkpoint_20"
        ),
    )
    bindings = [
        *_on(records["mnli2"]),
        f"INITIAL_CHECKPOINT_PATH = '{tmp_path}/pretrained'",
        f"MODEL_DIR = '{tmp_path}/ft'",
        "FT_STEPS = 10",
    ]
    with _train(
        ["rosetta/t5x/gin/t5_1_1/tiny.gin", "rosetta/t5x/gin/runs/finetune_mnli2.gin"], *bindings
    ) as run:
        start = gin.query_parameter("rosetta.t5x.checkpoint.on_save.start")
        assert run["total_steps"] == 20 + 10
        assert (
            run["checkpoint_cfg"].restore.path
            == start.scoped_configurable_fn()
            == f"{tmp_path}/pretrained/checkpoint_20"
        )


def _rates(*bindings: str) -> list[float]:
    with _train(
        [
            "rosetta/t5x/gin/t5_1_1/tiny.gin",
            "rosetta/t5x/gin/runs/pretrain.gin",
            "rosetta/t5x/gin/runs/rsqrt_decay.gin",
        ],
        *SYNTHETIC,
        *bindings,
    ):
        rate = gin.query_parameter(
            "rosetta.t5x.trainer.Trainer.learning_rate_fn"
        ).scoped_configurable_fn()
        return [float(rate(step)) for step in (0, 10_000, 40_000, 1_000_000)]


def test_t5s_own_schedule_follows_the_same_macros() -> None:
    assert _rates() == pytest.approx([0.01, 0.01, 0.005, 0.001])
    assert _rates(
        "LEARNING_RATE = 0.02", "WARMUP_STEPS = 40000", "LAST_RATE = 0.5"
    ) == pytest.approx([0.02, 0.02, 0.02, 0.01])


def _warmup(*bindings: str) -> int:
    """Return the step at which the rate is at its peak."""
    with _train(
        ["rosetta/t5x/gin/t5_1_1/tiny.gin", "rosetta/t5x/gin/runs/pretrain.gin"],
        *SYNTHETIC,
        *bindings,
    ):
        rate = gin.query_parameter(
            "rosetta.t5x.trainer.Trainer.learning_rate_fn"
        ).scoped_configurable_fn()
        rates = [float(rate(step)) for step in range(0, 20_001, 10)]
        return 10 * rates.index(max(rates))


@pytest.mark.parametrize(
    ("bindings", "peak"),
    [
        (["TRAIN_STEPS = 200"], 10),
        (["TRAIN_STEPS = 20_000"], 1_000),
        (["TRAIN_STEPS = 1_000_000"], 10_000),
        (["TRAIN_STEPS = 200", "WARMUP_STEPS = 50"], 50),
        (["TRAIN_STEPS = 1_000_000", "WARMUP_STEPS = 50"], 50),
    ],
)
def test_the_rate_rises_over_a_share_of_the_run(bindings: list[str], peak: int) -> None:
    assert _warmup(*bindings) == peak


@pytest.mark.parametrize(
    ("recorded", "steps", "peak"), [(True, 10, 10), (True, None, 10_000), (False, None, 10_000)]
)
def test_a_run_that_goes_on_keeps_its_warmup(
    tmp_path: Path, recorded: bool, steps: int | None, peak: int
) -> None:
    (tmp_path / "checkpoint_100").mkdir()
    if recorded:
        checkpoint_record.write_record(
            str(tmp_path),
            checkpoint_record.Record(step=100, scale_attn_logits=True, warmup_steps=steps),
        )
    assert _warmup("TRAIN_STEPS = 40_000", f"MODEL_DIR = '{tmp_path}'") == peak
    assert _warmup("TRAIN_STEPS = 40_000", f"MODEL_DIR = '{tmp_path}'", "WARMUP_STEPS = 40") == 40


def test_the_files_of_a_new_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corpus.txt").write_text("some words\n" * 400)
    parser = argparse.ArgumentParser()
    new.add_parsers(parser.add_subparsers(), argparse.ArgumentParser(add_help=False))
    words = f"new t5x mine --size tiny --vocab byte --data text:{tmp_path}/corpus.txt --inputs 64 --targets 48 --steps 7 --out {tmp_path}"
    written = new.write_files(parser.parse_args(words.split()))
    monkeypatch.syspath_prepend(str(tmp_path))
    with gin_evaluation.arguments(
        ["mine_tiny.gin"], ["MODEL_DIR = 'nowhere'"], search=[str(tmp_path)]
    ) as run:
        assert (run["total_steps"], run["train_dataset_cfg"].task_feature_lengths) == (
            7,
            {"inputs": 64, "targets": 48},
        )
        assert run["train_dataset_cfg"].mixture_or_task_name.name == "mine_tiny"
        assert run["model"].module.config.vocab_size == 384
    with (
        errors.expect_user_error(errors.INVALID, names="mine_tiny.gin"),
        gin_evaluation.arguments(["mine_tiny.gin"], ["MODEL_DIR = 'nowhere'"]),
    ):
        pass  # the folder was searched for that run alone
    assert (
        written[0].read_text().count("@") == 1
    )  # @mine_tiny_tasks.task(): nothing of the template is left


@pytest.mark.parametrize("script", ["eval", "infer"])
def test_evaluation_and_inference(script: str, records: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "checkpoint_20").mkdir()
    files = [
        "rosetta/t5x/gin/t5_1_1/tiny.gin",
        f"rosetta/t5x/gin/runs/{script}.gin",
        "rosetta/t5x/gin/runs/task_squad1.gin",
    ]
    bindings = [
        *_on(records["squad1"]),
        f"CHECKPOINT_PATH = '{tmp_path}'",
        f"{script.upper()}_OUTPUT_DIR = '/nowhere'",
        "NUM_DECODES = 4",
        f"dataset.task.name = '{script}'",
    ]
    with gin_evaluation.arguments(files, bindings, script) as run:
        assert run["restore_checkpoint_cfg"].path == f"{tmp_path}/checkpoint_20"
        assert run["dataset_cfg"].split == "validation"
        assert run["model"].module.config.dropout_rate == 0.0
        assert run["output_dir"] == "/nowhere"


def test_inference_that_draws_tokens(records: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "checkpoint_20").mkdir()
    names = ("t5_1_1/tiny", "runs/infer", "runs/sampling", "runs/task_squad1")
    bindings = [
        *_on(records["squad1"]),
        f"CHECKPOINT_PATH = '{tmp_path}'",
        "INFER_OUTPUT_DIR = '/nowhere'",
        "TOP_K = 5",
        "dataset.task.name = 'drawn'",
    ]
    files = [f"rosetta/t5x/gin/{name}.gin" for name in names]
    with gin_evaluation.arguments(files, bindings, "infer") as run:
        assert run["model"]._decode_fn.__name__ == "temperature_sample"


def test_what_scripts_and_people_type_reaches_our_classes() -> None:
    with _pretraining(
        "t5_1_1/tiny",
        "network.T5Config.dtype = 'float32'",
        "network.T5Config.fuse_qkv = True",
        "trainer.Trainer.num_microbatches = 2",
        "partitioning.PjitPartitioner.num_partitions = 1",
        "utils.SaveCheckpointConfig.period = 7",
        "train/utils.DatasetConfig.batch_size = 4",
        "utils.create_learning_rate_scheduler.warmup_steps = 3",
    ) as run:
        assert run["model"].module.config.fuse_qkv is True
        assert run["checkpoint_cfg"].save.period == 7
        assert run["train_dataset_cfg"].batch_size == 4


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers with gin is gone after it: two classes of one short name make that name ambiguous."""
    config = gin.config
    kept = type(config._REGISTRY)()
    for selector, configurable in config._REGISTRY.items():
        kept[selector] = configurable
    monkeypatch.setattr(config, "_REGISTRY", kept)
    monkeypatch.setattr(config, "_INVERSE_REGISTRY", config._INVERSE_REGISTRY.copy())


@pytest.mark.usefixtures("registry")
def test_a_gin_file_that_names_upstreams_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.gin"
    mine.write_text(f"""
from __gin__ import dynamic_registration
from t5x import models
from t5x.contrib.gpu.t5 import network
include '{EXAMPLES}/tiny_pile_pretrain.gin'
models.EncoderDecoderModel.z_loss = 0.5
network.T5Config.emb_dim = 32
""")
    with _train([mine], *SYNTHETIC, "VOCAB = 'ids:300'") as run:
        assert run["model"].module.config.emb_dim == 32
        assert run["model"]._z_loss == 0.5
    assert "rosetta.t5x.network.T5Config.emb_dim " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("bindings", "kind", "name"),
    [
        (("DATA = 'synthetic'", "TRAIN_STEPS = 1"), errors.MISSING, "MODEL_DIR"),
        ((*SYNTHETIC, "network.T5Config.no_such_field = 1"), errors.INVALID, "no_such_field"),
        ((*SYNTHETIC, "BATCH_SIZE ="), errors.INVALID, "gin"),
    ],
)
def test_a_wrong_setting_is_one_line(bindings: tuple[str, ...], kind: str, name: str) -> None:
    with (
        errors.expect_user_error(kind, names=name) as caught,
        _train(["rosetta/t5x/gin/t5_1_1/tiny.gin", "rosetta/t5x/gin/runs/pretrain.gin"], *bindings),
    ):
        pass
    assert "\n" not in str(caught.value)
