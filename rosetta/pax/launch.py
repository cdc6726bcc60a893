"""From a script's settings to Paxml: every check that needs no JAX, Paxml's command line, and then its process in place of ours."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rosetta import nsys, status, xlaflags
from rosetta.errors import UserError
from rosetta.pax import choose, preflight, settings, xla
from rosetta.t5x import card
from rosetta.t5x import preflight as devices
from rosetta.t5x.launch import DRY_RUN, Command, execute, shown
from rosetta.t5x.switches import on

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.pax.choose import Choice
    from rosetta.pax.settings import Settings

MEMORY = {"run_pile_multinode": "0.85", "run_base_config_multinode": "0.9", "run_llama_boolq": "0.85"}
LOGS = {"run_pile_singlenode": "pile_output.log", "run_lambada_singlenode": "lambada_output.log"}
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


def commands(script: str, words: Sequence[str], environment: Mapping[str, str]) -> list[Command]:
    """Return what a script runs, one after the other: training, evaluation, or both.

    Args:
      script: its name without suffix.
      words: its positionals.
      environment: the variables.

    Raises:
      UserError: anything that can be known to be wrong before JAX starts.
    """
    found = card.cards()
    platforms = card.platform(found)
    on_cpu = platforms.split(",")[0] == "cpu"
    given = settings.read(script, words, environment, devices.devices(found, environment, on_cpu=on_cpu))
    experiment = preflight.experiment(given.config)
    flags, renamed = _flags(given)
    chosen = choose.choose(given, found, flags, on_cpu=on_cpu)
    env, notes = _devices(given, found, environment, on_cpu=on_cpu)
    vocab, more = preflight.vocabulary(given)
    data = preflight.data(given)
    reads = preflight.of_script(given)
    made = _environment(env, given, chosen, flags, on_cpu=on_cpu)
    made |= {"VOCAB_PATH": vocab} if vocab else {}
    made |= {**data, "JAX_PLATFORMS": platforms}
    bare = given.llama and "restore" not in reads
    lines = (_summary(given), *renamed, *chosen.notes, *notes, *more, *(["training starts from nothing: CHECKPOINT_RESTORE_PATH is not set"] if bare else []))
    start = [made.get("PYTHON") or sys.executable, "-u", "-P", "-m", "rosetta.pax.train", f"--fdl_config={experiment}"]
    start += [f"--tfds_data_dir={data['TFDS_DATA_DIR']}"] if "TFDS_DATA_DIR" in data else []
    start += ["--multiprocess_gpu"] if given.processes > 1 else []  # no address: JAX finds the coordinator by Slurm's own variables
    hyper = {**given.hyper, **chosen.hyper}
    return [Command(argv, made, log, () if index else lines) for index, (argv, log) in enumerate(_runs(given, start, hyper, reads))]


def _runs(given: Settings, start: list[str], hyper: Mapping[str, str], reads: Mapping[str, object]) -> list[tuple[list[str], Path | None]]:
    """Command lines and where each one's output goes; None: to where ours does."""

    def argv(job: str, mode: str, values: Mapping[str, object], *more: str) -> list[str]:
        words = [*start, f"--job_log_dir={job}", f"--mode={mode}", "--alsologtostderr", *more]
        words += [f"--fdl.{name}={value}" for name, value in values.items()] + list(given.words)
        if not on(given.variables, "WITH_NSYS"):
            return words
        return nsys.command(words, f"{job}/nsys_{given.variables.get('SLURM_JOB_ID') or os.getpid()}_{given.variables.get('SLURM_PROCID', '0')}")

    # Evaluation ends with this checkpoint, rather than wait for the training run's next one.
    last = {} if reads.get("step") is None else {"MAX_STEPS": reads["step"]}
    if given.script == "run_lambada_singlenode":
        return [(argv(given.log_dir, "eval", {**hyper, **last}), _log(given, LOGS[given.script]))]
    if not given.llama:
        log = _log(given, LOGS[given.script]) if given.script in LOGS else None
        return [(argv(given.log_dir, "train", hyper), log)]
    name = f"llama-{given.config}-mbs-{hyper['PERCORE_BATCH_SIZE']}-te-{given.variables.get('ENABLE_TE') or 0}-lora-{int(given.lora)}"
    job, log = f"{given.log_dir}/{name}", _log(given, f"logs/{name}.txt")
    restore = reads.get("restore")
    if on(given.variables, "EVAL_ONLY"):
        if not restore:
            raise UserError("it is not given", "CHECKPOINT_RESTORE_PATH", "name the folder that holds checkpoints/checkpoint_N to evaluate, or set EVAL_ONLY=0")
        return [(argv(job, "eval", {**hyper, **last}, f"--evaluate_from={restore}"), log)]
    trained = {**hyper, "CHECKPOINT_RESTORE_PATH": json.dumps(restore)} if restore else hyper
    return [(argv(job, "train", trained), log), (argv(job, "eval", hyper), log)]


