"""The command lines of t5-experiments: what each option becomes, and what is refused."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from rosetta.launch.t5_experiments import options, program, schedule
from rosetta.t5x.run import checkpoint_record
from tests.support import errors
from tests.support.t5x_scripts import OVERLAY, SCRIPTS, Place, Ran, place_, read_gin_bindings

__all__ = ["place_"]

# A configuration of Hugging Face, as t5-experiments' files have it.
CONFIG = {
    "architectures": ["T5WithLMHeadModel"],
    "d_ff": 2048,
    "d_kv": 64,
    "d_model": 512,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "n_positions": 512,
    "num_heads": 8,
    "num_layers": 6,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "task_specific_params": {"summarization": {"num_beams": 4}},
    "vocab_size": 32128,
}
BASELINE = (
    "horovodrun --gloo -np 2 python run_t5_pretraining.py --batch_size 32 "
    "--gradient_accumulation_steps 2 --save_interval 100000 --log_interval 500 --iters 1100000 "
    "--data_path ~/data/ThePile/Wikipedia/preprocessed_shards "
    "--model_path ./runs/small_wiki_bs_128 --input_seq_len 512 --target_seq_len 192 --lr 5e-05 "
    "--weight_decay 1e-05 --model_cfg ./models_configs/t5_configs/t5-small.json "
    "--model_cls modeling_t5:T5ForConditionalGeneration"
)
CUSTOM = (
    "horovodrun --gloo -np 4 python run_t5_pretraining.py --batch_size 8 "
    "--gradient_accumulation_steps 4 --save_interval 75000 --log_interval 500 --iters 1000000 "
    "--data_path ~/data/ThePile/Wikipedia/preprocessed_shards "
    "--model_path ./runs/base_wiki_enc_only_cdq_fixed_pos_wo_tanh --input_seq_len 512 "
    "--target_seq_len 192 --lr 5e-05 --weight_decay 1e-05 "
    "--model_cls modeling_t5:T5ForConditionalGeneration "
    "--model_cfg models_configs/t5_configs/{config} "
    "--init_checkpoint ./runs/base_wiki_enc_only_cdq_fixed_pos_wo_tanh/model_150000.pth"
)
PLAIN = "run_t5_pretraining.py --data_path shards --model_path run --vocab byte --lr 1e-3 --iters 9"
TUNE = "run_t5_finetuning.py --data_path shards --model_path run --vocab byte --lr 1e-3"


@pytest.fixture(autouse=True)
def _files(place: Place) -> None:
    """Make the files that the command lines name."""
    shards = place.work / "data/ThePile/Wikipedia/preprocessed_shards"
    shards.mkdir(parents=True)
    (shards / "0.jsonl").write_text('{"text": "A line of text."}\n' * 100)
    (place.work / "shards").symlink_to(shards)
    configs = place.work / "models_configs/t5_configs"
    configs.mkdir(parents=True)
    (configs / "t5-small.json").write_text(json.dumps(CONFIG))
    own_layers = {
        "encoder_self_attention_layer": "modeling_t5:T5CDQAttention",
        "decoder_self_attention_layer": "modeling_t5:T5Attention",
        "num_cdq_heads": 12,
    }
    (configs / "t5-base-only-cdQ.json").write_text(json.dumps({**own_layers, **CONFIG}))
    (place.work / "vocabs").mkdir()


def type_line(place: Place, line: str, **settings: str) -> Ran:
    """Run a command line of horovodrun or of a script in this process. DATA is not set."""
    name, *words = [word.replace("~", str(place.work), 1) for word in shlex.split(line)]
    if name == program.HOROVODRUN:
        argv = [str(place.tree), *words]
        return place.call(lambda: program.main_of_horovodrun(argv), DATA="", **settings)
    argv = [Path(name).stem, str(place.tree), *words]
    return place.call(lambda: program.main(argv), **{"DATA": "", "VOCAB": "", **settings})


def read_document(place: Place, line: str, **settings: str) -> dict[str, Any]:
    """Return what the dry run of a command line prints."""
    ran = type_line(place, f"{line} --dry-run", **settings)
    assert ran.rc == 0, ran.err
    document: dict[str, Any] = json.loads(ran.out)
    return document


def test_the_baseline_of_the_readme(place: Place) -> None:
    document = read_document(place, BASELINE)
    became = {row["option"].split()[0]: row["became"] for row in document["options"]}
    typed = {word for word in BASELINE.split() if word.startswith("--") and word != "--gloo"}
    assert typed <= became.keys(), "no option is dropped in silence"
    assert document["variables"] | {"ROSETTA_GIN": ""} == {
        "BSIZE_PER_GPU": "64",
        "DATA": f"jsonl:{(place.work / 'shards').resolve()}/*.jsonl",
        "DEC_SL": "192",
        "ENABLE_FP8": "0",
        "ENC_SL": "512",
        "LEARNING_RATE": "5e-05",
        "MODEL_DIR": str(place.work / "runs/small_wiki_bs_128"),
        "NUM_MICROBATCHES": "2",
        "OBJECTIVE": "span_corruption",
        "OPTIMIZER": "adamw",
        "PREC": "float32",
        "ROSETTA_GIN": "",
        "SAVE_PERIOD": "100000",
        "STATS_PERIOD": "500",
        "T5_SIZE": "small",
        "TRAIN_STEPS": "1100000",
        "WEIGHT_DECAY": "1e-05",
    }
    gin = set(document["gin"])
    assert {
        "  emb_dim = 512",
        "  num_decoder_layers = 6",
        "  mlp_activations = ('relu',)",
        "  logits_via_embedding = True",
        "DROPOUT_RATE = 0.1",
        "SCALE_ATTN_LOGITS = False",
        "KEEP = None",
        "utils.create_learning_rate_scheduler.factors = 'constant'",
        "optimizer.adamw.clip_norm = None",
    } <= gin
    # The batch is that of both GPUs.
    assert "--gin.BATCH_SIZE=128" in document["argv"]


def test_the_baseline_runs(place: Place) -> None:
    ran = type_line(place, BASELINE)
    assert ran.rc == 0, ran.err
    bindings = read_gin_bindings(ran)
    assert bindings["TRAIN_STEPS"] == "1100000"
    files = [word for word in ran.argv if word.startswith("--gin_file=")]
    assert Path(files[-1].partition("=")[2]).is_relative_to(place.work / ".rosetta")
    for option in ("--batch_size 32", "--lr 5e-05", "--model_cls"):
        assert option in ran.err
    assert "rosetta t5x pretrain NUM_GPUS=2" in ran.err


def test_layers_of_their_own_are_refused(place: Place) -> None:
    ran = type_line(place, CUSTOM.format(config="t5-base-only-cdQ.json"))
    assert (ran.rc, ran.error.value) == (2, "encoder_self_attention_layer")
    assert not (place.work / "runs").exists()


def test_an_interrupted_run_continues(place: Place) -> None:
    """The name of PyTorch's checkpoint stands for the checkpoint of the same step."""
    line = CUSTOM.format(config="t5-small.json")
    ran = type_line(place, line)
    assert (ran.rc, ran.error.kind) == (2, errors.MISSING)
    folder = place.work / "runs/base_wiki_enc_only_cdq_fixed_pos_wo_tanh"
    (folder / "checkpoint_150000").mkdir(parents=True)
    document = read_document(place, line)
    became = {row["option"].split()[0]: row["became"] for row in document["options"]}
    assert "checkpoint_150000" in became["--init_checkpoint"]
    assert "INITIAL_CHECKPOINT_PATH" not in document["variables"]
    elsewhere = read_document(
        place, line.replace("--model_path ./runs/base", "--model_path ./runs/b")
    )
    start = elsewhere["variables"]["INITIAL_CHECKPOINT_PATH"]
    assert start == str(folder / "checkpoint_150000")
    (folder / "checkpoint_225000").mkdir()
    ran = type_line(place, line)
    assert (ran.rc, ran.error.kind) == (2, errors.CONFLICT)
    (folder / "model_150000.pth").write_bytes(b"PK")
    ran = type_line(place, line)
    assert (ran.rc, ran.error.kind) == (2, errors.UNSUPPORTED)


