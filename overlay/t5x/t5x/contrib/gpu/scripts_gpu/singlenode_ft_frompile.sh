#!/bin/bash
# Finetune a T5 1.1, one process on one machine.
#   singlenode_ft_frompile.sh [FT_TASK=mnli2 SIZE=large PREC=bfloat16 NUM_GPUS BSIZE_PER_GPU=32 LOGDIR MODEL_DIR GRAD_ACCUM=1 MAKE_FT_DIR ENABLE_FP8=1 TRANSPOSE_BS=1 FUSE_QKV=1 PACK=0]
# Words may be left out from the end on.
# FT_TASK: mnli2, squad1 or pairs. MODEL_DIR holds the pretrained checkpoint and is only read. --help lists all variables.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../../.." && pwd)
exec "${PYTHON:-python3}" -P -m rosetta.t5x.launch singlenode_ft_frompile "$here" "$@"
