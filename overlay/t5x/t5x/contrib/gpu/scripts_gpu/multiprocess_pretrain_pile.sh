#!/bin/bash
# Pretrain T5 1.1 on the Pile, or on what DATA names: one of the processes of a run, one a GPU. srun starts it once per process;
# without Slurm it is the only one. All settings come from the environment. --help lists them.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../../.." && pwd)
exec "${PYTHON:-python3}" -P -m rosetta.t5x.launch multiprocess_pretrain_pile "$here" "$@"
