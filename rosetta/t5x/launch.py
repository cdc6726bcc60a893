"""From a script's settings to the trainer: every check that needs no JAX, the trainer's command line, and then its process in place of ours."""

from __future__ import annotations

import datetime
import json
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rosetta import nsys
from rosetta.data import checks
from rosetta.errors import UserError
from rosetta.t5x import card, settings, switches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.t5x.settings import Settings
    from rosetta.t5x.switches import Switches

EXAMPLES = "t5x/contrib/gpu/t5/t5_1_1/examples"
COMBINE = 136314880  # bytes: all-reduces are combined up to this size, the published T5X runs' value
BENCHMARK_STEPS = 500


@dataclass(frozen=True)
class Command:
    """What is executed, and what is said before."""

    argv: list[str]
    env: dict[str, str]
    log: Path | None
    lines: tuple[str, ...]


def gin_literal(value: object) -> str:
    """Return a gin literal for a string, number, None, boolean, or a dict or tuple of them."""
    if isinstance(value, str):
        # JSON's escapes are Python's, which gin reads.
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{gin_literal(key)}: {gin_literal(each)}" for key, each in value.items()) + "}"
    return repr(value)


def tree(environment: Mapping[str, str], here: str) -> Path:
    """Return the tree to train from: T5X_DIR where it is set, else the one the script lies in."""
    found = Path(environment.get("T5X_DIR") or here).resolve()
    if not (found / "t5x" / "train.py").is_file():
        raise UserError("it holds no t5x/train.py", f"T5X_DIR={found}", "name the folder that has the package t5x in it, or unset T5X_DIR")
    return found


def gin_file(root: Path, size: str, suffix: str) -> str:
    """Return the gin file of a size and run, relative to the tree."""
    name = f"{EXAMPLES}/{size}_{suffix}.gin"
    if not re.fullmatch(r"[A-Za-z0-9_]+", size) or not (root / name).is_file():
        known = sorted(path.name.removesuffix(f"_{suffix}.gin") for path in (root / EXAMPLES).glob(f"*_{suffix}.gin"))
        raise UserError(f"there is no model size {size!r} for {suffix}", "T5_SIZE", f"choose one of: {' '.join(known)}")
    return name


def newest(folder: str) -> str | None:
    """Return the newest checkpoint_N of a folder of this machine, or None."""
    found = [(int(path.name[11:]), path) for path in Path(folder).glob("checkpoint_*") if path.is_dir() and path.name[11:].isdigit()]
    return str(max(found)[1]) if found else None


def writable(folder: str) -> None:
    """Check that a folder can be made and written to, without making it.

    Raises:
      UserError: it cannot.
    """
    if "://" in folder:
        checks.remote_path(folder)
        return
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise UserError("it is no folder", folder, "name another MODEL_DIR")
    above = next(each for each in (path, *path.parents) if each.exists())
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"{above} cannot be written to", folder, "name another folder, or mend its permissions")


def finetuning(given: Settings, stamp: str) -> tuple[str, dict[str, object]]:
    """Return the folder that finetuned checkpoints go to, and the bindings that say what they start from.

    MODEL_DIR holds the pretrained model and is only read, unless MAKE_FT_DIR=false was typed: then they go beside it, as they used to.
    """
    folder, said = given.model_dir, given.variables.get("MAKE_FT_DIR", "")
    start = given.variables.get("INITIAL_CHECKPOINT_PATH") or (folder if "://" in folder else newest(folder))
    if start is None:
        raise UserError("it holds no checkpoint_N", f"MODEL_DIR={folder}", "name the folder of the pretrained model")
    if said and not switches.flag("MAKE_FT_DIR", said):
        return folder, {"INITIAL_CHECKPOINT_PATH": start}
    parent, _, name = folder.rstrip("/").rpartition("/")
    own = given.variables.get("FT_DIR") or f"{parent}/ft_{given.task}_{name}" + (f"_{stamp}" if said else "")
    return settings.absolute(own), {"INITIAL_CHECKPOINT_PATH": start}