# Values that change nothing, or that need nothing else.
PLAUSIBLE = {
    "base_model": "t5-small",
    "model_cfg": "models_configs/t5_configs/t5-small.json",
    "init_checkpoint": "pre",
    "model_cls": "transformers:T5ForConditionalGeneration",
    "optimizer": "AdamW",
    "lr_scheduler": "constant",
    "task": "prefix_lm",
    "working_dir": ".",
    "valid_data_path": "shards",
    "vocab": "byte",
}
ALONE = [
    option.name
    for option in options.OPTIONS
    if options.PRETRAINING in option.scripts
    and f"--{option.name}" not in PLAIN
    and option.name not in ("apex_opt_lvl", "reset_iteration")
]


@pytest.mark.parametrize("value", ["off", "usual"])
@pytest.mark.parametrize("name", ALONE)
def test_every_option_has_a_row(place: Place, name: str, value: str) -> None:
    """Off is False or 0, which t5-experiments takes as not given."""
    option = next(option for option in options.OPTIONS if option.name == name)
    text = PLAUSIBLE.get(name, "1")
    if value == "off" and option.type in ("switch", "count", "number"):
        text = "0"
    (place.work / "pre/checkpoint_5").mkdir(parents=True)
    ran = type_line(place, f"{PLAIN} --{name} {text} --dry-run")
    if ran.rc == 2:
        assert len(ran.err.splitlines()) == 1, "refused in one line"
        return
    assert ran.rc == 0, ran.err
    shown = [row["option"].split()[0] for row in json.loads(ran.out)["options"]]
    assert f"--{name}" in shown


