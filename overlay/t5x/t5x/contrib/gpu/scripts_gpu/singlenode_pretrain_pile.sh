#!/bin/bash
# Pretrain T5 1.1 on the Pile, one process on one machine.
#   singlenode_pretrain_pile.sh SIZE PREC NUM_GPUS BSIZE_PER_GPU LOGDIR [MODEL_DIR [GRAD_ACCUM=1 [ENABLE_FP8=0 [TRANSPOSE_BS=0 [FUSE_QKV=0 [PACK=0]]]]]]
# From the environment: T5X_DIR, TFDS_DATA_DIR, XLA_FLAGS, ROSETTA_GIN (a gin file that overrides the model's own).
# Goes on from the newest checkpoint in MODEL_DIR. The trainer writes to a log file in LOGDIR.
set -euo pipefail
# shellcheck source=overlay/t5x/t5x/contrib/gpu/scripts_gpu/rosetta.bash
source "$(dirname -- "${BASH_SOURCE[0]}")/rosetta.bash"

(($# >= 5 && $# <= 11)) || fail "got $# arguments" "give SIZE PREC NUM_GPUS BSIZE_PER_GPU LOGDIR, then MODEL_DIR GRAD_ACCUM ENABLE_FP8 TRANSPOSE_BS FUSE_QKV PACK if need be"
SIZE=$1 PREC=$2 NUM_GPUS=$3 BSIZE_PER_GPU=$4 LOGDIR=$5 MODEL_DIR=${6:-model_dir} GRAD_ACCUM=${7:-1}
not_yet ENABLE_FP8 "${8:-0}"
not_yet TRANSPOSE_BS "${9:-0}"
not_yet FUSE_QKV "${10:-0}"
check_precision "$PREC"
positive NUM_GPUS "$NUM_GPUS"
positive BSIZE_PER_GPU "$BSIZE_PER_GPU"
positive GRAD_ACCUM "$GRAD_ACCUM"
find_tree
find_gin "$SIZE" pile_pretrain
find_data the_pile
choose_platform

MODEL_DIR=$(absolute "$MODEL_DIR")
BATCH=$((NUM_GPUS * BSIZE_PER_GPU))
trainer_arguments "$PREC" "$BATCH" "$GRAD_ACCUM" "${11:-0}"
mkdir -p -- "$LOGDIR"
LOG=$LOGDIR/${SIZE}_gpu_${NUM_GPUS}_${PREC}_gbs_${BATCH}.log
echo "Global batch $BATCH on $NUM_GPUS device(s), which must be all that are visible. Checkpoints in $MODEL_DIR, log in $LOG" >&2
train >>"$LOG" 2>&1
