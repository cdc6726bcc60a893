"""Measure the time and the memory of `rosetta convert t5` for models with made-up weights.

    PYTHON -m bench.convert_t5 --folder SCRATCH --shape 13b [--dtype float32] [--stacked]
        [--zeros] [--discard]

PYTHON is that of a baked environment. The program makes a model of Hugging Face in bfloat16,
converts it to T5X and back, and prints one JSON document: for each conversion the seconds, the
seconds of processor time, the largest resident memory and the bytes that were written. Everything
in SCRATCH is removed at the end.

With --stacked, the checkpoint that is converted back has its layers stacked, as T5X's scanned
networks have them.

For disks without room: with --zeros the source is a sparse file, whose checkpoint is compressed to
almost nothing, and with --discard each file of the second conversion is emptied once it was written
and read back. Both leave out the check of the free space.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from rosetta.convert import json_documents, safetensors, t5_config, t5_tensors, t5x_checkpoint
from rosetta.convert.torch_file import BFLOAT16

SHAPES = {
    "small": t5_config.Architecture(
        32128, 512, 8, 64, 1024, 8, 8, ("gelu", "linear"), logits_via_embedding=False
    ),
    "large": t5_config.Architecture(
        32128, 1024, 16, 64, 2816, 24, 24, ("gelu", "linear"), logits_via_embedding=False
    ),
    "3b": t5_config.Architecture(
        32128, 2048, 32, 64, 5120, 24, 24, ("gelu", "linear"), logits_via_embedding=False
    ),
    "13b": t5_config.Architecture(
        250112, 4096, 64, 64, 10240, 24, 24, ("gelu", "linear"), logits_via_embedding=False
    ),
}
_BLOCK = 16 << 20  # numbers
_LAYER = re.compile(r"(encoder|decoder)/layers_\d+/")
_CONVERT = "import sys; from rosetta import cli; sys.exit(cli.main(sys.argv[1:]))"
_SKIP_SPACE_CHECK = """
from rosetta.convert import output_folder
output_folder.PartFolder.check_free_space = lambda self, needed: None
"""
# A file is emptied once it was written and read back.
_DISCARD = """
import os
from rosetta.convert import t5_conversion
write = t5_conversion.Conversion._write_file
def write_and_empty(self, name, tensors):
    facts = write(self, name, tensors)
    os.truncate(self.part.path / name, 0)
    return facts
t5_conversion.Conversion._write_file = write_and_empty
"""


def make_source(folder: Path, architecture: t5_config.Architecture, *, zeros: bool) -> None:
    """Write a model of Hugging Face in bfloat16.

    Args:
        folder: The folder to make.
        architecture: The architecture.
        zeros: Whether all weights are zeros, in a sparse file. Otherwise they are random.
    """
    folder.mkdir(parents=True)
    json_documents.write_document(
        folder / "config.json", t5_config.make_config(architecture, "bfloat16")
    )
    shapes = {tensor.name: tensor.shape for tensor in t5_tensors.list_tensors(architecture)}
    path = folder / "model.safetensors"
    writer = safetensors.Writer(path, shapes, BFLOAT16)
    count = t5_tensors.count_parameters(architecture)
    if zeros:
        writer.close()
        os.truncate(path, path.stat().st_size + count * BFLOAT16.itemsize)
        return
    numbers = np.random.default_rng(0).standard_normal(_BLOCK, np.float32).astype(BFLOAT16)
    with writer.file as file:
        for start in range(0, count, _BLOCK):
            file.write(memoryview(numbers[: min(_BLOCK, count - start)].view(np.uint8)))


def stack_layers(source: Path, out: Path, architecture: t5_config.Architecture) -> None:
    """Write a checkpoint again with stacked layers, each stack in as few blocks as possible."""
    checkpoint = t5x_checkpoint.Source(source)
    names: dict[str, list[str]] = {}
    for tensor in t5_tensors.list_tensors(architecture):
        name = f"target/{tensor.array}"
        names.setdefault(_LAYER.sub(r"\1/\1/", name), []).append(name)
    shapes = {}
    for stack, members in names.items():
        shape = checkpoint.arrays[members[0]].shape
        if stack != members[0]:
            shape = (shape[0], len(members), *shape[1:])
        shapes[stack] = shape
    dtype = checkpoint.arrays[next(iter(names.values()))[0]].dtype
    with t5x_checkpoint.Writer(out, 0, shapes, dtype, checkpoint.record) as writer:
        for stack, members in names.items():
            layers = [checkpoint.arrays[name].read() for name in members]
            values = np.stack(layers, 1) if stack != members[0] else layers[0]
            writer.write(stack, (0,) * values.ndim, values)


def measure_conversion(source: Path, out: Path, words: list[str], program: str) -> dict[str, Any]:
    """Convert a model in a process of its own, and return what it took.

    Args:
        source: The folder of the model.
        out: The folder to make.
        words: The options of `rosetta convert t5`.
        program: What the process runs before the command.
    """
    program = f"{program}\n{_CONVERT}"
    command = [sys.executable, "-c", program, "convert", "t5", str(source), str(out), *words]
    start = time.monotonic()
    pid = os.posix_spawn(sys.executable, command, os.environ)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"the conversion ended with status {os.waitstatus_to_exitcode(status)}")
    written = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{words[1]}: {usage.ru_maxrss / 1000:,.0f} MB", file=sys.stderr)
    return {
        "seconds": round(time.monotonic() - start, 1),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "resident_megabytes": round(usage.ru_maxrss / 1000),
        "written_bytes": written,
    }


def main() -> None:
    """Parse the command line, measure both conversions, and print the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="small")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--stacked", action="store_true")
    parser.add_argument("--zeros", action="store_true")
    parser.add_argument("--discard", action="store_true")
    args = parser.parse_args()
    architecture = SHAPES[args.shape]
    scratch = args.folder / "convert_t5"
    source, t5x, back = scratch / "source", scratch / "t5x", scratch / "back"
    try:
        make_source(source, architecture, zeros=args.zeros)
        dtype = ["--dtype", args.dtype]
        program = _SKIP_SPACE_CHECK if args.zeros else ""
        to_t5x = measure_conversion(source, t5x, ["--to", "t5x", *dtype], program)
        shutil.rmtree(source)
        if args.stacked:
            stack_layers(t5x, scratch / "stacked", architecture)
            shutil.rmtree(t5x)
            t5x = scratch / "stacked"
        program = _SKIP_SPACE_CHECK + _DISCARD if args.discard else ""
        to_hf = measure_conversion(t5x, back, ["--to", "hf", *dtype], program)
        document = {
            "shape": args.shape,
            "parameters": sum(
                math.prod(tensor.shape) for tensor in t5_tensors.list_tensors(architecture)
            ),
            "dtype": args.dtype,
            "stacked": args.stacked,
            "zeros": args.zeros,
            "to_t5x": to_t5x,
            "to_hf": to_hf,
        }
        print(json.dumps(document, indent=1))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
