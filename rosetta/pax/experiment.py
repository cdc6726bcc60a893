"""What all experiments share: the language model of Paxml's base class, Adam, switches and checks.

A hyper-parameter is a class attribute in capitals. A subclass or `--fdl.NAME=VALUE` changes its
value. Names and meanings are upstream's (https://github.com/google/paxml,
contrib/gpu/scripts_gpu/configs.py), so existing command lines keep working.
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
from rosetta.pax import embedding, gpt_layers, restore
from rosetta.pax.run import experiment_checks, model_record
from rosetta.pax.run.experiment_checks import SAVE_DOT_AND_ATTENTION
from rosetta.pax.switches import Switches

try:
    from praxis.contrib.gpu.scripts_gpu.models import CustomMetricsLM as LanguageModel
except ImportError:  # the wheel of Praxis 1.4.0 has no praxis.contrib
    from praxis.layers.models import LanguageModel


@dataclass(frozen=True)
class Difference:
    """A hyper-parameter whose value differs from upstream's experiment of the same name.

    Attributes:
      name: The hyper-parameter.
      theirs: Upstream's value.
      why: The reason, as a clause.
    """

    name: str
    theirs: Any
    why: str

    def describe(self, ours: Any) -> str:
        """Return the line that a run prints about the difference.

        Args:
          ours: The value of this run.
        """
        return (
            f"{self.name}={ours!r}, not {self.theirs!r} as upstream's: {self.why} "
            f"(--fdl.{self.name}={self.theirs!r} is upstream's)"
        )


class Experiment(Switches, model_params.TransformerLmSpmdAdafactor):
    """A language model trained by Adam.

    A subclass states the sizes of a model and changes Paxml's model in `adapt_model`. The axes of
    a mesh are [data, fsdp, tensor]; upstream calls them replica, data and mdl.
    """

    MODEL_CLASS = LanguageModel
    ACTIVATION_CLS: Any  # a class of praxis.layers.activations, or its name
    # What repeated layers keep for the backward pass: SAVE_DOT_AND_ATTENTION, or a member of
    # layers.AutodiffCheckpointType, or its value.
    CHECKPOINT_POLICY: Any
    FPROP_DTYPE: Any = jnp.bfloat16  # of activations; weights are float32
    MAX_SEQ_LEN = 2048
    MAX_STEPS = 0
    PERCORE_BATCH_SIZE: Any = 1
    PACKED_INPUT = False
    ICI_MESH_SHAPE: Any = (1, 1, 1)  # within a node
    DCN_MESH_SHAPE: Any = (1, 1, 1)  # across nodes
    EVAL_TASK: str | None = None  # "lambada" or "boolq": an evaluation reports the accuracy

    USE_BIAS = False
    EMBEDDING_LOOKUP_STYLE = "exact"

    LEARNING_RATE = 1e-3
    ADAM_BETA1 = 0.9
    ADAM_BETA2 = 0.99
    ADAM_EPSILON = 1e-6
    ADAM_EPSILON_ROOT = 0.0
    ADAM_CLIP_THRESHOLD = 1.0  # of the root mean square of an update; 0 or less: none
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
        """Turn the model of Paxml's base class into the model of this family, in place.

        Args:
          task: The configuration of the task.
        """
        raise NotImplementedError

    def task(self) -> Any:
        """Return the configuration of the task.

        Raises:
          UserError: A hyper-parameter needs something that this version of Paxml lacks, or
            the switches cannot be combined.
        """
        self._convert_values()
        task = super().task()
        task.model.fprop_dtype = getattr(jnp, experiment_checks.read_precision(self.FPROP_DTYPE))
        task.train.num_train_steps = self.MAX_STEPS
        # A checkpoint then has the position in the data.
        task.train.enable_input_checkpointing = True
        # An experiment that only evaluates has no training data to read the shapes from.
        task.train.always_use_train_for_model_init = self.EVAL_TASK is None
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
        """Turn the texts and lists of a command line into the values that Praxis takes.

        Raises:
          UserError: ACTIVATION_CLS or CHECKPOINT_POLICY is not a known name.
        """
        for name in ("ICI_MESH_SHAPE", "DCN_MESH_SHAPE"):
            setattr(self, name, list(getattr(self, name) or (1, 1, 1)))
        if isinstance(self.ACTIVATION_CLS, str):
            classes = {
                name: value
                for name, value in vars(activations).items()
                if isinstance(value, type) and issubclass(value, activations.BaseActivation)
            }
            classes["ExactGELU"] = gpt_layers.ExactGELU
            name = parse_choice("ACTIVATION_CLS", self.ACTIVATION_CLS, list(classes))
            self.ACTIVATION_CLS = classes[name]
        policies = {policy.value: policy for policy in layers.AutodiffCheckpointType}
        # Praxis does not have SAVE_DOT_AND_ATTENTION. Without fused attention, it keeps what
        # SAVE_DOT_WITH_NO_BATCH_DIM keeps.
        policies[SAVE_DOT_AND_ATTENTION] = layers.AutodiffCheckpointType.SAVE_DOT_WITH_NO_BATCH_DIM
        policy_name = getattr(self.CHECKPOINT_POLICY, "value", self.CHECKPOINT_POLICY)
        policy_name = parse_choice("CHECKPOINT_POLICY", policy_name, list(policies))
        self.CHECKPOINT_POLICY = policies[policy_name]
        if policy_name == SAVE_DOT_AND_ATTENTION:
            self.keeps_attention = True

    def _set_metrics(self, model: Any) -> None:
        """Set what an evaluation reports beside the loss.

        Rows that only fill the last batch do not count.

        Raises:
          UserError: This version of Praxis does not have the metric.
        """
        model.apply_eval_sample_weights = True
        if self.EVAL_TASK is None:
            return
        if "eval_task" not in fdl.get_callable(model).__dataclass_fields__:
            raise UserError(
                f"the accuracy of {self.EVAL_TASK} is not in Praxis 1.4.0, whose wheel has no "
                "praxis.contrib",
                type(self).__name__,
                "use the pax distribution, not pax-1.4, or set EVAL_TASK=None",
                kind=UNSUPPORTED,
            )
        model.eval_task = self.EVAL_TASK
        if self.EVAL_TASK == "boolq":
            model.boolq_yn_tokens = np.array(self.find_answer_tokens())

    def make_optimizer(self) -> Any:
        """Return the configuration of the optimizer, with the schedule of its learning rate."""
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
        """Return the configuration of LR_SCHEDULE, the factor of LEARNING_RATE at each step."""
        if self.LR_SCHEDULE == "constant":
            return pax_fiddle.Config(schedules.Constant)
        if self.LR_SCHEDULE == "linear_rampup_cosine_decay":
            schedule, prefix = schedules.LinearRampupCosineDecay, "LR_COS"
        else:
            schedule, prefix = schedules.LinearRampupExponentialDecay, "LR_LRED"
        warmup = getattr(self, f"{prefix}_WARMUP")
        decay_start = getattr(self, f"{prefix}_DECAY_START")
        return pax_fiddle.Config(
            schedule,
            warmup_steps=warmup,
            decay_start=warmup + 1 if decay_start is None else decay_start,
            decay_end=getattr(self, f"{prefix}_DECAY_END"),
            min_ratio=getattr(self, f"{prefix}_MIN_RATIO"),
            max=getattr(self, f"{prefix}_MAX"),
        )

    def choose_lookup_style(self) -> str:
        """Return EMBEDDING_LOOKUP_STYLE, or "matmul" in place of "exact" if JAX is too old."""
        style = str(self.EMBEDDING_LOOKUP_STYLE)
        if style == embedding.EXACT and experiment_checks.find_switch_problem(jax.__version__):
            return "matmul"
        return style

    def set_sharding(self, task: Any) -> None:
        """Lay weights and activations over the mesh, in place.

        Paxml's base class has done so already; an `adapt_model` that replaces layers does it again.

        Args:
          task: The configuration of the task.
        """
        model_params.set_sharding_annotations_v1(
            task, self.TRAINING_OPTIMIZED_SHARDING, self.ICI_MESH_SHAPE, self.DCN_MESH_SHAPE
        )

    def describe_model(self) -> model_record.ModelRecord:
        """Return what is needed to build the model, and is not in a checkpoint."""
        kind = type(self)
        vocabulary, bos = None, None
        if hasattr(self, "resolve_train_data"):
            loaded = self.load_vocabulary(self.resolve_train_data())
            if not loaded.name.startswith("ids:"):
                vocabulary, bos = loaded.name, int(getattr(self, "BOS_ID", loaded.bos))
        return model_record.ModelRecord(
            f"{kind.__module__}.{kind.__qualname__}",
            model_record.collect_hyper_parameters(self),
            vocabulary,
            bos,
        )

    def list_differences(self) -> list[str]:
        """Return a line for each hyper-parameter that differs from upstream's experiment."""
        lines = []
        for difference in self.DIFFERENCES:
            ours = getattr(self, difference.name)
            if ours != difference.theirs:
                lines.append(difference.describe(ours))
        return lines

    def validate(self) -> None:
        """Check the experiment for the devices of the run, and log its differences from upstream.

        Paxml calls this before anything else.

        Raises:
          SystemExit: The user can correct something. The status is 2, and a line is on standard
            error.
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
