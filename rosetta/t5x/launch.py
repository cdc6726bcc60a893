"""From a script's settings to the trainer: every check that needs no JAX, the trainer's command line, and then its process in place of ours."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rosetta import nsys
from rosetta.errors import UserError
from rosetta.t5x import card, folders, ginread, preflight, settings, switches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.t5x.settings import Settings
    from rosetta.t5x.switches import Switches

EXAMPLES = "t5x/contrib/gpu/t5/t5_1_1/examples"
GIN = Path(__file__).parent / "gin"
COMBINE = 136314880  # bytes: all-reduces are combined up to this size, the published T5X runs' value
BENCHMARK_STEPS = 500


@dataclass(frozen=True)
class Command:
    """What is executed, what is said before, and the checkpoint that finetuning in a folder starts from: (folder, checkpoint)."""

    argv: list[str]
    env: dict[str, str]
    log: Path | None
    lines: tuple[str, ...]
    start: tuple[str, str] | None = None


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
    found = card.cards()
    platforms = card.platform(found)
    on_cpu = platforms.split(",")[0] == "cpu"
    given = settings.read(script, words, environment, preflight.devices(found, environment, on_cpu=on_cpu))
    variables = given.variables
    files = [root / gin_file(root, given.size, f"{given.task}_finetune_adam" if given.finetune else "pile_pretrain")]
    if variables.get("ROSETTA_GIN"):
        files.append(preflight.existing("ROSETTA_GIN", variables["ROSETTA_GIN"], "name a gin file, or unset it"))
    chosen = switches.choose(variables, found, on_cpu=on_cpu)
    env, notes = preflight.share(given, found, environment, on_cpu=on_cpu)
    bound = ginread.read(files, (root, GIN.parents[2], Path.cwd()))
    bindings = {**_size(given, bound), **chosen.training()}
    benchmark = switches.on(variables, "BENCHMARK_MODE")
    model_dir, start = given.model_dir, None
    if given.finetune:
        stamp = environment.get("SLURM_JOB_ID") or dt.datetime.now().astimezone().strftime("%F_%H-%M-%S")
        model_dir, start = folders.finetuning(model_dir, given.task, variables, stamp)
        bindings["INITIAL_CHECKPOINT_PATH"] = start
    data, more = _data(given, benchmark, bound)
    bindings |= {**data, **_length(given, benchmark, model_dir, start), "MODEL_DIR": model_dir}
    if switches.on(variables, "CHECKPOINT_DISABLE"):
        bindings["utils.CheckpointConfig.save"] = None
    preflight.check(given, {**bound, **{name: ginread.literal(value) for name, value in bindings.items()}}, environment)
    folders.writable(model_dir)
    log = None
    if given.log_dir:
        folders.writable(folders.absolute(given.log_dir))
        log = Path(given.log_dir) / f"{'ft_' if given.finetune else ''}{given.size}_gpu_{given.gpus}_{chosen.precision}_gbs_{given.batch}.log"
    argv = _argv(environment, [str(file.absolute()) for file in files], bindings, root=root)
    if given.processes > 1:
        argv.append("--multiprocess_gpu")  # no address: JAX finds the coordinator from Slurm's own variables, which name the right host
    if switches.on(variables, "WITH_NSYS"):
        profile = f"{environment.get('T5X_WORKSPACE_DIR') or os.getcwd()}/nsys_{environment.get('SLURM_JOB_ID') or os.getpid()}_{environment.get('SLURM_PROCID', '0')}"
        argv = nsys.command(argv, profile)
    lines = (_summary(given, model_dir, log), *chosen.notes, *notes, *more)
    return Command(argv, {**_environment(env, root, chosen), "JAX_PLATFORMS": platforms}, log, lines, (model_dir, start) if start else None)


def _summary(given: Settings, model_dir: str, log: Path | None) -> str:
    processes = f" in {given.processes} processes" if given.processes > 1 else ""
    parts = f"global batch {given.batch} on {given.gpus} device(s){processes}, {given.tensor_parallel}-way tensor parallel, {given.microbatches} microbatch(es)"
    return f"{parts}; checkpoints in {model_dir}" + (f", log in {log}" if log else "")


def _argv(environment: Mapping[str, str], files: Sequence[str], bindings: Mapping[str, object], *, root: Path | None = None, program: str = "train") -> list[str]:
    argv = [environment.get("PYTHON") or sys.executable, "-u", "-P", "-m", "rosetta.t5x.train", program]
    argv += [f"--gin_search_paths={root}"] if root else []
    argv += [f"--gin_file={file}" for file in files]
    argv.append(f"--tfds_data_dir={preflight.datasets(environment)}")
    return argv + [f"--gin.{name}={ginread.literal(value)}" for name, value in bindings.items()]


def _size(given: Settings, bound: dict[str, str]) -> dict[str, object]:
    """The bindings for batch, lengths and layout."""
    bindings: dict[str, object] = {
        "BATCH_SIZE": given.batch,
        "EVAL_BATCH_SIZE": given.batch,
        "trainer.Trainer.num_microbatches": given.microbatches,
        "NUM_PARTITIONS": given.tensor_parallel,
    }
    return {**bindings, **_lengths(given.lengths, bound)}


def _lengths(given: Mapping[str, int], bound: dict[str, str]) -> dict[str, object]:
    usual = ginread.value(bound, "TASK_FEATURE_LENGTHS")
    return {"TASK_FEATURE_LENGTHS": {**(usual if isinstance(usual, dict) else {}), **given}} if given else {}


def _data(given: Settings, benchmark: bool, bound: dict[str, str]) -> tuple[dict[str, object], tuple[str, ...]]:
    """The bindings for data and vocabulary, and what to say of them; what is not set stays the gin file's."""
    chosen: dict[str, object] = {name: given.variables[name] for name in ("DATA", "EVAL_DATA", "VOCAB") if given.variables.get(name)}
    if benchmark and "DATA" not in chosen:
        rows = ginread.value(bound, "network.T5Config.vocab_size")
        chosen = {"VOCAB": f"ids:{rows if isinstance(rows, int) else 32128}", **chosen, "DATA": "synthetic"}
    if not given.finetune or "DATA" not in chosen or "EVAL_DATA" in chosen:
        return chosen, ()
    # The gin file's own evaluation data would be another data set than the one that is trained on.
    chosen |= {"EVAL_DATA": None, "train.train_eval_dataset_cfg": None, "train.infer_eval_dataset_cfg": None}
    return chosen, () if benchmark else ("no evaluation: DATA is set and EVAL_DATA is not",)


