#!/bin/bash
# Evaluate a pretrained GPT 126M zero-shot on LAMBADA, one process on one machine. LOG_DIR is the pretraining run's.
#   run_lambada_singlenode.sh TFDS_DATA_DIR VOCAB_PATH [PREC=bfloat16 [NUM_GPUS=8 [PERCORE_BATCH_SIZE=4 [LOG_DIR=test_logdir]]]]
# --help lists the variables.
set -euo pipefail
exec "${PYTHON:-python3}" -P -m rosetta.pax.launch run_lambada_singlenode "$@"
