"""docs/reference/presets.md, from rosetta's presets."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from builder.core import markdown_table, reference_data

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAGE = "docs/reference/presets.md"
_HEAD = """# Presets

*Reference: every preset, what it sets and why; switches; the fields of a preset file. Generated
from rosetta/presets by `python build.py docs`: edit there.*

A preset is a named configuration of a run: model, batch, nodes, precision, flags of XLA, and
variables of CUDA, NCCL and JAX. [Use and change presets](../how-to/use-presets.md) shows how to run
and change one.

```text
rosetta explain                                   # lists presets, switches and GPUs
rosetta explain t5x-large --accelerator h100      # every value, its origin and its reason
```

Rates in sequences/s/GPU are those that NVIDIA published for its own code: [T5X][nvidia-t5x] and
[Pax][nvidia-pax]. They were not measured with this code. Memory peaks are predictions of
[`rosetta plan`](../how-to/plan-for-a-gpu.md).

[nvidia-t5x]: https://github.com/NVIDIA/JAX-Toolbox/blob/12d19d5cbbe52ffcfe4c2f662c6c7899de425c37/rosetta/rosetta/projects/t5x/README.md
[nvidia-pax]: https://github.com/NVIDIA/JAX-Toolbox/blob/12d19d5cbbe52ffcfe4c2f662c6c7899de425c37/rosetta/rosetta/projects/pax/README.md

