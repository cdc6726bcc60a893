from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rosetta.core.errors import INVALID, MISSING, UNSUPPORTED
from rosetta.data import (
    bad_records,
    data_recipe,
    data_spec,
    labelled_records,
    masking_tokens,
    objectives,
    pipeline,
    row_sources,
    rows,
    seqio_features,
    shuffling,
    task_records,
    vocabularies,
)
from rosetta.data.data_spec import MASKED_OBJECTIVES
from tests.support import corpora, errors

BYTES = vocabularies.Vocabulary("byte", 100)
IDS = vocabularies.Vocabulary("ids:1000", 0)
LENGTH = 64
DOCS = corpora.make_documents(300)


def make_rows(objective: str, windows: Any, vocabulary: Any = BYTES, others: Any = None) -> Any:
    sized = objectives.make_objective(objective, {"inputs": LENGTH, "targets": 7})
    keys = shuffling.derive_keys(1, np.arange(len(windows)))
    assert sized.masked_rows is not None
    return sized.masked_rows.apply(windows, keys, vocabulary, others)


def make_recipe(folder: Path, objective: str, **changes: Any) -> data_recipe.Recipe:
    data = corpora.write_text_files(folder / "text", DOCS)
    recipe = corpora.make_recipe(data, objective, inputs=LENGTH, targets=LENGTH)
    return dataclasses.replace(recipe, **changes)


def test_the_shares_of_masked_random_and_kept_tokens() -> None:
    windows = np.random.default_rng(0).integers(10, 900, (2000, LENGTH - 2)).astype(np.int32)
    inputs, targets = make_rows("mlm", windows, IDS)
    tokens = masking_tokens.find_masking_tokens(IDS)
    assert (inputs[:, 0] == tokens.start).all()
    assert (inputs[:, -1] == tokens.separator).all()
    chosen = targets != 0
    assert (chosen.sum(axis=1) == round((LENGTH - 2) * 0.15)).all()
    # What is not chosen is the text, and the targets are what is hidden.
    text = np.where(chosen, targets, inputs)[:, 1:-1]
    assert (text == windows).all()
    kinds = {
        "masked": (inputs == tokens.mask)[chosen].mean(),
        "kept": (inputs == targets)[chosen].mean(),
    }
    count = chosen.sum()
    assert abs(kinds["masked"] - 0.8) < 4 * np.sqrt(0.16 / count)
    # A random token is the hidden one once in about a thousand times.
    assert abs(kinds["kept"] - 0.1001) < 4 * np.sqrt(0.09 / count)
    changed = inputs[chosen & (inputs != tokens.mask) & (inputs != targets)]
    assert not np.isin(changed, [tokens.start, tokens.mask, 0, 1, 2]).any()
    assert len(np.unique(changed)) > 700
    # Every place is chosen equally often: chi square with 61 degrees of freedom, 0.1 % lie above.
    times = chosen[:, 1:-1].sum(axis=0)
    expected = count / (LENGTH - 2)
    assert ((times - expected) ** 2 / expected).sum() < 101


def test_whole_words_are_chosen_together() -> None:
    text = b"alpha beta gamma, delta epsilon zeta eta theta iota kappa la mu"
    window: Any = np.frombuffer(text[: LENGTH - 2], np.uint8).astype(np.int32) + 3
    _, targets = make_rows("mlm_whole_word", [window] * 200)
    words = [list(word) for word in (text[: LENGTH - 2]).replace(b",", b" ").split()]
    chosen_words = set()
    for row in targets:
        places = np.flatnonzero(row)
        runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
        for run in runs:
            found = bytes((row[run] - 3).astype(np.uint8))
            # Two words side by side, with the space or comma between them, may be one run.
            pieces = found.replace(b",", b" ").split()
            assert all(list(piece) in words for piece in pieces), found
            chosen_words.update(pieces)
        assert 0 < len(places) <= round((LENGTH - 2) * 0.15)
    assert len(chosen_words) > 5
    # Without whole words, parts of words are chosen.
    _, single = make_rows("mlm", [window] * 20)
    assert ((single != 0).sum(axis=1) == round((LENGTH - 2) * 0.15)).all()


