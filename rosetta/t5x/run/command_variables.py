"""The variables that each subcommand of `rosetta t5x` reads, and the scripts it stands for."""

from __future__ import annotations

from rosetta.health import settings as health

SCRIPTS = {"pretrain": "multiprocess_pretrain_pile", "finetune": "multiprocess_ft_frompile"}


_ALL = (
    "T5_SIZE",
    "PREC",
    "TP_SIZE",
    "ENC_SL",
    "DEC_SL",
    "DATA",
    "EVAL_DATA",
    "VOCAB",
    "EXTRA_IDS",
    "TEXT_FIELD",
    "TFDS_DATA_DIR",
    "ENABLE_FP8",
    "ENABLE_TE",
    "TRANSPOSE_BS",
    "FUSE_QKV",
    "ATTENTION",
    "REMAT",
    "SCAN_LAYERS",
    "ROSETTA_GIN",
    "ROSETTA_BATCH_LOG",
    "ROSETTA_DATA_WORKERS",
    "BASE_XLA_FLAGS",
    "XLA_FLAGS",
    "PYTHON",
    "JAX_PLATFORMS",
    "JAX_COMPILATION_CACHE_DIR",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "ROSETTA_PRESET",
    "ROSETTA_WITH",
    "ROSETTA_SITE",
    "ROSETTA_DOCTOR",
)


_TRAINING = (
    *_ALL,
    "NUM_GPUS",
    "BSIZE_PER_GPU",
    "NUM_MICROBATCHES",
    "FSDP",
    "GRADIENT_DTYPE",
    "TRAIN_STEPS",
    "WARMUP_STEPS",
    "LEARNING_RATE",
    "SAVE_PERIOD",
    "EVAL_PERIOD",
    "MODEL_DIR",
    "INITIAL_CHECKPOINT_PATH",
    "CHECKPOINT_DISABLE",
    "PACK",
    "BENCHMARK_MODE",
    "WITH_NSYS",
    "NSYS",
    "T5X_DIR",
    "T5X_WORKSPACE_DIR",
    *health.VARIABLES,
)


_READING = (*_ALL, "FT_TASK", "T5_FAMILY", "BSIZE", "CHECKPOINT_PATH", "OUTPUT_DIR", "NUM_DECODES")


VARIABLES = {
    "pretrain": _TRAINING,
    "finetune": (*_TRAINING, "FT_TASK", "FT_STEPS", "FT_DIR", "MAKE_FT_DIR"),
    "eval": _READING,
    "infer": _READING,
}
