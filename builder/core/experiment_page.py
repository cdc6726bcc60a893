"""Render docs/reference/pax-experiments.md from the experiments of Pax."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING, Any

from builder.core import markdown_table, reference_data

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAGE = "docs/reference/pax-experiments.md"
_HEAD = """# Experiments of Pax

*Reference: every experiment of Pax, its sizes, and every hyper-parameter. Generated from
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
        "random tokens without padding",
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
The parameters are those of the embedding and of all matrix products. A mesh has the axes [data,
fsdp, tensor]. The first list is the mesh within a node, and the second the mesh across nodes. The
number of GPUs is the product of all numbers in both lists. The global batch is
`PERCORE_BATCH_SIZE` x GPUs, and data x fsdp has to divide it. `run_llama_boolq.sh` sets its own
mesh, batch and steps. The steps are those of the experiments with data.
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
_OTHER_DIFFERENCES = """Four more things behave differently:

- If `LR_COS_WARMUP` is changed in GPT or GLaM, `LR_COS_DECAY_START` changes with it. In upstream's
    file, it keeps the end of the default warm-up.
- `R_COS_MIN_RATIO` in upstream's file is a misspelling and has no effect. Here, the name is
    refused, and `LR_COS_MIN_RATIO` has the value.
- `ADAM_BETA1` of GLaM 64B/64E is 0 in upstream's file, but upstream's code reads 0 as "not set" and
    uses 0.9. Here the value is 0.9, and a 0 that you set means 0. A 0 also means 0 for
    `WEIGHT_DECAY`, `ADAM_EPSILON` and `CLIP_GRADIENT_NORM_TO_VALUE`.
- The attention mask of GLaM depends on `PACKED_INPUT`. Upstream's mask is always that of packed
    rows.

The `pax-1.4` line has Paxml and Praxis 1.4.0. It trains GPT, LLaMA, and GLaM with repeated layers.
The line refuses `EVAL_TASK`, GLaM with `USE_REPEATED_LAYER=False`, and all
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
# The columns of the table of sizes -> the hyper-parameters that they show.
_SIZE_COLUMNS = {
    "layers": "NUM_LAYERS",
    "width": "MODEL_DIMS",
    "heads": "NUM_HEADS",
    "feed-forward": "HIDDEN_DIMS",
    "vocabulary": "VOCAB_SIZE",
    "tokens/row": "MAX_SEQ_LEN",
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
            ("model", "experiments", "parameters", *_SIZE_COLUMNS, "mesh", "GPUs"),
            (list(_list_size_cells(model, experiments)) for model, experiments in models.items()),
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
    """Return the experiments of each model, by the name of the model's class.

    The models are sorted by kind, and those of a kind by size, the smallest first.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for experiment in experiments:
        groups.setdefault(experiment["model"], []).append(experiment)

    def order(model: str) -> tuple[int, int]:
        return _KINDS.index(_find_kind(model)), groups[model][0]["parameters"]

    return {model: groups[model] for model in sorted(groups, key=order)}


def _list_size_cells(model: str, experiments: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the cells of a model's row in the table of sizes.

    The values are those of its first experiment with data: synthetic ones end after fewer steps.
    """
    with_data = next(
        experiment for experiment in experiments if not experiment["name"].startswith(_SYNTHETIC)
    )
    values = with_data["values"]
    yield f"`{model}`"
    yield ", ".join(f"`{experiment['name']}`" for experiment in experiments)
    yield _describe_count(with_data["parameters"])
    for name in _SIZE_COLUMNS.values():
        yield f"{ast.literal_eval(values[name]):,}"
    mesh_within_node = ast.literal_eval(values["ICI_MESH_SHAPE"])
    mesh_across_nodes = ast.literal_eval(values["DCN_MESH_SHAPE"])
    yield f"{list(mesh_within_node)} x {list(mesh_across_nodes)}"
    yield str(math.prod((*mesh_within_node, *mesh_across_nodes)))


def _describe_count(count: int) -> str:
    """Return a number of parameters with three significant digits, as "1.14 trillion"."""
    for size, name in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return f"{count:,}"


def _find_kind(model: str) -> str:
    """Return the kind of a model, which its class name begins with."""
    return next(kind for kind in _KINDS if model.startswith(kind))


def _describe_values(name: str, data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the cell of a hyper-parameter for each kind of model.

    The cell is empty if no model of the kind has or reads the hyper-parameter.
    """
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