def test_words_that_do_not_fit_are_skipped() -> None:
    # One word is longer than the share of 9 tokens, and the words of one token fill the share.
    text = b"x" * 20 + b" a b c d e f g h i j k l m n o p q r s t u"
    window: Any = np.frombuffer(text[: LENGTH - 2], np.uint8).astype(np.int32) + 3
    _, targets = make_rows("mlm_whole_word", [window] * 50)
    assert (targets != 0).sum(axis=1).tolist() == [9] * 50
    assert not targets[:, 1:21].any()


def test_a_word_that_is_longer_than_the_share_is_cut() -> None:
    window: Any = np.full(LENGTH - 2, ord("x") + 3, np.int32)
    words: Any = np.frombuffer(b"a bc " * 12, np.uint8).astype(np.int32) + 3
    _, targets = make_rows("mlm_whole_word", [window, words])
    assert (np.flatnonzero(targets[0]) == np.arange(1, 10)).all()


@pytest.mark.parametrize("size", [0, 1, 2, 3])
@pytest.mark.parametrize("objective", MASKED_OBJECTIVES)
def test_short_windows(objective: str, size: int) -> None:
    window: Any = np.arange(100, 100 + size, dtype=np.int32)
    inputs, targets = make_rows(objective, [window], IDS, [window])
    assert (targets[0, 1:] != 0).sum() == min(size, 1)
    assert (inputs[0] != 0).sum() == size + (3 if "_" in objective[-4:] and size > 1 else 2)


def test_pairs_are_in_order_or_not() -> None:
    windows: Any = [np.arange(100, 161, dtype=np.int32)] * 400
    others: Any = [np.arange(500, 561, dtype=np.int32)] * 400
    tokens = masking_tokens.find_masking_tokens(IDS)
    for objective in ("mlm_nsp", "mlm_sop"):
        inputs, targets = make_rows(objective, windows, IDS, others)
        labels = targets[:, 0]
        assert abs((labels == 1).mean() - 0.5) < 0.1
        assert set(labels) == {1, 2}
        text = np.where(targets != 0, targets, inputs)
        text[:, 0] = tokens.start
        for row, label in zip(text, labels, strict=True):
            first, second, rest = np.split(row[1:], np.flatnonzero(row[1:] == tokens.separator) + 1)
            assert not len(rest)
            first, second = first[:-1], second[:-1]
            assert min(len(first), len(second)) >= 15
            joined = [*first, *second]
            if label == 1:
                assert joined == windows[0].tolist()
            elif objective == "mlm_sop":
                assert [*second, *first] == windows[0].tolist()
            else:
                assert first[0] == 100
                assert second[0] == 500


@pytest.mark.parametrize("objective", MASKED_OBJECTIVES)
def test_a_row_depends_on_its_running_number_alone(objective: str, tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, objective)
    large = pipeline.Batches(recipe, 8, kind=seqio_features.ENCODER)
    small = pipeline.Batches(recipe, 2, kind=seqio_features.ENCODER)
    for step in range(3):
        batch = large.make_batch(step)
        assert batch["encoder_input_tokens"].shape == (8, LENGTH)
        assert batch["decoder_target_tokens"].shape == (8, LENGTH)
        for part in range(4):
            for name, values in small.make_batch(4 * step + part).items():
                assert (values == batch[name][2 * part : 2 * part + 2]).all(), name
    assert set(large.feature_lengths.values()) == {1, LENGTH}
    # A run that resumes reads the batches that come next, and another objective is refused.
    state = json.loads(json.dumps(large.make_state(2)))
    resumed = pipeline.Batches(recipe, 8, kind=seqio_features.ENCODER)
    assert resumed.resume(state, 2) is None
    assert resumed.describe_batch(2) == large.describe_batch(2)
    other = "mlm_sop" if objective == "mlm" else "mlm"
    changed = dataclasses.replace(recipe, objective=other)
    with errors.expect_user_error("differs", names=objective):
        pipeline.Batches(changed, 8, kind=seqio_features.ENCODER).check_same_data(state)


