"""The registry of the commands of rosetta. The parser, the help and the docs read this table."""

from __future__ import annotations

from rosetta.core.command_line import Command, Program

TRAIN, LOOK, PREPARE, OPERATE = "train", "look", "prepare", "operate"
_SETTINGS = (
    "`rosetta t5x pretrain --help` and `rosetta pax train --help` list the settings for NAME=VALUE."
)

PROGRAM = Program(
    name="rosetta",
    typed="rosetta",
    description="Train T5X and Paxml models on NVIDIA GPUs.",
    groups={
        TRAIN: "train and evaluate",
        LOOK: "look before a run",
        PREPARE: "prepare models, data and presets",
        OPERATE: "operate machines",
    },
    commands=(
        Command(
            "t5x",
            TRAIN,
            "pretrain, finetune or evaluate a T5 model, or infer with one",
            "rosetta.commands.t5x",
            (
                "pretrain T5_SIZE=small DATA='text:corpus/*.txt' VOCAB=byte --dry-run",
                "finetune FT_TASK=squad1 T5_SIZE=small MODEL_DIR=/workspace/small",
                "eval FT_TASK=squad1 T5_SIZE=small CHECKPOINT_PATH=/ft_squad1 OUTPUT_DIR=/eval",
                "infer FT_TASK=squad1 T5_SIZE=small CHECKPOINT_PATH=/ft_squad1 OUTPUT_DIR=/answers",
            ),
            "`rosetta t5x COMMAND --help` lists the variables that a command reads.",
        ),
        Command(
            "pax",
            TRAIN,
            "train or evaluate a GPT, GLaM or LLaMA model, or generate text with one",
            "rosetta.commands.pax",
            (
                "train CONFIG=Synthetic126M MAX_STEPS=100 --dry-run",
                "pile TFDS_DATA_DIR=/data/tfds VOCAB_PATH=/data/sp.model LOG_DIR=/workspace/126m",
                "lambada TFDS_DATA_DIR=/data VOCAB_PATH=/data/sp.model LOG_DIR=/workspace/126m",
                "boolq TFDS_DATA_DIR=/data VOCAB_PATH=/vocab CHECKPOINT_RESTORE_PATH=/weights/7b",
                "eval /workspace/126m lambada boolq=dev.jsonl",
                "generate /workspace/126m 'Once upon a time' --temperature 0.8 --top-p 0.95",
            ),
            "`rosetta pax COMMAND --help` lists the variables that a command reads.",
        ),
        Command(
            "run",
            TRAIN,
            "run a preset on this machine, with or without a container",
            "rosetta.commands.run",
            ("t5x-small TRAIN_STEPS=100 --dry-run",),
            _SETTINGS,
        ),
        Command(
            "submit",
            TRAIN,
            "submit a preset to Slurm or Kubernetes",
            "rosetta.commands.run",
            ("t5x-large --on slurm --nodes 2 --time 04:00:00 --dry-run",),
            _SETTINGS,
        ),
        Command(
            "runs",
            TRAIN,
            "list, watch, cancel or repeat the runs of run and submit",
            "rosetta.commands.runs",
            ("list", "status 3", "logs 3 --follow", "cancel 3", "resubmit 3"),
            "Each run has a number, which `rosetta run` and `rosetta submit` print.",
        ),
        Command(
            "plot",
            TRAIN,
            "draw the loss of runs in the terminal, or as PNG",
            "rosetta.commands.plot",
            ("/runs/small --out loss.png", "/runs/small /runs/base --value learning_rate"),
        ),
        Command(
            "info",
            LOOK,
            "show what this environment contains",
            "rosetta.commands.info",
            ("--json",),
        ),
        Command(
            "te",
            LOOK,
            "show the version of Transformer Engine",
            "rosetta.commands.info",
            ("",),
            "If the environment has no Transformer Engine, the command gives the reason and ends "
            "with status 2.",
        ),
        Command(
            "explain",
            LOOK,
            "show every value of a preset and its origin, or describe a variable",
            "rosetta.commands.explain",
            ("t5x-large --accelerator h100", "PACK"),
            "For each value, the command names the value that it replaced, and the reason. Without "
            f"an argument, it lists all presets. {_SETTINGS}",
        ),
        Command(
            "plan",
            LOOK,
            "compile a training step for a GPU you do not have",
            "rosetta.commands.plan",
            (
                "t5x --size large --gpus 16 --card h100",
                "pax Synthetic126M --card h100",
                "t5x --size xxl --gpus 16 --card h100 --search",
            ),
            "The command shows the memory, the predicted time, the communication and the kernels "
            "of the step. With `--search`, it finds the fastest predicted settings that fit, and "
            "writes them as a preset.",
        ),
        Command(
            "new",
            PREPARE,
            "write the files of a model for your own text",
            "rosetta.commands.new",
            ("t5x ro_t5x --size base --vocab ro.model --data 'text:ro/*.txt'",),
        ),
        Command(
            "data",
            PREPARE,
            "check, show or tokenise training data",
            "rosetta.commands.data",
            (
                "check 'jsonl:train/*.jsonl' --vocab byte",
                "show 'text:corpus/*.txt' --batch 2",
                "cache 'text:corpus/*.txt' --vocab ro.model --out tokens",
            ),
        ),
        Command(
            "vocab",
            PREPARE,
            "train a vocabulary, or show one",
            "rosetta.commands.vocab",
            ("train --data 'text:ro/*.txt' --out ro.model", "show ro.model"),
        ),
        Command(
            "convert",
            PREPARE,
            "convert the weights of a model to another layout",
            "rosetta.commands.convert",
            (
                "llama Llama-2-7b checkpoints/llama",
                "t5 t5-v1_1-small t5-small-t5x --to t5x",
                "gpt gpt2 checkpoints/gpt2 --to pax",
                "bert bert-base-uncased bert-base-t5x --to t5x",
            ),
        ),
        Command(
            "tune",
            PREPARE,
            "find the batch and the switches that suit a preset",
            "rosetta.commands.tune",
            ("t5x-small --steps 20",),
            "The command measures trials on this machine, and writes the best as a new preset. "
            f"{_SETTINGS}",
        ),
        Command(
            "doctor",
            OPERATE,
            "check this machine for problems before a run",
            "rosetta.commands.doctor",
            ("--quick",),
            "The command names a remedy for every problem.",
        ),
        Command(
            "selftest",
            OPERATE,
            "train a tiny model to prove that this environment works",
            "rosetta.commands.selftest",
            ("--imports-only", "--project flaxformer"),
            "The command imports every module, trains, restores the checkpoint and trains further. "
            "It also trains in FP8 and with Transformer Engine, and sums an array over all "
            "devices. Checks that cannot run say why. ROSETTA_SELFTEST_PLATFORM=cuda runs all this "
            "on GPUs.",
        ),
        Command(
            "bench",
            OPERATE,
            "measure a training step on this machine",
            "rosetta.commands.bench",
            ("t5 --size small --steps 20",),
        ),
        Command(
            "accept",
            OPERATE,
            "measure what only a GPU can tell, in ten minutes",
            "rosetta.commands.accept",
            ("--only nn --folder /tmp/accept",),
            "The command compares kernels with references, measures products, attention and "
            "training steps, and writes the results as JSON after each row. A call that was "
            "killed is continued by the same call. Rows of the group `nn` need only JAX.",
        ),
        Command(
            "profile",
            OPERATE,
            "run a command under Nsight Systems",
            "rosetta.commands.profile",
            ("-o step -- rosetta t5x pretrain T5_SIZE=small TRAIN_STEPS=20",),
            "Nsight Systems has to be installed.",
        ),
        Command(
            "spawn",
            OPERATE,
            "start a command once for each GPU, without Slurm",
            "rosetta.commands.run",
            ("--per-node 8 -- python train.py",),
            "If there are several nodes, start the command on each of them.",
        ),
    ),
    shown=("doctor", "explain", "t5x", "submit"),
)
