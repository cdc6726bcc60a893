"""Describe each hyper-parameter of rosetta's experiments in a sentence.

docs/reference/pax-experiments.md is generated from these descriptions. A test compares the names
with those that the experiments state.
"""

from __future__ import annotations

# The hyper-parameters that change nothing in a kind of model, because the model replaces the layers
# that read them.
UNREAD = {
    "GLaM": (
        "ACTIVATION_CLS",
        "ATTEN_LOGIT_CAP",
        "DROPOUT_PROB",
        "EMBEDDING_LOOKUP_STYLE",
        "INPUT_DROPOUT_PROB",
        "LAYERNORM_EPSILON",
        "PARALLEL_RESIDUAL",
        "ROPE_THETA",
        "ROTARY_FRACTION",
        "SEPARATE_EMBEDDING",
        "SOFTMAX_CAP_LOGITS",
        "SOFTMAX_INIT_STD",
        "TRAINABLE_POSITION_EMB",
        "USE_BIAS",
        "USE_GATED_ACTIVATION",
    ),
    "LLaMA": (
        "ATTEN_LOGIT_CAP",
        "SEPARATE_EMBEDDING",
        "SOFTMAX_CAP_LOGITS",
        "TRAINABLE_POSITION_EMB",
        "USE_BIAS",
    ),
}
# The descriptions by subject and name.
HELP: dict[str, dict[str, str]] = {
    "Data": {
        "DATA": "Data to train on. None: the variable `DATA`, or else the experiment's own data.",
        "EVAL_DATA": (
            "Data to evaluate on. None: the variable `EVAL_DATA`, or else the data set's own split."
        ),
        "VOCAB": (
            "A SentencePiece model, a tokenizer.json, or `byte`. None: the variable `VOCAB_PATH`."
        ),
        "MAX_SEQ_LEN": "Tokens of a row.",
        "PERCORE_BATCH_SIZE": "Rows of a batch for one GPU. It may be a fraction.",
        "PACKED_INPUT": (
            "True: documents that share a row are separate segments, and attention stays inside "
            "each."
        ),
        "TEXT_FIELD": "Field or column of records that has the text.",
        "SEED": "Seed of the order of the data.",
        "TRAIN_INPUT_RANDOM_SEED": "Upstream's name for `SEED`. If both are set, this one wins.",
        "BOS_ID": "Token that the model reads at the start of a segment.",
        "EVAL_TASK": (
            "Accuracy that an evaluation reports: `lambada`, `boolq`, or None for the loss alone."
        ),
        "EVAL_BATCHES": "Batches of an evaluation. -1: all.",
        "TRUE_TOKEN": "Token of BoolQ's answer yes. None: the token of `yes` in the vocabulary.",
        "FALSE_TOKEN": "Token of BoolQ's answer no. None: the token of `no` in the vocabulary.",
    },
    "Model": {
        "MODEL_CLASS": "Class of Praxis that computes the loss.",
        "NUM_LAYERS": "Layers. GLaM needs an even number.",
        "MODEL_DIMS": "Width of the model. It is `NUM_HEADS` x `DIMS_PER_HEAD`.",
        "NUM_HEADS": "Heads of attention.",
        "DIMS_PER_HEAD": "Width of a head. None: `MODEL_DIMS` / `NUM_HEADS`.",
        "HIDDEN_DIMS": "Width of the feed-forward layers.",
        "VOCAB_SIZE": "Rows of the embedding. The vocabulary has at most as many tokens.",
        "USE_MQA": "True: several heads of queries share keys and values.",
        "NUM_KV_HEADS": "Heads of keys and values, if `USE_MQA` is True.",
        "ACTIVATION_CLS": (
            "Activation: a class of `praxis.layers.activations`, its name, or `ExactGELU`. `GELU` "
            "is the approximation by tanh."
        ),
        "USE_GATED_ACTIVATION": "True: feed-forward layers are gated.",
        "USE_BIAS": "True: the projections of attention have biases.",
        "SEPARATE_EMBEDDING": "True: the embedding and the output layer have weights of their own.",
        "EMBEDDING_LOOKUP_STYLE": (
            "How rows of the embedding are found: `exact` (by index, with gradients added up in "
            "float32), `matmul` (a product with one-hot rows) or `index` (with gradients added up "
            "in `FPROP_DTYPE`). JAX 0.4 uses `matmul` for `exact`."
        ),
        "TRAINABLE_POSITION_EMB": "True: positions are learned, up to `MAX_SEQ_LEN`.",
        "ATTEN_LOGIT_CAP": "Cap of the logits of attention. 0 or less: none.",
        "SOFTMAX_CAP_LOGITS": "Cap of the logits of the output. None or 0: none.",
        "LAYERNORM_EPSILON": "Epsilon of the layer norms.",
        "RMS_NORM_EPSILON": "Epsilon of the RMS norms.",
        "ROTARY_FRACTION": (
            "Share of the features of a head that rotary positions turn, as in GPT-NeoX, in place "
            "of learned positions. None: learned positions."
        ),
        "PARALLEL_RESIDUAL": "True: attention and MLP read the same input, as in GPT-NeoX.",
        "ROPE_THETA": "Base of the wavelengths of rotary positions. LLaMA 3 has 500,000.",
        "ROPE_SCALING": (
            "Scaling of rotary positions: the factor, the low and the high factor of the "
            "frequencies, and the original length. None: no scaling. LLaMA 3.1 has "
            "`[8,1,4,8192]`."
        ),
        "INIT_STD": "Standard deviation of initial weights.",
        "SOFTMAX_INIT_STD": "Standard deviation of the initial embedding.",
        "DROPOUT_PROB": "Dropout inside the layers.",
        "INPUT_DROPOUT_PROB": (
            "Dropout of the input of the stack of layers, or of each layer if layers are repeated."
        ),
        "NUM_EXPERTS": "Experts of every second layer.",
        "CAPACITY_FACTOR": "Tokens that an expert takes, relative to even routing.",
        "GROUPS_PER_PART": (
            "Groups of tokens that are routed together, in each part that data and fsdp make "
            "of a batch."
        ),
        "LOAD_BALANCING_WEIGHT": "Weight of the loss that evens out the use of experts.",
        "Z_LOSS_WEIGHT": "Weight of the z-loss of the output's logits.",
    },
    "Mesh, precision and memory": {
        "ICI_MESH_SHAPE": "Mesh within a node: [data, fsdp, tensor].",
        "DCN_MESH_SHAPE": "Mesh across nodes: [data, fsdp, tensor].",
        "FPROP_DTYPE": "Type of activations: `bfloat16` or `float32`. Weights are float32.",
        "NUM_MICROBATCHES": "Microbatches of a step: parts of the batch, one after another.",
        "USE_REPEATED_LAYER": "True: one layer is compiled and repeated. Compilation is shorter.",
        "CHECKPOINT_POLICY": (
            "What repeated layers keep for the backward pass, such as `save_nothing`, "
            "`save_dot_with_no_batch_dims` (products with weights) or `save_dot_and_attention` "
            "(also the output of cuDNN's attention). Everything else is computed again."
        ),
    },
    "Switches": {
        "USE_FP8": "True: products with weights are in FP8, by XLA.",
        "FUSED_GELU": (
            "With `USE_FP8`, whether one kernel computes bias and GELU of feed-forward layers. "
            "None: on GPUs, where it can. True: the same, and a line says why if it cannot."
        ),
        "ENABLE_TE": (
            "True: layers by Transformer Engine. None: the variable `ENABLE_TE`, or else False."
        ),
        "ENABLE_FP8": (
            "True: FP8 by Transformer Engine, or by XLA if `ENABLE_TE` is False. None: the "
            "variable `ENABLE_FP8`, or else False."
        ),
        "ATTENTION": (
            "What computes attention: `xla`, `cudnn` or `te`. None: `te` with `ENABLE_TE`, else "
            "`xla`."
        ),
        "USE_CUDNN_FLASH_ATTENTION": "Upstream's name for `ATTENTION=cudnn`.",
        "USE_LORA": "True: train LoRA adapters, and nothing else.",
        "LORA_RANK": "Rank of the adapters.",
        "LORA_TARGET_LAYERS": "Layers that get adapters: `all`, `attention` or `mlp`.",
    },
    "Optimizer and learning rate": {
        "MAX_STEPS": "Step at which the run ends.",
        "LEARNING_RATE": "Learning rate, which the schedule multiplies.",
        "ADAM_BETA1": "Decay of the mean of the gradients.",
        "ADAM_BETA2": "Decay of the mean of the squared gradients.",
        "ADAM_EPSILON": "Number that is added to the root of the mean of squares.",
        "ADAM_EPSILON_ROOT": "Number that is added under the root of the mean of squares.",
        "ADAM_CLIP_THRESHOLD": "Largest root mean square of an update. 0 or less: none.",
        "WEIGHT_DECAY": "Weight decay.",
        "CLIP_GRADIENT_NORM_TO_VALUE": "Largest norm of all gradients together.",
        "LR_SCHEDULE": (
            "`linear_rampup_cosine_decay`, `linear_rampup_exponential_decay` or `constant`."
        ),
        "LR_COS_WARMUP": "Cosine: steps over which the rate rises.",
        "LR_COS_DECAY_START": "Cosine: step at which the decay begins. None: after the warm-up.",
        "LR_COS_DECAY_END": "Cosine: step at which the decay ends.",
        "LR_COS_MIN_RATIO": "Cosine: the lowest rate, as a share of the highest.",
        "LR_COS_MAX": "Cosine: the highest value of the schedule.",
        "LR_LRED_WARMUP": "Exponential: steps over which the rate rises.",
        "LR_LRED_DECAY_START": (
            "Exponential: step at which the decay begins. None: after the warm-up."
        ),
        "LR_LRED_DECAY_END": "Exponential: step at which the decay ends.",
        "LR_LRED_MIN_RATIO": "Exponential: the lowest rate, as a share of the highest.",
        "LR_LRED_MAX": "Exponential: the highest value of the schedule.",
    },
    "Checkpoints and reports": {
        "CHECKPOINT_EVERY_N_STEPS": "Steps from one checkpoint to the next.",
        "CHECKPOINT_MAX_TO_KEEP": "Checkpoints that are kept, the newest ones.",
        "CHECKPOINT_RESTORE_PATH": (
            "Run, or its folder `checkpoints`, or one `checkpoint_N`, whose weights training "
            "starts from."
        ),
        "CHECKPOINT_IGNORE_RULES": (
            "Patterns of variables that are not read from `CHECKPOINT_RESTORE_PATH`, as a list."
        ),
        "EVAL_INTERVAL_STEPS": "Steps from one evaluation during training to the next.",
        "SUMMARY_INTERVAL_STEPS": "Steps from one report to the next.",
    },
}
