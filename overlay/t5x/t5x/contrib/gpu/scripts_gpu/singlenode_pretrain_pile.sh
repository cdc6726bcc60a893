#!/bin/bash
# Pretrain T5 1.1 on the Pile, or on what DATA names, one process on one machine.
#   singlenode_pretrain_pile.sh [SIZE=large PREC=bfloat16 NUM_GPUS BSIZE_PER_GPU=32 LOGDIR MODEL_DIR GRAD_ACCUM=1 ENABLE_FP8=1 TRANSPOSE_BS=1 FUSE_QKV=1 PACK=0]
# Words may be left out from the end on.
# --help lists the variables. The run continues from the newest checkpoint in MODEL_DIR.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../../.." && pwd)
exec "${PYTHON:-python3}" -P -m rosetta.t5x.launch singlenode_pretrain_pile "$here" "$@"