def data(given: Settings, benchmark: bool) -> dict[str, object]:
    """Return the bindings for the run's data and vocabulary, checked; what is not set stays the gin file's."""
    variables = given.variables
    found: dict[str, object] = {}
    spec, vocab = variables.get("DATA", ""), variables.get("VOCAB", "")
    if benchmark and not spec:
        spec, vocab = "synthetic", vocab or "ids:32128"
    if spec:
        found["DATA"] = spec
    if variables.get("EVAL_DATA"):
        found["EVAL_DATA"] = variables["EVAL_DATA"]
    if vocab:
        found["VOCAB"] = vocab
    lengths = given.lengths or (settings.TASKS[given.task] if given.finetune else settings.PRETRAIN_LENGTHS)
    if spec and vocab:
        objective = {"mnli2": "mnli", "squad1": "squad"}[given.task] if given.finetune else "span_corruption"
        checks.before_start(data=spec, objective=objective, vocab=vocab, vocab_size=None, lengths=lengths, eval_data=variables.get("EVAL_DATA") or None)
    if not spec and not given.finetune and not variables.get("ROSETTA_GIN"):
        _pile(variables.get("TFDS_DATA_DIR") or "/t5x_home/datasets")
    return found


def _pile(folder: str) -> None:
    if "://" not in folder and not Path(folder, "the_pile").is_dir():
        raise UserError("it has no the_pile, which has been offline since October 2023", f"TFDS_DATA_DIR={folder}", "name a prepared copy, or other data: DATA=text:GLOB and VOCAB=FILE, or DATA=synthetic")


def command(script: str, words: Sequence[str], environment: Mapping[str, str], here: str) -> Command:
    """Return what a script runs.

    Args:
      script: its name without suffix.
      words: its positionals.
      environment: the variables.
      here: the tree that the script lies in.

    Raises:
      UserError: anything that can be known to be wrong before JAX starts.
    """
    root = tree(environment, here)
    tasks = int(environment.get("SLURM_NTASKS") or 1)
    found = card.cards()
    given = settings.read(script, words, environment, tasks if tasks > 1 else max(len(found), 1))
    suffix = f"{given.task}_finetune_adam" if given.finetune else "pile_pretrain"
    file = gin_file(root, given.size, suffix)
    platforms = card.platform()
    on_cpu = platforms.split(",")[0] == "cpu"
    chosen = switches.choose(given.variables, found, on_cpu=on_cpu, precision=given.precision)
    benchmark = bool(given.variables.get("BENCHMARK_MODE")) and switches.flag("BENCHMARK_MODE", given.variables["BENCHMARK_MODE"])
    bindings = {**_size(given, chosen), **chosen.bindings(), **data(given, benchmark)}
    model_dir = given.model_dir
    if given.finetune:
        stamp = environment.get("SLURM_JOB_ID") or datetime.datetime.now().astimezone().strftime("%F_%H-%M-%S")
        model_dir, more = finetuning(given, stamp)
        bindings |= more
    bindings |= _length(given, benchmark, model_dir)
    writable(model_dir)
    if given.variables.get("CHECKPOINT_DISABLE") and switches.flag("CHECKPOINT_DISABLE", given.variables["CHECKPOINT_DISABLE"]):
        bindings["utils.CheckpointConfig.save"] = None
    argv = [environment.get("PYTHON") or sys.executable, "-u", "-P", "-m", "rosetta.t5x.train", f"--gin_search_paths={root}", f"--gin_file={file}"]
    if environment.get("ROSETTA_GIN"):
        extra = environment["ROSETTA_GIN"]
        if not Path(extra).is_file():
            raise UserError("it is no file", f"ROSETTA_GIN={extra}", "name a gin file, or unset it")
        argv.append(f"--gin_file={Path(extra).absolute()}")
    argv.append(f"--tfds_data_dir={environment.get('TFDS_DATA_DIR') or '/t5x_home/datasets'}")
    argv += [f"--gin.{name}={gin_literal(value)}" for name, value in {**bindings, "MODEL_DIR": model_dir}.items()]
    if tasks > 1:
        argv.append("--multiprocess_gpu")  # no address: JAX finds the coordinator from Slurm's own variables, which name the right host
    if given.variables.get("WITH_NSYS") and switches.flag("WITH_NSYS", given.variables["WITH_NSYS"]):
        profile = f"{environment.get('T5X_WORKSPACE_DIR') or os.getcwd()}/nsys_{environment.get('SLURM_JOB_ID') or os.getpid()}_{environment.get('SLURM_PROCID', '0')}"
        argv = nsys.command(argv, profile)
    log = None
    if given.single:
        precision = "bfloat16" if chosen.fp8 != "off" else given.precision
        log = Path(given.log_dir) / f"{'ft_' if given.finetune else ''}{given.size}_gpu_{given.gpus}_{precision}_gbs_{given.batch}.log"
    lines = (
        f"global batch {given.batch} on {given.gpus} device(s){f' in {tasks} processes' if tasks > 1 else ''}, {given.tensor_parallel}-way tensor parallel; checkpoints in {model_dir}"
        + (f", log in {log}" if log else ""),
        *chosen.notes,
    )
    return Command(argv, _environment(environment, root, platforms, chosen), log, lines)