ADAFACTOR = "--optimizer Adafactor --scale_parameter"


@pytest.mark.parametrize(
    ("words", "variables", "gin"),
    [
        (
            f"{ADAFACTOR} --lr_scheduler constant_with_warmup --num_warmup_steps 4",
            {"OPTIMIZER": "adafactor", "LEARNING_RATE": "0.001", "WARMUP_STEPS": "4"},
            {
                "adafactor.Adafactor.multiply_by_parameter_scale = True",
                "utils.create_learning_rate_scheduler.factors = 'constant * linear_warmup'",
            },
        ),
        (
            "--optimizer Adafactor --weight_decay 0.1",
            {"OPTIMIZER": "adafactor"},
            {
                "adafactor.Adafactor.multiply_by_parameter_scale = False",
                "adafactor.Adafactor.weight_decay_rate = 0.1",
                "adafactor.Adafactor.weight_decay_rate_lr_exponent = 1.0",
            },
        ),
        (
            "--lr_scheduler linear --num_warmup_steps 3 --num_training_steps 20",
            {"WARMUP_STEPS": "3"},
            {
                "SCHEDULE_STEPS = 20",
                "LAST_RATE = 0.0",
                "utils.create_learning_rate_scheduler.factors = 'linear_decay'",
            },
        ),
        (
            "--lr_scheduler cosine --num_warmup_steps 0",
            {"LEARNING_RATE": "0.001"},
            {
                "utils.create_learning_rate_scheduler.factors = 'constant * cosine_decay'",
                "utils.create_learning_rate_scheduler.steps_per_cycle = 9",
            },
        ),
        ("--fp16 --apex_opt_lvl O1", {"PREC": "bfloat16"}, set()),
        ("--fp16 --apex_opt_lvl O0", {"PREC": "float32"}, set()),
        (
            "--clip_grad_norm 0.5",
            {},
            {
                "optimizer.adamw.clip_norm = 0.5",
                "LOSS_NORMALIZING_FACTOR = 'NUM_REAL_TARGET_TOKENS'",
            },
        ),
        ("--task prefix_lm", {"OBJECTIVE": "prefix_lm"}, set()),
        (
            "--base_model t5-3b",
            {"T5_SIZE": "xl"},
            {"include 'rosetta/t5x/gin/t5_1_0/3B.gin'"},
        ),
        ("--valid_data_path shards --log_interval 5", {"EVAL_PERIOD": "5"}, set()),
        ("--reset_optimizer", {}, {"RESTORE_OPTIMIZER = False"}),
        ("--skip_used_data True", {}, set()),
        # argparse takes the beginning of a name, and an equals sign.
        ("--gradient=2 --batch 3", {"BSIZE_PER_GPU": "6", "NUM_MICROBATCHES": "2"}, set()),
    ],
)
def test_what_an_option_becomes(
    place: Place, words: str, variables: dict[str, str], gin: set[str]
) -> None:
    document = read_document(place, f"{PLAIN} {words}")
    assert variables.items() <= document["variables"].items()
    assert gin <= set(document["gin"])


