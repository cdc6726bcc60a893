from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import errors, required_modules

jax = required_modules.need_modules("praxis", "paxml", "jax")

import fiddle as fdl

from rosetta.core import log
from rosetta.data import data_spec, token_cache, vocabularies, vocabulary_training
from rosetta.pax import data
from tests.support import corpora

if TYPE_CHECKING:
    from pathlib import Path

DOCS = corpora.make_documents(120)
BYTES = vocabularies.Vocabulary("byte", 0)
VARIABLES = ("DATA", "EVAL_DATA", "VOCAB_PATH", "TFDS_DATA_DIR")
BOOLQ = [
    {
        "passage": f"Sheep {n} says yes. Sheep {n} says no.",
        "question": f"is it yes or no {n}",
        "label": n % 2,
    }
    for n in range(40)
]


@pytest.fixture(autouse=True)
def _unset_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    log.forget_shown()


def experiment(mixin: type[Any], **given: Any) -> Any:
    """A mixin with the hyper-parameters it finds in a size."""
    return type(
        "Experiment",
        (mixin,),
        {
            "task": lambda _: None,
            "VOCAB_SIZE": 300,
            "MAX_SEQ_LEN": 32,
            "PERCORE_BATCH_SIZE": 4,
            **given,
        },
    )()


def pile(tmp_path: Path, **given: Any) -> Any:
    return experiment(
        data.PileUnsupervisedDataset,
        **{"DATA": corpora.write_text_files(tmp_path / "t", DOCS), "VOCAB": "byte", **given},
    )


def lines(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return f"jsonl:{path}"


def test_variables_count_if_hyper_parameters_are_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA", corpora.write_text_files(tmp_path / "a", DOCS))
    monkeypatch.setenv("EVAL_DATA", corpora.write_text_files(tmp_path / "b", DOCS))
    monkeypatch.setenv("VOCAB_PATH", "byte")
    train, evaluated = experiment(data.PileUnsupervisedDataset).datasets()
    assert (train.data, train.vocab, train.batch_size) == (
        f"text:{tmp_path}/a/*.txt",
        "byte",
        4 * jax.local_device_count(),
    )
    assert (evaluated.data, evaluated.eval_batches) == (f"text:{tmp_path}/b/*.txt", 1)
    (only,) = experiment(
        data.PileUnsupervisedDataset,
        DATA=f"text:{tmp_path}/b/*.txt",
        EVAL_DATA=f"text:{tmp_path}/a/*.txt",
        EVAL_BATCHES=-1,
    ).datasets()[:1]
    assert only.data == f"text:{tmp_path}/b/*.txt"
    assert fdl.build(only).get_next().ids.shape == (4 * jax.local_device_count(), 32)


def test_synthetic_data_needs_neither_files_nor_a_vocabulary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATA", "text:/nowhere")
    monkeypatch.setenv("VOCAB_PATH", "/nowhere")
    train, evaluated = experiment(data.SyntheticDataset).datasets()
    ids = fdl.build(train).get_next().ids
    assert ids[:, 1:].min() > 2
    assert 200 < ids.max() < 300
    assert fdl.build(evaluated).get_next().ids.shape == ids.shape


def test_a_fractional_batch_has_the_same_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "local_device_count", lambda: 4)
    whole, half = pile(tmp_path, PERCORE_BATCH_SIZE=1), pile(tmp_path, PERCORE_BATCH_SIZE=0.5)
    assert (
        half.get_input_specs_provider_params().batch_size == 4
    )  # paxml fills the rows up to the devices
    rows = fdl.build(whole.datasets()[0]).get_next().ids
    (config,) = half.datasets()
    assert (config.batch_size, config.num_infeed_hosts) == (2, 1)
    source = fdl.build(config)
    assert (source.get_next().ids == rows[:2]).all()
    assert (source.get_next().ids == rows[2:]).all()


def test_paxmls_flag_names_the_folder_of_the_pile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = [
        [corpora.encode_example(text=[doc.encode()]) for doc in DOCS[part::2]] for part in range(2)
    ]
    corpora.write_tfds_folder(
        tmp_path / "whole", "the_pile/lm", {"train": shards, "validation": shards[:1]}
    )
    corpora.write_tfds_folder(tmp_path / "part", "the_pile/lm", {"train": shards})

    class Flags:
        tfds_data_dir: str | None = str(tmp_path / "whole")

        def is_parsed(self) -> bool:
            return True

    monkeypatch.setattr("absl.flags.FLAGS", Flags())
    monkeypatch.setenv("TFDS_DATA_DIR", "/nowhere")
    train, evaluated = experiment(data.PileUnsupervisedDataset, VOCAB="byte").datasets()
    assert (train.data, train.split, evaluated.data, evaluated.split) == (
        "tfds:the_pile",
        "train",
        "tfds:the_pile",
        "validation",
    )
    assert fdl.build(evaluated).get_next().eval_sample_weights.all()
    assert capsys.readouterr().err == ""
    Flags.tfds_data_dir = str(tmp_path / "part")
    for _ in range(2):
        assert [
            config.is_training
            for config in experiment(data.PileUnsupervisedDataset, VOCAB="byte").datasets()
        ] == [True]
    assert (
        capsys.readouterr().err
        == "rosetta: data: tfds:the_pile has no split validation: nothing is evaluated\n"
    )


