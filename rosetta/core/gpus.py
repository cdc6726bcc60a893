"""The table of the GPUs that rosetta knows: their names, figures and sources.

Presets, `rosetta plan`, `rosetta tune`, `rosetta bench`, the doctor and the launchers read GPUS.
The page docs/reference/gpus.md is generated from it (`python3 build.py docs`).

Peaks are dense products that accumulate in float32, at boost clock. NVIDIA prints many peaks with
sparsity, which doubles them: those are halved here. GeForce GPUs multiply float16 and FP8 twice as
fast when they accumulate in float16; the table has the slower figure, because training uses it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rosetta.core.errors import UNKNOWN, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    Capability = tuple[int, int]

KIB, MIB = 2**10, 2**20
GIGA, TERA = 10**9, 10**12


@dataclass(frozen=True)
class Architecture:
    """The figures that all GPUs of one compute capability share.

    Attributes:
      name: NVIDIA's name of the generation.
      threads_per_sm: The most threads that one multiprocessor can hold.
      fp32_cores_per_sm: The float32 units of one multiprocessor.
      shared_per_sm: The shared memory of one multiprocessor, in bytes.
      shared_per_block: The most shared memory that one thread block can have, in bytes.
    """

    name: str
    threads_per_sm: int
    fp32_cores_per_sm: int
    shared_per_sm: int
    shared_per_block: int


@dataclass(frozen=True)
class Feature:
    """A feature that GPUs have from one compute capability on.

    Attributes:
      name: The name in messages.
      oldest: The first compute capability that has the feature.
      needs: The GPUs that have the feature, in words.
    """

    name: str
    oldest: Capability
    needs: str

    def supported_by(self, capability: Capability) -> bool:
        """Return whether GPUs of a compute capability have this feature; False for unknown GPUs."""
        return capability >= self.oldest

    @property
    def requirement(self) -> str:
        """The sentence for messages about a GPU that lacks the feature."""
        return f"{self.name} needs {self.needs}"


@dataclass(frozen=True)
class Source:
    """A public document that a figure comes from."""

    title: str
    url: str


@dataclass(frozen=True)
class Gpu:
    """One model of GPU.

    Attributes:
      short_name: The name for `--accelerator`, `--card` and presets.
      names: The names that nvidia-smi and JAX's device_kind give, the usual one first.
      words: The words by which find_gpu recognizes the GPU.
      capability: The compute capability.
      sms: The number of multiprocessors, which XLA calls cores.
      l2: The L2 cache, in bytes.
      clock: The boost clock, in GHz.
      memory: The memory that CUDA reports and XLA uses, in bytes. nvidia-smi reports up to 2% more.
      bandwidth: The bandwidth of the memory, in bytes per second.
      peaks: Type -> TFLOP/s (TOP/s for int8). "fp32" is without tensor cores. A type that the GPU
        lacks, or whose peak is not published, has no entry.
      pcie: The generation of PCIe; None if it was not checked.
      sources: Subject (peaks, chip, memory, bandwidth, links, node) -> documents. "chip" is sms,
        l2 and clock; "links" is nvlink and pcie.
      nvlink: Bytes per second to and from all other GPUs together; 0 without NVLink.
      gpus_per_node: The GPUs of the usual node; None if there is no usual node.
      preset_base: The GPU whose values in presets apply to this one, too; "" for none.
      unverified: Figure or type of a peak -> why it could not be checked against a source.
    """

    short_name: str
    names: tuple[str, ...]
    words: str
    capability: Capability
    sms: int
    l2: int
    clock: float
    memory: int
    bandwidth: int
    peaks: Mapping[str, float]
    pcie: int | None
    sources: Mapping[str, tuple[Source, ...]]
    nvlink: int = 0
    gpus_per_node: int | None = None
    preset_base: str = ""
    unverified: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The usual name, as nvidia-smi prints it."""
        return self.names[0]

    @property
    def architecture(self) -> Architecture:
        """The figures that all GPUs of this compute capability share."""
        return ARCHITECTURES[self.capability]

    def peak_flops(self, dtype: str) -> float | None:
        """Return the peak of matrix products in FLOP/s, or None if it is not known.

        Args:
          dtype: "bfloat16", "float16", "float32" or "fp8". XLA multiplies float32 in TF32 where
            the GPU has it.
        """
        peak_types = {"bfloat16": ("bf16",), "float16": ("fp16",), "float32": ("tf32", "fp32")}
        for peak_type in peak_types.get(dtype, (dtype,)):
            if peak_type in self.peaks:
                return self.peaks[peak_type] * TERA
        return None


