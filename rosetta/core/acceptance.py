"""The rows of `rosetta accept`, and the names of its files: declared once, for the command and the
reference page.

A row is a subject that only a GPU can measure. The rows stand in the order of their value, and run
in this order. Only the standard library is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from rosetta.core.errors import UNKNOWN, UserError

# The files in the folder of the results.
RESULT_FILE = "accept.json"
AUTOTUNE_FILE = "autotune-results.txt"
LOG_FOLDER = "logs"
SCHEMA = 1  # of RESULT_FILE
DEFAULT_FOLDER = "rosetta-accept"
DEFAULT_MINUTES = 10

# A tiny acceptance runs on machines that do other work, too: its time limits are this much longer.
TINY_PATIENCE = 5

# The status of a row and of a case. UNFINISHED: the time was up, and the next call goes on.
MEASURED, SKIPPED, FAILED, UNFINISHED = "measured", "skipped", "failed", "unfinished"


@dataclass(frozen=True)
class Row:
    """A row of the acceptance.

    Attributes:
      name: What `--only` takes.
      measures: What the row measures.
      decides: What the numbers decide.
      checks: What has to hold for the row to pass.
      packages: The Python packages that it needs beside JAX, or that some of its cases need.
      seconds: The time after which the whole row is ended.
      case_seconds: The time after which a case of the row is ended.
      compares_plans: Whether `--plan` belongs to the row.
      uses_compilation_cache: Whether the row takes programs from JAX's compilation cache.
    """

    name: str
    measures: str
    decides: str
    checks: str
    packages: tuple[str, ...]
    seconds: int
    case_seconds: int
    compares_plans: bool = False
    uses_compilation_cache: bool = True


ROWS = (
    Row(
        "attention",
        "cuDNN's attention forward and backward with T5's bias, with padding, with dropped keys, "
        "and as in GPT, beside XLA's: time, and share of the peak",
        "whether `ATTENTION=cudnn` is right and faster, and the shares of attention in "
        "`rosetta/plan/roofline.py`",
        "the error of the output and of each gradient against float32 is at most twice that of "
        "XLA's attention, plus 0.002",
        (),
        120,
        45,
    ),
    Row(
        "products",
        "matrix products in bfloat16 and FP8 at the shapes of T5-large (a depth of 1,024 first) "
        "and GPT 5B, and a whole projection with FP8's casts and largest values",
        "whether FP8 pays at a depth of 1,024, and the shares of products in "
        "`rosetta/plan/roofline.py`",
        "the error of a product against float32 is at most 0.01, and products in FP8 are those of "
        "cuBLASLt",
        ("flax",),
        150,
        45,
    ),
    Row(
        "kernels",
        "functions of rosetta's layers with a backward pass of their own, beside plain references",
        "whether they may be used on this GPU",
        "the error of each output and gradient is at most the limit of its case",
        ("flax",),
        90,
        45,
    ),
    Row(
        "steps",
        "steps of T5-large with 4+4 layers: each switch against plain bfloat16, dropout, and the "
        "time between two kernels with and without command buffers",
        "the defaults of `FUSE_QKV`, `TRANSPOSE_BS`, `ATTENTION` and `ENABLE_FP8`, and whether "
        "presets turn command buffers on",
        "every mode compiles, and its loss is finite and at most 5 % above the first loss",
        ("flax", "optax", "PyYAML"),
        240,
        150,
    ),
    Row(
        "full",
        "steps of T5-large with all layers in bfloat16 and FP8: measured against predicted time "
        "and memory",
        "whether the figures of `rosetta plan` can be trusted",
        "as for `steps`; with a `--plan` for one GPU of this kind, the time is in the plan's range "
        "and the memory within 10 % of the plan. The plan has to be of T5-large with 32 sequences "
        "of 512 and 128 tokens",
        ("flax", "optax", "PyYAML"),
        240,
        180,
        compares_plans=True,
    ),
    Row(
        "saved",
        "a step of T5-large with 4+4 layers, compiled without the GPU, saved and loaded, beside "
        "the same step compiled on the GPU",
        "whether `rosetta plan` may offer to save what it compiles",
        "the loaded step takes the same state to the same loss, within 0.5 %",
        ("flax", "optax", "PyYAML"),
        120,
        110,
        # A program that JAX read from its cache lacks functions when it is saved again.
        uses_compilation_cache=False,
    ),
    Row(
        "te",
        "FP8 products of Transformer Engine beside those of XLA",
        "whether `ENABLE_TE=1` is right and faster",
        "outputs and gradients differ from XLA's by at most 0.02, and XLA's products are in FP8",
        ("flax", "transformer_engine"),
        60,
        45,
    ),
    Row(
        "nccl",
        "rates between the GPUs of this machine, as `rosetta doctor --nccl` measures them",
        "the share of links in `rosetta/plan/roofline.py`",
        "the sum over all GPUs is exact",
        (),
        60,
        45,
    ),
    Row(
        "run",
        "the first run of the README for 200 steps: steps a second, and the loss",
        "whether T5X trains on this GPU",
        "the run ends well, and the loss falls below 3",
        ("t5x",),
        180,
        170,
    ),
)
# What the keys of RESULT_FILE mean. `rosetta accept --json` prints the same document as its result.
RESULT_KEYS = {
    "schema": f"the version of this format, {SCHEMA}",
    "machine": "the GPU, its compute capability, the number of devices, and versions",
    "tiny": "whether the shapes were tiny",
    "rosetta": "a hash of rosetta's code and presets",
    "xla_flags": "the value of `XLA_FLAGS`",
    "rows": "the rows that were measured, in their order",
    "missing": "the rows that have no result",
    "autotune_results": "the file for `rosetta plan --autotune-results`; null if XLA tuned nothing",
    "ok": "whether every row that ran has passed",
    "rows[]": (
        "`row`, `status`, `reason` (null if the row was measured), `seconds`, `ok`, `cases`, and "
        "`plans`: the SHA-256 of each plan that was compared"
    ),
    "rows[].status": (
        f"`{MEASURED}`, `{SKIPPED}`, `{FAILED}`, or `{UNFINISHED}`: the time was up, and the next "
        "call goes on"
    ),
    "rows[].cases[]": (
        "`case`, `status`, `reason`, `seconds`, `numbers`, `checks` and `notes` of a part of a row"
    ),
    "rows[].cases[].numbers[]": (
        "`name`, `value` (the median), `unit` (empty for a ratio), and `spread`: the largest "
        "distance of a measurement from the median, as a share"
    ),
    "rows[].cases[].checks[]": (
        "`name`, `value`, `limit`, and `ok`: whether the value is a number up to the limit"
    ),
}
# Rows that need only rosetta.nn. A case that needs a package which is missing is skipped.
GROUPS = {"nn": ("attention", "products", "kernels")}


def find_row(name: str) -> Row:
    """Return the row with a name."""
    return next(row for row in ROWS if row.name == name)


def select_rows(names: list[str], where: str) -> tuple[Row, ...]:
    """Return rows in their order.

    Args:
      names: Names of rows and of groups; none selects all rows.
      where: The option that has the names.

    Raises:
      UserError: There is no row or group with a name.
    """
    known = [row.name for row in ROWS]
    selected = set[str]()
    for name in names or known:
        if name not in known and name not in GROUPS:
            raise UserError(
                f"{name!r} is not a row or group",
                where,
                f"choose from: {', '.join([*GROUPS, *known])}",
                kind=UNKNOWN,
                value=name,
            )
        selected.update(GROUPS.get(name, (name,)))
    return tuple(row for row in ROWS if row.name in selected)
