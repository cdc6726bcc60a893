"""The settings of T5X runs that Pax does not have, or reads in another way."""

from __future__ import annotations

from rosetta.core.variables import choices
from rosetta.core.variables.declaration import Group, Note, Variable
from rosetta.core.variables.readers import (
    SINGLE_NODE_FINETUNE,
    SINGLE_NODE_PRETRAIN,
    T5X,
    T5X_EVAL,
    T5X_FINETUNE,
    T5X_INFER,
    T5X_PRETRAIN,
    T5X_READING,
    T5X_SLURM_FILES,
    T5X_TRAINING,
    TRAINER,
)
from rosetta.core.variables.value_types import (
    Choice,
    DataSource,
    File,
    Folder,
    Name,
    NameList,
    Number,
    Text,
    TruthValue,
    Vocabulary,
    WholeNumber,
)

_HUGGING_FACE = (
    "hf:OWNER/NAME[@REVISION] or a folder with a T5 of Hugging Face is converted first, into "
    "ROSETTA_HOME."
)

T5X_SETTINGS = (
    Variable(
        "T5_SIZE",
        Name("a size of the model family", "SIZE", choices.T5_SIZES),
        "Size of the model. tiny is for first tries.",
        Group.MODEL,
        T5X,
        default="large",
        example="small",
        argument_name="SIZE",
        page="reference/gin-files.md",
    ),
    Variable(
        "T5_FAMILY",
        Name("a family of models", "FAMILY", choices.T5_FAMILIES),
        "Family of the model. bert and t5_encoder are encoders without a decoder.",
        Group.MODEL,
        T5X,
        default="t5_1_1",
        example="mt5",
        page="reference/gin-files.md",
    ),
    Variable(
        "FT_TASK",
        Name("a task", "TASK", (*choices.FINETUNING_TASKS, f"{choices.SEQIO_PREFIX}NAME")),
        "Task to finetune on or to evaluate. Encoders have classification and regression.",
        Group.MODEL,
        (T5X_FINETUNE, *T5X_READING),
        default=Note("none (required)"),
        default_for={SINGLE_NODE_FINETUNE: "mnli2"},
        example="squad1",
        details=(
            "With pairs, each record of DATA has a text `inputs` and a text `targets`, as in "
            "DATA=csv:train.csv EVAL_DATA=csv:test.csv. TEXT_FIELD names other fields. Their "
            "accuracy is the share of answers that equal the target. text_to_text is another name "
            "of pairs. task:NAME is the task or mixture that SeqIO knows by this name, with its "
            "own data and metrics: one of T5, or one that TASK_MODULE registers. Tasks of GLUE and "
            "SuperGLUE also read files, as in DATA=jsonl:train.jsonl. An encoder takes "
            "classification, whose targets are in LABELS, or regression, whose targets are numbers."
        ),
        page="how-to/finetune-on-your-pairs.md",
    ),
    Variable(
        "LABELS",
        Text("the names of the classes, with commas", "NAME,NAME"),
        "Classes of FT_TASK=classification, in the order of the model's outputs.",
        Group.MODEL,
        (T5X_FINETUNE, *T5X_READING),
        default=Note("none"),
        example="negative,positive",
        details=(
            "A record has the name of its class, or its number in this order, from 0, as in the "
            "data sets of Hugging Face and TensorFlow Datasets."
        ),
        page="how-to/train-bert-and-encoders.md",
    ),
    Variable(
        "TASK_MODULE",
        Text("a Python file, or a module that can be imported", "FILE.py|MODULE"),
        "Python code that registers tasks with SeqIO, for FT_TASK=task:NAME and DATA=task:NAME.",
        Group.MODEL,
        T5X,
        default=Note("t5.data.mixtures, which has the tasks of T5"),
        example="my_tasks.py",
        page="how-to/finetune-on-your-pairs.md#finetune-on-a-task-of-seqio",
    ),
    Variable(
        "MODEL",
        Text("a class of a Python module or file", "MODULE:CLASS|FILE.py:CLASS"),
        "Flax module of your own that is trained instead of a T5.",
        Group.MODEL,
        T5X,
        default=Note("a T5 of T5_SIZE"),
        example="my_model.py:MyModel",
        details=(
            "The class takes a batch of T5X's features and returns logits. T5_SIZE and the "
            "settings of rosetta's networks, such as ATTENTION and REMAT, are refused with it."
        ),
        page="how-to/train-your-own-model.md",
    ),
    Variable(
        "OBJECTIVE",
        Choice(choices.PRETRAINING_OBJECTIVES, "NAME"),
        "What the model learns from the text: to fill gaps, to continue a text, or to answer.",
        Group.MODEL,
        (T5X_PRETRAIN, T5X_EVAL),
        default=Note("span_corruption"),
        example="prefix_lm",
        details=(
            "ul2 is UL2's mixture of denoisers. It needs longer targets and more sentinels than "
            "span_corruption: for ENC_SL=512 set DEC_SL=512 and EXTRA_IDS=128. "
            "With text_to_text, each record of DATA has a text `inputs` and a text `targets`. "
            "Encoders have mlm and mlm_whole_word (the default): tokens or whole words are hidden. "
            "_nsp and _sop add the prediction of the next sentence or of the order of two texts. A "
            "run that resumes must have the objective that it began with. Evaluation takes those "
            "of encoders, in place of FT_TASK."
        ),
        page="how-to/train-with-other-objectives.md",
    ),
    Variable(
        "ROSETTA_GIN",
        File(),
        "Gin file that is read last, for parameters without a variable. Variables win over it.",
        Group.MODEL,
        T5X,
        example="my_run.gin",
        page="how-to/change-gin-settings.md",
    ),
    Variable(
        "DATA",
        DataSource(),
        "Data to train on; for eval and infer, the data to read.",
        Group.DATA,
        T5X,
        default=Note("the Pile; finetuning, eval and infer: MNLI or SQuAD in TFDS_DATA_DIR"),
        example="'text:/data/*.txt'",
        details="A JSON object mixes several sources, each with its share.",
        page="reference/data-sources.md",
    ),
    Variable(
        "INPUTS",
        Text("a file, or - for standard input", "FILE|-"),
        "Plain text to answer, an input on each line, in place of DATA. FT_TASK is pairs.",
        Group.DATA,
        (T5X_INFER,),
        default=Note("none"),
        example="questions.txt",
        page="how-to/evaluate-and-infer.md#answer-the-lines-of-a-text",
    ),
    Variable(
        "EVAL_DATA",
        DataSource(),
        "Data to evaluate on.",
        Group.DATA,
        T5X,
        default=Note("none"),
        default_for={
            T5X_FINETUNE: Note("the validation split of MNLI or SQuAD; none with DATA"),
            **dict.fromkeys(T5X_READING, Note("DATA, else the validation split of the task")),
        },
        example="jsonl:dev.jsonl",
        details=(
            "Pretraining reports the loss on this data every EVAL_PERIOD steps. Finetuning also "
            "reports the metrics of the task."
        ),
        page="reference/data-sources.md",
    ),
    Variable(
        "VOCAB",
        Vocabulary(),
        "Vocabulary: a SentencePiece model, a model of Hugging Face, or byte.",
        Group.DATA,
        T5X,
        default=Note("T5's vocabulary, which has to be copied from its bucket first"),
        example="/data/sp.model",
        details=(
            "The model needs at least as many rows as the vocabulary has ids. The tokenizer of a "
            "model of Hugging Face also says how many sentinels to add: hf:OWNER/NAME[@REVISION], "
            "or a folder of that layout."
        ),
        page="how-to/prepare-data.md",
    ),
    Variable(
        "EXTRA_IDS",
        WholeNumber(minimum=0),
        "Sentinels to add to the vocabulary.",
        Group.DATA,
        T5X,
        default=Note("none for bytes or a model with sentinels of its own, else 100"),
        unit="sentinels",
        example="125",
        details=(
            "Sentinels are the ids that mark masked spans of text. A run that resumes keeps the "
            "number that it began with."
        ),
        page="how-to/prepare-data.md#set-the-number-of-sentinels",
    ),
    Variable(
        "TEXT_FIELD",
        Text("the name of a field, or those of the fields of pairs", "NAME|NAME,NAME"),
        "Field or column of records that has the text, or the fields of pairs.",
        Group.DATA,
        T5X,
        default="text",
        example="content",
        details=(
            "FT_TASK=pairs takes two names, of the inputs and of the targets, as in "
            "TEXT_FIELD=question,answer. Its default is inputs,targets. Classification and "
            "regression also take two texts: TEXT_FIELD=premise,hypothesis,label."
        ),
        page="how-to/finetune-on-your-pairs.md",
    ),
    Variable(
        "INPUT_PREFIX",
        Text("a text", "TEXT"),
        "Text before the inputs of each record, such as a mode token of UL2.",
        Group.DATA,
        T5X,
        default=Note("none"),
        example="[S2S]",
        details=(
            "A blank parts the prefix from the inputs. A run that trains on records, evaluation "
            "and inference take it, so that all of them read the same inputs."
        ),
        page="how-to/train-with-other-objectives.md#finetune-evaluate-and-infer-with-a-mode-token",
    ),
    Variable(
        "TFDS_DATA_DIR",
        Folder(remote=True),
        "Folder of data sets that TensorFlow Datasets has prepared.",
        Group.DATA,
        (*T5X, TRAINER),
        default="/t5x_home/datasets",
        owner="TensorFlow Datasets",
        page="reference/data-sources.md",
    ),
    Variable(
        "ENC_SL",
        WholeNumber(),
        "Length of the inputs.",
        Group.DATA,
        T5X,
        default=Note("512; SQuAD: 956"),
        unit="tokens",
        example="512",
        details="Longer records are cut, and shorter ones are filled with padding.",
    ),
    Variable(
        "DEC_SL",
        WholeNumber(),
        "Length of the targets.",
        Group.DATA,
        T5X,
        default=Note("128; MNLI: 16; SQuAD: 256"),
        unit="tokens",
        example="128",
        details=(
            "Span corruption of 512 inputs makes up to 114 targets, and of 1024 inputs up to 229. "
            "A run whose targets have less room is refused."
        ),
    ),
    Variable(
        "PACK",
        TruthValue(),
        "1: put several short examples into one row.",
        Group.DATA,
        T5X_TRAINING,
        default="0",
        details=(
            "A row then holds several examples, and each example attends only to itself, so that "
            "less of a batch is padding. PACK helps with short pairs, as in finetuning. Do not use "
            "PACK for running text: its rows are full already."
        ),
        page="explanation/data-order.md#packing-pack1-what-it-does-and-when-not-to-use-it",
    ),
    Variable(
        "NUM_GPUS",
        WholeNumber(),
        "GPUs of the run. With fewer than are visible, the first ones are used.",
        Group.BATCH,
        T5X_TRAINING,
        default=Note("the visible GPUs; with several processes: one for each process"),
        unit="GPUs",
        example="8",
        passed_to_run=False,
        details="On the CPU, the run has as many virtual devices.",
    ),
    Variable(
        "BSIZE_PER_GPU",
        WholeNumber(),
        "Sequences for each GPU. The global batch is NUM_GPUS x BSIZE_PER_GPU / TP_SIZE.",
        Group.BATCH,
        T5X_TRAINING,
        default="32",
        unit="sequences",
        preset_field="batch.per_gpu",
        details=(
            "With TP_SIZE=2, two GPUs share BSIZE_PER_GPU sequences. If the GPU runs out of "
            "memory, raise NUM_MICROBATCHES first, because the batch then stays the same."
        ),
    ),
    Variable(
        "BSIZE",
        WholeNumber(),
        "Sequences of a batch, over all GPUs.",
        Group.BATCH,
        T5X_READING,
        default="32",
        unit="sequences",
    ),
    Variable(
        "NUM_MICROBATCHES",
        WholeNumber(),
        "Parts of a batch whose gradients are added up. It has to divide BSIZE_PER_GPU.",
        Group.BATCH,
        T5X_TRAINING,
        default="1",
        unit="microbatches",
        example="4",
        preset_field="batch.microbatches",
        argument_name="GRAD_ACCUM",
        details=(
            "The parts are computed one after the other (gradient accumulation), so that "
            "activations need less memory. The batch and its loss stay the same."
        ),
        page="reference/t5x-switches.md#num_microbatches",
    ),
    Variable(
        "TP_SIZE",
        WholeNumber(),
        "GPUs that share one copy of the model (tensor parallelism).",
        Group.BATCH,
        T5X,
        default="1",
        unit="GPUs",
        example="2",
        details=(
            "TP_SIZE has to divide NUM_GPUS, the heads, the width of the MLP and the rows of the "
            "vocabulary. The GPUs that share a model are neighbours."
        ),
        page="reference/t5x-switches.md#tp_size",
    ),
    Variable(
        "FSDP",
        TruthValue(),
        "1: each GPU only keeps its share of the parameters and of the optimizer's state.",
        Group.BATCH,
        T5X_TRAINING,
        default="0",
        details=(
            "FSDP saves memory, and the loss stays the same. Each layer gathers its parameters "
            "in the type that it computes in. "
            "The checkpoints of FSDP=1 and FSDP=0 are the same, so a run may resume with either."
        ),
        page="reference/t5x-switches.md#fsdp",
    ),
    Variable(
        "GRADIENT_DTYPE",
        Choice(choices.GRADIENT_TYPES, "TYPE"),
        "Type in which gradients are added up over GPUs, once a step.",
        Group.BATCH,
        T5X_TRAINING,
        default=Note("XLA's choice"),
        example="float32",
        page="reference/t5x-switches.md#gradient_dtype",
    ),
    Variable(
        "NUM_DECODES",
        WholeNumber(),
        "Sequences that beam search keeps at a time (beam size).",
        Group.BATCH,
        T5X_READING,
        default=Note("the value in the gin file"),
        unit="sequences",
        example="4",
        details="With TEMPERATURE, TOP_K or TOP_P: sequences that are drawn; the likeliest counts.",
    ),
    Variable(
        "TEMPERATURE",
        Number("T", above_zero=True),
        "Draw tokens by chance instead of by beam search, with logits divided by this number.",
        Group.BATCH,
        (T5X_INFER,),
        default=Note("none: beam search; 1 with TOP_K or TOP_P"),
        example="0.7",
        page="how-to/evaluate-and-infer.md#choose-how-answers-are-found",
    ),
    Variable(
        "TOP_K",
        WholeNumber(minimum=0),
        "Draw from so many of the likeliest tokens. 0: from all.",
        Group.BATCH,
        (T5X_INFER,),
        default=Note("none: beam search; 0 with TEMPERATURE or TOP_P"),
        unit="tokens",
        example="40",
        page="how-to/evaluate-and-infer.md#choose-how-answers-are-found",
    ),
    Variable(
        "TOP_P",
        Number("P", above_zero=True),
        "Draw from the fewest tokens that together have this probability.",
        Group.BATCH,
        (T5X_INFER,),
        default=Note("none: beam search, or from all tokens"),
        example="0.9",
        page="how-to/evaluate-and-infer.md#choose-how-answers-are-found",
    ),
    Variable(
        "TRAIN_STEPS",
        WholeNumber(),
        "Step at which the run ends.",
        Group.LENGTH,
        T5X_TRAINING,
        default=Note("1000000"),
        default_for={T5X_FINETUNE: Note("FT_STEPS more than the restored step")},
        unit="steps",
        example="10000",
        details=(
            "In finetuning, the steps of the pretraining count, too. FT_STEPS counts the steps of "
            "the finetuning alone. If you start a run again with a larger number, it continues."
        ),
    ),
    Variable(
        "FT_STEPS",
        WholeNumber(),
        "Steps of finetuning, counted from the checkpoint that it starts from.",
        Group.LENGTH,
        (T5X_FINETUNE,),
        default=Note("6000; T5_SIZE=small: 15000"),
        unit="steps",
        example="6000",
    ),
    Variable(
        "WARMUP_STEPS",
        WholeNumber(),
        "Steps over which the learning rate rises.",
        Group.LENGTH,
        T5X_TRAINING,
        default=Note("a twentieth of TRAIN_STEPS, at most 10000"),
        default_for={T5X_FINETUNE: Note("a sixth of FT_STEPS, at most 1000")},
        unit="steps",
        example="1000",
        details=(
            "If the variable is not set, a run that resumes keeps the number that it began with. "
            "Checkpoints that do not record the number count as 10000, in finetuning as 1000."
        ),
    ),
    Variable(
        "LEARNING_RATE",
        Number("RATE", above_zero=True),
        "Learning rate after the warm-up.",
        Group.LENGTH,
        T5X_TRAINING,
        default=Note("0.0001; OPTIMIZER=adafactor or adamw_rms: 0.01, in finetuning 0.001"),
        example="1e-3",
        details=(
            "After the warm-up, the rate falls to LAST_RATE of this number at the last step. With "
            "little text, a small model learns faster at 0.005."
        ),
        page="reference/gin-files.md#the-learning-rate",
    ),
    Variable(
        "LR_SCHEDULE",
        Choice(choices.T5X_SCHEDULES, "SCHEDULE"),
        "How the learning rate falls after the warm-up: in a line, or as a cosine.",
        Group.LENGTH,
        T5X_TRAINING,
        default=Note("linear"),
        example="cosine",
        page="reference/gin-files.md#the-learning-rate",
    ),
    Variable(
        "LAST_RATE",
        Number("SHARE", maximum=1),
        "Share of the learning rate that is left at the last step.",
        Group.LENGTH,
        T5X_TRAINING,
        default=Note("0.1"),
        example="0.01",
        page="reference/gin-files.md#the-learning-rate",
    ),
    Variable(
        "OPTIMIZER",
        Choice(choices.OPTIMIZERS),
        "Optimizer. adamw_rms is nanoT5's, and adafactor is the one that T5 was trained with.",
        Group.LENGTH,
        T5X_TRAINING,
        default=Note("adamw"),
        example="adafactor",
        details=(
            "adafactor and adamw_rms multiply the learning rate by the scale of each parameter, so "
            "their default rate is larger. muon trains the kernels with Muon and all else with "
            "AdamW. A run resumes only with the optimizer that it began with."
        ),
        page="reference/gin-files.md#the-optimizer",
    ),
    Variable(
        "WEIGHT_DECAY",
        Number("RATE"),
        "Share of each parameter that a step takes away, times the learning rate.",
        Group.LENGTH,
        T5X_TRAINING,
        default=Note("0.01; OPTIMIZER=adamw_rms: 0"),
        example="0.1",
        details="OPTIMIZER=adafactor refuses it.",
    ),
    Variable(
        "FREEZE",
        Text("regular expressions, separated by commas", "REGEX[,REGEX...]"),
        "Parts of the model that are not trained.",
        Group.MODEL,
        T5X_TRAINING,
        default=Note("none"),
        example="encoder,token_embedder",
        details=(
            "A pattern freezes a parameter if it matches the whole name of the parameter, or of a "
            "part of the model that has it: encoder/layers_0, .*layer_norm. A frozen parameter "
            "gets no gradient, has no state in the optimizer, and never changes. A pattern that "
            "matches nothing is refused with the nearest names. MODEL_DIR/model-info.txt has all "
            "names."
        ),
        page="how-to/train-a-part-of-the-model.md",
    ),
    Variable(
        "LORA_RANK",
        WholeNumber(),
        "Rank of LoRA adapters. The run trains the adapters alone.",
        Group.MODEL,
        T5X_TRAINING,
        default=Note("no adapters"),
        example="8",
        details=(
            "Beside a kernel W, an adapter adds LORA_ALPHA / LORA_RANK x A B. Evaluation and "
            "inference take the adapters from the checkpoint. rosetta convert t5 merges them into "
            "the kernels."
        ),
        page="how-to/train-a-part-of-the-model.md",
    ),
    Variable(
        "LORA_ALPHA",
        Number(above_zero=True),
        "Strength of LoRA adapters, which are multiplied by LORA_ALPHA / LORA_RANK.",
        Group.MODEL,
        T5X_TRAINING,
        default=Note("LORA_RANK"),
        example="16",
        page="how-to/train-a-part-of-the-model.md",
    ),
    Variable(
        "LORA_TARGETS",
        NameList("kernels", "NAME[,NAME...]", choices.LORA_TARGETS),
        "Kernels that get LoRA adapters, in each layer.",
        Group.MODEL,
        T5X_TRAINING,
        default=Note(",".join(choices.LORA_DEFAULT_TARGETS)),
        example="attention",
        details=(
            "attention stands for query, key, value and out, mlp for wi and wo, and all for both."
        ),
        page="how-to/train-a-part-of-the-model.md",
    ),
    Variable(
        "STATS_PERIOD",
        WholeNumber(),
        "Steps between lines of progress.",
        Group.LENGTH,
        T5X_TRAINING,
        default=Note("100"),
        unit="steps",
        example="20",
        page="reference/run-output.md",
    ),
    Variable(
        "EVAL_PERIOD",
        WholeNumber(),
        "Steps between evaluations. If the run also writes checkpoints, EVAL_PERIOD has to be a "
        "multiple or a divisor of SAVE_PERIOD.",
        Group.LENGTH,
        T5X_TRAINING,
        default=Note("6000"),
        default_for={T5X_FINETUNE: Note("1000")},
        unit="steps",
        details="If only one of the two is set, the default of the other is changed to fit.",
    ),
    Variable(
        "SAVE_PERIOD",
        WholeNumber(),
        "Steps between checkpoints. CHECKPOINT_MINUTES adds checkpoints by time.",
        Group.CHECKPOINTS,
        T5X_TRAINING,
        default=Note("6000"),
        default_for={T5X_FINETUNE: Note("5000")},
        unit="steps",
        details=(
            "A checkpoint is also written at the last step, on Ctrl-C, and on the signals SIGTERM "
            "and SIGUSR1."
        ),
        page=(
            "reference/t5x-checkpoints.md"
            "#where-checkpoints-are-saved-written-how-often-and-how-many-are-kept-keep"
        ),
    ),
    Variable(
        "KEEP_BEST",
        Text("a metric, METRIC or METRIC:min or METRIC:max", "METRIC[:min|:max]"),
        "Metric of the evaluation by which the best checkpoint is kept, besides the newest one.",
        Group.CHECKPOINTS,
        T5X_TRAINING,
        default=Note("none"),
        example="accuracy",
        details=(
            "loss and token_accuracy are known for all EVAL_DATA. Finetuning has the metrics of "
            "the task, too. A name that does not exist is refused. The error lists the metrics "
            "that exist. TASK/METRIC names the metric of one of several tasks. :min and :max say "
            "whether lower or higher values are better; names with words such as loss, error, "
            "accuracy and f1 need neither. Other checkpoints that the run saves from then on are "
            "deleted, unless KEEP in gin keeps more."
        ),
        page="how-to/keep-the-best-checkpoint.md",
    ),
    Variable(
        "EARLY_STOP_PATIENCE",
        WholeNumber(),
        "Evaluations in which the metric of KEEP_BEST does not improve, after which the run stops.",
        Group.LENGTH,
        T5X_TRAINING,
        default=Note("none; the run goes to its last step"),
        unit="evaluations",
        example="3",
        details="Without KEEP_BEST, the metric is the loss of EVAL_DATA.",
        page="how-to/keep-the-best-checkpoint.md",
    ),
    Variable(
        "MODEL_DIR",
        Folder(remote=True),
        "Folder of checkpoints and logs. In finetuning, the pretrained model, which is only read "
        "unless MAKE_FT_DIR=0.",
        Group.CHECKPOINTS,
        T5X_TRAINING,
        default=Note("T5X_WORKSPACE_DIR/model_dir_SIZE"),
        default_for={SINGLE_NODE_PRETRAIN: "model_dir", SINGLE_NODE_FINETUNE: "model_dir"},
        example="/workspace/small",
        details=(
            "A run whose MODEL_DIR has checkpoints resumes from the newest one. A relative folder "
            "counts from the current folder. An address that begins with s3:// is refused."
        ),
        page=(
            "reference/t5x-checkpoints.md"
            "#where-checkpoints-are-saved-written-how-often-and-how-many-are-kept-keep"
        ),
    ),
    Variable(
        "FT_DIR",
        Folder(remote=True),
        "Folder of the finetuned checkpoints.",
        Group.CHECKPOINTS,
        (T5X_FINETUNE,),
        default=Note("ft_TASK_NAME beside MODEL_DIR"),
        example="/workspace/ft_squad1",
        page="how-to/finetune-on-your-pairs.md",
    ),
    Variable(
        "MAKE_FT_DIR",
        TruthValue(),
        "1: add the job's number or the time to the default of FT_DIR. 0: write the finetuned "
        "checkpoints into MODEL_DIR in place of FT_DIR.",
        Group.CHECKPOINTS,
        (T5X_FINETUNE,),
        default=Note("neither; the checkpoints go to FT_DIR"),
        example="1",
    ),
    Variable(
        "INITIAL_CHECKPOINT_PATH",
        Folder(remote=True),
        "Checkpoint to start from, or a folder of checkpoints, while MODEL_DIR has none.",
        Group.CHECKPOINTS,
        T5X_TRAINING,
        default=Note("none"),
        default_for={T5X_FINETUNE: Note("the newest in MODEL_DIR")},
        example="/workspace/small/checkpoint_10000",
        details=_HUGGING_FACE,
        page="how-to/start-from-the-hub.md",
    ),
    Variable(
        "CHECKPOINT_PATH",
        Folder(remote=True),
        "Checkpoint to read, or a folder of checkpoints, of which the newest is read.",
        Group.CHECKPOINTS,
        T5X_READING,
        default=Note("none (required)"),
        example="/workspace/ft_squad1",
        details=_HUGGING_FACE,
        page="how-to/evaluate-and-infer.md",
    ),
    Variable(
        "CHECKPOINT_DISABLE",
        TruthValue(),
        "1: write no checkpoints.",
        Group.CHECKPOINTS,
        T5X_TRAINING,
        default="0",
    ),
    Variable(
        "PREC",
        Choice(choices.T5X_PRECISIONS, "TYPE"),
        "Type of activations. With FP8, all else is in bfloat16.",
        Group.PRECISION,
        T5X,
        default="bfloat16",
        example="float32",
        details=(
            "Parameters and the optimizer's state are in float32. With float16, the loss is "
            "multiplied by a scale that follows the gradients."
        ),
        page="how-to/train-t5-on-your-text.md#train-in-float16",
    ),
    Variable(
        "ENABLE_FP8",
        TruthValue(),
        "1: compute matrix products in FP8.",
        Group.PRECISION,
        T5X,
        default=Note("1 if every GPU has FP8 and PREC is bfloat16, else 0"),
        example="0",
        details=(
            "FP8 is for the projections of attention and the products of the MLP. All else stays "
            "in bfloat16 or float32. FP8 needs an Ada, Hopper or newer GPU."
        ),
        page="how-to/train-in-fp8.md",
    ),
    Variable(
        "ENABLE_TE",
        TruthValue(),
        "1: compute FP8 and attention with Transformer Engine.",
        Group.PRECISION,
        T5X,
        default="0",
        details="The kernels of Transformer Engine have not been run with this code.",
        page="explanation/fp8.md",
    ),
    Variable(
        "ATTENTION",
        Choice(choices.ATTENTION),
        "Library that computes attention. XLA computes the layers that cuDNN cannot.",
        Group.PRECISION,
        T5X,
        default=Note("cudnn on Ampere and newer GPUs, te with ENABLE_TE=1, else xla"),
        example="xla",
        details="The log says why XLA computes a layer.",
        page="explanation/attention.md",
    ),
    Variable(
        "LOGITS_DTYPE",
        Choice(choices.LOGITS_TYPES, "TYPE"),
        "Type of the factors of the last matrix product, whose sums are in float32.",
        Group.PRECISION,
        T5X_TRAINING,
        default=Note("bfloat16 to pretrain on GPUs with PREC=bfloat16, else the value in gin"),
        example="float32",
        page="reference/t5x-switches.md#logits_dtype",
    ),
    Variable(
        "REMAT",
        Choice(choices.REMAT),
        "What the backward pass computes again to save memory.",
        Group.PRECISION,
        T5X,
        default="none",
        example="full",
        details=(
            "none: nothing. minimal: all but matrix products. full: whole layers, which needs the "
            "least memory and the most time."
        ),
        page="reference/t5x-switches.md#remat",
    ),
    Variable(
        "SCAN_LAYERS",
        TruthValue(),
        "1: compile one layer and loop over it, so that compilation is shorter.",
        Group.PRECISION,
        T5X,
        default="0",
        details=(
            "A run then keeps a second copy of the parameters in memory. SCAN_LAYERS=1 cannot be "
            "combined with ENABLE_TE=1."
        ),
        page="reference/t5x-switches.md#scan_layers",
    ),
    Variable(
        "TRANSPOSE_BS",
        TruthValue(),
        "1: lay activations out as [length, batch, features].",
        Group.PRECISION,
        T5X,
        default=Note("0 with cuDNN's attention and without FP8, else 1"),
        details="This changes the speed, not the model: checkpoints with 0 and 1 are the same.",
        page="reference/t5x-switches.md#transpose_bs",
    ),
    Variable(
        "FUSE_QKV",
        TruthValue(),
        "1: compute queries, keys and values in one matrix product.",
        Group.PRECISION,
        T5X,
        default=Note("0 with cuDNN's attention and without FP8, else 1"),
        details=(
            "FUSE_QKV=1 also joins both halves of a gated MLP, and FUSE_QKV=0 separates them. If "
            "FUSE_QKV is not set, they are joined. This changes the speed, not the model: "
            "checkpoints with 0 and 1 are the same."
        ),
        page="reference/t5x-switches.md#fuse_qkv",
    ),
    Variable(
        "BENCHMARK_MODE",
        TruthValue(),
        "1: train 500 steps on synthetic data, and report every 100 steps.",
        Group.PROFILING,
        (*T5X_TRAINING, *T5X_SLURM_FILES),
        default="0",
        details="The run is refused if MODEL_DIR has checkpoints.",
    ),
    Variable(
        "T5X_WORKSPACE_DIR",
        Folder(remote=True),
        "Folder of profiles, and of MODEL_DIR if the run has several processes.",
        Group.PROGRAMS,
        T5X_TRAINING,
        default=Note("the current folder"),
        example="/workspace",
    ),
    Variable(
        "T5X_DIR",
        Folder(),
        "Tree of T5X to train from. It needs rosetta's patches.",
        Group.PROGRAMS,
        T5X_TRAINING,
        default=Note("the tree of the script"),
        example="/opt/t5x",
    ),
    Variable(
        "OUTPUT_DIR",
        Folder(remote=True),
        "Folder of metrics and predictions.",
        Group.PROGRAMS,
        T5X_READING,
        default=Note("none (required)"),
        example="/workspace/eval",
    ),
    Variable(
        "LOGDIR",
        Folder(),
        "Folder of the log file. -: no file, everything goes to the terminal.",
        Group.PROGRAMS,
        (*T5X, SINGLE_NODE_PRETRAIN, SINGLE_NODE_FINETUNE),
        default=Note("logs in MODEL_DIR, FT_DIR or OUTPUT_DIR; none with several processes"),
        example="logs",
        details=(
            "The terminal shows the phases, the progress, warnings, errors and results. The log "
            "file has all output. With several processes, and for a folder in an object store, "
            "everything goes to the terminal."
        ),
        page="reference/run-output.md",
    ),
)