OUTPUTS = {"eval": "EVAL_OUTPUT_DIR", "infer": "INFER_OUTPUT_DIR"}


def reading(what: str, environment: Mapping[str, str]) -> Command:
    """Return what evaluates a checkpoint on a task, or infers from it.

    Args:
      what: "eval" or "infer".
      environment: CHECKPOINT_PATH, FT_TASK, OUTPUT_DIR; T5_FAMILY=t5_1_1, T5_SIZE=large, PREC, BSIZE (32), TP_SIZE, DATA, VOCAB, NUM_DECODES,
        and the switches.

    Raises:
      UserError: anything that can be known to be wrong before JAX starts.
    """
    for name in ("CHECKPOINT_PATH", "OUTPUT_DIR"):
        if not environment.get(name):
            raise UserError("it is not set", name, f"give {name}=FOLDER")
    task = environment.get("FT_TASK", "")
    if task not in settings.TASKS:
        raise UserError(f"it is {task!r}", "FT_TASK", f"choose {' or '.join(settings.TASKS)}")
    gin = Path(__file__).parent / "gin"
    family, size = environment.get("T5_FAMILY") or "t5_1_1", environment.get("T5_SIZE") or "large"
    if not re.fullmatch(r"[A-Za-z0-9_]+/[A-Za-z0-9_]+", f"{family}/{size}") or not (gin / family / f"{size}.gin").is_file():
        known = " ".join(sorted(f"{path.parent.name}/{path.stem}" for path in gin.glob("*/*.gin") if (path.parent / "tiny.gin").is_file()))
        raise UserError(f"there is no {family}/{size}", "T5_FAMILY, T5_SIZE", f"choose one of: {known}")
    platforms, found = card.platform(), card.cards()
    precision = environment.get("PREC") or "bfloat16"
    chosen = switches.choose(environment, found, on_cpu=platforms.split(",")[0] == "cpu", precision=precision)
    batch = settings.positive("BSIZE", environment.get("BSIZE") or "32")
    bindings: dict[str, object] = {
        **{name: value for name, value in chosen.bindings().items() if name != "PACK"}, "network.T5Config.dtype": precision, "BATCH_SIZE": batch,
        "NUM_PARTITIONS": settings.positive("TP_SIZE", environment.get("TP_SIZE") or "1"), "CHECKPOINT_PATH": settings.absolute(environment["CHECKPOINT_PATH"]),
        OUTPUTS[what]: settings.absolute(environment["OUTPUT_DIR"]),
    }  # fmt: skip
    bindings |= {name: environment[name] for name in ("DATA", "VOCAB") if environment.get(name)}
    if environment.get("DATA"):
        bindings["EVAL_DATA"] = environment.get("EVAL_DATA") or environment["DATA"]
    if environment.get("NUM_DECODES"):
        bindings["NUM_DECODES"] = settings.positive("NUM_DECODES", environment["NUM_DECODES"])
    writable(str(bindings[OUTPUTS[what]]))
    files = (f"{family}/{size}.gin", f"runs/{what}.gin", f"runs/task_{task}.gin")
    argv = [environment.get("PYTHON") or sys.executable, "-u", "-P", "-m", "rosetta.t5x.train", what]
    argv += [f"--gin_file=rosetta/t5x/gin/{name}" for name in files]
    argv.append(f"--tfds_data_dir={environment.get('TFDS_DATA_DIR') or '/t5x_home/datasets'}")
    argv += [f"--gin.{name}={gin_literal(value)}" for name, value in bindings.items()]
    env = {**environment, "JAX_PLATFORMS": platforms}
    return Command(argv, env, None, chosen.notes)