def test_lambada_is_evaluated_whole_and_nothing_is_trained(tmp_path: Path) -> None:
    (config,) = experiment(
        data.LambadaDataset,
        DATA=corpora.write_text_files(tmp_path, corpora.make_sentences(40)),
        VOCAB="byte",
        MAX_SEQ_LEN=256,
    ).datasets()
    assert (
        config.is_training,
        config.eval_batches,
        config.eval_loop_num_batches,
        config.reset_for_eval,
        config.name,
    ) == (False, None, -1, True, "LambadaValidation")
    assert set(fdl.build(config).get_next().inputs_indicator[:, 0]) == {1}


def test_boolqs_answers_are_the_vocabularys_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = corpora.write_text_files(
        tmp_path / "t", [f"{record['passage']} answer: yes answer: no" for record in BOOLQ]
    )
    model = vocabulary_training.train_vocabulary(
        data_spec.parse_parts(words), str(tmp_path / "v.model"), size=285, extra_ids=0
    ).name
    records = lines(tmp_path / "b.jsonl", BOOLQ)
    made = experiment(data.BoolQDataset, DATA=records, VOCAB=model, VOCAB_SIZE=285, MAX_SEQ_LEN=128)
    capsys.readouterr()
    yes, no = made.find_answer_tokens()
    chosen = vocabularies.load_vocabulary(model, 0, causal=True)
    assert (chosen.decode([yes]), chosen.decode([no])) == ("yes", "no")
    train, evaluated = made.datasets()
    assert (
        capsys.readouterr().err
        == f"rosetta: data: EVAL_DATA is not set: {records} itself is evaluated\n"
    )
    for config in (train, evaluated):
        batch = fdl.build(config).get_next()
        assert set(batch.labels[batch.weights > 0].tolist()) <= {yes, no}
        assert set(batch.ids[:, 0].tolist()) == {1}
    assert experiment(data.BoolQDataset, TRUE_TOKEN=[7], FALSE_TOKEN=8).find_answer_tokens() == (
        7,
        8,
    )
    with errors.expect_user_error(errors.INVALID, where="VOCAB=byte", names=("3", "2")):
        experiment(data.BoolQDataset, DATA=records, VOCAB="byte").find_answer_tokens()


def test_a_cache_needs_its_vocabulary_only_for_packing(tmp_path: Path) -> None:
    kept = token_cache.CacheRecipe(
        "x", BYTES.fingerprint(), "byte", BYTES.size, document_ends=True, pairs=""
    )
    token_cache.write_cache(
        str(tmp_path / "c"), kept, DOCS, lambda batches: (BYTES.encode(batch) for batch in batches)
    )
    given = {"DATA": f"cache:{tmp_path}/c", "VOCAB": None}
    assert fdl.build(pile(tmp_path, **given).datasets()[0]).get_next().ids.shape[1] == 32
    with errors.expect_user_error(errors.MISSING, where="PACKED_INPUT"):
        pile(tmp_path, **given, PACKED_INPUT=True).datasets()
    packed = fdl.build(
        pile(tmp_path, **{**given, "VOCAB": "byte"}, PACKED_INPUT=True).datasets()[0]
    )
    assert max(packed.get_next().segment_ids.max() for _ in range(20)) > 1


@pytest.mark.parametrize(
    ("given", "kind", "facts"),
    [
        ({"VOCAB": None}, errors.MISSING, {"where": "DATA=text:", "remedy": "VOCAB_PATH"}),
        ({"VOCAB": "/nowhere/v.model"}, errors.MISSING, {"where": "/nowhere/v.model"}),
        (
            {"VOCAB_SIZE": 200},
            errors.TOO_BIG,
            {"where": "byte", "value": 259, "names": "200", "remedy": "--fdl.VOCAB_SIZE=259"},
        ),
        ({"DATA": "text:/nowhere"}, errors.MISSING, {"where": "/nowhere"}),
        ({"DATA": "task:mine"}, errors.UNSUPPORTED, {"where": "DATA=task:mine", "names": "SeqIO"}),
        ({"DATA": "file:/x"}, errors.UNKNOWN, {"where": "DATA=file:/x", "value": "file"}),
        ({"DATA": None}, errors.UNKNOWN, {"where": "tensorflow_datasets", "value": "the_pile"}),
        ({"MAX_SEQ_LEN": 1}, errors.INVALID, {"where": "MAX_SEQ_LEN", "value": 1}),
        (
            {"PERCORE_BATCH_SIZE": 0.37},
            errors.INVALID,
            {"where": "PERCORE_BATCH_SIZE=0.37", "value": 0.37},
        ),
        ({"EVAL_DATA": "text:/none", "EVAL_BATCHES": 1}, errors.MISSING, {"where": "/none"}),
        (
            {"EVAL_DATA": "synthetic", "EVAL_BATCHES": 0},
            errors.INVALID,
            {"where": "EVAL_BATCHES", "value": 0},
        ),
    ],
)
def test_missing_data_is_reported_before_anything_is_read(
    tmp_path: Path, given: dict[str, Any], kind: str, facts: dict[str, Any]
) -> None:
    with errors.expect_user_error(kind, **facts) as raised:
        pile(tmp_path, **given).datasets()
    assert "\n" not in str(raised.value)
