from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support import errors, required_modules

required_modules.need_modules("jax", "praxis")

from rosetta.data import batch_hashes
from rosetta.pax import inputs
from tests.support import corpora

if TYPE_CHECKING:
    from pathlib import Path

DOCS = corpora.make_documents(120)
BOOLQ: list[dict[str, Any]] = [
    {"passage": f"Sheep number {n}.", "question": f"is it {n}", "label": n % 2} for n in range(11)
]


@pytest.fixture
def text(tmp_path: Path) -> str:
    return corpora.write_text_files(tmp_path / "text", DOCS)


@pytest.fixture
def boolq(tmp_path: Path) -> str:
    (tmp_path / "boolq.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in BOOLQ), encoding="utf-8"
    )
    return f"jsonl:{tmp_path}/boolq.jsonl"


def train(data: str, **more: Any) -> inputs.Input:
    return inputs.Input(
        **{
            "name": "train",
            "is_training": True,
            "data": data,
            "seq_len": 32,
            "batch_size": 4,
            "input_random_seed": 3,
            **more,
        }
    )


def evaluate(data: str, **more: Any) -> inputs.Input:
    return inputs.Input(
        **{
            "name": "eval",
            "data": data,
            "objective": "boolq",
            "seq_len": 160,
            "batch_size": 4,
            "reset_for_eval": True,
            "eval_loop_num_batches": -1,
            **more,
        }
    )


def digest(batch: Any, first: int = 0) -> str:
    return batch_hashes.hash_batch(dict(batch), first)


def every(source: inputs.Input) -> list[Any]:
    found = []
    while True:
        try:
            found.append(source.get_next())
        except StopIteration:
            return found


@pytest.mark.parametrize(
    ("percore", "devices", "processes", "dealt"),
    [
        (4, 8, 1, (32, 1)),
        (4, 8, 2, (32, 2)),
        (0.5, 4, 1, (2, 1)),
        (0.5, 4, 2, (2, 2)),
        (0.0625, 8, 2, (1, 1)),
        (0.25, 8, 4, (2, 4)),
        (0.7, 10, 1, (7, 1)),
        (1.5, 2, 1, (3, 1)),
        (2.0, 8, 1, (16, 1)),
    ],
)
def test_rows_are_assigned_to_hosts_as_upstream_does(
    percore: float, devices: int, processes: int, dealt: tuple[int, int]
) -> None:
    assert inputs.assign_rows(percore, devices, processes) == dealt


@pytest.mark.parametrize(
    ("percore", "devices", "processes"),
    [(0.3, 4, 1), (1.5, 1, 2), (0.75, 2, 2), (0.01, 8, 2), (1.5, 4, 2), (0, 4, 1), ("4", 1, 1)],
)
def test_rows_that_do_not_divide_among_hosts_are_refused(
    percore: Any, devices: int, processes: int
) -> None:
    with errors.expect_user_error(errors.INVALID, where=f"PERCORE_BATCH_SIZE={percore}"):
        inputs.assign_rows(percore, devices, processes)


@pytest.mark.parametrize("packed", [False, True])
def test_a_batch_is_the_same_on_one_host_and_on_two(text: str, packed: bool) -> None:
    whole = train(text, packed=packed)
    halves = [
        train(text, packed=packed, batch_size=2, num_infeed_hosts=2, infeed_host_index=host)
        for host in range(2)
    ]
    seen = set()
    for _ in range(12):
        expected = digest(whole.get_next())
        assert (
            batch_hashes.add_hashes(digest(half.get_next(), 2 * n) for n, half in enumerate(halves))
            == expected
        )
        seen.add(expected)
    assert len(seen) == 12
    assert digest(train(text, packed=packed, input_random_seed=4).get_next()) not in seen


def test_an_input_resumes_on_another_number_of_hosts(text: str, tmp_path: Path) -> None:
    first = train(text)
    for _ in range(5):
        first.get_next_padded()
    first.peek_padded()  # as paxml does: looked at, not trained
    (tmp_path / "input").mkdir()
    first.save(tmp_path / "input" / "process_0-of-1")
    expected = [digest(first.get_next_padded()) for _ in range(3)]
    again = train(text)
    again.restore(tmp_path / "input" / "process_0-of-1")
    assert [digest(again.get_next_padded()) for _ in range(3)] == expected
    halves = [
        train(text, batch_size=2, num_infeed_hosts=2, infeed_host_index=host) for host in range(2)
    ]
    for host, half in enumerate(halves):
        half.restore(tmp_path / "input" / f"process_{host}-of-2")
    assert [
        batch_hashes.add_hashes(digest(half.get_next(), 2 * n) for n, half in enumerate(halves))
        for _ in range(3)
    ] == expected
    again.reset()
    assert digest(again.get_next()) == digest(train(text).get_next())


