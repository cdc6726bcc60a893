"""The valid values of variables that have a fixed set of values."""

from __future__ import annotations

# Precision and kernels.
ATTENTION = ("xla", "cudnn", "te")
REMAT = ("none", "minimal", "full")
T5X_PRECISIONS = ("bfloat16", "float32", "float16")
PAX_PRECISIONS = ("bfloat16", "float32")
GRADIENT_TYPES = ("float32", "bfloat16")
LOGITS_TYPES = ("float32", "bfloat16")
JAX_PLATFORMS = ("cpu", "cuda", "gpu", "tpu", "rocm")
SELFTEST_PLATFORMS = ("cpu", "cuda")

# Programs.
LOG_LEVELS = ("debug", "info", "warning", "error")

# Health.
ON_BAD_LOSS = ("stop", "skip", "ignore")
ON_FULL_DISK = ("once", "stop")
BAD_RECORDS = ("stop", "skip")
CHANGED_DATA = ("stop", "accept")

# Models and tasks.
PAIRS = "pairs"  # the user's own records, with the fields `inputs` and `targets`
TEXT_TO_TEXT = "text_to_text"  # the objective of such records, and another name of that task
LABEL_TASKS = ("classification", "regression")  # of encoders
FINETUNING_TASKS = ("mnli2", "squad1", PAIRS, TEXT_TO_TEXT, *LABEL_TASKS)
SEQIO_PREFIX = "task:"  # before the name of a task that is registered with SeqIO
# Of encoders: the model predicts hidden tokens (BERT), or whole words, and with nsp or sop also how
# the two texts of a row belong together.
MASKED_OBJECTIVES = (
    "mlm",
    "mlm_nsp",
    "mlm_sop",
    "mlm_whole_word",
    "mlm_whole_word_nsp",
    "mlm_whole_word_sop",
)
PRETRAINING_OBJECTIVES = ("span_corruption", "prefix_lm", "ul2", TEXT_TO_TEXT, *MASKED_OBJECTIVES)
OPTIMIZERS = ("adamw", "adamw_rms", "adafactor", "muon")
LINEAR = "linear"
T5X_SCHEDULES = (LINEAR, "cosine")
LORA_LAYERS = ("all", "attention", "mlp")
LORA_TARGETS = ("query", "key", "value", "out", "wi", "wo", *LORA_LAYERS)  # of T5
LORA_DEFAULT_TARGETS = ("query", "value")
LEARNING_RATE_SCHEDULES = (
    "linear_rampup_cosine_decay",
    "linear_rampup_exponential_decay",
    "constant",
)
# The sizes and families that rosetta ships. The user's own tree of T5X may have more.
T5_SIZES = ("tiny", "small", "base", "large", "xl", "xxl")
ENCODER_FAMILIES = ("bert", "t5_encoder")  # have no decoder
T5_FAMILIES = ("t5_1_1", "t5_1_0", "mt5", "umt5", "byt5", "decoder_only", *ENCODER_FAMILIES)
