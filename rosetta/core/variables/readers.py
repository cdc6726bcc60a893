"""The names of the readers of variables: commands, scripts and programs."""

from __future__ import annotations

T5X_PRETRAIN = "t5x pretrain"
T5X_FINETUNE = "t5x finetune"
T5X_EVAL = "t5x eval"
T5X_INFER = "t5x infer"
PAX_PILE = "pax pile"
PAX_LAMBADA = "pax lambada"
PAX_TRAIN = "pax train"
PAX_BOOLQ = "pax boolq"

T5X_TRAINING = (T5X_PRETRAIN, T5X_FINETUNE)
T5X_READING = (T5X_EVAL, T5X_INFER)
T5X = (*T5X_TRAINING, *T5X_READING)
PAX = (PAX_PILE, PAX_LAMBADA, PAX_TRAIN, PAX_BOOLQ)
TRAINING = (*T5X_TRAINING, *PAX)
RUNS = (*T5X, *PAX)

# Script, without suffix -> the command that it stands for. Both read the same variables.
SCRIPT_COMMANDS = {
    "singlenode_pretrain_pile": T5X_PRETRAIN,
    "singlenode_ft_frompile": T5X_FINETUNE,
    "multiprocess_pretrain_pile": T5X_PRETRAIN,
    "multiprocess_ft_frompile": T5X_FINETUNE,
    "run_pile_singlenode": PAX_PILE,
    "run_pile_multinode": PAX_PILE,
    "run_lambada_singlenode": PAX_LAMBADA,
    "run_base_config_multinode": PAX_TRAIN,
    "run_llama_boolq": PAX_BOOLQ,
}
# Command -> the script that it runs as. The other commands have no script.
COMMAND_SCRIPTS = {
    T5X_PRETRAIN: "multiprocess_pretrain_pile",
    T5X_FINETUNE: "multiprocess_ft_frompile",
    PAX_PILE: "run_pile_multinode",
    PAX_LAMBADA: "run_lambada_singlenode",
    PAX_TRAIN: "run_base_config_multinode",
    PAX_BOOLQ: "run_llama_boolq",
}
# Scripts that read a variable that no command reads, or have another default.
SINGLE_NODE_PRETRAIN = "singlenode_pretrain_pile"
SINGLE_NODE_FINETUNE = "singlenode_ft_frompile"
LAUNCH_BASE_CONFIG = "launch_base_config.sub"
LAUNCH_BASE_SCRIPT = "launch_base_script.sub"
SLURM_LLAMA = "example_slurm_llama.sub"
SLURM_PILE = "example_slurm_pile.sub"
T5X_SLURM_FILES = ("example_slurm_pretrain_pile.sub", "example_slurm_ft_frompile.sub")
PAX_SLURM_FILES = (SLURM_PILE, SLURM_LLAMA, LAUNCH_BASE_CONFIG, LAUNCH_BASE_SCRIPT)
SLURM_FILES = (*T5X_SLURM_FILES, *PAX_SLURM_FILES)

TRAINER = "trainer"  # the process that a run becomes
ROSETTA = "rosetta"  # every command of rosetta
DOCTOR = "doctor"
EXPLAIN = "explain"
RUN = "run"
SUBMIT = "submit"
SPAWN = "spawn"
TUNE = "tune"
PLAN = "plan"
BENCH = "bench"
SELFTEST = "selftest"
PROFILE = "profile"
DATA = "data"
CONVERT = "convert"
PRESETS = (EXPLAIN, RUN, SUBMIT, TUNE)  # the commands that read a preset and the site's file

BUILDER = "build.py"  # every command of build.py
BUILDER_BUILD = "build.py build"
BUILDER_PUBLISH = "build.py publish"
BUILDER_BISECT = "build.py bisect"
IMAGE = "image"  # programs and entry point inside an image