def _size(given: Settings, chosen: Switches) -> dict[str, object]:
    """The bindings for batch, precision and layout."""
    bindings: dict[str, object] = {
        "network.T5Config.dtype": "bfloat16" if chosen.fp8 != "off" else given.precision,  # FP8 is rounded from bfloat16, as documented
        "BATCH_SIZE": given.batch,
        "EVAL_BATCH_SIZE": given.batch,
        "trainer.Trainer.num_microbatches": given.microbatches,
        "NUM_PARTITIONS": given.tensor_parallel,
    }
    if given.lengths:
        bindings["TASK_FEATURE_LENGTHS"] = given.lengths
    return bindings


def _length(given: Settings, benchmark: bool, model_dir: str) -> dict[str, object]:
    """The bindings for how long to train. FT_STEPS counts from the restored step."""
    if given.finetune and given.variables.get("FT_STEPS"):
        return {"FT_STEPS": settings.positive("FT_STEPS", given.variables["FT_STEPS"])}
    if not benchmark:
        return {} if given.steps is None else {"TRAIN_STEPS": given.steps}
    if "://" not in model_dir and newest(model_dir):
        raise UserError("BENCHMARK_MODE=1 starts from nothing, but it holds checkpoints", f"MODEL_DIR={model_dir}", "name another MODEL_DIR")
    return {"TRAIN_STEPS": given.steps or BENCHMARK_STEPS, "STATS_PERIOD": min(100, given.steps or BENCHMARK_STEPS)}


def _environment(environment: Mapping[str, str], root: Path, platforms: str, chosen: Switches) -> dict[str, str]:
    """The trainer's environment: ours first in XLA_FLAGS, the user's after them, where they win."""
    flags = [f"--xla_gpu_all_reduce_combine_threshold_bytes={COMBINE}"]
    if chosen.fp8 == "xla":
        flags.append("--xla_gpu_enable_triton_gemm=false")  # Triton's GEMMs are never FP8 ones, and XLA prefers them
    path = environment.get("PYTHONPATH")
    return {
        **environment, "JAX_PLATFORMS": platforms, "XLA_FLAGS": " ".join([*flags, environment.get("XLA_FLAGS", "")]).strip(),
        "PYTHONPATH": f"{root}{os.pathsep}{path}" if path else str(root),
    }  # fmt: skip


def execute(wanted: Command) -> NoReturn:
    """Become the trainer, so that its exit status and the signals sent to it are its own. Progress stays on our stderr; its log goes to the file."""
    env = dict(wanted.env)
    for line in wanted.lines:
        print(f"rosetta: {line}", file=sys.stderr)
    print("+ " + shlex.join(wanted.argv), file=sys.stderr, flush=True)
    if wanted.log:
        wanted.log.parent.mkdir(parents=True, exist_ok=True)
        terminal = os.dup(2)
        os.set_inheritable(terminal, True)
        env["ROSETTA_PROGRESS_FD"] = str(terminal)
        log = os.open(wanted.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        print("+ " + shlex.join(wanted.argv), file=sys.stderr, flush=True)
    os.execvpe(wanted.argv[0], wanted.argv, env)  # noqa: S606


def main(argv: Sequence[str]) -> int:
    """Run a script: its name, the tree it lies in, then its positionals. Returns an exit status where the trainer was not started."""
    script, here, *words = argv
    dry = words[:1] == ["--dry-run"]
    try:
        wanted = command(script, words[dry:], os.environ, here)
        if dry:
            print(json.dumps(shown(wanted), indent=2))
            return 0
        execute(wanted)
    except UserError as error:
        print(f"{script}.sh: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{script}.sh: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2


def shown(wanted: Command) -> dict[str, Any]:
    """Return a command as JSON: what of the environment was decided here, and not the rest of it, which may hold secrets."""
    names = ("XLA_FLAGS", "JAX_PLATFORMS", "PYTHONPATH")
    return {"argv": wanted.argv, "env": {name: wanted.env[name] for name in names if name in wanted.env}, "log": str(wanted.log) if wanted.log else None, "said": list(wanted.lines)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
