#!/bin/bash
# Finetune LLaMA-2 on BoolQ, all of it or by LoRA, then evaluate it; EVAL_ONLY=1: evaluate it zero-shot. All settings come from the environment:
# VOCAB_PATH TFDS_DATA_DIR CONFIG=LLaMA7B LOG_DIR=/tmp/llama CHECKPOINT_RESTORE_PATH EVAL_ONLY=0 USE_LORA=0 LORA_RANK=32 LORA_TARGET_LAYERS=all
# LEARNING_RATE MAX_STEPS PERCORE_BATCH_SIZE=2 MAX_SEQ_LEN=4096 ICI_MESH_SHAPE DCN_MESH_SHAPE ENABLE_TE=0 USE_MULTIPROCESS=0, ...
# --help lists them all.
set -euo pipefail
exec "${PYTHON:-python3}" -P -m rosetta.pax.launch run_llama_boolq "$@"
