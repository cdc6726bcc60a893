#!/bin/bash
# Finetune a T5 1.1 that was pretrained on the Pile: one of the processes of a run, one a GPU. srun starts it once per process; without
# Slurm it is the only one. All settings come from the environment: see multiprocess_settings in rosetta.bash, FT_TASK (mnli2 or squad1)
# and MAKE_FT_DIR (true: finetuned checkpoints go into a new folder beside MODEL_DIR).
set -euo pipefail
# shellcheck source=overlay/t5x/t5x/contrib/gpu/scripts_gpu/rosetta.bash
source "$(dirname -- "${BASH_SOURCE[0]}")/rosetta.bash"

(($# == 0)) || fail "got $# arguments" "settings come from the environment: FT_TASK, T5_SIZE, PREC, BSIZE_PER_GPU, MODEL_DIR, ..."
FT_TASK=${FT_TASK:-}
check_task "$FT_TASK"
if [[ $FT_TASK == mnli2 ]]; then multiprocess_settings 512 16; else multiprocess_settings 956 256; fi
find_gin "$T5_SIZE" "${FT_TASK}_finetune_adam"
find_data ""
choose_platform
multiprocess_arguments
choose_finetuning_folder "${MAKE_FT_DIR:-false}"
multiprocess_train
