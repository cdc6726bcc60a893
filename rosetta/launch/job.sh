#!/bin/bash
# What `rosetta submit` gives to sbatch, always the same: it runs one step, whose srun arguments are its own. Nothing in it is evaluated.
# Shortly before the time limit Slurm sends it USR1 (--signal=B:USR1@SECONDS), which the processes get through srun: they write a checkpoint
# and end with status 75; of those that wait for one that hangs or is lost, the status is 200. With REQUEUE=1 the job is then started again, and
# goes on. Any other end is the job's own.
# TERM and INT, which `scancel --batch` may send, become USR1: srun passes USR1 on, and kills the processes at once when it gets TERM itself.
set -u

limit='' signalled='' early='' step=''
# shellcheck disable=SC2329 # called by the traps
forward() {
  signalled=1
  if [[ -n $step ]]; then kill -s USR1 "$step" 2>/dev/null; else early=1; fi
}
trap 'limit=1; forward' USR1
trap forward TERM INT

srun "$@" &
step=$!
[[ -z $early ]] || kill -s USR1 "$step" 2>/dev/null # the signal came before srun's number was known
status=0
while :; do
  signalled=''
  wait "$step"
  status=$?
  [[ $status -gt 128 && -n $signalled ]] || break # a signal ends `wait` before the step has ended
done

again=''
[[ $status != 75 || -z $limit ]] || again='ended early at its time limit, with a checkpoint'
[[ $status != 200 ]] || again='a process hangs or is lost'
if [[ -n $again && ${REQUEUE:-0} == 1 ]]; then
  echo "rosetta: $again; requeued" >&2
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