def test_the_second_text_of_nsp_comes_from_elsewhere(tmp_path: Path) -> None:
    source = row_sources.open_sources(make_recipe(tmp_path, "mlm_nsp"))
    assert isinstance(source, rows.Windows)
    made = source.read_rows(np.arange(64))
    tokens = masking_tokens.find_masking_tokens(BYTES)
    windows = source.read_windows(np.zeros(source.count, np.int64), np.arange(source.count))
    texts = [bytes((window - 3).astype(np.uint8)) for window in windows]
    others = 0
    for inputs, targets in zip(made.inputs, made.targets, strict=True):
        label = targets[0]
        row = np.where(targets != 0, targets, inputs)
        row[0] = tokens.start
        ends = np.flatnonzero(row == tokens.separator)
        first, second = row[1 : ends[0]], row[ends[0] + 1 : ends[1]]
        first, second = (bytes((part - 3).astype(np.uint8)) for part in (first, second))
        (number,) = (number for number, text in enumerate(texts) if text.startswith(first))
        assert (first + second == texts[number]) == (label == 1)
        following = texts[(number + 1) % len(texts)]
        assert label == 1 or not following.startswith(second)
        others += label == 2
    assert 16 < others < 48


def test_features_take_the_label_out_of_the_targets() -> None:
    inputs: Any = np.array([[9, 8, 7, 0]], np.int32)
    targets: Any = np.array([[2, 5, 0, 0]], np.int32)
    made = seqio_features.make_encoder_features(rows.make_unpacked_rows(inputs, targets))
    assert made["sentence_labels"].tolist() == [[2]]
    assert made["decoder_target_tokens"].tolist() == [[0, 5, 0, 0]]
    assert made["decoder_loss_weights"].tolist() == [[0, 1, 0, 0]]
    labels = seqio_features.make_encoder_features(rows.make_unpacked_rows(inputs, targets[:, :1]))
    assert labels["decoder_target_tokens"].tolist() == [[2]]
    assert labels["decoder_loss_weights"].tolist() == [[1]]


def test_labelled_records(tmp_path: Path) -> None:
    records = [{"inputs": "good", "targets": "yes"}, {"inputs": "x" * 40, "targets": "no"}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    recipe = corpora.make_recipe(f"jsonl:{path}", "classification", inputs=10, targets=1)
    recipe = dataclasses.replace(recipe, labels=("no", "yes"), shuffle=False)
    made = row_sources.open_sources(recipe).read_rows(np.arange(2))
    tokens = masking_tokens.find_masking_tokens(recipe.vocabulary)
    text = [byte + 3 for byte in b"good"]
    assert made.inputs[0].tolist() == [tokens.start, *text, tokens.separator, 0, 0, 0, 0]
    assert made.inputs[1].tolist() == [tokens.start, *[ord("x") + 3] * 8, tokens.separator]
    assert made.targets.tolist() == [[2], [1]]
    for labels, kind, where in (
        ((), MISSING, "LABELS"),
        (("no", "maybe"), INVALID, "a.jsonl, line 1"),
    ):
        with errors.expect_user_error(kind, where=where):
            row_sources.open_sources(dataclasses.replace(recipe, labels=labels))
    numbers = [{"inputs": "a", "targets": 0}, {"inputs": "b", "targets": "-2.5"}]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in numbers))
    recipe = dataclasses.replace(recipe, objective="regression", labels=())
    made = row_sources.open_sources(recipe).read_rows(np.arange(2))
    assert made.targets.view(np.float32).tolist() == [[0.0], [-2.5]]
    assert (made.target_segments == 1).all()
    path.write_text(json.dumps({"inputs": "a", "targets": "many"}))
    with errors.expect_user_error(INVALID):
        row_sources.open_sources(recipe)


