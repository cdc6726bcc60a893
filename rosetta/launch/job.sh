#!/bin/bash
# The batch script of every job that `rosetta submit` sends to Slurm. Its arguments are those of
# srun: the script runs one step, and evaluates none of its arguments.
#
# Before the time limit, Slurm sends USR1 to this script (--signal=B:USR1@SECONDS). The script sends
# USR1 on to srun, and srun to the processes. They write a checkpoint and end with status 75. If a
# process hangs or is lost, the processes that wait for it end with status 200. In both cases, with
# REQUEUE=1, the script requeues the job, and the run resumes. In all other cases the job ends with
# the status of the step.
#
# TERM and INT, which `scancel --batch` may send, are sent on as USR1 too: srun itself would kill
# the processes at once on TERM, before they can write a checkpoint.
set -u

at_limit='' got_signal='' signal_before_step='' step=''
# shellcheck disable=SC2329 # the traps call this function
forward() {
  got_signal=1
  if [[ -n $step ]]; then kill -s USR1 "$step" 2>/dev/null; else signal_before_step=1; fi
}
trap 'at_limit=1; forward' USR1
trap forward TERM INT

srun "$@" &
step=$!
# A signal that came before the process ID of srun was known is sent on now.
[[ -z $signal_before_step ]] || kill -s USR1 "$step" 2>/dev/null
status=0
while :; do
  got_signal=''
  wait "$step"
  status=$?
  # A signal to this script ends `wait` while the step still runs. Wait again then.
  [[ $status -gt 128 && -n $got_signal ]] || break
done

reason=''
[[ $status != 75 || -z $at_limit ]] || reason='the time limit is near'
[[ $status != 200 ]] || reason='a process hangs or is lost'
if [[ -n $reason && ${REQUEUE:-0} == 1 ]]; then
  echo "rosetta: $reason: the job is requeued, and the run continues from its newest checkpoint" >&2
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
