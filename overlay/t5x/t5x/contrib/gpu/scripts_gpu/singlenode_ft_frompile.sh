#!/bin/bash
# Finetune a T5 1.1 that was pretrained on the Pile, one process on one machine.
#   singlenode_ft_frompile.sh FT_TASK SIZE PREC NUM_GPUS BSIZE_PER_GPU LOGDIR [MODEL_DIR [GRAD_ACCUM=1 [MAKE_FT_DIR=false [ENABLE_FP8=0 [TRANSPOSE_BS=0 [FUSE_QKV=0 [PACK=0]]]]]]]
# FT_TASK: mnli2 or squad1. MODEL_DIR holds the pretrained checkpoint; the finetuned ones go beside it, or with MAKE_FT_DIR=true
# into a new folder ft_MODEL_DIR_DATE. From the environment: T5X_DIR, TFDS_DATA_DIR, XLA_FLAGS, ROSETTA_GIN.
set -euo pipefail
# shellcheck source=overlay/t5x/t5x/contrib/gpu/scripts_gpu/rosetta.bash
source "$(dirname -- "${BASH_SOURCE[0]}")/rosetta.bash"

(($# >= 6 && $# <= 13)) || fail "got $# arguments" "give FT_TASK SIZE PREC NUM_GPUS BSIZE_PER_GPU LOGDIR, then MODEL_DIR GRAD_ACCUM MAKE_FT_DIR ENABLE_FP8 TRANSPOSE_BS FUSE_QKV PACK if need be"
FT_TASK=$1 SIZE=$2 PREC=$3 NUM_GPUS=$4 BSIZE_PER_GPU=$5 LOGDIR=$6 MODEL_DIR=${7:-model_dir} GRAD_ACCUM=${8:-1}
not_yet ENABLE_FP8 "${10:-0}"
not_yet TRANSPOSE_BS "${11:-0}"
not_yet FUSE_QKV "${12:-0}"
check_task "$FT_TASK"
check_precision "$PREC"
positive NUM_GPUS "$NUM_GPUS"
positive BSIZE_PER_GPU "$BSIZE_PER_GPU"
positive GRAD_ACCUM "$GRAD_ACCUM"
find_tree
find_gin "$SIZE" "${FT_TASK}_finetune_adam"
find_data ""
choose_platform

MODEL_DIR=$(absolute "$MODEL_DIR")
BATCH=$((NUM_GPUS * BSIZE_PER_GPU))
trainer_arguments "$PREC" "$BATCH" "$GRAD_ACCUM" "${13:-0}"
choose_finetuning_folder "${9:-false}"
mkdir -p -- "$LOGDIR"
LOG=$LOGDIR/ft_${SIZE}_gpu_${NUM_GPUS}_${PREC}_gbs_${BATCH}.log
echo "Global batch $BATCH on $NUM_GPUS device(s), which must be all that are visible. Checkpoints in $MODEL_DIR, log in $LOG" >&2
train >>"$LOG" 2>&1
