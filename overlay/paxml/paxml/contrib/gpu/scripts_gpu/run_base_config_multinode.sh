#!/bin/bash
# Train any experiment by its name: one of the processes of a run, one a GPU or one a node. srun starts it once per process; without Slurm
# it is the only one. Synthetic experiments need neither data nor vocabulary. NUM_GPUS counts a node's.
#   run_base_config_multinode.sh CONFIG [PREC=bfloat16 [NUM_GPUS=8 [LOG_DIR=test_logdir [TFDS_DATA_DIR [VOCAB_PATH [ADDITIONAL_ARGS]]]]]]
# ADDITIONAL_ARGS: --fdl.NAME=VALUE ..., as in --fdl.DCN_MESH_SHAPE=[1,16,1]. --help lists the variables.
set -euo pipefail
exec "${PYTHON:-python3}" -P -m rosetta.pax.launch run_base_config_multinode "$@"