def _length(given: Settings, benchmark: bool, model_dir: str, start: str | None) -> dict[str, object]:
    """The bindings for how long to train: TRAIN_STEPS says the step to end at, FT_STEPS counts from the restored one."""
    if benchmark and "://" not in model_dir and folders.newest(model_dir):
        raise UserError("BENCHMARK_MODE=1 starts anew, but it holds checkpoints", f"MODEL_DIR={model_dir}", f"name another {'FT_DIR' if given.finetune else 'MODEL_DIR'}")
    if not start:
        steps = given.steps or (BENCHMARK_STEPS if benchmark else None)
        return {} if steps is None else {"TRAIN_STEPS": steps, **({"STATS_PERIOD": min(100, steps)} if benchmark else {})}
    more = BENCHMARK_STEPS if benchmark else None
    if given.variables.get("FT_STEPS"):
        more = settings.positive("FT_STEPS", given.variables["FT_STEPS"])
    elif given.steps:
        known = re.search(r"checkpoint_(\d+)/?$", start)
        if not known or given.steps <= int(known[1]):
            raise UserError(f"finetuning starts from {start}", f"TRAIN_STEPS={given.steps}", "give the number of steps to add: FT_STEPS=N")
        more = given.steps - int(known[1])
    return {} if more is None else {"FT_STEPS": more, **({"STATS_PERIOD": min(100, more)} if benchmark else {})}


def _environment(environment: Mapping[str, str], root: Path, chosen: Switches) -> dict[str, str]:
    """The trainer's environment: ours first in XLA_FLAGS, the user's after them, where they win."""
    flags = [f"--xla_gpu_all_reduce_combine_threshold_bytes={COMBINE}"]
    if chosen.fp8 == "xla":
        flags.append("--xla_gpu_enable_triton_gemm=false")  # Triton's GEMMs are never FP8 ones, and XLA prefers them
    path = environment.get("PYTHONPATH")
    found = {"XLA_FLAGS": " ".join([*flags, environment.get("XLA_FLAGS", "")]).strip(), "PYTHONPATH": f"{root}{os.pathsep}{path}" if path else str(root)}
    return {**environment, "TFDS_DATA_DIR": preflight.datasets(environment), **found}


OUTPUTS = {"eval": "EVAL_OUTPUT_DIR", "infer": "INFER_OUTPUT_DIR"}