def _log(given: Settings, name: str) -> Path | None:
    """Where a run's output goes; to where ours does in an object store, and for all but the first of several processes, whose logs Slurm keeps."""
    return None if "://" in given.log_dir or given.processes > 1 else Path(given.log_dir, name)


def _summary(given: Settings) -> str:
    processes = f" in {given.processes} processes on {given.nodes} node(s)" if given.processes > 1 else ""
    return f"{given.config} on {given.gpus} device(s){processes}; checkpoints and logs in {given.log_dir}"


def _flags(given: Settings) -> tuple[list[str], tuple[str, ...]]:
    """The run's XLA flags: ours, in whose place BASE_XLA_FLAGS stands, then those of XLA_FLAGS, which win. The user's are checked."""
    base, said = xlaflags.written(xla.options(given.config)), tuple[str, ...]()
    if given.variables.get("BASE_XLA_FLAGS"):
        base, said = xlaflags.today(given.variables["BASE_XLA_FLAGS"])
    own, also = xlaflags.today(given.variables.get("XLA_FLAGS", ""))
    typed = [*(base if given.variables.get("BASE_XLA_FLAGS") else ()), *own]
    xlaflags.require_known([flag for flag in typed if "xla_force_host_platform_device_count" not in flag], given.variables.get("PYTHON") or sys.executable)
    return [*base, *own], (*said, *also)


def _devices(given: Settings, found: list[card.Card], environment: Mapping[str, str], *, on_cpu: bool) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment in which each process has its devices."""
    if given.processes == 1:
        return devices.share(given, found, environment, on_cpu=on_cpu)  # type: ignore[arg-type]  # it reads gpus and processes
    if given.gpus_per_process == 1:
        return dict(environment), ()
    if on_cpu:
        there = devices.devices(found, environment, on_cpu=True)
        if there != given.gpus_per_process:
            raise UserError(f"XLA_FLAGS makes {there} CPU device(s) in each process", f"NUM_GPUS={given.gpus_per_process}", "make both the same")
        return dict(environment), ()
    if len(found) < given.gpus_per_process:
        raise UserError(f"{len(found)} GPU(s) are visible", f"NUM_GPUS={given.gpus_per_process}", f"give at most {len(found)}")
    # JAX takes one GPU a process under Slurm, unless it is told.
    return {**environment, "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(given.gpus_per_process)))}, ()


def _environment(env: Mapping[str, str], given: Settings, chosen: Choice, flags: Sequence[str], *, on_cpu: bool) -> dict[str, str]:
    # share() may have added to XLA_FLAGS how many devices the CPU is to stand in for.
    added = [flag for flag in xlaflags.today(env.get("XLA_FLAGS", ""))[0] if flag not in flags]
    made = {**env, **chosen.env, "XLA_FLAGS": xlaflags.joined([*flags, *added])}
    made.pop("BASE_XLA_FLAGS", None)
    if given.script in MEMORY and not on_cpu:
        made.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", MEMORY[given.script])
    return made


def run(wanted: Sequence[Command]) -> NoReturn:
    """Run these one after the other, and become the last. One that fails ends it, with its status.

    Signals that end us go to what runs then, and what runs ends with us.
    """
    *first, last = wanted
    for each in first:
        if code := _child(each):
            sys.exit(code)
    execute(last)


def _child(wanted: Command) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            execute(wanted)
        except OSError as error:
            print(f"rosetta: {error.filename}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(2)
    before = {number: signal.signal(number, lambda given, _: os.kill(child, given)) for number in _SIGNALS}
    try:
        _, ended = os.waitpid(child, 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    code = os.waitstatus_to_exitcode(ended)
    return code if code >= 0 else 128 - code


def shown_all(wanted: Sequence[Command]) -> dict[str, Any]:
    """Return what runs, in order, as JSON; see rosetta.t5x.launch.shown for each."""
    names = ("VOCAB_PATH", "TFDS_DATA_DIR", "DATA", "EVAL_DATA", "ENABLE_TE", "ENABLE_FP8", "XLA_PYTHON_CLIENT_MEM_FRACTION", "JAX_LOCAL_DEVICE_IDS")
    found = [shown(each) for each in wanted]
    for each, command in zip(found, wanted, strict=True):
        each["env"] |= {name: command.env[name] for name in names if name in command.env}
    return {"runs": found}


def main(argv: Sequence[str]) -> int:
    """Run a script: its name, then its words; --dry-run among them, it only says what it would run.

    Returns an exit status where Paxml was not started.
    """
    script, *words = argv
    try:
        wanted = commands(script, [word for word in words if word != DRY_RUN], os.environ)
        if DRY_RUN not in words:
            run(wanted)
        status.say(json.dumps(shown_all(wanted), indent=2))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (whatever it is, it ends in one line and a status of its own)
        code, failure = status.failure(error, "settings")
        print(f"{script}.sh: {failure}", file=sys.stderr)
        return code
    return status.FINE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
