"""Every hyper-parameter has a meaning, and those that a model does not read change nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rosetta.pax.run import hyper_parameter_help, hyper_parameters
from tests.support import required_modules

NAMES = [name for meanings in hyper_parameter_help.HELP.values() for name in meanings]
OTHER_VALUES: dict[str, Any] = {
    "ACTIVATION_CLS": "ReLU",
    "ATTEN_LOGIT_CAP": 30.0,
    "DROPOUT_PROB": 0.5,
    "EMBEDDING_LOOKUP_STYLE": "index",
    "INPUT_DROPOUT_PROB": 0.5,
    "LAYERNORM_EPSILON": 0.5,
    "PARALLEL_RESIDUAL": True,
    "ROPE_THETA": 20_000,
    "ROTARY_FRACTION": 0.5,
    "SEPARATE_EMBEDDING": True,
    "SOFTMAX_CAP_LOGITS": 30.0,
    "SOFTMAX_INIT_STD": 0.5,
    "TRAINABLE_POSITION_EMB": True,
    "USE_BIAS": True,
    "USE_GATED_ACTIVATION": True,
}
OPPOSITE = ("SEPARATE_EMBEDDING", "TRAINABLE_POSITION_EMB", "USE_BIAS", "USE_GATED_ACTIVATION")
EXPERIMENTS = {"GPT": "Synthetic126M", "GLaM": "SyntheticGLaM126M64E", "LLaMA": "SyntheticLLaMA7B"}


def test_every_hyper_parameter_has_one_meaning() -> None:
    known = {*hyper_parameters.list_names(), *hyper_parameters.list_paxml_defaults()}
    assert Counter(NAMES) == Counter(known)


def test_a_meaning_is_a_sentence() -> None:
    for meanings in hyper_parameter_help.HELP.values():
        for text in meanings.values():
            assert text.endswith(".")
            assert text[0].isupper() or text[0] == "`"


def configuration(kind: str, **changes: Any) -> Any:
    """Return the configuration of an experiment's task."""
    from rosetta.pax import configs

    experiment = getattr(configs, EXPERIMENTS[kind])()
    for name, value in changes.items():
        setattr(experiment, name, value)
    return experiment.task()


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, names in hyper_parameter_help.UNREAD.items() for name in names],
)
def test_what_a_model_does_not_read_changes_nothing(kind: str, name: str) -> None:
    required_modules.need_modules("paxml")
    from rosetta.pax import configs

    value = OTHER_VALUES[name]
    if name in OPPOSITE:
        value = not getattr(getattr(configs, EXPERIMENTS[kind]), name)
    assert configuration(kind, **{name: value}) == configuration(kind)


def test_what_is_read_changes_something() -> None:
    """So that the test above can fail."""
    required_modules.need_modules("paxml")
    assert configuration("GPT", USE_BIAS=False) != configuration("GPT")


def test_the_defaults_of_paxml_are_those_of_its_class() -> None:
    required_modules.need_modules("paxml")
    from paxml.tasks.lm.model_params import TransformerLmSpmdAdafactor

    for name, text in hyper_parameters.list_paxml_defaults().items():
        value = getattr(TransformerLmSpmdAdafactor, name)
        assert repr(getattr(value, "value", value)) == text, name