def reading(what: str, environment: Mapping[str, str]) -> Command:
    """Return what evaluates a checkpoint on a task, or infers from it.

    Args:
      what: "eval" or "infer".
      environment: CHECKPOINT_PATH, FT_TASK, OUTPUT_DIR; T5_FAMILY=t5_1_1, T5_SIZE=large, PREC, BSIZE (32), TP_SIZE, DATA, VOCAB, NUM_DECODES,
        ENC_SL, DEC_SL, ROSETTA_GIN, and the switches.

    Raises:
      UserError: anything that can be known to be wrong before JAX starts.
    """
    for name in ("CHECKPOINT_PATH", "OUTPUT_DIR"):
        if not environment.get(name):
            raise UserError("it is not set", name, f"give {name}=FOLDER")
    task = switches.one_of("FT_TASK", environment.get("FT_TASK", ""), list(settings.TASKS))
    family, size = environment.get("T5_FAMILY") or "t5_1_1", environment.get("T5_SIZE") or "large"
    if not re.fullmatch(r"[A-Za-z0-9_]+/[A-Za-z0-9_]+", f"{family}/{size}") or not (GIN / family / f"{size}.gin").is_file():
        known = " ".join(sorted(f"{path.parent.name}/{path.stem}" for path in GIN.glob("*/*.gin") if (path.parent / "tiny.gin").is_file()))
        raise UserError(f"there is no {family}/{size}", "T5_FAMILY, T5_SIZE", f"choose one of: {known}")
    found = card.cards()
    platforms = card.platform(found)
    chosen = switches.choose(environment, found, on_cpu=platforms.split(",")[0] == "cpu")
    bindings: dict[str, object] = {
        **chosen.reading(),
        "BATCH_SIZE": settings.positive("BSIZE", environment.get("BSIZE") or "32"),
        "NUM_PARTITIONS": settings.positive("TP_SIZE", environment.get("TP_SIZE") or "1"),
        "CHECKPOINT_PATH": preflight.checkpoint(environment["CHECKPOINT_PATH"]),
        OUTPUTS[what]: folders.absolute(environment["OUTPUT_DIR"]),
        **{name: environment[name] for name in ("DATA", "VOCAB") if environment.get(name)},
    }
    if environment.get("DATA"):
        bindings["EVAL_DATA"] = environment.get("EVAL_DATA") or environment["DATA"]
    if environment.get("NUM_DECODES"):
        bindings["NUM_DECODES"] = settings.positive("NUM_DECODES", environment["NUM_DECODES"])
    names = [f"rosetta/t5x/gin/{name}" for name in (f"{family}/{size}.gin", f"runs/{what}.gin", f"runs/task_{task}.gin")]
    files = [GIN.parents[2] / name for name in names]
    if environment.get("ROSETTA_GIN"):
        files.append(preflight.existing("ROSETTA_GIN", environment["ROSETTA_GIN"], "name a gin file, or unset it"))
        names.append(str(files[-1]))
    bound = ginread.read(files, (GIN.parents[2], Path.cwd()))
    bindings |= _lengths(settings.lengths(environment), bound)
    preflight.data({**bound, **{name: ginread.literal(value) for name, value in bindings.items()}}, environment)
    folders.writable(str(bindings[OUTPUTS[what]]))
    return Command(_argv(environment, names, bindings, program=what), {**environment, "TFDS_DATA_DIR": preflight.datasets(environment), "JAX_PLATFORMS": platforms}, None, chosen.notes)


def execute(wanted: Command) -> NoReturn:
    """Become the trainer, so that its exit status and the signals sent to it are its own. Progress stays on our stderr; its log goes to the file."""
    env = dict(wanted.env)
    for line in wanted.lines:
        print(f"rosetta: {line}", file=sys.stderr)
    print("+ " + shlex.join(wanted.argv), file=sys.stderr, flush=True)
    if wanted.start:
        folders.keep_start(*wanted.start)
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
    except ModuleNotFoundError as error:
        print(f"{script}.sh: {sys.executable}: it has no {error.name}; put a baked environment's bin first on PATH, or name its Python: PYTHON=FILE", file=sys.stderr)
    except OSError as error:
        print(f"{script}.sh: {error.filename}: {error.strerror}", file=sys.stderr)
    return 2


def shown(wanted: Command) -> dict[str, Any]:
    """Return a command as JSON: what of the environment was decided here, and not the rest of it, which may hold secrets."""
    names = ("XLA_FLAGS", "JAX_PLATFORMS", "PYTHONPATH", "CUDA_VISIBLE_DEVICES")
    return {"argv": wanted.argv, "env": {name: wanted.env[name] for name in names if name in wanted.env}, "log": str(wanted.log) if wanted.log else None, "said": list(wanted.lines)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