def test_relative_steps_set_the_rate(place: Place) -> None:
    line = PLAIN.replace("--lr 1e-3", f"{ADAFACTOR} --relative_step")
    factors = "utils.create_learning_rate_scheduler.factors = 'constant * rsqrt_decay'"
    assert factors in read_document(place, line)["gin"]
    warming = (
        "utils.create_learning_rate_scheduler.factors = 'constant * linear_warmup * rsqrt_decay'"
    )
    document = read_document(place, f"{line} --warmup_init")
    assert warming in document["gin"]
    assert document["variables"]["WARMUP_STEPS"] == "10000"


@pytest.mark.parametrize("name", options.REFUSED_OPTIONS)
def test_no_counterpart(place: Place, name: str) -> None:
    """The option is refused by its whole name and by a value after it, and nothing is written."""
    ran = type_line(place, f"{PLAIN} --{name} 1")
    assert (ran.rc, ran.error.kind, ran.error.value) == (2, errors.UNSUPPORTED, name)
    assert ran.error.do
    assert not (place.work / "run").exists()


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("--optimizer Lion", errors.UNKNOWN),
        ("--optimizer Adam --weight_decay 0.1", errors.UNKNOWN),
        ("--lr_scheduler inverse_sqrt", errors.UNKNOWN),
        ("--lr_scheduler linear", errors.MISSING),
        ("--lr_scheduler linear --num_warmup_steps 0", errors.MISSING),
        ("--lr_scheduler linear --num_warmup_steps 9", errors.CONFLICT),
        ("--lr_scheduler cosine --num_warmup_steps 1 --num_training_steps 5", errors.CONFLICT),
        ("--num_warmup_steps 5", errors.CONFLICT),
        ("--scale_parameter", errors.CONFLICT),
        (f"{ADAFACTOR} --weight_decay 0.1", errors.CONFLICT),
        (f"{ADAFACTOR} --relative_step", errors.CONFLICT),
        (f"{ADAFACTOR} --warmup_init", errors.CONFLICT),
        (f"{ADAFACTOR} --clip_grad_norm 1", errors.CONFLICT),
        ("--clip_grad_norm 1 --gradient_accumulation_steps 2 --batch_size 2", errors.CONFLICT),
        ("--apex_opt_lvl O1", errors.CONFLICT),
        ("--fp16 --apex_opt_lvl O3", errors.UNSUPPORTED),
        ("--model_cls my_models:T5", errors.UNSUPPORTED),
        ("--model_cfg nowhere.json", errors.MISSING),
        ("--model_cfg shards", errors.MISSING),
        ("--base_model bert-base", errors.UNKNOWN),
        ("--task mlm", errors.UNKNOWN),
        ("--init_checkpoint nowhere", errors.MISSING),
        ("--init_checkpoint corpus.txt", errors.UNSUPPORTED),
        ("--init_checkpoint corpus.txt --reset_optimizer", errors.MISSING),
        ("--reset_iteration", errors.CONFLICT),
        ("--valid_data_path nowhere", errors.MISSING),
        ("--valid_data_path vocabs", errors.MISSING),
        ("--working_dir nowhere", errors.MISSING),
        ("--lr 2", errors.CONFLICT),
        ("--batch_size many", errors.INVALID),
        ("--batch_size", errors.MISSING),
        ("--fp16 perhaps", errors.INVALID),
        ("--lr_", errors.INVALID),
        ("--itres 5", errors.UNKNOWN),
        ("extra", errors.INVALID),
    ],
)
def test_wrong_input_is_one_line(place: Place, words: str, kind: str) -> None:
    ran = type_line(place, f"{PLAIN} {words}")
    assert (ran.rc, ran.error.kind) == (2, kind), ran.err
    assert len(ran.err.splitlines()) == 1
    assert ran.err.startswith("run_t5_pretraining.py: ")


@pytest.mark.parametrize("option", ["data_path", "model_path", "lr"])
def test_what_a_run_needs(place: Place, option: str) -> None:
    words = PLAIN.split()
    index = words.index(f"--{option}")
    ran = type_line(place, " ".join([*words[:index], *words[index + 2 :]]))
    assert (ran.rc, ran.error.where, ran.error.kind) == (2, f"--{option}", errors.MISSING)