# Source: CUDA C++ Programming Guide, tables of the chapter on compute capabilities
# (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities).
ARCHITECTURES: Mapping[Capability, Architecture] = {
    (7, 0): Architecture("Volta", 2048, 64, 96 * KIB, 96 * KIB),
    (8, 0): Architecture("Ampere", 2048, 64, 164 * KIB, 163 * KIB),
    (8, 6): Architecture("Ampere", 1536, 128, 100 * KIB, 99 * KIB),
    (8, 9): Architecture("Ada", 1536, 128, 100 * KIB, 99 * KIB),
    (9, 0): Architecture("Hopper", 2048, 128, 228 * KIB, 227 * KIB),
    (10, 0): Architecture("Blackwell", 2048, 128, 228 * KIB, 227 * KIB),
    (10, 3): Architecture("Blackwell Ultra", 2048, 128, 228 * KIB, 227 * KIB),
    (12, 0): Architecture("Blackwell", 1536, 128, 100 * KIB, 99 * KIB),
}

# CUDA -> the oldest compute capability that its compiler and JAX's wheels for it have code for.
OLDEST_CAPABILITY: Mapping[int, Capability] = {12: (5, 2), 13: (7, 5)}

FP8 = Feature("FP8", (8, 9), "an Ada, Hopper or newer GPU")
MXFP8 = Feature("MXFP8", (10, 0), "a Blackwell or newer GPU")
NVFP4 = Feature("NVFP4", (10, 0), "a Blackwell or newer GPU")
# In bfloat16 and float16.
CUDNN_ATTENTION = Feature("cuDNN's attention", (8, 0), "an Ampere or newer GPU")
TRANSFORMER_ENGINE = Feature("Transformer Engine", (8, 0), "an Ampere or newer GPU")

V100_SHEET = Source(
    "NVIDIA V100 data sheet",
    "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
)
A100_SHEET = Source(
    "NVIDIA A100 data sheet",
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-nvidia-us-2188504-web.pdf",
)
A100_PAPER = Source(
    "NVIDIA A100 Tensor Core GPU Architecture",
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf",
)
A10_PAGE = Source(
    "NVIDIA A10, specifications", "https://www.nvidia.com/en-us/data-center/products/a10-gpu/"
)
A10G_SHEET = Source(
    "NVIDIA A10G data sheet, published by AWS",
    "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf",
)
ADA_PAPER = Source(
    "NVIDIA Ada GPU Architecture, V2.1",
    "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
)
L4_PAGE = Source("NVIDIA L4, specifications", "https://www.nvidia.com/en-us/data-center/l4/")
L40_SHEET = Source(
    "NVIDIA L40 data sheet",
    "https://images.nvidia.com/content/Solutions/data-center/vgpu-L40-datasheet.pdf",
)
L40S_PAGE = Source("NVIDIA L40S, specifications", "https://www.nvidia.com/en-us/data-center/l40s/")
H100_PAPER = Source(
    "NVIDIA H100 Tensor Core GPU Architecture, V1.04",
    "https://nvdam.widen.net/s/95bdhpsgrs/nvidia_h100_tensor_core_gpu_architecture_whitepaper_v1.03",
)
H100_PAGE = Source("NVIDIA H100, specifications", "https://www.nvidia.com/en-us/data-center/h100/")
H100_NVL_BRIEF = Source(
    "NVIDIA H100 NVL product brief, PB-11773-001",
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/h100/PB-11773-001_v01.pdf",
)
H200_PAGE = Source("NVIDIA H200, specifications", "https://www.nvidia.com/en-us/data-center/h200/")
GH200_PAGE = Source(
    "NVIDIA GH200 Grace Hopper Superchip",
    "https://www.nvidia.com/en-us/data-center/grace-hopper-superchip/",
)
HGX_PAGE = Source("NVIDIA HGX, specifications", "https://www.nvidia.com/en-us/data-center/hgx/")
DGX_B200_PAGE = Source("NVIDIA DGX B200", "https://www.nvidia.com/en-us/data-center/dgx-b200/")
HGX_FACTORY = Source(
    "NVIDIA HGX AI Factory, components",
    "https://docs.nvidia.com/enterprise-reference-architectures/hgx-ai-factory/latest/components.html",
)
GB200_PAGE = Source("NVIDIA GB200 NVL72", "https://www.nvidia.com/en-us/data-center/gb200-nvl72/")
GB300_PAGE = Source("NVIDIA GB300 NVL72", "https://www.nvidia.com/en-us/data-center/gb300-nvl72/")
EXEMPLAR = Source(
    "NVIDIA Exemplar Performance, reference architectures",
    "https://github.com/NVIDIA/exemplar-performance/blob/main/README.md",
)
RTX_PAPER = Source(
    "NVIDIA RTX Blackwell GPU Architecture",
    "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf",
)
RTX_PRO_PAPER = Source(
    "NVIDIA RTX Blackwell PRO GPU Architecture, V1.0",
    "https://www.nvidia.com/content/dam/en-zz/Solutions/design-visualization/quadro-product-literature/NVIDIA-RTX-Blackwell-PRO-GPU-Architecture-v1.0.pdf",
)
RTX_PRO_SERVER_PAGE = Source(
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "https://www.nvidia.com/en-us/data-center/rtx-pro-6000-blackwell-server-edition/",
)
XLA = Source(
    "OpenXLA, descriptions of devices (target_config/specs)",
    "https://github.com/openxla/xla/tree/main/xla/backends/gpu/target_config/specs",
)
DEVICE = Source(
    "what CUDA reports on the device, in listings of deviceQuery and PyTorch that users published",
    "https://github.com/NVIDIA/cuda-samples/tree/master/Samples/1_Utilities/deviceQuery",
)

