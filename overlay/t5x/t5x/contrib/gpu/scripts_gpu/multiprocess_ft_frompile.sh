#!/bin/bash
# Finetune a T5 1.1: one of the processes of a run, one a GPU. srun starts it once per process; without Slurm it is the only one.
# All settings come from the environment, FT_TASK (mnli2, squad1 or pairs) among them. --help lists them.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../../.." && pwd)
exec "${PYTHON:-python3}" -P -m rosetta.t5x.launch multiprocess_ft_frompile "$here" "$@"
