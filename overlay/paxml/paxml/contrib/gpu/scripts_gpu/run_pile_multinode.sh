#!/bin/bash
# Pretrain GPT 126M on the Pile, or on what DATA names: one of the processes of a run, one a GPU or one a node. srun starts it once per
# process; without Slurm it is the only one. NUM_GPUS counts a node's.
#   run_pile_multinode.sh TFDS_DATA_DIR VOCAB_PATH [PREC=bfloat16 [NUM_GPUS=8 [PERCORE_BATCH_SIZE=4 [LOG_DIR=test_logdir]]]]
# --help lists the variables.
set -euo pipefail
exec "${PYTHON:-python3}" -P -m rosetta.pax.launch run_pile_multinode "$@"
