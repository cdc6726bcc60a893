"""What `rosetta plan` is asked for each preset on the GPUs of the published runs.

    python -m tests.support.preset_plans

writes the goldens that a new or changed preset needs, without figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.pipeline.step_plans import goldens
from builder.pipeline.step_plans.goldens import Golden
from rosetta.core import gpus
from rosetta.core.gpu_query import DetectedGpu
from rosetta.core.run_description import Run
from rosetta.presets import pax_flags, preset_files, preset_run, t5x_model_options

FOLDER = Path(__file__).resolve().parents[2] / goldens.FOLDER
GPUS = ("a100", "h100")
PUBLISHED_IN_FP8 = ("gpt-5b", "gpt-175b")  # and in bfloat16
FRAMEWORKS = ("t5x", "pax")
_FEW_LAYERS = {
    "t5x": "num_encoder_layers=4 num_decoder_layers=4",
    "pax": "NUM_LAYERS=4",
}


@dataclass(frozen=True)
class PresetPlan:
    """A plan of a preset.

    Attributes:
        name: The name of its golden.
        distribution: The distribution that compiles it.
        plan: The words after `rosetta plan`.
    """

    name: str
    distribution: str
    plan: str

    @property
    def is_cheap(self) -> bool:
        """Whether the step compiles in about two minutes on two cores."""
        return "-few-layers-" in self.name or "-tiny-" in self.name


def list_preset_plans() -> list[PresetPlan]:
    """Return the plans of each preset with a model, with all layers and with few.

    Presets that train the same step, such as gpt-5b and synthetic-5b, share the first one's plan.
    Presets of PUBLISHED_IN_FP8 also have plans in FP8, on the GPU that has it.
    """
    plans: dict[str, PresetPlan] = {}
    for preset in preset_files.load_presets():
        if preset in FRAMEWORKS:  # what the presets of a framework share
            continue
        for gpu in GPUS:
            _add_plans(plans, preset, preset, gpu, {})
    for preset in PUBLISHED_IN_FP8:
        _add_plans(plans, f"{preset}-fp8", preset, "h100", {"precision": "fp8-xla"})
    return list(plans.values())


def _add_plans(
    plans: dict[str, PresetPlan], name: str, preset: str, gpu: str, settings: dict[str, str]
) -> None:
    """Add the plans of a preset on a GPU, unless there are plans with the same words.

    Args:
        plans: Words -> plan.
        name: What the names of the plans begin with.
        preset: The name of the preset.
        gpu: The short name of the GPU.
        settings: What the command line of a run sets.
    """
    run = preset_run.describe_run(preset, accelerator=gpu, settings=settings, environment={})
    words = _plan_t5x(run, gpu) if run.framework == "t5x" else _plan_pax(preset, run, gpu)
    plans.setdefault(words, PresetPlan(f"{name}-{gpu}", run.framework, words))
    if run.model != "tiny":
        few = f"{words} {_FEW_LAYERS[run.framework]}"
        plans.setdefault(few, PresetPlan(f"{name}-few-layers-{gpu}", run.framework, few))


def _plan_t5x(run: Run, gpu: str) -> str:
    """Return the words that plan a preset of T5X, with the switches that a run would choose."""
    figures = gpus.GPUS[gpu]
    options = t5x_model_options.choose_model_options(
        run.env, [DetectedGpu(figures.name, figures.capability)], on_cpu=False
    )
    words = [
        f"t5x --size {run.model} --card {gpu} --gpus {run.nodes * run.gpus_per_node}",
        f"--batch-per-gpu {run.batch['per_gpu']} --tp {run.env.get('TP_SIZE', '1')} --with",
    ]
    words += [
        f"{name}={str(value).lower()}" for name, value in options.list_network_fields().items()
    ]
    return " ".join(words)


def _plan_pax(preset: str, run: Run, gpu: str) -> str:
    """Return the words that plan a preset of Pax, by its experiment that needs no data."""
    configs = [
        config
        for layer in preset_files.load_preset_chain(preset)
        for config in layer.configs
        if config.startswith("Synthetic")
    ]
    attention = "xla" if pax_flags.is_126m_model(configs[-1]) else "cudnn"
    meshes = {name: str(sizes).replace(" ", "") for name, sizes in run.mesh.items()}
    return (
        f"pax {configs[-1]} --card {gpu} --with ICI_MESH_SHAPE={meshes['ici']} "
        f"DCN_MESH_SHAPE={meshes['dcn']} PERCORE_BATCH_SIZE={run.batch['per_gpu']} "
        f"ATTENTION={attention} USE_FP8={run.precision == 'fp8-xla'}"
    )


def main() -> None:
    """Write a golden without figures for each plan that has none, or one with other words."""
    for plan in list_preset_plans():
        path = FOLDER / f"{plan.name}.json"
        if path.exists() and goldens.read_golden(path).plan == plan.plan:
            continue
        goldens.write_golden(
            FOLDER, Golden(plan.name, plan.distribution, plan.plan, plan.is_cheap, None, {})
        )
        print(f"{path.name}: python3 build.py test --plans {plan.name} --renew")


if __name__ == "__main__":
    main()
