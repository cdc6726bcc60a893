"""The experiments under upstream's names: each is a model of a size with its data.

Run one with `python -m paxml.main --fdl_config=rosetta.pax.configs.NAME`, and change its
hyper-parameters with `--fdl.HYPER_PARAMETER=VALUE`.
"""

from __future__ import annotations

from paxml import experiment_registry

from rosetta.pax import glam, gpt, llama
from rosetta.pax.data import BoolQDataset, LambadaDataset, PileUnsupervisedDataset, SyntheticDataset

_BENCHMARK_STEPS = 100


@experiment_registry.register
class Synthetic126M(gpt.GPT126M, SyntheticDataset):
    """GPT 126M on synthetic data, for a benchmark of 100 steps."""

    MAX_STEPS = _BENCHMARK_STEPS


@experiment_registry.register
class Synthetic5B(gpt.GPT5B, SyntheticDataset):
    """GPT 5B on synthetic data, for a benchmark of 100 steps."""

    MAX_STEPS = _BENCHMARK_STEPS


@experiment_registry.register
class Synthetic175B(gpt.GPT175B, SyntheticDataset):
    """GPT 175B on synthetic data, for a benchmark of 100 steps."""

    MAX_STEPS = _BENCHMARK_STEPS


@experiment_registry.register
class SyntheticGLaM126M64E(glam.GLaM126M64E, SyntheticDataset):
    """GLaM 126M64E on synthetic data, for a benchmark of 100 steps."""

    MAX_STEPS = _BENCHMARK_STEPS


@experiment_registry.register
class SyntheticGLaM64B64E(glam.GLaM64B64E, SyntheticDataset):
    """GLaM 64B64E on synthetic data, for a benchmark of 100 steps."""

    MAX_STEPS = _BENCHMARK_STEPS


@experiment_registry.register
class SyntheticLLaMA7B(llama.LLaMA7B, SyntheticDataset):
    """LLaMA 7B on synthetic data, for a benchmark of 100 steps."""

    MAX_STEPS = _BENCHMARK_STEPS


@experiment_registry.register
class SyntheticLLaMA13B(llama.LLaMA13B, SyntheticDataset):
    """LLaMA 13B on synthetic data, for a benchmark of 100 steps."""

    MAX_STEPS = _BENCHMARK_STEPS


@experiment_registry.register
class SyntheticLLaMA70B(llama.LLaMA70B, SyntheticDataset):
    """LLaMA 70B on synthetic data, for a benchmark of 100 steps."""

    MAX_STEPS = _BENCHMARK_STEPS


@experiment_registry.register
class Pile126M(gpt.GPT126M, PileUnsupervisedDataset):
    """GPT 126M on the Pile."""


@experiment_registry.register
class Pile5B(gpt.GPT5B, PileUnsupervisedDataset):
    """GPT 5B on the Pile."""


@experiment_registry.register
class Pile175B(gpt.GPT175B, PileUnsupervisedDataset):
    """GPT 175B on the Pile."""


@experiment_registry.register
class PileGLaM126M64E(glam.GLaM126M64E, PileUnsupervisedDataset):
    """GLaM 126M64E on the Pile."""


@experiment_registry.register
class PileGLaM64B64E(glam.GLaM64B64E, PileUnsupervisedDataset):
    """GLaM 64B64E on the Pile."""


@experiment_registry.register
class Lambada126M(gpt.GPT126M, LambadaDataset):
    """GPT 126M, evaluated on LAMBADA."""

    EVAL_TASK = "lambada"


@experiment_registry.register
class LambadaGLaM126M64E(glam.GLaM126M64E, LambadaDataset):
    """GLaM 126M64E, evaluated on LAMBADA."""

    EVAL_TASK = "lambada"


@experiment_registry.register
class LambadaGLaM64B64E(glam.GLaM64B64E, LambadaDataset):
    """GLaM 64B64E, evaluated on LAMBADA."""

    EVAL_TASK = "lambada"


@experiment_registry.register
class LLaMA7B(llama.LLaMA7B, BoolQDataset):
    """LLaMA 7B fine-tuned and evaluated on BoolQ."""

    EVAL_TASK = "boolq"


@experiment_registry.register
class LLaMA13B(llama.LLaMA13B, BoolQDataset):
    """LLaMA 13B fine-tuned and evaluated on BoolQ."""

    EVAL_TASK = "boolq"


@experiment_registry.register
class LLaMA70B(llama.LLaMA70B, BoolQDataset):
    """LLaMA 70B fine-tuned and evaluated on BoolQ."""

    EVAL_TASK = "boolq"


# Older names of two experiments.
GPT5B = Pile5B
GPT175B = Pile175B
