"""What all experiments share: a language model as Paxml's base class builds it, Adam, the switches,
and what is checked and said at the start.

A hyper-parameter is a class attribute in capitals: a subclass states another value, or
`--fdl.NAME=VALUE` does. Names and what they mean are upstream's (https://github.com/google/paxml,
contrib/gpu/scripts_gpu/configs.py), so that command lines people have keep working.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import fiddle as fdl
import jax
import numpy as np
from jax import numpy as jnp
from paxml.tasks.lm import model_params
from praxis import layers, optimizers, pax_fiddle, schedules
from praxis.layers import activations

from rosetta.core import log
from rosetta.core.errors import UNSUPPORTED, UserError
from rosetta.core.value_parsing import parse_choice
from rosetta.pax import restore
from rosetta.pax.run import experiment_checks
from rosetta.pax.switches import Switches

try:
    from praxis.contrib.gpu.scripts_gpu.models import CustomMetricsLM as LanguageModel
except ImportError:  # the wheel of 1.4.0 came without praxis.contrib
    from praxis.layers.models import LanguageModel


@dataclass(frozen=True)
class Difference:
    """A hyper-parameter that upstream's experiment of the same name sets otherwise, and why ours
    does not.
    """

    name: str
    theirs: Any
    why: str

    def describe(self, ours: Any) -> str:
        """Return it as it is printed."""
        return (
            f"{self.name}={ours!r}, not {self.theirs!r} as upstream's: {self.why} "
            f"(--fdl.{self.name}={self.theirs!r} is upstream's)"
        )


class Experiment(Switches, model_params.TransformerLmSpmdAdafactor):
    """A language model trained by Adam.

    Meshes are [data, fsdp, tensor]; on upstream's axes these are replica, data, mdl.
    """

    MODEL_CLASS = LanguageModel
    ACTIVATION_CLS: Any  # one of praxis.layers.activations, or its name
    # Of repeated layers: what the backward pass has kept, one of layers.AutodiffCheckpointType or
    # its value.
    CHECKPOINT_POLICY: Any
    FPROP_DTYPE: Any = jnp.bfloat16  # of activations; weights are float32
    MAX_SEQ_LEN = 2048
    MAX_STEPS = 0
    PERCORE_BATCH_SIZE: Any = 1
    PACKED_INPUT = False
    ICI_MESH_SHAPE: Any = (1, 1, 1)  # within a node
    DCN_MESH_SHAPE: Any = (1, 1, 1)  # across nodes
    EVAL_TASK: str | None = None  # lambada, boolq: its accuracy is reported

    USE_BIAS = False
    EMBEDDING_LOOKUP_STYLE = "matmul"

    LEARNING_RATE = 1e-3
    ADAM_BETA1 = 0.9
    ADAM_BETA2 = 0.99
    ADAM_EPSILON = 1e-6
    ADAM_EPSILON_ROOT = 0.0
    ADAM_CLIP_THRESHOLD = 1.0  # of an update's root mean square; not above 0: none
    LR_SCHEDULE = "linear_rampup_exponential_decay"
    LR_LRED_WARMUP = 4000
    LR_LRED_DECAY_START: int | None = 4001
    LR_LRED_DECAY_END = 300_000
    LR_LRED_MIN_RATIO = 0.1
    LR_LRED_MAX = 1.0
    LR_COS_WARMUP = 4000
    LR_COS_DECAY_START: int | None = 4001  # None: right after the warm-up
    LR_COS_DECAY_END = 300_000
    LR_COS_MIN_RATIO = 0.1
    LR_COS_MAX = 1.0

    CHECKPOINT_RESTORE_PATH: str | None = None
    CHECKPOINT_IGNORE_RULES: list[str] | None = None

    DIFFERENCES: ClassVar[tuple[Difference, ...]] = ()

    def adapt_model(self, task: Any) -> None:
        """Make of the model that Paxml's base class built the family's own, in place."""
        raise NotImplementedError

    def task(self) -> Any:
        """Return the task's configuration.

        Raises:
          UserError: something this line of Paxml lacks was asked for, or switches that cannot be
            combined.
        """
        self._convert_values()
        task = super().task()
        task.model.fprop_dtype = getattr(jnp, experiment_checks.read_precision(self.FPROP_DTYPE))
        task.train.num_train_steps = self.MAX_STEPS
        task.train.enable_input_checkpointing = (
            True  # a checkpoint says where in the data it stands
        )
        task.train.always_use_train_for_model_init = (
            self.EVAL_TASK is None
        )  # what only evaluates has no training data to look at
        task.train.learner.optimizer = self.make_optimizer()
        self.adapt_model(task)
        self._set_metrics(task.model)
        if not self.CHECKPOINT_RESTORE_PATH:
            return self.apply_switches(task)
        plain = task.clone()
        task = self.apply_switches(task)
        restore.set_initial_weights(
            task,
            self.CHECKPOINT_RESTORE_PATH,
            plain,
            self.get_input_specs_provider_params(),
            self.CHECKPOINT_IGNORE_RULES,
        )
        return task

    def _convert_values(self) -> None:
        """Make what a command line gives as lists and texts what Praxis takes."""
        for name in ("ICI_MESH_SHAPE", "DCN_MESH_SHAPE"):
            setattr(self, name, list(getattr(self, name) or (1, 1, 1)))
        kinds = {
            name: kind
            for name, kind in vars(activations).items()
            if isinstance(kind, type) and issubclass(kind, activations.BaseActivation)
        }
        if isinstance(self.ACTIVATION_CLS, str):
            self.ACTIVATION_CLS = kinds[
                parse_choice("ACTIVATION_CLS", self.ACTIVATION_CLS, list(kinds))
            ]
        policies = {each.value: each for each in layers.AutodiffCheckpointType}
        self.CHECKPOINT_POLICY = policies[
            parse_choice(
                "CHECKPOINT_POLICY",
                getattr(self.CHECKPOINT_POLICY, "value", self.CHECKPOINT_POLICY),
                list(policies),
            )
        ]

    def _set_metrics(self, model: Any) -> None:
        """Set what evaluation reports beside the loss.

        A row that only fills up the last batch counts for nothing.
        """
        model.apply_eval_sample_weights = True
        if self.EVAL_TASK is None:
            return
        if "eval_task" not in fdl.get_callable(model).__dataclass_fields__:
            what = (
                f"the accuracy of {self.EVAL_TASK} is not in Praxis 1.4.0, whose wheel has no "
                "praxis.contrib"
            )
            raise UserError(
                what,
                type(self).__name__,
                "use the pax distribution, not pax-1.4, or set EVAL_TASK=None",
                kind=UNSUPPORTED,
            )
        model.eval_task = self.EVAL_TASK
        if self.EVAL_TASK == "boolq":
            model.boolq_yn_tokens = np.array(self.find_answer_tokens())

    def make_optimizer(self) -> Any:
        """Return the optimizer's configuration, with its learning rate's schedule."""
        return pax_fiddle.Config(
            optimizers.Adam,
            learning_rate=self.LEARNING_RATE,
            lr_schedule=self.make_schedule(),
            beta1=self.ADAM_BETA1,
            beta2=self.ADAM_BETA2,
            epsilon=self.ADAM_EPSILON,
            epsilon_root=self.ADAM_EPSILON_ROOT,
            clip_threshold=self.ADAM_CLIP_THRESHOLD,
            weight_decay=self.WEIGHT_DECAY,
            clip_gradient_norm_to_value=self.CLIP_GRADIENT_NORM_TO_VALUE,
        )

    def make_schedule(self) -> Any:
        """Return LR_SCHEDULE's configuration: what LEARNING_RATE is multiplied by at each step."""
        if self.LR_SCHEDULE == "constant":
            return pax_fiddle.Config(schedules.Constant)
        cosine = self.LR_SCHEDULE == "linear_rampup_cosine_decay"
        kind, prefix = (
            (schedules.LinearRampupCosineDecay, "LR_COS")
            if cosine
            else (schedules.LinearRampupExponentialDecay, "LR_LRED")
        )
        warmup, start, end, ratio, most = (
            getattr(self, f"{prefix}_{name}")
            for name in ("WARMUP", "DECAY_START", "DECAY_END", "MIN_RATIO", "MAX")
        )
        return pax_fiddle.Config(
            kind,
            warmup_steps=warmup,
            decay_start=warmup + 1 if start is None else start,
            decay_end=end,
            min_ratio=ratio,
            max=most,
        )

    def set_sharding(self, task: Any) -> None:
        """Lay weights and activations over the mesh, in place; anew where `shape` replaced
        layers.
        """
        model_params.set_sharding_annotations_v1(
            task, self.TRAINING_OPTIMIZED_SHARDING, self.ICI_MESH_SHAPE, self.DCN_MESH_SHAPE
        )

    def list_differences(self) -> list[str]:
        """Return a line for each hyper-parameter that upstream's experiment of the same name has
        otherwise.
        """
        return [
            each.describe(ours)
            for each in self.DIFFERENCES
            if (ours := getattr(self, each.name)) != each.theirs
        ]

    def validate(self) -> None:
        """Check the experiment for the devices there are, and say what it does unlike upstream's;
        Paxml calls this before all else.

        Raises:
          SystemExit: something the user can mend, with status 2 and one line on standard error.
        """
        try:
            experiment_checks.check_experiment(self, jax.device_count())
            self.task()
            self.datasets()
        except UserError as error:
            log.error(str(error))
            raise SystemExit(2) from error
        if jax.process_index() == 0:
            for line in self.list_differences():
                log.info(line)
