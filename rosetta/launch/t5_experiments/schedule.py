"""The optimizer and the learning rate that the options of t5-experiments ask for, in T5X's terms.

PyTorch's and T5X's schedules agree in each step: both count the steps from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rosetta.core.errors import CONFLICT, MISSING, UNKNOWN, UserError
from rosetta.t5x.run.optimizer_settings import ADAFACTOR

_SCHEDULE = "utils.create_learning_rate_scheduler"
_CONSTANT, _LINEAR, _COSINE = "constant", "linear", "cosine"
# --lr_scheduler -> its shape. transformers makes one cycle of cosine_with_restarts, and gives
# polynomial the power 1.
_SHAPES = {
    None: _CONSTANT,
    "constant": _CONSTANT,
    "constant_with_warmup": _CONSTANT,
    "linear": _LINEAR,
    "polynomial": _LINEAR,
    "cosine": _COSINE,
    "cosine_with_restarts": _COSINE,
}
_WARMING = ("constant_with_warmup", "linear", "polynomial", "cosine", "cosine_with_restarts")
_LAST_POLYNOMIAL_RATE = 1e-7  # lr_end of transformers' polynomial schedule
_RELATIVE_STEPS = 10000  # Adafactor's relative step is 0.01 up to here, then 1 / sqrt(step)

# Variable -> the option that sets it.
SOURCES = {
    "OPTIMIZER": "optimizer",
    "WEIGHT_DECAY": "weight_decay",
    "LEARNING_RATE": "lr",
    "WARMUP_STEPS": "num_warmup_steps",
}


@dataclass
class Training:
    """The settings of an optimizer and its learning rate.

    Attributes:
        variables: The variables of T5X to set.
        gin: The bindings for what has no variable.
        rows: What became of each option: its name, and a text.
    """

    variables: dict[str, str] = field(default_factory=dict)
    gin: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)


def choose_training(values: dict[str, Any]) -> Training:
    """Return the settings for the optimizer and the learning rate.

    Args:
        values: The values of all options.

    Raises:
        UserError: The options contradict each other, or T5X has no counterpart.
    """
    training = Training()
    name = values["optimizer"]
    if name == "Adafactor":
        _choose_adafactor(values, training)
    elif name == "AdamW" or (name == "Adam" and not values["weight_decay"]):
        _choose_adamw(values, training)
    else:
        raise UserError(
            f"{name!r} is not an optimizer of these scripts",
            "--optimizer",
            "give AdamW or Adafactor",
            kind=UNKNOWN,
            value=name,
        )
    if values["relative_step"]:
        _choose_relative_step(values, training)
    else:
        _choose_rate(values, training)
    return training


def _choose_adamw(values: dict[str, Any], training: Training) -> None:
    """Set AdamW."""
    for name in ("scale_parameter", "relative_step", "warmup_init"):
        if values[name]:
            raise UserError(
                f"only Adafactor has it, and --optimizer is {values['optimizer']}",
                f"--{name}",
                "give --optimizer Adafactor, or leave the option out",
                kind=CONFLICT,
                value=name,
            )
    clip_norm = values["clip_grad_norm"] or None
    if clip_norm:
        if values["gradient_accumulation_steps"] > 1:
            raise UserError(
                "T5X adds up the gradients of the parts of a batch, and does not average them",
                f"--clip_grad_norm {clip_norm}",
                "give --gradient_accumulation_steps 1 and the whole --batch_size, or leave the "
                "option out",
                kind=CONFLICT,
            )
        # The norm is that of the gradient of the mean loss, as in PyTorch. Without clipping, the
        # scale of the loss makes no difference to AdamW and Adafactor.
        training.gin["LOSS_NORMALIZING_FACTOR"] = "NUM_REAL_TARGET_TOKENS"
    training.variables |= {"OPTIMIZER": "adamw", "WEIGHT_DECAY": str(values["weight_decay"])}
    training.gin["optimizer.adamw.clip_norm"] = clip_norm
    training.rows |= {
        "optimizer": "OPTIMIZER=adamw",
        "weight_decay": f"WEIGHT_DECAY={values['weight_decay']}",
        "clip_grad_norm": f"optimizer.adamw.clip_norm = {clip_norm}",
    }


def _choose_adafactor(values: dict[str, Any], training: Training) -> None:
    """Set Adafactor.

    Raises:
        UserError: The options contradict each other, or T5X's Adafactor cannot do it.
    """
    decay, scales = values["weight_decay"], values["scale_parameter"]
    if values["clip_grad_norm"]:
        raise UserError(
            "Adafactor here does not clip the norm of all gradients; it clips each update",
            "--clip_grad_norm",
            "leave the option out, or give --optimizer AdamW",
            kind=CONFLICT,
        )
    if values["warmup_init"] and not values["relative_step"]:
        raise UserError(
            "works only with --relative_step",
            "--warmup_init",
            "add --relative_step, or leave the option out",
            kind=CONFLICT,
        )
    if decay and scales:
        raise UserError(
            "T5X's Adafactor does not multiply the decay by the scale of each parameter",
            f"--weight_decay {decay} --scale_parameter",
            "leave one of the two out",
            kind=CONFLICT,
        )
    training.variables["OPTIMIZER"] = ADAFACTOR
    training.gin["adafactor.Adafactor.multiply_by_parameter_scale"] = scales
    training.rows |= {
        "optimizer": f"OPTIMIZER={ADAFACTOR}",
        "scale_parameter": f"adafactor.Adafactor.multiply_by_parameter_scale = {scales}",
        "weight_decay": "none",
    }
    if decay:
        # The decay of each step is the learning rate times this number.
        training.gin["adafactor.Adafactor.weight_decay_rate"] = decay
        training.gin["adafactor.Adafactor.weight_decay_rate_lr_exponent"] = 1.0
        training.rows["weight_decay"] = f"adafactor.Adafactor.weight_decay_rate = {decay}"


def _choose_relative_step(values: dict[str, Any], training: Training) -> None:
    """Set Adafactor's own learning rate, which depends on the step alone.

    Raises:
        UserError: An option sets another learning rate.
    """
    for name in ("lr", "lr_scheduler", "num_warmup_steps", "num_training_steps"):
        if values[name] is not None:
            raise UserError(
                "--relative_step sets the learning rate",
                f"--{name}",
                "leave one of the two out",
                kind=CONFLICT,
                value=name,
            )
    warming = " * linear_warmup" if values["warmup_init"] else ""
    training.variables |= {"LEARNING_RATE": "1", "WARMUP_STEPS": str(_RELATIVE_STEPS)}
    training.gin |= {"LAST_RATE": 0.0, f"{_SCHEDULE}.factors": f"constant{warming} * rsqrt_decay"}
    training.rows |= {
        "relative_step": f"the rate 1 / sqrt(step), at most 0.01: {_SCHEDULE}.factors",
        "warmup_init": f"the rate rises from 0 to 0.01 over {_RELATIVE_STEPS} steps",
    }


def _choose_rate(values: dict[str, Any], training: Training) -> None:
    """Set the learning rate of --lr and --lr_scheduler.

    Raises:
        UserError: The options contradict each other, or T5X has no such schedule.
    """
    rate, scheduler, iters = values["lr"], values["lr_scheduler"], values["iters"]
    if not rate:
        remedy = "give a rate above 0, as in --lr 1e-3"
        if training.variables["OPTIMIZER"] == ADAFACTOR:
            remedy += ", or --relative_step"
        raise UserError("no learning rate is set", "--lr", remedy, kind=MISSING)
    if scheduler not in _SHAPES:
        raise UserError(
            f"{scheduler!r} is not a known schedule",
            "--lr_scheduler",
            f"choose one of: {', '.join(filter(None, _SHAPES))}",
            kind=UNKNOWN,
            value=scheduler,
        )
    shape, warmup = _SHAPES[scheduler], _check_warmup(values)
    total = values["num_training_steps"] or iters
    if shape == _CONSTANT:
        factors = "constant * linear_warmup" if warmup else "constant"
        text = f"{_SCHEDULE}.factors = {factors!r}"
    elif total <= (warmup or 0):
        raise UserError(
            f"the schedule has {total} steps, and the warm-up {warmup}",
            "--num_warmup_steps",
            "give fewer steps of warm-up, or more --iters",
            kind=CONFLICT,
            value=warmup,
        )
    elif shape == _LINEAR:
        factors, text = "linear_decay", f"linear, from --lr to 0 at step {total}"
        training.gin["SCHEDULE_STEPS"] = total
    else:
        _check_cosine_length(total, iters)
        factors = "constant * linear_warmup * cosine_decay" if warmup else "constant * cosine_decay"
        text = f"{_SCHEDULE}.factors = {factors!r}"
        training.gin[f"{_SCHEDULE}.steps_per_cycle"] = total - (warmup or 0)
    last = _LAST_POLYNOMIAL_RATE / rate if scheduler == "polynomial" else 0.0
    training.gin |= {"LAST_RATE": last, f"{_SCHEDULE}.factors": factors}
    training.variables["LEARNING_RATE"] = str(rate)
    training.rows |= {"lr": f"LEARNING_RATE={rate}", "lr_scheduler": text}
    if warmup:
        training.variables["WARMUP_STEPS"] = str(warmup)
        training.rows["num_warmup_steps"] = f"WARMUP_STEPS={warmup}"
    else:
        # No factor of these schedules reads it, except that cosine_decay starts after it.
        training.gin[f"{_SCHEDULE}.warmup_steps"] = 0
        training.rows["num_warmup_steps"] = "no warm-up"
    training.rows["num_training_steps"] = f"the schedule has {total} steps"


def _check_warmup(values: dict[str, Any]) -> int:
    """Return the steps of the warm-up; 0 for none.

    Raises:
        UserError: The schedule needs the steps, or has no warm-up.
    """
    scheduler, warmup = values["lr_scheduler"], values["num_warmup_steps"]
    if scheduler not in _WARMING:
        if warmup:
            raise UserError(
                f"the schedule {scheduler or 'constant'!r} has no warm-up",
                f"--num_warmup_steps {warmup}",
                "give --lr_scheduler constant_with_warmup, or leave the option out",
                kind=CONFLICT,
                value=warmup,
            )
        return 0
    needs_warmup = _SHAPES[scheduler] == _LINEAR
    if warmup is None or (needs_warmup and not warmup):
        least = 1 if needs_warmup else 0
        raise UserError(
            f"the schedule {scheduler!r} needs a warm-up of at least {least} step(s)",
            "--num_warmup_steps",
            f"give the number, as in --num_warmup_steps {max(1, values['iters'] // 20)}",
            kind=MISSING,
        )
    return int(warmup)


def _check_cosine_length(total: int, iters: int) -> None:
    """Refuse a schedule that is shorter than the run: T5X's cosine would rise again."""
    if total < iters:
        raise UserError(
            f"the cosine ends after {total} steps, and the run after {iters}",
            "--num_training_steps",
            "leave the option out, or give at least --iters",
            kind=CONFLICT,
            value=total,
        )
