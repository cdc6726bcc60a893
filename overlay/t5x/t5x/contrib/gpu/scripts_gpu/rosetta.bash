# shellcheck shell=bash
# What the four training scripts beside this file share. Sourced, never run.
# Exit status of the scripts: 2 where an argument or a variable is wrong, else the trainer's own.

fail() { # WHAT DO
  printf '%s: %s; %s\n' "${0##*/}" "$1" "$2" >&2
  exit 2
}

positive() { # NAME VALUE
  [[ $2 =~ ^[1-9][0-9]{0,8}$ ]] || fail "$1 is '$2'" "give a whole number, at least 1"
}

# Prints 1 or 0 for what people write into such variables.
switch() { # NAME VALUE
  case ${2,,} in
    1 | true | yes | on) echo 1 ;;
    0 | false | no | off | "") echo 0 ;;
    *) fail "$1 is '$2'" "give 0 or 1" ;;
  esac
}

# For what the old scripts had switched on and this release does not have yet: off by default, refused when asked for.
not_yet() { # NAME VALUE
  local on
  on=$(switch "$1" "$2") || exit
  [[ $on == 0 ]] || fail "$1=$2 is not available in this release" "set $1=0"
}

# Transformer Engine: refused with the reason where the environment has none.
check_te() {
  local on
  on=$(switch ENABLE_TE "${ENABLE_TE:-0}") || exit
  [[ $on == 1 ]] || return 0
  "${PYTHON:-python3}" -I -m rosetta te >/dev/null || exit 2
  fail "ENABLE_TE=$ENABLE_TE is not wired to this script in this release" "set ENABLE_TE=0"
}

check_task() { # FT_TASK
  case $1 in
    mnli2 | squad1) ;;
    *) fail "FT_TASK is '$1'" "choose mnli2 or squad1" ;;
  esac
}

