#!/bin/bash
# Pretrain T5 1.1 on the Pile: one of the processes of a run, one a GPU. srun starts it once per process; without Slurm it is the only one.
# All settings come from the environment: see multiprocess_settings in rosetta.bash.
set -euo pipefail
# shellcheck source=overlay/t5x/t5x/contrib/gpu/scripts_gpu/rosetta.bash
source "$(dirname -- "${BASH_SOURCE[0]}")/rosetta.bash"

(($# == 0)) || fail "got $# arguments" "settings come from the environment: T5_SIZE, PREC, BSIZE_PER_GPU, MODEL_DIR, ..."
multiprocess_settings 512 128
find_gin "$T5_SIZE" pile_pretrain
find_data the_pile
choose_platform
multiprocess_arguments
multiprocess_train
