#!/bin/bash
# Pretrain GPT 126M on the Pile, or on what DATA names, one process on one machine.
#   run_pile_singlenode.sh TFDS_DATA_DIR VOCAB_PATH [PREC=bfloat16 [NUM_GPUS=8 [PERCORE_BATCH_SIZE=4 [LOG_DIR=test_logdir]]]]
# Goes on from the newest checkpoint in LOG_DIR. --help lists the variables.
set -euo pipefail
exec "${PYTHON:-python3}" -P -m rosetta.pax.launch run_pile_singlenode "$@"
