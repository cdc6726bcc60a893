"""docs/reference/pax-experiments.md, from the experiments of Pax."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from builder.core import markdown_table, reference_data

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAGE = "docs/reference/pax-experiments.md"
_HEAD = """# Experiments of Pax

*Reference: every experiment of Pax, its sizes, and every hyperparameter. Generated from
rosetta/pax by `python build.py docs`: edit there.*

An experiment is a model with its data. `CONFIG` names it in the scripts and commands, and
`--fdl_config` in Paxml's own command line:

```text
rosetta pax train CONFIG=Synthetic5B LOG_DIR=/workspace/5b fdl.NUM_LAYERS=12
python -m paxml.main --job_log_dir=/workspace/5b --fdl.NUM_LAYERS=12 \\
  --fdl_config=paxml.contrib.gpu.scripts_gpu.configs.Synthetic5B
```

The names are those of upstream's file
[`configs.py`](https://github.com/google/paxml/blob/b397693fb4dd7b49e90ae549105d024644a03665/paxml/contrib/gpu/scripts_gpu/configs.py).
The module `rosetta.pax.configs` has them, and so has upstream's module
`paxml.contrib.gpu.scripts_gpu.configs`. `CONFIG` takes the name alone, or `MODULE.CLASS` of [an
experiment of your own](../how-to/write-a-pax-experiment.md).
"""
_DATA_ROWS = (
    (
        "`Synthetic`",
        "random tokens; no data and no vocabulary are needed; ends after 100 steps",
        "one batch of random tokens",
        "full",
    ),
    (
        "`Pile`",
        "`DATA`, or else the Pile in `TFDS_DATA_DIR`",
        "`EVAL_DATA`, if it is set: the loss",
        "windows of running text",
    ),
    (
        "`Lambada`",
        "nothing",
        (
            "`EVAL_DATA`, or else `DATA`, or else LAMBADA in `TFDS_DATA_DIR`: the share of last "
            "words that are right (`acc_strict`)"
        ),
        "a passage, and its last word as the answer",
    ),
    (
        "`LLaMA`",
        "`DATA`, or else BoolQ in `TFDS_DATA_DIR`",
        "`EVAL_DATA`, or else BoolQ: the share of questions that are answered right (`boolq_acc`)",
        "a passage with its question, and `yes` or `no` as the answer",
    ),
)
_DATA = """
[Data sources](data-sources.md#data-of-pax) describes `DATA` and the rows.
"""
_SIZES = """
The parameters are those of the embedding and of all matrix products. The mesh is [data, fsdp,
tensor], within a node x across nodes; the number of GPUs is its product. The global batch is
`PERCORE_BATCH_SIZE` x GPUs, and data x fsdp has to divide it. `run_llama_boolq.sh` sets its own
mesh, batch and steps.
"""
_DIFFERENCES = """
Without a switch, an experiment is upstream's experiment of the same name. A test shrinks both and
compares them: batches, initial parameters, the losses of three steps and the parameters after them
are the same bits (`tests/upstream/test_pax_experiments.py`). If the vocabulary is padded, they
agree to 1e-6.

These values differ, because the published runs had them. A run prints a line for each at its start,
and `--fdl.NAME=VALUE` restores upstream's value:
"""
_DIFFERENCE_ROWS = (
    ("`PACKED_INPUT`", "GPT, GLaM", "True", "False"),
    ("`MAX_SEQ_LEN`", "GLaM 64B/64E", "1,024", "2,048"),
    ("`PERCORE_BATCH_SIZE`", "GLaM 126M/64E", "4", "8"),
    (
        "`GROUPS_PER_PART`",
        "GLaM 64B/64E",
        "1, not a hyper-parameter",
        "8: the arrays of routing grow with the square of a group, and would take 17 GB each",
    ),
    (
        "`INPUT_DROPOUT_PROB`",
        "GPT 5B",
        "0.1, at the input of every layer, because layers repeat",
        "0.0",
    ),
    (
        "`VOCAB_SIZE` that is not a multiple of 128",
        "GPT 175B",
        "50,257 in products",
        "50,304 in products; parameters and checkpoints have 50,257",
    ),
)
_OTHER_DIFFERENCES = """Four more values behave differently:

- `LR_COS_DECAY_START` follows `LR_COS_WARMUP` in GPT and GLaM. Upstream's value stays at the end of
    the default warm-up.
- `R_COS_MIN_RATIO` is a misspelling in upstream's file without effect. Here it is refused;
    `LR_COS_MIN_RATIO` has its value.
- `ADAM_BETA1` of GLaM 64B/64E is 0 in upstream's file, but upstream's code reads 0 as "not set" and
    uses 0.9. Here the value is 0.9, and 0 means 0. The same is true of `WEIGHT_DECAY`,
    `ADAM_EPSILON` and `CLIP_GRADIENT_NORM_TO_VALUE`.
- The attention mask of GLaM follows `PACKED_INPUT`. Upstream's mask always takes rows as packed.

The `pax-1.4` line has Paxml and Praxis 1.4.0. It trains GPT, LLaMA, and GLaM with repeated layers.
It refuses `EVAL_TASK`, GLaM with `USE_REPEATED_LAYER=False`, and all
[switches](pax-switches.md).
"""
_HYPER_PARAMETERS = """
A hyper-parameter is set by `fdl.NAME=VALUE` in `rosetta pax`, and by `--fdl.NAME=VALUE` in
`ROSETTA_FDL`, in `ADDITIONAL_ARGS` and in Paxml's command line. The value is a Python literal. An
unknown name is refused in one line that names the nearest one.

A cell is empty if the models of that kind do not read the hyper-parameter. "By model" means that
their values differ; `rosetta explain PRESET` prints the value of each. Other hyper-parameters of
Paxml's base classes are set in the same way.
"""
_COLUMNS = {
    "layers": "NUM_LAYERS",
    "width": "MODEL_DIMS",
    "heads": "NUM_HEADS",
    "feed-forward": "HIDDEN_DIMS",
    "vocabulary": "VOCAB_SIZE",
    "tokens": "MAX_SEQ_LEN",
    "rows/GPU": "PERCORE_BATCH_SIZE",
    "steps": "MAX_STEPS",
}
_SYNTHETIC = "Synthetic"
_KINDS = ("GPT", "GLaM", "LLaMA")


def render() -> str:
    """Return the whole page."""
    data = reference_data.read()
    models = _group_by_model(data["experiments"])
    parts = [
        _HEAD,
        "## Data of the experiments\n",
        markdown_table.render(
            ("name begins with", "trains on", "evaluates", "rows"), _DATA_ROWS
        ).rstrip("\n"),
        _DATA,
        f"## Sizes and meshes\n{_SIZES}",
        markdown_table.render(
            ("model", "experiments", "parameters", *_COLUMNS, "mesh", "GPUs"),
            (list(_size_row(model, experiments)) for model, experiments in models.items()),
        ),
        f"## What differs from upstream\n{_DIFFERENCES}",
        markdown_table.render(
            ("hyper-parameter", "experiments", "upstream", "here"), _DIFFERENCE_ROWS
        ),
        _OTHER_DIFFERENCES,
        f"## Hyper-parameters\n{_HYPER_PARAMETERS}",
    ]
    for subject, meanings in data["hyper_parameters"].items():
        rows = (
            [f"`{name}`", text, *_describe_values(name, data)] for name, text in meanings.items()
        )
        parts.append(f"### Hyper-parameters: {subject}\n")
        parts.append(markdown_table.render(("name", "meaning", *_KINDS), rows))
    return "\n".join(parts)


def _group_by_model(experiments: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the class of a model -> its experiments, the smallest models of a kind first."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for experiment in experiments:
        groups.setdefault(experiment["model"], []).append(experiment)

    def order(model: str) -> tuple[int, int]:
        return _KINDS.index(_find_kind(model)), groups[model][0]["parameters"]

    return {model: groups[model] for model in sorted(groups, key=order)}


def _size_row(model: str, experiments: list[dict[str, Any]]) -> Iterator[str]:
    """Return the sizes of a model; the number of steps is that of experiments with data."""
    trained = next(
        experiment for experiment in experiments if not experiment["name"].startswith(_SYNTHETIC)
    )
    values = trained["values"]
    yield f"`{model}`"
    yield ", ".join(f"`{experiment['name']}`" for experiment in experiments)
    yield _describe_count(trained["parameters"])
    for name in _COLUMNS.values():
        yield f"{ast.literal_eval(values[name]):,}"
    meshes = [ast.literal_eval(values[name]) for name in ("ICI_MESH_SHAPE", "DCN_MESH_SHAPE")]
    yield " x ".join(str(list(mesh)) for mesh in meshes)
    count = 1
    for size in (*meshes[0], *meshes[1]):
        count *= size
    yield str(count)


def _describe_count(count: int) -> str:
    """Return a number of parameters with three digits."""
    for size, name in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return f"{count:,}"


def _find_kind(model: str) -> str:
    return next(kind for kind in _KINDS if model.startswith(kind))


def _describe_values(name: str, data: Mapping[str, Any]) -> Iterator[str]:
    """Return the value of a hyper-parameter for each kind of model, "" if it is not read."""
    for kind in _KINDS:
        values = {
            experiment["values"].get(name)
            for experiment in data["experiments"]
            if _find_kind(experiment["model"]) == kind
        }
        if values == {None} or name in data["unread"].get(kind, ()):
            yield ""
        else:
            yield f"`{values.pop()}`" if len(values) == 1 else "by model"