The tables show a run without values for a GPU. [What a GPU changes](#what-a-gpu-changes) lists
these.
"""
_LAYERS = """
A run takes its values from layers. A later layer wins over an earlier one:

1. [what every preset sets](#what-every-preset-sets), for all GPUs and for the run's GPU
2. the preset, after the preset that it extends; for all GPUs, then for the run's GPU
3. [switches](#switches) that are on
4. what the [precision](#precisions) needs of XLA
5. the site's file: the file that `ROSETTA_SITE` names, or else `~/.config/rosetta/site.yaml`
6. the environment: variables of the scripts, flags of XLA, and variables of JAX, CUDA, NCCL,
    Transformer Engine and similar libraries
7. words `NAME=VALUE` of the command line

Switches add up over the layers. If `BASE_XLA_FLAGS` is set, it replaces all flags of the presets;
`XLA_FLAGS` adds to them. A variable that is not in [the table of variables](variables.md) reaches
the run if its name begins with `NCCL_`, `JAX_`, `XLA_`, `NVTE_`, `CUDA_`, `CUDNN_`, `CUBLAS_`,
`UCX_`, `FI_`, `OMP_`, `WANDB_`, `HF_`, `ROSETTA_` or `TENSORSTORE_`.
"""
_PRECISIONS = """
| precision | activations | products with weights |
|---|---|---|
| `bf16` | bfloat16 | bfloat16 |
| `fp32` | float32 | float32, by tensor cores in TF32 |
| `fp8-xla` | bfloat16 | FP8, by XLA |
| `fp8-te` | bfloat16 | FP8, by Transformer Engine |

Some precisions need values of their own:
"""
_FIELDS = """
A preset file has these fields, and `extends`, `about`, `configs` (experiments of Pax, the default
first) and `accelerators` (GPU: fields). The site's file has the fields and `accelerators`. A value
is written by itself, or as `{value: VALUE, why: TEXT, until: {PACKAGE: VERSION}, since: {PACKAGE:
VERSION}}`: `until` leaves the value out from that version on, `since` before that version. `null`
removes what an earlier layer sets.

Files are read strictly: an unknown or repeated key, an anchor, or a value of the wrong type is
refused in one line with the file, the line and the key.
"""
_COMBINE = """
XLA combines small collectives into larger ones, up to a threshold. The default, `combine:
published`, is the threshold of the published runs. `combine: layers` computes thresholds from the
model, so that the collectives of one layer become one call. For P parameters of the largest layer,
in bytes:

| collective | threshold |
|---|---|
| all-reduce | 4 P / tensor |
| all-gather | 2 P / tensor |
| reduce-scatter | 4 P / tensor / fsdp |

Norms, biases and experts are left out of P. A threshold that a file of yours, the site, the
environment or the command line sets is kept.
"""
_FRAMEWORKS = {"t5x": "T5X", "pax": "Pax"}
_VALUE_COLUMNS = ("field", "value", "why")


def render() -> str:
    """Return the whole page."""
    data = reference_data.read()
    presets = data["presets"]
    parts = [_HEAD]
    for framework, title in _FRAMEWORKS.items():
        own = [preset for preset in presets if preset["framework"] == framework]
        table = _t5x_table if framework == "t5x" else _pax_table
        parts += [f"## Presets of {title}\n", table([preset for preset in own if preset["run"]])]
        for preset in own:
            parts.append(_preset_section(preset))
    parts += [
        "## What every preset sets\n",
        _value_table(data["common"]),
        _gpu_section(data),
        _switch_section(data["switches"]),
        _precision_section(data["precisions"]),
        f"## Layers\n{_LAYERS}",
        f"## Fields of a preset file\n{_FIELDS}",
        markdown_table.render(
            ("field", "meaning"), ([f"`{name}`", text] for name, text in data["fields"].items())
        ),
        f"## Thresholds of combined collectives\n{_COMBINE}",
    ]
    return "\n".join(parts)


def _link(name: str) -> str:
    return f"[`{name}`](#{name})"


def _describe_gpus(run: Mapping[str, Any]) -> str:
    nodes, per_node = run["nodes"], run["gpus_per_node"]
    count = nodes * per_node
    return f"{count}" if nodes == 1 else f"{count} ({nodes} x {per_node})"


def _t5x_table(presets: list[dict[str, Any]]) -> str:
    rows = []
    for preset in presets:
        run = preset["run"]
        groups = run["nodes"] * run["gpus_per_node"] // run["tensor"]
        rows.append(
            [
                _link(preset["name"]),
                f"T5 1.1 {run['model']}",
                _describe_gpus(run),
                f"{run['per_gpu']}",
                f"{groups * run['per_gpu']:,}",
                " / ".join(map(str, run["lengths"])),
                f"`{run['precision']}`",
            ]
        )
    columns = ("preset", "model", "GPUs (nodes x GPUs)", "sequences/GPU", "global batch")
    return markdown_table.render((*columns, "tokens (inputs / targets)", "precision"), rows)


def _pax_table(presets: list[dict[str, Any]]) -> str:
    rows = []
    for preset in presets:
        run = preset["run"]
        count = run["nodes"] * run["gpus_per_node"]
        rows.append(
            [
                _link(preset["name"]),
                f"`{run['model']}`",
                f"`{run['command']}`",
                _describe_gpus(run),
                " x ".join(_format(run["mesh"][name]) for name in ("ici", "dcn")),
                f"{run['per_gpu']}",
                f"{count * run['per_gpu']:,}",
                f"{run['lengths'][0]:,}",
                f"`{run['precision']}`",
            ]
        )
    columns = (
        "preset",
        "experiment",
        "`rosetta pax`",
        "GPUs (nodes x GPUs)",
        "mesh (node x nodes)",
    )
    return markdown_table.render(
        (*columns, "rows/GPU", "global batch", "tokens", "precision"), rows
    )


def _preset_section(preset: Mapping[str, Any]) -> str:
    """Return what a preset sets itself, with reasons."""
    lines = [f"### {preset['name']}\n", f"{_start_sentence(preset)}."]
    if preset["extends"]:
        lines.append(f"It extends {_link(preset['extends'])}.")
    if preset["experiments"]:
        named = ", ".join(f"`{name}`" for name in preset["experiments"])
        lines.append(f"Experiments: {named}.")
    sentences = textwrap.fill(" ".join(lines[1:]), 100, break_long_words=False)
    text = f"{lines[0]}\n{sentences}\n"
    rows = list(_value_rows(preset["values"]))
    for gpu, values in preset["by_gpu"].items():
        rows += [[f"{cells[0]} on `{gpu}`", *cells[1:]] for cells in _value_rows(values)]
    return f"{text}\n{markdown_table.render(_VALUE_COLUMNS, rows)}" if rows else text


def _start_sentence(preset: Mapping[str, Any]) -> str:
    """Return what a preset is for. Its name, if it comes first, is a preset's and stays small."""
    about: str = preset["about"]
    base = preset["extends"]
    if base and about.startswith(base):
        return f"`{base}`{about.removeprefix(base)}"
    return f"{about[:1].upper()}{about[1:]}"


def _value_table(values: Mapping[str, Any]) -> str:
    return markdown_table.render(_VALUE_COLUMNS, _value_rows(values))


def _value_rows(values: Mapping[str, Any]) -> Iterator[list[str]]:
    for path, value in values.items():
        yield [f"`{path}`", f"`{_format(value['value'])}`", _describe_reason(value)]


def _describe_reason(value: Mapping[str, Any]) -> str:
    """Return why a value is set, and with which versions of packages."""
    parts = [value["why"]]
    parts += [f"until {package} {version}" for package, version in value["until"].items()]
    parts += [f"from {package} {version} on" for package, version in value["since"].items()]
    return "; ".join(parts)


def _format(value: Any) -> str:
    """Return a value as YAML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value) if value != "" else '""'


def _gpu_section(data: Mapping[str, Any]) -> str:
    rows = [
        [f"`{gpu}`", "all", *cells]
        for gpu, values in data["accelerators"].items()
        for cells in _value_rows(values)
    ]
    for preset in data["presets"]:
        name = preset["name"]
        presets = f"all of {_FRAMEWORKS[name]}" if name in _FRAMEWORKS else _link(name)
        for gpu, values in preset["by_gpu"].items():
            rows += [[f"`{gpu}`", presets, *cells] for cells in _value_rows(values)]
    text = (
        "## What a GPU changes\n\nA GPU also takes the values of the GPU that [the table of "
        'GPUs](gpus.md) names in its\ncolumn "values of presets". An H200 has those of `h100`.\n'
    )
    return f"{text}\n{markdown_table.render(('GPU', 'presets', *_VALUE_COLUMNS), rows)}"


def _switch_section(switches: Mapping[str, Any]) -> str:
    text = (
        "## Switches\n\nA switch adds values to any preset: `switches: [NAME, ...]` in a file, or "
        "`ROSETTA_WITH=NAME,NAME`\non the command line or in the environment. No switch is on by "
        "default, and none was measured on a\nGPU with this code.\n"
    )
    rows = []
    for name, switch in switches.items():
        sets = (
            f"`{path.partition('.')[2]}={_format(value['value'])}`"
            for path, value in switch["values"].items()
        )
        rows.append([f"`{name}`", switch["about"], " ".join(sets)])
    return f"{text}\n{markdown_table.render(('switch', 'what it does', 'sets'), rows)}"


def _precision_section(precisions: Mapping[str, Any]) -> str:
    rows = [
        [f"`{name}`", *cells]
        for name, precision in precisions.items()
        for cells in _value_rows(precision["values"])
    ]
    table = markdown_table.render(("precision", *_VALUE_COLUMNS), rows)
    return f"## Precisions\n{_PRECISIONS}\n{table}"
