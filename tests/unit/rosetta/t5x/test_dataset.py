from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="NOT CHECKED: needs the packages of a baked environment")
seqio = pytest.importorskip(
    "seqio", reason="NOT CHECKED: needs the packages of a baked environment"
)
tf = pytest.importorskip(
    "tensorflow", reason="NOT CHECKED: needs the packages of a baked environment"
)

from rosetta.data import batch_hashes, objectives, shuffling, task_records, vocabularies
from rosetta.t5x import dataset
from tests.support import corpora, errors

DOCS = corpora.make_documents(200)
LENGTHS = {"inputs": 64, "targets": 32}
MNLI: list[dict[str, Any]] = [
    {"premise": f"a premise {n}", "hypothesis": f"so {n}", "label": n % 3, "idx": n}
    for n in range(12)
]
TEXT: list[dict[str, Any]] = [
    {"inputs": f"translate: {n}", "targets": f"number {n}"} for n in range(8)
]
SQUAD: list[dict[str, Any]] = [
    {
        "id": f"q{n}",
        "question": f"Which number, then?  No. {n}",
        "context": f"It's {n} (in words: “{n}”).",
        "answers": {"text": [str(n), f"It's {n}"]},
    }
    for n in range(8)
]


@dataclasses.dataclass
class Config:
    """The fields of t5x.utils.DatasetConfig, which takes long to import."""

    mixture_or_task_name: Any
    batch_size: int = 8
    split: str = "train"
    task_feature_lengths: dict[str, int] = dataclasses.field(default_factory=lambda: dict(LENGTHS))
    shuffle: bool = True
    seed: int | None = 0
    use_cached: bool = False
    pack: bool = False
    module: str | None = None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("data")
    corpora.write_text_files(made / "text", DOCS)
    for name, rows in (("mnli", MNLI), ("squad", SQUAD), ("text_to_text", TEXT)):
        (made / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


@pytest.fixture(scope="module")
def span_task(folder: Path) -> Any:
    data = f"text:{folder}/text/*.txt"
    return dataset.task(
        data, dataset.vocabulary("byte"), eval_data=data, name="spans", mean_noise_span_length=20.0
    )


def opened(task: Any, **changes: Any) -> dataset.TrainIterator:
    found = dataset.get_dataset(Config(task, **changes), 0, 1, seqio.EncDecFeatureConverter)
    assert isinstance(found, dataset.TrainIterator)
    return found


def test_batches_are_rosettas_own_by_step(span_task: Any) -> None:
    iterator = opened(span_task)
    direct = iterator.batches
    for step in range(3):
        assert batch_hashes.hash_batch(next(iterator)) == batch_hashes.hash_batch(
            direct.make_batch(step)
        )
    assert {name: spec.shape for name, spec in iterator.element_spec.items()} == {
        name: values.shape for name, values in direct.make_batch(0).items()
    }
    half = dataset.get_dataset(Config(span_task), 1, 2, seqio.EncDecFeatureConverter)
    assert (
        next(half)["encoder_input_tokens"] == direct.make_batch(0)["encoder_input_tokens"][4:]
    ).all()


def test_the_iterator_is_put_at_the_step_whatever_was_read_ahead(span_task: Any) -> None:
    from clu.data import dataset_iterator

    expected = opened(span_task).batches
    for begin, ahead in ((0, False), (0, True), (5, False), (5, True)):
        own = opened(span_task)
        iterator = dataset_iterator.PeekableDatasetIterator(own)
        if ahead:
            iterator.peek_async().result()
        for first in (begin, begin + 2):  # the trainer is called once a stats period
            dataset.align_iterator(iterator, first)
            for step in (first, first + 1):
                assert batch_hashes.hash_batch(next(iterator)) == batch_hashes.hash_batch(
                    expected.make_batch(step)
                )


def test_a_batch_read_ahead_is_not_made_again(span_task: Any) -> None:
    from clu.data import dataset_iterator

    iterator = dataset_iterator.PeekableDatasetIterator(opened(span_task))
    held = iterator.peek_async().result()
    dataset.align_iterator(iterator, 0)
    assert next(iterator) is held


def test_after_a_change_of_batch_size_the_next_example_follows(
    span_task: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    first = opened(span_task)
    kept = json.loads(json.dumps(dataset.get_data_state(6)))
    larger = opened(span_task, batch_size=16)
    dataset.set_resume_position(kept, 6)
    dataset.align_iterator(larger, 6)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("data: the batch was 8, now 16: from step 6 on with example 48")
    assert (
        next(larger)["encoder_input_tokens"][:8]
        == first.batches.make_batch(6)["encoder_input_tokens"]
    ).all()
    opened(span_task, seed=3)
    with errors.expect_user_error(errors.DIFFERS, where="the data's seed", value=3, names="0"):
        dataset.set_resume_position(kept, 6)


def test_t5x_can_save_the_position(span_task: Any, tmp_path: Path) -> None:
    iterator = opened(span_task)
    next(iterator)
    iterator.save(tmp_path / "position")
    expected = batch_hashes.hash_batch(next(iterator))
    again = opened(span_task)
    again.restore(tmp_path / "position")
    assert batch_hashes.hash_batch(next(again)) == expected


def test_the_log_has_the_batches_that_were_trained(
    span_task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROSETTA_BATCH_LOG", str(tmp_path / "log"))
    iterator = opened(span_task)
    next(iterator)  # read ahead of a restore
    iterator.start_step = 4
    iterator.reset()
    for _ in range(3):
        next(iterator)
    iterator.log.flush()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["step"] for line in lines] == [4, 5, 6]
    assert lines[1]["hash"] == batch_hashes.hash_batch(iterator.batches.make_batch(5))


def test_a_log_that_cannot_be_written_is_reported_before_training(
    span_task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROSETTA_BATCH_LOG", str(tmp_path / "none" / "log"))
    with errors.expect_user_error(errors.DENIED, where=f"ROSETTA_BATCH_LOG={tmp_path}/none/log"):
        opened(span_task)


def test_a_task_is_made_once_and_two_tasks_cannot_share_a_name(
    folder: Path, span_task: Any
) -> None:
    data = f"text:{folder}/text/*.txt"
    same = dataset.task(
        data, dataset.vocabulary("byte"), eval_data=data, name="spans", mean_noise_span_length=20.0
    )
    assert same is span_task
    with errors.expect_user_error(errors.CONFLICT, where="dataset.task.name", value="spans"):
        dataset.task(data, dataset.vocabulary("byte"), name="spans")
    with errors.expect_user_error(errors.UNKNOWN, where="DATA=task:nobodys"):
        dataset.task("task:nobodys", dataset.vocabulary("byte"))
    with errors.expect_user_error(errors.UNKNOWN, where="dataset.task.objective", value="denoise"):
        dataset.task(data, dataset.vocabulary("byte"), objective="denoise")


def test_evaluation_reads_every_row_once_in_order(span_task: Any) -> None:
    rows = list(span_task.get_dataset(LENGTHS, "validation", shuffle=False).as_numpy_iterator())
    again = list(span_task.get_dataset(LENGTHS, "validation", shuffle=False).as_numpy_iterator())
    assert len(rows) > 50
    assert all((one["inputs"] == two["inputs"]).all() for one, two in zip(rows, again, strict=True))
    text = dataset.convert_vocabulary(dataset.vocabulary("byte"))
    shown = "".join(text.decode(row["inputs"].tolist()) for row in rows)
    assert shown.index("w00001") < shown.index("w00200")
    converted = seqio.EncDecFeatureConverter(pack=False)(
        span_task.get_dataset(LENGTHS, "validation", shuffle=False), LENGTHS
    )
    assert next(converted.as_numpy_iterator())["encoder_input_tokens"].shape == (64,)


@pytest.mark.parametrize("name", ["mnli", "squad", "text_to_text"])
def test_evaluation_uses_t5s_metrics(folder: Path, name: str) -> None:
    task = dataset.task(
        f"jsonl:{folder}/{name}.jsonl",
        dataset.vocabulary("byte"),
        objective=name,
        eval_data=f"jsonl:{folder}/{name}.jsonl",
        name=f"eval_{name}",
    )
    lengths = {"inputs": 160, "targets": 16}
    evaluator = seqio.Evaluator(
        task.name, seqio.EncDecFeatureConverter(pack=False), "validation", sequence_length=lengths
    )

    def answers(wrong: int) -> Any:
        def predict(examples: Any) -> list[tuple[int, list[int]]]:
            found = [
                (int(number), example["decoder_target_tokens"].tolist())
                for number, example in examples.as_numpy_iterator()
            ]
            return [
                (number, [5, 1] + [0] * (len(ids) - 2) if number < wrong else ids)
                for number, ids in found
            ]

        return predict

    count = len({"mnli": MNLI, "squad": SQUAD, "text_to_text": TEXT}[name])
    for wrong in (0, count // 2):
        metrics, _ = evaluator.evaluate(
            compute_metrics=True, predict_fn=answers(wrong), score_fn=None, predict_with_aux_fn=None
        )
        found = metrics.result()[task.name]
        share = 100 * (1 - wrong / count)
        assert found["em" if name == "squad" else "accuracy"] == pytest.approx(share)
        if name == "squad":
            assert found["f1"] == pytest.approx(share)


def test_vocabularies_are_checked_before_a_compile(
    span_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import types

    utils = pytest.importorskip("t5x.utils", reason="NOT CHECKED: needs upstream's sources")

    byte = dataset.vocabulary("byte")
    monkeypatch.setattr(
        utils,
        "get_vocabulary",
        lambda cfg: (cfg.mixture_or_task_name.output_features["inputs"].vocabulary,) * 2,
    )

    def model(size: int, vocabulary: Any = byte) -> Any:
        return types.SimpleNamespace(
            input_vocabulary=vocabulary,
            output_vocabulary=vocabulary,
            module=types.SimpleNamespace(config=types.SimpleNamespace(vocab_size=size)),
        )

    dataset.verify_vocabularies(Config(span_task), model(384))
    with errors.expect_user_error(errors.TOO_BIG, value=259, names="256"):
        dataset.verify_vocabularies(Config(span_task), model(256))
    with errors.expect_user_error(
        errors.DIFFERS, names=("ByteVocabulary (259 ids)", "PassThroughVocabulary"), remedy="VOCAB"
    ):
        dataset.verify_vocabularies(Config(span_task), model(384, dataset.vocabulary("ids:384")))


def test_python_and_tensorflow_tokenise_alike() -> None:
    model = str(Path(seqio.__file__).parent / "test_data" / "sentencepiece" / "sentencepiece.model")
    theirs = dataset.vocabulary(model)
    own = dataset.convert_vocabulary(theirs)
    assert (own.size, own.extra_ids) == (theirs.vocab_size, 100)
    for text in ("this is a test", "Größe & 水", ""):
        assert (
            own.encode([text])[0].tolist()
            == theirs.encode(text)
            == theirs.encode_tf(text).numpy().tolist()
        )


@pytest.mark.parametrize(
    ("inputs", "density", "span"),
    [(512, 0.15, 3.0), (1024, 0.15, 3.0), (512, 0.15, 20.0), (114, 0.3, 5.0), (64, 0.5, 2.0)],
)
def test_windows_are_as_long_as_t5s(inputs: int, density: float, span: float) -> None:
    from t5.data import preprocessors

    theirs, targets = preprocessors.random_spans_helper(inputs, density, span, 1, 1)
    if density == 0.5:
        theirs = objectives.find_window_length(
            inputs, density, span
        )  # T5 shortens it by one, to make inputs and targets equal
        targets = inputs
    assert objectives.find_window_length(inputs, density, span) == theirs
    objectives.Objective("span_corruption", inputs, targets, span, density).check_fits(
        vocabularies.Vocabulary("byte", 200)
    )


def test_spans_are_marked_as_t5_marks_them() -> None:
    from t5.data import preprocessors

    byte = seqio.ByteVocabulary(extra_ids=100)
    top = 358
    keys = shuffling.derive_keys(3, np.arange(5))
    tokens: Any = (np.arange(5 * 90, dtype=np.int32).reshape(5, 90) % 256) + 3
    masks = objectives.draw_noise_mask(90, keys, 0.15, 3.0)
    inputs, targets = objectives.corrupt_spans(
        tokens, keys, np.arange(top, top - 100, -1, dtype=np.int32), 0.15, 3.0
    )
    named = {"vocabulary": dataclasses.make_dataclass("Sized", ["vocab_size"])(359), "seeds": None}
    assert byte.extra_ids == 100
    for row in range(5):
        assert (
            preprocessors.noise_span_to_unique_sentinel(tokens[row], masks[row], **named)
            .numpy()
            .tolist()
            == inputs[row].tolist()
        )
        assert (
            preprocessors.nonnoise_span_to_unique_sentinel(tokens[row], masks[row], **named)
            .numpy()
            .tolist()
            == targets[row].tolist()
        )


@pytest.mark.parametrize("inputs", [256, 512, 1024])
def test_the_denoisers_of_ul2_make_the_rows_that_t5_makes(inputs: int) -> None:
    vocabulary = vocabularies.Vocabulary("byte", 300)
    rule = objectives.make_objective(
        "ul2", {"inputs": inputs, "targets": inputs}, mode_tokens="", vocabulary=vocabulary
    )
    rule.check_fits(vocabulary)
    keys = shuffling.derive_keys(3, np.arange(2))
    for number, denoiser in enumerate(rule.denoisers):
        length = denoiser.window_length
        tokens: Any = (np.arange(2 * length, dtype=np.int32).reshape(2, length) % 256) + 3
        sides = rule.apply(list(tokens), keys, vocabulary, np.full(2, number))
        if denoiser.name == "prefix_lm":
            shown = (sides[0] != 0).sum(axis=1) - 1
            masks = np.arange(length) >= shown[:, None]
        else:
            span = denoiser.mean_noise_span_length
            masks = objectives.draw_noise_mask(length, keys, denoiser.noise_density, span)
            check_sizes_with_t5(denoiser, masks[0])
        for row in range(2):
            expected = mark_with_t5(denoiser, tokens[row], masks[row], vocabulary.size)
            for side, ids in zip(sides, expected, strict=True):
                assert side[row, : len(ids)].tolist() == ids
                assert not side[row, len(ids) :].any()


def check_sizes_with_t5(denoiser: objectives.Objective, mask: Any) -> None:
    """Compare window, targets, masked tokens and spans of a denoiser with those of T5.

    UL2's published code calls these functions of T5 for each denoiser.
    """
    from t5.data import preprocessors

    density, span = denoiser.noise_density, denoiser.mean_noise_span_length
    assert preprocessors.random_spans_helper(denoiser.inputs, density, span, 1, 1) == (
        denoiser.window_length,
        objectives._count_targets(denoiser),
    )
    theirs = preprocessors.random_spans_noise_mask(
        len(mask), density, [(1, 2), (3, 4)], mean_noise_span_length=span
    ).numpy()
    assert mask.sum() == theirs.sum()
    assert count_spans(mask) == count_spans(theirs)


def mark_with_t5(
    denoiser: objectives.Objective, tokens: Any, mask: Any, vocab_size: int
) -> list[list[int]]:
    """Return the inputs and targets that T5 makes of a window and its mask, with end tokens."""
    from t5.data import preprocessors

    functions = (
        preprocessors.noise_span_to_unique_sentinel,
        preprocessors.nonnoise_span_to_unique_sentinel,
    )
    if denoiser.name == "prefix_lm":
        functions = (preprocessors.drop_noise_tokens, preprocessors.drop_nonnoise_tokens)
    vocabulary = dataclasses.make_dataclass("Sized", ["vocab_size"])(vocab_size)
    return [
        [*mark(tokens, mask, vocabulary=vocabulary, seeds=None).numpy().tolist(), 1]
        for mark in functions
    ]


def count_spans(mask: Any) -> int:
    """Return the number of runs of masked tokens."""
    return int(np.diff(np.concatenate([[0], mask.astype(int)])).clip(0).sum())


def test_the_cuts_of_prefix_lm_are_those_of_t5() -> None:
    from t5.data import preprocessors

    length = 12
    rule = objectives.make_objective("prefix_lm", {"inputs": length + 1, "targets": length + 1})
    assert rule.window_length == length
    vocabulary = vocabularies.Vocabulary("byte")
    keys = shuffling.derive_keys(0, np.arange(2000))
    inputs, _ = rule.apply(np.full((2000, length), 5, np.int32), keys, vocabulary)
    own = set(((inputs != 0).sum(axis=1) - 1).tolist())
    theirs = {
        int((~preprocessors.random_prefix_noise_mask(length, 0.5, [(seed, 1)]).numpy()).sum())
        for seed in range(200)
    }
    assert own == theirs == set(range(1, length))


def test_a_prefix_is_before_the_inputs_of_training_and_evaluation(folder: Path) -> None:
    data = f"jsonl:{folder}/text_to_text.jsonl"
    made = dataset.task(
        data,
        dataset.vocabulary("byte"),
        eval_data=data,
        name="prefixed",
        objective="text_to_text",
        input_prefix="[S2S]",
    )
    vocabulary = vocabularies.Vocabulary("byte", 0)
    evaluated = [
        vocabulary.decode(example["inputs"])
        for example in made.get_dataset(
            {"inputs": 64, "targets": 32}, split="validation", shuffle=False
        ).as_numpy_iterator()
    ]
    assert evaluated == [f"[S2S] {row['inputs']}"[:63] for row in TEXT]
    batch = next(opened(made, batch_size=8))
    trained = {vocabulary.decode(row) for row in batch["encoder_input_tokens"]}
    assert trained <= {f"[S2S] {row['inputs']}"[:63] for row in TEXT}


def test_records_are_worded_as_t5_words_them() -> None:
    from t5.data import preprocessors

    def theirs(rows: list[dict[str, Any]], worded: Any) -> list[dict[str, Any]]:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        return list(worded(tf.data.Dataset.from_tensor_slices(columns)).as_numpy_iterator())

    glue = functools.partial(
        preprocessors.glue, benchmark_name="mnli", label_names=list(task_records.MNLI_LABELS)
    )
    for row, expected in zip(MNLI, theirs(MNLI, glue), strict=True):
        found = task_records.format_mnli(row)
        assert found is not None
        assert [found[side] for side in ("inputs", "targets")] == [
            expected[side].decode() for side in ("inputs", "targets")
        ]
    columns: dict[str, Any] = {
        name: [row[name] for row in SQUAD] for name in ("id", "question", "context")
    }
    columns["answers"] = {"text": [row["answers"]["text"] for row in SQUAD]}
    for row, expected in zip(
        SQUAD,
        preprocessors.squad(tf.data.Dataset.from_tensor_slices(columns)).as_numpy_iterator(),
        strict=True,
    ):
        found = task_records.format_squad(row)
        assert found is not None
        assert [found[side] for side in ("inputs", "targets")] == [
            expected[side].decode() for side in ("inputs", "targets")
        ]
        assert found["answers"] == [answer.decode() for answer in expected["answers"]]


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("converter", ["EncDecFeatureConverter", "DecoderFeatureConverter"])
def test_features_are_seqios(folder: Path, converter: str, pack: bool) -> None:
    lengths = {"inputs": 160, "targets": 48}
    task = dataset.task(
        f"jsonl:{folder}/mnli.jsonl", dataset.vocabulary("byte"), objective="mnli", name="features"
    )
    cls = getattr(seqio, converter)
    batches = dataset.get_dataset(
        Config(task, batch_size=4, task_feature_lengths=lengths, pack=pack, shuffle=False),
        0,
        1,
        cls,
    ).batches
    source: Any = batches.source
    ordered = [number for bundle in source.bundles for number in bundle]
    texts = {
        side: [task_records.format_mnli(MNLI[number])[side] for number in ordered]  # type: ignore[index]
        for side in ("inputs", "targets")
    }
    byte = dataset.convert_vocabulary(dataset.vocabulary("byte"))

    def examples() -> Any:
        for number in range(len(ordered)):
            yield {
                side: np.append(byte.encode([texts[side][number]])[0], 1).astype(np.int32)
                for side in texts
            }

    theirs = tf.data.Dataset.from_generator(
        examples, output_signature={side: tf.TensorSpec((None,), tf.int32) for side in texts}
    )
    expected = list(cls(pack=pack)(theirs, lengths).as_numpy_iterator())
    count = min(len(expected), source.count)
    assert count >= 3
    for number in range(count):
        own = {name: values[number % 4] for name, values in batches.make_batch(number // 4).items()}
        assert set(own) == set(expected[number])
        for name, values in own.items():
            assert values.tolist() == expected[number][name].tolist(), (name, number)


def test_t5xs_own_function_reads_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = pytest.importorskip("t5x.utils", reason="NOT CHECKED: needs upstream's sources")

    seen: list[Any] = []

    def theirs(cfg: Any, *rest: Any) -> str:
        seen.append((cfg, rest))
        return "theirs"

    monkeypatch.setattr(utils, "get_dataset", theirs)
    cfg = Config("c4_v220_span_corruption")
    assert dataset.get_dataset(cfg, 1, 2, seqio.EncDecFeatureConverter) == "theirs"
    assert seen == [(cfg, (1, 2, seqio.EncDecFeatureConverter, None, False))]


def test_another_iterator_is_not_changed() -> None:
    iterator = iter([1, 2])
    dataset.align_iterator(iterator, 5)
    assert next(iterator) == 1