def test_variables_count_where_no_option_is_given(place: Place) -> None:
    document = read_document(place, PLAIN, PREC="bfloat16", ENABLE_FP8="0", BSIZE_PER_GPU="7")
    assert not {"PREC", "BSIZE_PER_GPU"} & document["variables"].keys()
    assert "--gin.BATCH_SIZE=7" in document["argv"]
    ran = type_line(place, f"{PLAIN} --dry-run --batch_size 2", BSIZE_PER_GPU="7")
    assert "BSIZE_PER_GPU=2" in ran.err
    assert json.loads(ran.out)["variables"]["BSIZE_PER_GPU"] == "2"


def test_finetuning(place: Place) -> None:
    """Weights of a checkpoint; those of Hugging Face are in tests/upstream."""
    (place.work / "shards/0.jsonl").write_text('{"inputs": "a", "targets": "b"}\n')
    (place.work / "pre/checkpoint_5").mkdir(parents=True)
    ran = type_line(place, f"{TUNE} --init_checkpoint pre/checkpoint_5")
    assert (ran.rc, ran.error.kind) == (2, errors.UNSUPPORTED)
    config = {
        "vocab_size": "384",
        "emb_dim": "64",
        "num_heads": "2",
        "head_dim": "32",
        "mlp_dim": "128",
        "num_encoder_layers": "2",
        "num_decoder_layers": "1",
        "mlp_activations": "('gelu', 'linear')",
        "logits_via_embedding": "False",
        "relative_bias": "stack",
        "dtype": "float32",
    }
    record = checkpoint_record.Record(5, scale_attn_logits=False, config=config)
    text = checkpoint_record.render_record(record)
    (place.work / "pre/checkpoint_5/rosetta.json").write_text(text)
    line = f"{TUNE} --init_checkpoint pre/checkpoint_5 --iters 7 --seed 3 --data_n_workers 2"
    document = read_document(place, line)
    assert {
        "FT_TASK": "pairs",
        "FT_STEPS": "7",
        "FT_DIR": str(place.work / "run"),
        "INITIAL_CHECKPOINT_PATH": str(place.work / "pre/checkpoint_5"),
        "ROSETTA_DATA_WORKERS": "2",
    }.items() <= document["variables"].items()
    assert {"RANDOM_SEED = 3", "  num_decoder_layers = 1"} <= set(document["gin"])
    for words, where in (
        ("", "--from_pretrained"),
        ("--from_pretrained hf --init_checkpoint pre/checkpoint_5", "--init_checkpoint"),
        ("--init_checkpoint pre/checkpoint_5 --model_cfg a.json", "--model_cfg"),
        ("--init_checkpoint pre/checkpoint_5 --model_type encoder", "--model_type"),
        ("--init_checkpoint hf", "--init_checkpoint"),
    ):
        (place.work / "hf").mkdir(exist_ok=True)
        (place.work / "hf/config.json").write_text(json.dumps(CONFIG))
        ran = type_line(place, f"{TUNE} {words}")
        assert (ran.rc, ran.error.where.split()[0]) == (2, where)