def test_another_batch_goes_on_with_the_next_example_and_another_seed_does_not(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(text)
    first.get_next()
    state = first.get_state()
    rest = first.get_next()
    smaller = train(text, batch_size=2)
    smaller.set_state(state)
    assert "the batch was 4, now 2: from step 1 on with example 4" in capsys.readouterr().err
    assert (np.concatenate([smaller.get_next().ids, smaller.get_next().ids]) == rest.ids).all()
    with errors.expect_user_error(errors.DIFFERS, where="the data's seed", value=4, names="3"):
        train(text, input_random_seed=4).set_state(state)
    with errors.expect_user_error(errors.DIFFERS, where="DATA=text:", names=("targets 32", "16")):
        train(text, seq_len=16).set_state(state)


@pytest.mark.parametrize(("rows", "hosts"), [(4, 1), (16, 1), (2, 2), (1, 3), (11, 1)])
def test_evaluation_gives_every_example_once_whatever_the_hosts(
    boolq: str, rows: int, hosts: int
) -> None:
    sources = [
        evaluate(boolq, batch_size=rows, num_infeed_hosts=hosts, infeed_host_index=host)
        for host in range(hosts)
    ]
    for _ in range(2):
        found = [every(source) for source in sources]
        assert {len(batches) for batches in found} == {-(-len(BOOLQ) // (rows * hosts))}
        given = [
            (source.ids_to_strings(labels, [160])[0], float(weights.sum()))
            for source, batches in zip(sources, found, strict=True)
            for batch in batches
            for labels, weights, real in zip(
                batch.labels, batch.weights, batch.eval_sample_weights, strict=True
            )
            if real
        ]
        answers = [
            (
                f"{record['passage']}\nquestion: {record['question']}?\nanswer:{('no', 'yes')[record['label']]}",
                (2.0, 3.0)[record["label"]],
            )
            for record in BOOLQ
        ]
        assert sorted(given) == sorted(answers)
        filled = [batch for batches in found for batch in batches]
        assert sum(
            float((1 - batch.eval_sample_weights).sum()) for batch in filled
        ) == rows * hosts * len(found[0]) - len(BOOLQ)
        # What fills the last batch is a row like any other, so that no attention is over nothing, and weighs nothing.
        assert all(
            batch.weights[batch.eval_sample_weights == 0].sum() == 0
            and batch.segment_ids[:, 0].all()
            for batch in filled
        )
        for source in sources:
            source.reset()


def test_evaluation_stops_after_eval_batches(boolq: str) -> None:
    assert len(every(evaluate(boolq, eval_batches=2))) == 2
    assert len(every(evaluate(boolq, eval_batches=9))) == 3
    assert len(every(evaluate("synthetic", objective="lm", vocab="ids:50", eval_batches=2))) == 2
    with errors.expect_user_error(errors.UNSUPPORTED, where="EVAL_DATA=synthetic"):
        evaluate("synthetic", objective="lm", vocab="ids:50")


@pytest.mark.parametrize("objective", ["lm", "boolq"])
def test_shapes_are_known_without_data(text: str, boolq: str, objective: str) -> None:
    batch = train(text if objective == "lm" else boolq, objective=objective, seq_len=80).get_next()
    shapes = inputs.Shapes(objective=objective, seq_len=80, batch_size=4).get_input_specs()
    assert {name: (array.shape, array.dtype) for name, array in batch.items()} == {
        name: (shape.shape, shape.dtype) for name, shape in shapes.items()
    }


@pytest.mark.parametrize(
    ("data", "more", "kind", "facts"),
    [
        ("text:{folder}/none*.txt", {}, errors.MISSING, {"where": "none*.txt"}),
        ("text:{folder}/empty.txt", {}, errors.MISSING, {"where": "empty.txt"}),
        (
            "text:{folder}/short.txt",
            {},
            errors.TOO_BIG,
            {"where": "short.txt", "value": 4, "names": "32"},
        ),
        (
            "jsonl:{folder}/one.jsonl",
            {"objective": "boolq"},
            errors.TOO_BIG,
            {"where": "one.jsonl", "value": 4},
        ),
        (
            "text:{folder}/short.txt",
            {"vocab": "{folder}/none.model"},
            errors.MISSING,
            {"where": "none.model"},
        ),
    ],
)
def test_unusable_data_is_one_line(
    tmp_path: Path, data: str, more: dict[str, Any], kind: str, facts: dict[str, Any]
) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("three short words\n")
    (tmp_path / "one.jsonl").write_text(json.dumps(BOOLQ[0]) + "\n")
    with errors.expect_user_error(kind, **facts) as raised:
        train(
            data.format(folder=tmp_path),
            **{name: value.format(folder=tmp_path) for name, value in more.items()},
        )
    assert "\n" not in str(raised.value)


LOGGED = """
import sys
from rosetta.pax import inputs
source = inputs.Input(name="train", is_training=True, data=sys.argv[1], seq_len=32, batch_size=4)
for _ in range(3):
    source.get_next_padded()
    source.peek_padded()
"""


def test_the_log_leaves_out_a_batch_that_was_only_peeked_at(text: str, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "ROSETTA_BATCH_LOG": str(tmp_path / "log"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    subprocess.run([sys.executable, "-c", LOGGED, text], env=env, check=True)
    assert [json.loads(line)["step"] for line in (tmp_path / "log").read_text().splitlines()] == [
        0,
        1,
        2,
    ]