@pytest.mark.parametrize(
    ("label", "labels", "token"),
    [
        ("1", "no,yes", 2),
        ("1.0", "no,yes", 2),
        ("1", "1,2,3", 1),
        ("2.0", "1,2,3", 2),
        ("-1", "-1,1", 1),
        ("-1", "no,yes", None),
        ("-1.0", "no,yes", None),
        ("", "no,yes", None),
    ],
    ids=["number", "decimals", "name", "name-decimals", "minus", "none", "none-decimals", "empty"],
)
def test_labels_that_are_numbers(label: str, labels: str, token: int | None) -> None:
    names = labelled_records.split_labels(labels)
    assert labelled_records.encode_label(label, names, "classification") == token


@pytest.mark.parametrize(
    ("label", "labels"),
    [("0", "1,2,3"), ("9" * 5000, "no,yes"), ("2", "no,yes")],
    ids=["name", "digits", "beyond"],
)
def test_labels_that_are_not_classes(label: str, labels: str) -> None:
    names = labelled_records.split_labels(labels)
    with pytest.raises(bad_records.RecordFault) as raised:
        labelled_records.encode_label(label, names, "classification")
    assert len(raised.value.what) < 200


def test_bad_labels_are_skipped_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = ["yes", "maybe", -1, None, 0.0, [1]]
    path = tmp_path / "a.jsonl"
    rows = [json.dumps({"inputs": "a", "targets": label}) for label in labels]
    path.write_text("\n".join(rows))
    recipe = corpora.make_recipe(f"jsonl:{path}", "classification", inputs=10, targets=1)
    recipe = dataclasses.replace(recipe, labels=("no", "yes"), shuffle=False)
    with errors.expect_user_error(INVALID, where="a.jsonl, line 2", names="maybe"):
        row_sources.open_sources(recipe)
    monkeypatch.setenv("BAD_RECORDS", "skip")
    bad_records.forget_notes()
    source: Any = row_sources.open_sources(recipe)
    assert source.read_rows(np.arange(source.count)).targets.tolist() == [[2], [1]]
    assert bad_records.count_skipped() == 2
    bad_records.forget_notes()