BERT_CONFIG: dict[str, Any] = {
    "architectures": ["BertForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "pad_token_id": 3,
    "transformers_version": "4.6.0.dev0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 32000,
}
BERT = (
    "run_bert_pretraining.py --data_path shards/0.jsonl --model_path run --lr 1e-3 --iters 9 "
    "--model_cfg bert.json"
)


def type_bert(place: Place, words: str = "", vocab: str = "byte", **changes: Any) -> Ran:
    (place.work / "bert.json").write_text(json.dumps({**BERT_CONFIG, **changes}))
    return type_line(place, f"{BERT}{words}", VOCAB=vocab)


def test_the_run_of_a_bert(place: Place) -> None:
    ran = type_bert(place, " --input_seq_len 64 --mlm_prob 0.2 --seed 3 --dry-run")
    assert ran.rc == 0, ran.err
    variables = json.loads(ran.out)["variables"]
    assert variables["T5_FAMILY"] == "bert"
    assert variables["OBJECTIVE"] == "mlm_whole_word_sop"
    assert variables["ENC_SL"] == "64"
    assert "DEC_SL" not in variables
    gin = json.loads(ran.out)["gin"]
    for line in (
        "dataset.task.noise_density = 0.2",
        "RANDOM_SEED = 3",
        "  norm_order = 'post'",
        "  positions = 'absolute'",
        "  mlp_activations = ('gelu_exact',)",
        "SCALE_ATTN_LOGITS = True",
    ):
        assert line in gin
    ran = type_bert(
        place, " --use_nsp 0 --dry-run", pre_layer_norm=True, last_layer_norm=True,
        position_embedding_type="rotary", rotary_base=10000,
    )  # fmt: skip
    document = json.loads(ran.out)
    assert document["variables"]["OBJECTIVE"] == "mlm_whole_word"
    assert {"  norm_order = 'pre'", "  positions = 'rotary'"} <= set(document["gin"])


@pytest.mark.parametrize(
    ("words", "changes", "kind"),
    [
        ("", {"pre_layer_norm": True}, errors.UNSUPPORTED),
        ("", {"position_embedding_type": "relative_key"}, errors.UNSUPPORTED),
        ("", {"position_embedding_type": "rotary", "rotary_dim": 8}, errors.UNSUPPORTED),
        ("", {"sparse_config_cls": "deepspeed:FixedSparsityConfig"}, errors.UNSUPPORTED),
        ("", {"sparse_attention": {"attention": "fixed"}}, errors.UNKNOWN),
        ("", {"model_type": "t5"}, errors.UNSUPPORTED),
        ("", {"unheard_of": 1}, errors.UNSUPPORTED),
        (" --model_cls modeling_rmt:Net", {}, errors.UNSUPPORTED),
        (" --valid_data_path nowhere", {}, errors.MISSING),
        (" --target_seq_len 9", {}, errors.UNKNOWN),
    ],
)
def test_berts_that_are_refused(
    place: Place, words: str, changes: dict[str, Any], kind: str
) -> None:
    ran = type_bert(place, f"{words} --dry-run", **changes)
    assert (ran.rc, ran.error.kind) == (2, kind)
    assert len(ran.err.splitlines()) == 1


def test_a_bert_needs_a_tokenizer(place: Place) -> None:
    ran = type_bert(place, " --dry-run", vocab="")
    assert (ran.rc, ran.error.kind) == (2, errors.MISSING)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("--gloo python run_t5_pretraining.py", errors.MISSING),
        ("-np 0 python run_t5_pretraining.py", errors.INVALID),
        ("-np", errors.INVALID),
        ("-np 2 -H a:4,b:4 python run_t5_pretraining.py", errors.UNSUPPORTED),
        ("-np 2 --timeline t.json python run_t5_pretraining.py", errors.INVALID),
        ("-np 2 python train.py", errors.UNSUPPORTED),
        ("-np 2", errors.UNSUPPORTED),
    ],
)
def test_horovodrun_refuses_the_rest(place: Place, words: str, kind: str) -> None:
    ran = type_line(place, f"horovodrun {words}")
    assert (ran.rc, ran.error.kind) == (2, kind)
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("script", options.SCRIPTS)
def test_help_lists_every_option(place: Place, script: str) -> None:
    ran = type_line(place, f"{script}.py --help")
    assert ran.rc == 0
    shown = {word.rstrip(":") for word in ran.out.split() if word.startswith("--")}
    names = {option.name for option in options.OPTIONS if script in option.scripts}
    assert {f"--{name}" for name in names | set(options.REFUSED_OPTIONS)} <= shown


def test_the_rate_of_each_schedule() -> None:
    """Polynomial decay ends at transformers' last rate, and not at zero."""
    values = options.fill_defaults(
        options.PRETRAINING,
        {"lr": 1e-3, "lr_scheduler": "polynomial", "num_warmup_steps": 2, "iters": 10},
    )
    last = schedule.choose_training(values).gin["LAST_RATE"]
    assert last * 1e-3 == pytest.approx(1e-7)


@pytest.mark.slow
@pytest.mark.shell
def test_programs_by_their_paths(place: Place) -> None:
    """The files of the overlay start what the tests above call."""
    folder = OVERLAY / SCRIPTS
    words = [word.replace("~", str(place.work), 1) for word in shlex.split(BASELINE)[1:]]
    ran = place.start(str(folder / "horovodrun"), *words, "--dry-run", DATA="")
    assert ran.rc == 2, ran.err  # the overlay alone is not a tree of T5X
    for name in ("horovodrun", "run_t5_pretraining.py"):
        (place.tree / SCRIPTS / name).write_bytes((folder / name).read_bytes())
        (place.tree / SCRIPTS / name).chmod(0o755)
    ran = place.start(str(place.tree / SCRIPTS / "horovodrun"), *words, DATA="")
    assert ran.rc == 0, ran.err
    assert read_gin_bindings(ran)["BATCH_SIZE"] == "128"