_A100_PEAKS = {"bf16": 312.0, "fp16": 312.0, "tf32": 156.0, "fp32": 19.5, "int8": 624.0}
_H100_PEAKS = {
    "bf16": 989.4,
    "fp16": 989.4,
    "tf32": 494.7,
    "fp32": 66.9,
    "fp8": 1978.9,
    "int8": 1978.9,
}
_HOPPER_NVL_PEAKS = {
    "bf16": 835.5,
    "fp16": 835.5,
    "tf32": 417.5,
    "fp32": 60.0,
    "fp8": 1670.5,
    "int8": 1670.5,
}

# Unknown GPUs get the values of the first GPU of their compute capability, see find_similar_gpu.
_TABLE = (
    Gpu(
        short_name="a100",
        names=("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        words="a100",
        capability=(8, 0),
        sms=108,
        l2=41_943_040,
        clock=1.41,
        memory=84_974_239_744,
        bandwidth=2_039 * GIGA,
        peaks=_A100_PEAKS,
        nvlink=600 * GIGA,
        pcie=4,
        gpus_per_node=8,
        sources={
            "peaks": (A100_SHEET,),
            "chip": (A100_PAPER, XLA),
            "memory": (XLA,),
            "bandwidth": (A100_SHEET,),
            "links": (A100_SHEET,),
            "node": (A100_SHEET,),
        },
    ),
    Gpu(
        short_name="a100-40gb",
        names=("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        words="a100 40gb",
        capability=(8, 0),
        sms=108,
        l2=41_943_040,
        clock=1.41,
        memory=42_298_834_944,
        bandwidth=1_555_200_000_000,
        peaks=_A100_PEAKS,
        nvlink=600 * GIGA,
        pcie=4,
        gpus_per_node=8,
        preset_base="a100",
        sources={
            "peaks": (A100_SHEET,),
            "chip": (A100_PAPER, XLA),
            "memory": (XLA,),
            "bandwidth": (A100_SHEET, XLA),
            "links": (A100_SHEET,),
            "node": (A100_SHEET,),
        },
    ),
    Gpu(
        short_name="a100-pcie",
        names=("NVIDIA A100 80GB PCIe", "NVIDIA A100-PCIE-80GB"),
        words="a100 pcie",
        capability=(8, 0),
        sms=108,
        l2=41_943_040,
        clock=1.41,
        memory=84_974_239_744,
        bandwidth=1_935 * GIGA,
        peaks=_A100_PEAKS,
        nvlink=600 * GIGA,
        pcie=4,
        preset_base="a100",
        sources={
            "peaks": (A100_SHEET,),
            "chip": (A100_PAPER, XLA),
            "memory": (),
            "bandwidth": (A100_SHEET,),
            "links": (A100_SHEET,),
        },
        unverified={
            "memory": "taken from the SXM4 model",
        },
    ),
    Gpu(
        short_name="a100-pcie-40gb",
        names=("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"),
        words="a100 pcie 40gb",
        capability=(8, 0),
        sms=108,
        l2=41_943_040,
        clock=1.41,
        memory=42_298_834_944,
        bandwidth=1_555_200_000_000,
        peaks=_A100_PEAKS,
        nvlink=600 * GIGA,
        pcie=4,
        preset_base="a100",
        sources={
            "peaks": (A100_SHEET,),
            "chip": (A100_PAPER, DEVICE),
            "memory": (DEVICE,),
            "bandwidth": (A100_SHEET,),
            "links": (A100_SHEET,),
        },
    ),
    Gpu(
        short_name="h100",
        names=("NVIDIA H100 80GB HBM3",),
        words="h100",
        capability=(9, 0),
        sms=132,
        l2=52_428_800,
        clock=1.98,
        memory=84_929_347_584,
        bandwidth=3_352_320_000_000,
        peaks=_H100_PEAKS,
        nvlink=900 * GIGA,
        pcie=5,
        gpus_per_node=8,
        sources={
            "peaks": (H100_PAPER,),
            "chip": (H100_PAPER, XLA),
            "memory": (XLA,),
            "bandwidth": (H100_PAGE, XLA),
            "links": (H100_PAGE,),
            "node": (H100_PAGE,),
        },
    ),
    Gpu(
        short_name="h100-pcie",
        names=("NVIDIA H100 PCIe",),
        words="h100 pcie",
        capability=(9, 0),
        sms=114,
        l2=52_428_800,
        clock=1.755,
        memory=84_942_979_072,
        bandwidth=2_039_040_000_000,
        peaks={
            "bf16": 756.0,
            "fp16": 756.0,
            "tf32": 378.0,
            "fp32": 51.2,
            "fp8": 1513.0,
            "int8": 1513.0,
        },
        nvlink=600 * GIGA,
        pcie=5,
        preset_base="h100",
        sources={
            "peaks": (H100_PAPER,),
            "chip": (H100_PAPER, XLA),
            "memory": (XLA,),
            "bandwidth": (H100_PAPER, XLA),
            "links": (H100_PAPER,),
        },
    ),
    Gpu(
        short_name="h100-nvl",
        names=("NVIDIA H100 NVL",),
        words="h100 nvl",
        capability=(9, 0),
        sms=132,
        l2=62_914_560,
        clock=1.785,
        memory=99_456_909_312,
        bandwidth=3_938 * GIGA,
        peaks=_HOPPER_NVL_PEAKS,
        nvlink=600 * GIGA,
        pcie=5,
        preset_base="h100",
        sources={
            "peaks": (H100_PAGE,),
            "chip": (H100_NVL_BRIEF, DEVICE),
            "memory": (DEVICE,),
            "bandwidth": (H100_NVL_BRIEF,),
            "links": (H100_PAGE,),
        },
    ),
    Gpu(
        short_name="h200",
        names=("NVIDIA H200", "NVIDIA H200 141GB HBM3e"),
        words="h200",
        capability=(9, 0),
        sms=132,
        l2=62_914_560,
        clock=1.98,
        memory=143_156 * MIB,
        bandwidth=4_800 * GIGA,
        peaks=_H100_PEAKS,
        nvlink=900 * GIGA,
        pcie=5,
        gpus_per_node=8,
        preset_base="h100",
        sources={
            "peaks": (H200_PAGE, H100_PAPER),
            "chip": (XLA, DEVICE),
            "memory": (DEVICE,),
            "bandwidth": (H200_PAGE,),
            "links": (H200_PAGE,),
            "node": (H200_PAGE,),
        },
    ),
    Gpu(
        short_name="h200-nvl",
        names=("NVIDIA H200 NVL",),
        words="h200 nvl",
        capability=(9, 0),
        sms=132,
        l2=62_914_560,
        clock=1.785,
        memory=143_156 * MIB,
        bandwidth=4_800 * GIGA,
        peaks=_HOPPER_NVL_PEAKS,
        nvlink=900 * GIGA,
        pcie=5,
        preset_base="h100",
        sources={
            "peaks": (H200_PAGE,),
            "chip": (DEVICE,),
            "memory": (DEVICE,),
            "bandwidth": (H200_PAGE,),
            "links": (H200_PAGE,),
        },
        unverified={
            "l2": "taken from the SXM model",
        },
    ),
    Gpu(
        short_name="gh200",
        names=("NVIDIA GH200 480GB", "NVIDIA GH200 120GB"),
        words="gh200",
        capability=(9, 0),
        sms=132,
        l2=62_914_560,
        clock=1.98,
        memory=101_468_602_368,
        bandwidth=4_000 * GIGA,
        peaks=_H100_PEAKS,
        nvlink=900 * GIGA,
        pcie=5,
        gpus_per_node=4,
        preset_base="h100",
        sources={
            "peaks": (GH200_PAGE, H100_PAPER),
            "chip": (DEVICE,),
            "memory": (DEVICE,),
            "bandwidth": (GH200_PAGE,),
            "links": (GH200_PAGE,),
            "node": (GH200_PAGE,),
        },
        unverified={
            "gpus_per_node": "nodes with one, two and four superchips are sold",
        },
    ),
    Gpu(
        short_name="b200",
        names=("NVIDIA B200",),
        words="b200",
        capability=(10, 0),
        sms=148,
        l2=132_644_864,
        clock=1.965,
        memory=191_503_990_784,
        bandwidth=8_000 * GIGA,
        peaks={
            "bf16": 2250.0,
            "fp16": 2250.0,
            "tf32": 1125.0,
            "fp32": 75.0,
            "fp8": 4500.0,
            "int8": 4500.0,
            "nvfp4": 9000.0,
        },
        nvlink=1_800 * GIGA,
        pcie=5,
        gpus_per_node=8,
        sources={
            "peaks": (HGX_PAGE,),
            "chip": (XLA,),
            "memory": (XLA,),
            "bandwidth": (DGX_B200_PAGE,),
            "links": (HGX_PAGE, EXEMPLAR),
            "node": (HGX_PAGE,),
        },
    ),
    Gpu(
        short_name="gb200",
        names=("NVIDIA GB200",),
        words="gb200",
        capability=(10, 0),
        sms=152,
        l2=135_528_448,
        clock=2.062,
        memory=197_897_748_480,
        bandwidth=8_000 * GIGA,
        peaks={
            "bf16": 2500.0,
            "fp16": 2500.0,
            "tf32": 1250.0,
            "fp32": 80.0,
            "fp8": 5000.0,
            "int8": 5000.0,
            "nvfp4": 10000.0,
        },
        nvlink=1_800 * GIGA,
        pcie=None,
        gpus_per_node=4,
        preset_base="b200",
        sources={
            "peaks": (GB200_PAGE,),
            "chip": (XLA,),
            "memory": (XLA,),
            "bandwidth": (GB200_PAGE,),
            "links": (GB200_PAGE,),
            "node": (GB200_PAGE,),
        },
        unverified={
            "pcie": "generations 5 and 6 are both named",
        },
    ),
    Gpu(
        short_name="b300",
        names=("NVIDIA B300 SXM6 AC", "NVIDIA B300"),
        words="b300",
        capability=(10, 3),
        sms=148,
        l2=132_644_864,
        clock=2.032,
        memory=287_430_000_000,
        bandwidth=8_000 * GIGA,
        peaks={
            "bf16": 2250.0,
            "fp16": 2250.0,
            "tf32": 1125.0,
            "fp32": 75.0,
            "fp8": 4500.0,
            "int8": 187.5,
            "nvfp4": 13500.0,
        },
        nvlink=1_800 * GIGA,
        pcie=None,
        gpus_per_node=8,
        preset_base="b200",
        sources={
            "peaks": (HGX_PAGE, EXEMPLAR),
            "chip": (DEVICE,),
            "memory": (DEVICE,),
            "bandwidth": (HGX_FACTORY,),
            "links": (HGX_PAGE, EXEMPLAR),
            "node": (HGX_PAGE, EXEMPLAR),
        },
        unverified={
            "pcie": "generations 5 and 6 are both named",
            "sms": "users' listings agree on 148; OpenXLA's description has 158",
            "l2": "users' listings say 126 MB; OpenXLA's description has GB200's",
            "clock": "users' listings agree on 2.032; OpenXLA's description has 1.965",
            "memory": "267.69 GiB, to a hundredth",
            "int8": "NVIDIA prints 2 and 3 POP/s for eight GPUs with sparsity",
        },
    ),
    Gpu(
        short_name="gb300",
        names=("NVIDIA GB300",),
        words="gb300",
        capability=(10, 3),
        sms=152,
        l2=135_528_448,
        clock=2.07,
        memory=297_021_079_552,
        bandwidth=8_000 * GIGA,
        peaks={
            "bf16": 2500.0,
            "fp16": 2500.0,
            "tf32": 1250.0,
            "fp8": 5000.0,
            "nvfp4": 15000.0,
        },
        nvlink=1_800 * GIGA,
        pcie=None,
        gpus_per_node=4,
        preset_base="b200",
        sources={
            "peaks": (GB300_PAGE,),
            "chip": (XLA,),
            "memory": (XLA,),
            "bandwidth": (GB300_PAGE,),
            "links": (GB300_PAGE,),
            "node": (GB300_PAGE,),
        },
        unverified={
            "pcie": "generations 5 and 6 are both named",
        },
    ),
    Gpu(
        short_name="l40s",
        names=("NVIDIA L40S",),
        words="l40s",
        capability=(8, 9),
        sms=142,
        l2=96 * MIB,
        clock=2.52,
        memory=47_576_711_168,
        bandwidth=864 * GIGA,
        peaks={
            "bf16": 362.05,
            "fp16": 362.05,
            "tf32": 183.0,
            "fp32": 91.6,
            "fp8": 733.0,
            "int8": 733.0,
        },
        pcie=4,
        sources={
            "peaks": (L40S_PAGE,),
            "chip": (DEVICE,),
            "memory": (DEVICE,),
            "bandwidth": (L40S_PAGE,),
            "links": (L40S_PAGE,),
        },
    ),
    Gpu(
        short_name="l40",
        names=("NVIDIA L40",),
        words="l40",
        capability=(8, 9),
        sms=142,
        l2=96 * MIB,
        clock=2.49,
        memory=47_576_711_168,
        bandwidth=864 * GIGA,
        peaks={
            "bf16": 181.05,
            "fp16": 181.05,
            "tf32": 90.5,
            "fp32": 90.5,
            "fp8": 362.0,
            "int8": 362.0,
        },
        pcie=4,
        preset_base="l40s",
        sources={
            "peaks": (L40_SHEET,),
            "chip": (ADA_PAPER,),
            "memory": (),
            "bandwidth": (L40_SHEET,),
            "links": (L40_SHEET,),
        },
        unverified={
            "memory": "taken from the L40S; nvidia-smi prints the same for both",
        },
    ),
    Gpu(
        short_name="l4",
        names=("NVIDIA L4",),
        words="l4",
        capability=(8, 9),
        sms=58,
        l2=48 * MIB,
        clock=2.04,
        memory=23_612_293_120,
        bandwidth=300 * GIGA,
        peaks={
            "bf16": 121.0,
            "fp16": 121.0,
            "tf32": 60.0,
            "fp32": 30.3,
            "fp8": 242.5,
            "int8": 242.5,
        },
        pcie=4,
        preset_base="l40s",
        sources={
            "peaks": (L4_PAGE,),
            "chip": (DEVICE,),
            "memory": (DEVICE,),
            "bandwidth": (L4_PAGE,),
            "links": (L4_PAGE,),
        },
    ),
    Gpu(
        short_name="rtx-4090",
        names=("NVIDIA GeForce RTX 4090",),
        words="rtx 4090",
        capability=(8, 9),
        sms=128,
        l2=72 * MIB,
        clock=2.52,
        memory=25_250_627_584,
        bandwidth=1_008 * GIGA,
        peaks={
            "bf16": 165.2,
            "fp16": 165.2,
            "tf32": 82.6,
            "fp32": 82.6,
            "fp8": 330.3,
            "int8": 660.6,
        },
        pcie=4,
        preset_base="l40s",
        sources={
            "peaks": (ADA_PAPER,),
            "chip": (ADA_PAPER, DEVICE),
            "memory": (DEVICE,),
            "bandwidth": (ADA_PAPER,),
            "links": (ADA_PAPER,),
        },
    ),
    Gpu(
        short_name="a10",
        names=("NVIDIA A10",),
        words="a10",
        capability=(8, 6),
        sms=72,
        l2=6 * MIB,
        clock=1.695,
        memory=23_609_475_072,
        bandwidth=600 * GIGA,
        peaks={"bf16": 125.0, "fp16": 125.0, "tf32": 62.5, "fp32": 31.2, "int8": 250.0},
        pcie=4,
        sources={
            "peaks": (A10_PAGE,),
            "chip": (DEVICE,),
            "memory": (DEVICE,),
            "bandwidth": (A10_PAGE,),
            "links": (A10_PAGE,),
        },
    ),
    Gpu(
        short_name="a10g",
        names=("NVIDIA A10G",),
        words="a10g",
        capability=(8, 6),
        sms=80,
        l2=6 * MIB,
        clock=1.71,
        memory=22_587 * MIB,
        bandwidth=600 * GIGA,
        peaks={"bf16": 70.0, "fp16": 70.0, "tf32": 35.0, "int8": 140.0},
        pcie=4,
        sources={
            "peaks": (A10G_SHEET,),
            "chip": (DEVICE,),
            "memory": (DEVICE,),
            "bandwidth": (A10G_SHEET,),
            "links": (A10G_SHEET,),
        },
        unverified={
            "tf32": "from an earlier table; no source was found",
            "pcie": "from an earlier table; no source was found",
        },
    ),
    Gpu(
        short_name="v100",
        names=("Tesla V100-SXM2-16GB", "NVIDIA V100-SXM2-16GB"),
        words="v100",
        capability=(7, 0),
        sms=80,
        l2=6 * MIB,
        clock=1.53,
        memory=16_935_682_048,
        bandwidth=898_048_000_000,
        peaks={"fp16": 125.0, "fp32": 15.7},
        nvlink=300 * GIGA,
        pcie=3,
        gpus_per_node=8,
        sources={
            "peaks": (V100_SHEET,),
            "chip": (XLA,),
            "memory": (XLA,),
            "bandwidth": (V100_SHEET, XLA),
            "links": (V100_SHEET, XLA),
            "node": (V100_SHEET,),
        },
        unverified={
            "gpus_per_node": "a DGX-1; other nodes have four",
        },
    ),
    Gpu(
        short_name="v100-pcie",
        names=("Tesla V100-PCIE-16GB", "NVIDIA V100-PCIE-16GB"),
        words="v100 pcie",
        capability=(7, 0),
        sms=80,
        l2=6 * MIB,
        clock=1.38,
        memory=16_935_682_048,
        bandwidth=898_048_000_000,
        peaks={"fp16": 112.0, "fp32": 14.0},
        pcie=3,
        preset_base="v100",
        sources={
            "peaks": (V100_SHEET,),
            "chip": (V100_SHEET, XLA),
            "memory": (),
            "bandwidth": (V100_SHEET,),
            "links": (V100_SHEET,),
        },
        unverified={
            "memory": "taken from the SXM2 model",
            "clock": "from the peak of float16, which gives 1.37 to 1.38",
            "fp32": "from the clock",
        },
    ),
    Gpu(
        short_name="rtx-pro-6000",
        names=("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",),
        words="rtx pro 6000 blackwell workstation",
        capability=(12, 0),
        sms=188,
        l2=128 * MIB,
        clock=2.617,
        memory=97_250 * MIB,
        bandwidth=1_792 * GIGA,
        peaks={
            "bf16": 503.8,
            "fp16": 503.8,
            "tf32": 251.9,
            "fp32": 125.0,
            "fp8": 1007.6,
            "int8": 1007.6,
            "nvfp4": 2015.2,
        },
        pcie=5,
        sources={
            "peaks": (RTX_PRO_PAPER,),
            "chip": (RTX_PRO_PAPER,),
            "memory": (),
            "bandwidth": (RTX_PRO_PAPER,),
            "links": (RTX_PRO_PAPER,),
        },
        unverified={
            "memory": "taken from the Server Edition; nvidia-smi prints the same for both",
        },
    ),
    Gpu(
        short_name="rtx-pro-6000-server",
        names=("NVIDIA RTX PRO 6000 Blackwell Server Edition",),
        words="rtx pro 6000 blackwell server",
        capability=(12, 0),
        sms=188,
        l2=128 * MIB,
        clock=2.43,
        memory=97_250 * MIB,
        bandwidth=1_597 * GIGA,
        peaks={"bf16": 500.0, "fp16": 500.0, "fp32": 120.0},
        pcie=5,
        preset_base="rtx-pro-6000",
        sources={
            "peaks": (RTX_PRO_SERVER_PAGE,),
            "chip": (DEVICE,),
            "memory": (DEVICE,),
            "bandwidth": (RTX_PRO_SERVER_PAGE,),
            "links": (RTX_PRO_SERVER_PAGE,),
        },
        unverified={
            "bf16": "half of the rounded 1 PFLOP/s that NVIDIA prints",
            "fp16": "half of the rounded 1 PFLOP/s that NVIDIA prints",
        },
    ),
    Gpu(
        short_name="rtx-5090",
        names=("NVIDIA GeForce RTX 5090",),
        words="rtx 5090",
        capability=(12, 0),
        sms=170,
        l2=96 * MIB,
        clock=2.407,
        memory=33_668_857_856,
        bandwidth=1_792 * GIGA,
        peaks={
            "bf16": 209.5,
            "fp16": 209.5,
            "tf32": 104.8,
            "fp32": 104.8,
            "fp8": 419.0,
            "int8": 838.0,
            "nvfp4": 1676.0,
        },
        pcie=5,
        preset_base="rtx-pro-6000",
        sources={
            "peaks": (RTX_PAPER,),
            "chip": (RTX_PAPER, DEVICE),
            "memory": (DEVICE,),
            "bandwidth": (RTX_PAPER,),
            "links": (RTX_PAPER,),
        },
    ),
)
GPUS: Mapping[str, Gpu] = {gpu.short_name: gpu for gpu in _TABLE}

# Words of slower products that have the name of a GPU of the table: "RTX 4090 D", "RTX
# 4090 Laptop GPU", "RTX PRO 6000 Blackwell Max-Q Workstation Edition".
_OTHER_PRODUCTS = frozenset(("d", "laptop", "max"))
# Words of a share of a GPU: "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A10-24Q" (vGPU).
_SHARE = re.compile(r"mig|\d+[abcq]")


def find_gpu(name: str) -> Gpu | None:
    """Return the GPU with a name, or None if the table does not have it.

    A GPU matches if all of its `words` are in the name, in upper or lower case. The GPU with the
    most words wins. A share of a GPU (MIG, vGPU) does not match, because it does not have the
    figures of the whole GPU.

    Args:
      name: The name that nvidia-smi prints, or JAX's device_kind.
    """
    words = frozenset(name.lower().replace("-", " ").split())
    if words & _OTHER_PRODUCTS or any(_SHARE.fullmatch(word) for word in words):
        return None
    matching = (gpu for gpu in GPUS.values() if words.issuperset(gpu.words.split()))
    return max(matching, key=lambda gpu: len(gpu.words.split()), default=None)


def find_peak_flops(name: str, dtype: str) -> float | None:
    """Return the peak of the GPU with a name in FLOP/s, or None; see find_gpu, Gpu.peak_flops."""
    gpu = find_gpu(name)
    return gpu.peak_flops(dtype) if gpu else None


def find_similar_gpu(name: str, capability: Capability) -> Gpu | None:
    """Return the GPU whose values in presets suit a GPU, or None.

    This is the GPU with the name, or else the first in the table with the compute capability. From
    Hopper on, it may also be the first with the same first number, since the second number is for
    the same chip in another product.

    Args:
      name: The name that nvidia-smi prints, or JAX's device_kind.
      capability: The compute capability.
    """
    known_gpu = find_gpu(name)
    if known_gpu is not None:
        return known_gpu
    similar_gpus = [gpu for gpu in GPUS.values() if gpu.capability == capability]
    if not similar_gpus and capability[0] >= 9:
        similar_gpus = [gpu for gpu in GPUS.values() if gpu.capability[0] == capability[0]]
    return similar_gpus[0] if similar_gpus else None


def get_gpu(short_name: str, where: str) -> Gpu:
    """Return a GPU by its short name.

    Args:
      short_name: A short name such as "h100", in upper or lower case.
      where: The option that names the GPU.

    Raises:
      UserError: The table has no such GPU.
    """
    if short_name.lower() not in GPUS:
        raise UserError(
            f"{short_name!r} is not a GPU that rosetta knows",
            where,
            f"choose one of: {', '.join(GPUS)}",
            kind=UNKNOWN,
            value=short_name,
        )
    return GPUS[short_name.lower()]
