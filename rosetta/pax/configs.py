"""Every experiment under its old name: a size with its data. `python -m paxml.main --fdl_config=rosetta.pax.configs.NAME --fdl.HYPER_PARAMETER=VALUE`."""

from __future__ import annotations

from paxml import experiment_registry

from rosetta.pax import glam, gpt, llama
from rosetta.pax.data import BoolQDataset, LambadaDataset, PileUnsupervisedDataset, SyntheticDataset

_BENCHMARK = 100  # steps


@experiment_registry.register
class Synthetic126M(gpt.GPT126M, SyntheticDataset):
    MAX_STEPS = _BENCHMARK


@experiment_registry.register
class Synthetic5B(gpt.GPT5B, SyntheticDataset):
    MAX_STEPS = _BENCHMARK


@experiment_registry.register
class Synthetic175B(gpt.GPT175B, SyntheticDataset):
    MAX_STEPS = _BENCHMARK


@experiment_registry.register
class SyntheticGLaM126M64E(glam.GLaM126M64E, SyntheticDataset):
    MAX_STEPS = _BENCHMARK


@experiment_registry.register
class SyntheticGLaM64B64E(glam.GLaM64B64E, SyntheticDataset):
    MAX_STEPS = _BENCHMARK


@experiment_registry.register
class SyntheticLLaMA7B(llama.LLaMA7B, SyntheticDataset):
    MAX_STEPS = _BENCHMARK


@experiment_registry.register
class SyntheticLLaMA13B(llama.LLaMA13B, SyntheticDataset):
    MAX_STEPS = _BENCHMARK


@experiment_registry.register
class SyntheticLLaMA70B(llama.LLaMA70B, SyntheticDataset):
    MAX_STEPS = _BENCHMARK


@experiment_registry.register
class Pile126M(gpt.GPT126M, PileUnsupervisedDataset):
    pass


@experiment_registry.register
class Pile5B(gpt.GPT5B, PileUnsupervisedDataset):
    pass


@experiment_registry.register
class Pile175B(gpt.GPT175B, PileUnsupervisedDataset):
    pass


@experiment_registry.register
class PileGLaM126M64E(glam.GLaM126M64E, PileUnsupervisedDataset):
    pass


@experiment_registry.register
class PileGLaM64B64E(glam.GLaM64B64E, PileUnsupervisedDataset):
    pass


@experiment_registry.register
class Lambada126M(gpt.GPT126M, LambadaDataset):
    EVAL_TASK = "lambada"


@experiment_registry.register
class LambadaGLaM126M64E(glam.GLaM126M64E, LambadaDataset):
    EVAL_TASK = "lambada"


@experiment_registry.register
class LambadaGLaM64B64E(glam.GLaM64B64E, LambadaDataset):
    EVAL_TASK = "lambada"


@experiment_registry.register
class LLaMA7B(llama.LLaMA7B, BoolQDataset):
    EVAL_TASK = "boolq"


@experiment_registry.register
class LLaMA13B(llama.LLaMA13B, BoolQDataset):
    EVAL_TASK = "boolq"


@experiment_registry.register
class LLaMA70B(llama.LLaMA70B, BoolQDataset):
    EVAL_TASK = "boolq"


# As the sizes with the Pile were once called.
GPT5B = Pile5B
GPT175B = Pile175B