# Prints a folder's absolute name; an address such as gs://bucket/folder stays what it is.
absolute() { # FOLDER
  if [[ $1 =~ ^[a-z0-9]+:// ]]; then printf '%s\n' "$1"; else realpath -m -- "$1"; fi
}

# Prints a gin string literal.
gin_string() { # VALUE
  local value=${1//\\/\\\\}
  printf '"%s"' "${value//\"/\\\"}"
}

# The tree to train from: T5X_DIR where it is set, else the one this file lies in. Sets T5X_DIR.
find_tree() {
  local here
  here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../../.." && pwd) || exit
  T5X_DIR=${T5X_DIR:-$here}
  [[ -f $T5X_DIR/t5x/train.py ]] || fail "T5X_DIR=$T5X_DIR holds no t5x/train.py" "name the folder that has the package t5x in it, or unset T5X_DIR"
  T5X_DIR=$(cd -- "$T5X_DIR" && pwd) || exit
  check_te
}

# The gin file of a model and run. Sets GIN_FILE.
find_gin() { # SIZE SUFFIX
  local folder=$T5X_DIR/t5x/contrib/gpu/t5/t5_1_1/examples there
  GIN_FILE=$folder/$1_$2.gin
  [[ $1 =~ ^[a-z0-9_]+$ && -f $GIN_FILE ]] && return
  there=$(cd -- "$folder" && printf '%s\n' *_"$2".gin) || exit
  fail "there is no model size '$1' for $2" "choose one of: $(tr '\n' ' ' <<<"${there//_$2.gin/}")"
}

check_precision() { # PREC
  case $1 in
    float32 | bfloat16 | float16) ;;
    *) fail "the precision is '$1'" "choose bfloat16, float32 or float16" ;;
  esac
}

# Where the data lie. Sets TFDS_DATA_DIR. The Pile must be there prepared: it can no longer be downloaded.
find_data() { # DATASET-OR-EMPTY
  TFDS_DATA_DIR=${TFDS_DATA_DIR:-/t5x_home/datasets}
  [[ -n ${ROSETTA_GIN:-} ]] && return # the run's data are that file's business
  [[ -d $TFDS_DATA_DIR ]] || fail "TFDS_DATA_DIR=$TFDS_DATA_DIR is no folder" "mount or make it, or set TFDS_DATA_DIR"
  [[ -z $1 || -d $TFDS_DATA_DIR/$1 ]] ||
    fail "$TFDS_DATA_DIR has no $1 (the Pile has been offline since October 2023)" "set TFDS_DATA_DIR to a prepared copy, or ROSETTA_GIN to a gin file that sets MIXTURE_OR_TASK_NAME"
}

# No silent training on the CPU: without a GPU, only where JAX_PLATFORMS asks for it.
choose_platform() {
  [[ -n ${JAX_PLATFORMS:-} ]] && return
  compgen -G '/dev/nvidia[0-9]*' >/dev/null || [[ -e /dev/dxg ]] ||
    fail "no NVIDIA GPU is visible" "start the container with --gpus=all, or set JAX_PLATFORMS=cpu to train on the CPU"
  export JAX_PLATFORMS=cuda,cpu
}

newest_checkpoint() { # FOLDER
  local path steps best=-1
  for path in "$1"/checkpoint_*; do
    steps=${path##*/checkpoint_}
    if [[ -d $path && $steps =~ ^[0-9]+$ ]] && ((10#$steps > best)); then best=$((10#$steps)); fi
  done
  if ((best >= 0)); then printf '%s/checkpoint_%s\n' "$1" "$best"; fi
}

# The pretrained checkpoint to finetune, and where the finetuned ones go. Sets MODEL_DIR and adds to ARGS.
choose_finetuning_folder() { # MAKE_FT_DIR
  local separate newest
  separate=$(switch MAKE_FT_DIR "$1") || exit
  newest=$(newest_checkpoint "$MODEL_DIR")
  # What lies in an object store cannot be listed from here: the trainer looks for itself.
  [[ $MODEL_DIR != *://* ]] || { [[ $separate == 0 ]] || fail "MAKE_FT_DIR=$1 cannot make a folder beside $MODEL_DIR" "set INITIAL_CHECKPOINT_PATH in a gin file given as ROSETTA_GIN"; return 0; }
  [[ -n $newest ]] || fail "MODEL_DIR=$MODEL_DIR holds no checkpoint_N" "name the folder of the pretrained model"
  if [[ $separate == 1 ]]; then
    MODEL_DIR=$(dirname -- "$MODEL_DIR")/ft_${MODEL_DIR##*/}_${SLURM_JOB_ID:-$(date +%F_%H-%M-%S)}
    # The gin files' own mode takes the path for a folder of checkpoints and, finding none in it, trains from nothing.
    ARGS+=("--gin.INITIAL_CHECKPOINT_PATH=$(gin_string "$newest")" "--gin.utils.RestoreCheckpointConfig.mode='specific'")
  fi
}

# Sets ARGS: what every run says to the trainer.
trainer_arguments() { # PREC BATCH MICROBATCHES PACK
  local pack dataset
  pack=$(switch PACK "$4") || exit
  ARGS=("--gin_search_paths=$T5X_DIR,." "--gin_file=$GIN_FILE")
  if [[ -n ${ROSETTA_GIN:-} ]]; then
    [[ -f $ROSETTA_GIN ]] || fail "ROSETTA_GIN=$ROSETTA_GIN is no file" "name a gin file, or unset it"
    ARGS+=("--gin_file=$ROSETTA_GIN")
  fi
  ARGS+=("--tfds_data_dir=$TFDS_DATA_DIR" "--gin.network.T5Config.dtype=$(gin_string "$1")")
  ARGS+=("--gin.trainer.Trainer.num_microbatches=$3")
  for dataset in train train_eval infer_eval; do
    ARGS+=("--gin.$dataset/utils.DatasetConfig.batch_size=$2")
  done
  [[ $pack == 1 ]] && pack=True || pack=False
  ARGS+=("--gin.train/utils.DatasetConfig.pack=$pack" "--gin.train_eval/utils.DatasetConfig.pack=$pack")
}

# Becomes the trainer, so that its exit status and the signals sent to it are its own.
train() { # PREFIX...: a profiler's command line, or nothing
  export XLA_FLAGS="--xla_gpu_all_reduce_combine_threshold_bytes=136314880${XLA_FLAGS:+ $XLA_FLAGS}"
  export PYTHONPATH=$T5X_DIR${PYTHONPATH:+:$PYTHONPATH}
  set -- "$@" "${PYTHON:-python3}" -u -P -m t5x.train "${ARGS[@]}" "--gin.MODEL_DIR=$(gin_string "$MODEL_DIR")"
  printf '+' >&2
  printf ' %q' "$@" >&2
  printf '\n' >&2
  exec "$@"
}

# The settings of a multi-process run, all from the environment:
#   T5_SIZE=large PREC=bfloat16 BSIZE_PER_GPU=32 NUM_MICROBATCHES=1 TP_SIZE=1 PACK=0 MODEL_DIR
#   ENC_SL and DEC_SL (tokens), TRAIN_STEPS (each defaults to the gin file's), T5X_DIR, T5X_WORKSPACE_DIR, TFDS_DATA_DIR
#   CHECKPOINT_DISABLE=1 saves nothing; BENCHMARK_MODE=1 trains 500 steps; WITH_NSYS=1 profiles with the user's Nsight Systems
#   ENABLE_TE, ENABLE_FP8, TRANSPOSE_BS, FUSE_QKV: 0
#   NUM_GPUS: how many GPUs the run has; default: as many as processes, and all of this machine without Slurm
multiprocess_settings() { # ENC_SL DEC_SL of the gin file
  T5_SIZE=${T5_SIZE:-large} PREC=${PREC:-bfloat16} BSIZE_PER_GPU=${BSIZE_PER_GPU:-32}
  NUM_MICROBATCHES=${NUM_MICROBATCHES:-1} TP_SIZE=${TP_SIZE:-1} PACK=${PACK:-0}
  if [[ -n ${ENC_SL:-}${DEC_SL:-} ]]; then LENGTHS="{'inputs': ${ENC_SL:-$1}, 'targets': ${DEC_SL:-$2}}"; else LENGTHS=; fi
  MODEL_DIR=$(absolute "${MODEL_DIR:-${T5X_WORKSPACE_DIR:-$PWD}/model_dir_$T5_SIZE}")
  PROCESSES=${SLURM_NTASKS:-1}
  NUM_GPUS=${NUM_GPUS:-$(count_gpus)}
  BENCHMARK_MODE=$(switch BENCHMARK_MODE "${BENCHMARK_MODE:-0}") || exit
  CHECKPOINT_DISABLE=$(switch CHECKPOINT_DISABLE "${CHECKPOINT_DISABLE:-0}") || exit
  WITH_NSYS=$(switch WITH_NSYS "${WITH_NSYS:-0}") || exit
  not_yet ENABLE_FP8 "${ENABLE_FP8:-0}"
  not_yet TRANSPOSE_BS "${TRANSPOSE_BS:-0}"
  not_yet FUSE_QKV "${FUSE_QKV:-0}"
  check_precision "$PREC"
  local name
  for name in BSIZE_PER_GPU NUM_MICROBATCHES TP_SIZE PROCESSES NUM_GPUS; do
    positive "$name" "${!name}"
  done
  for name in ENC_SL DEC_SL TRAIN_STEPS; do
    [[ -z ${!name:-} ]] || positive "$name" "${!name}"
  done
  ((NUM_GPUS * BSIZE_PER_GPU % TP_SIZE == 0)) || fail "$NUM_GPUS GPUs x BSIZE_PER_GPU=$BSIZE_PER_GPU does not divide by TP_SIZE=$TP_SIZE" "change one of them"
  find_tree
}

count_gpus() {
  if ((${SLURM_NTASKS:-1} > 1)); then
    echo "$SLURM_NTASKS"
  elif [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
    awk -F, '{print NF}' <<<"$CUDA_VISIBLE_DEVICES"
  else
    { nvidia-smi -L 2>/dev/null || echo none; } | wc -l
  fi
}

multiprocess_arguments() {
  BATCH=$((NUM_GPUS * BSIZE_PER_GPU / TP_SIZE))
  trainer_arguments "$PREC" "$BATCH" "$NUM_MICROBATCHES" "$PACK"
  [[ -z $LENGTHS ]] || ARGS+=("--gin.TASK_FEATURE_LENGTHS=$LENGTHS")
  ARGS+=("--gin.partitioning.PjitPartitioner.num_partitions=$TP_SIZE")
  if [[ $BENCHMARK_MODE == 1 ]]; then
    [[ -z $(newest_checkpoint "$MODEL_DIR") ]] || fail "BENCHMARK_MODE=1 starts from nothing, but $MODEL_DIR holds checkpoints" "name another MODEL_DIR"
    TRAIN_STEPS=${TRAIN_STEPS:-500}
    ARGS+=("--gin.train.stats_period=100")
  fi
  [[ -z ${TRAIN_STEPS:-} ]] || ARGS+=("--gin.TRAIN_STEPS=$TRAIN_STEPS")
  [[ $CHECKPOINT_DISABLE == 0 ]] || ARGS+=("--gin.utils.CheckpointConfig.save=None")
  # No address: JAX finds the coordinator from Slurm's own variables, which name the right host.
  ((PROCESSES == 1)) || ARGS+=(--multiprocess_gpu)
}

multiprocess_train() {
  local prefix=()
  if [[ $WITH_NSYS == 1 ]]; then
    # It finds nsys where the user has it, or refuses and says how to mount it.
    prefix=("${PYTHON:-python3}" -I -m rosetta profile -o "${T5X_WORKSPACE_DIR:-$PWD}/nsys_${SLURM_JOB_ID:-$$}_${SLURM_PROCID:-0}" --)
  fi
  echo "Global batch $BATCH on $NUM_GPUS device(s) in $PROCESSES process(es), $TP_SIZE-way tensor parallel. Checkpoints in $MODEL_DIR" >&2
  train ${prefix[@]+"${prefix[@]}"}
}