def test_bad_labels_do_not_stop_inference(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [json.dumps({"inputs": "a", "targets": label}) for label in ("maybe", "yes", [1])]
    path.write_text("\n".join(rows))
    spec = data_spec.parse_spec(f"jsonl:{path}")
    examples = task_records.read_examples(
        spec, "classification", "validation", answered=False, labels=("no", "yes")
    )
    assert [example["label"] for example in examples] == [0, 2, 0]


def test_hidden_numbers_are_not_evaluated(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"inputs": "a", "targets": -1.0}\n' * 2)
    with errors.expect_user_error(MISSING, where="a.jsonl", value=2):
        task_records.check_all_records(f"jsonl:{path}", "regression", "validation", labels=())


def test_two_texts_of_a_record(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    record = {"premise": "abcdefgh", "hypothesis": "xy", "label": 1}
    path.write_text(json.dumps(record))
    recipe = corpora.make_recipe(f"jsonl:{path}", "classification", inputs=9, targets=1)
    recipe = dataclasses.replace(
        recipe, labels=("no", "yes"), text_field="premise,hypothesis,label", input_prefix="> "
    )
    made = row_sources.open_sources(recipe).read_rows(np.arange(1))
    tokens = masking_tokens.find_masking_tokens(recipe.vocabulary)
    first, second = ([byte + 3 for byte in text] for text in (b"> ab", b"xy"))
    end = tokens.separator
    assert made.inputs[0].tolist() == [tokens.start, *first, end, *second, end]
    assert made.targets.tolist() == [[2]]
    with errors.expect_user_error(INVALID, names="text,label,other,more"):
        data_spec.parse_label_fields("text,label,other,more")
    path.write_text(json.dumps({**record, "label": 2}))
    with errors.expect_user_error(INVALID, where="a.jsonl, line 1", names="'2'"):
        row_sources.open_sources(recipe)
    short = dataclasses.replace(recipe, inputs=4)
    with errors.expect_user_error(INVALID, where="TASK_FEATURE_LENGTHS", value=4):
        row_sources.open_sources(short)
    path.write_text(json.dumps({"premise": "a", "label": 1}))
    with errors.expect_user_error(INVALID):
        row_sources.open_sources(recipe)


def test_a_cache_has_no_labels() -> None:
    sized = objectives.make_objective("regression", {"inputs": LENGTH, "targets": 1})
    with errors.expect_user_error(UNSUPPORTED, where="DATA=cache:folder"):
        row_sources.check_source(data_spec.parse_spec("cache:folder"), sized, BYTES)
    with errors.expect_user_error(UNSUPPORTED, where="--objective classification"):
        row_sources.check_can_be_cached("classification", "--objective classification")


@pytest.mark.parametrize(
    ("sizes", "length", "kept"),
    [
        ((3, 2), 12, (3, 2)),
        ((9, 2), 9, (4, 2)),
        ((2, 9), 9, (2, 4)),
        ((9, 9), 10, (3, 4)),
        ((9, 8), 10, (4, 3)),
    ],
)
def test_the_longer_text_is_cut(sizes: tuple[int, int], length: int, kept: tuple[int, int]) -> None:
    """The expected lengths are those of Hugging Face's tokenizers ("longest_first")."""
    texts = ["x" * sizes[0], "y" * sizes[1]]
    ids = labelled_records.encode_texts(texts, BYTES, length)
    made = tuple(int((ids == ord(letter) + 3).sum()) for letter in "xy")
    assert made == kept


@pytest.mark.parametrize("text", ["one", "a,a", "a,,b"])
def test_labels_that_are_not_valid(text: str) -> None:
    with errors.expect_user_error(INVALID, where="LABELS"):
        labelled_records.split_labels(text)


def test_what_masked_language_modelling_needs() -> None:
    sized = objectives.make_objective("mlm", {"inputs": LENGTH, "targets": LENGTH})
    few = vocabularies.Vocabulary("byte", 1)
    with errors.expect_user_error(MISSING):
        sized.check_fits(few)
    spec = data_spec.parse_spec("hf:someone/something")
    nsp = objectives.make_objective("mlm_nsp", {"inputs": LENGTH, "targets": LENGTH})
    with errors.expect_user_error(UNSUPPORTED):
        row_sources.check_source(spec, nsp, BYTES)


def write_word_pieces(folder: Path) -> str:
    tokenizers = pytest.importorskip("tokenizers", reason="NOT TESTED: needs tokenizers")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, "un", "##happi", "##ness", "is", "rare", "."]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    model = tokenizers.models.WordPiece(vocabulary, unk_token=special[1])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


def test_the_tokenizer_of_a_bert(tmp_path: Path) -> None:
    vocabulary = vocabularies.load_vocabulary(write_word_pieces(tmp_path))
    tokens = masking_tokens.find_masking_tokens(vocabulary)
    assert (tokens.start, tokens.separator, tokens.mask) == (2, 3, 4)
    assert tokens.random_ids.tolist() == [5, 6, 7, 8, 9, 10]
    window = vocabulary.encode(["unhappiness is rare."])[0]
    assert window.tolist() == [5, 6, 7, 8, 9, 10]
    starts = tokens.find_word_starts(window[None], np.ones((1, 6), bool))
    assert starts.tolist() == [[True, False, False, True, True, True]]
    objectives.make_objective("mlm", {"inputs": 8, "targets": 8}).check_fits(vocabulary)
    with errors.expect_user_error("conflict"):
        objectives.make_objective("prefix_lm", {"inputs": 8, "targets": 8}).check_fits(vocabulary)
