from __future__ import annotations

import collections
import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rosetta.data import batch_hashes, pipeline, prefetch, token_cache, vocabularies
from tests.support import corpora, errors

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def batches(tmp_path: Path) -> pipeline.Batches:
    return pipeline.Batches(
        corpora.make_recipe(corpora.write_text_files(tmp_path / "t", corpora.make_documents(100))),
        8,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_order_from_any_step(batches: pipeline.Batches, workers: int) -> None:
    others = set(threading.enumerate())
    expected = [batch_hashes.hash_batch(batches.make_batch(step)) for step in range(12)]
    ahead = prefetch.Loader(batches, 3, workers=workers)
    assert [batch_hashes.hash_batch(next(ahead)) for _ in range(5)] == expected[3:8]
    ahead.close()
    ahead.step = 0
    assert [batch_hashes.hash_batch(next(ahead)) for _ in range(3)] == expected[:3]
    assert ahead.step == 3
    assert ahead.seconds_waited > 0
    ahead.close()
    assert not [
        thread
        for thread in threading.enumerate()
        if thread not in others and thread.name == "rosetta-data"
    ]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_is_raised_where_the_batch_is_asked_for(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "word " * 30}) + "\n" for _ in range(400)))
    batches = pipeline.Batches(corpora.make_recipe(f"jsonl:{path}"), 4)
    path.write_text(path.read_text().replace("text", "body"))
    ahead = prefetch.Loader(batches, workers=workers)
    for _ in range(2):  # who asks again is not kept waiting
        with errors.expect_user_error(errors.INVALID, where="line 1", names="'text'"):
            next(ahead)
    ahead.close()


def test_a_dead_worker_among_several_is_reported(batches: pipeline.Batches) -> None:
    ahead = prefetch.Loader(batches, workers=3)
    next(ahead)  # asked for now: steps 0 to 4
    maker: Any = ahead._maker
    maker.children[2].kill()
    maker.children[2].wait()
    with pytest.raises(RuntimeError, match="-9"):
        next(ahead)  # step 1 of a living process, but step 5 is to be asked of the dead one
    assert all(child.poll() is not None for child in maker.children)


def test_a_dead_worker_is_reported_and_not_waited_for(batches: pipeline.Batches) -> None:
    ahead = prefetch.Loader(batches, workers=1)
    next(ahead)
    maker: Any = ahead._maker
    maker.children[0].kill()
    with pytest.raises(RuntimeError, match="data process"):
        collections.deque(iter(lambda: next(ahead), None), maxlen=0)
    ahead.close()


def test_ctrl_c_does_not_end_the_workers(batches: pipeline.Batches) -> None:
    """A terminal sends it to all processes of a group."""
    program = "import pickle, signal, sys\nfrom rosetta.data import prefetch\nahead = prefetch.Loader(pickle.loads(sys.stdin.buffer.read()), workers=1)\nnext(ahead)\nsignal.signal(signal.SIGINT, lambda *_: [next(ahead) for _ in range(9)] and sys.exit(75))\nprint('ready', flush=True)\nsignal.pause()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(pickle.dumps(batches))
        process.stdin.close()
        assert process.stdout.readline() == b"ready\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 75


def test_the_pipeline_needs_neither_jax_nor_tensorflow() -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(('jax', 'tensorflow', 'seqio', 't5x', 'sentencepiece'))); "
    subprocess.run(
        [
            sys.executable,
            "-c",
            blocked + "import rosetta.commands.data, rosetta.data.prefetch, rosetta.data.pipeline",
        ],
        check=True,
    )


def test_the_worker_count_depends_on_the_cost_of_the_data(
    batches: pipeline.Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert prefetch.choose_worker_count(batches) == 0  # a small batch
    large = pipeline.Batches(batches.recipe, 512)
    assert prefetch.choose_worker_count(large) == 8
    assert (
        prefetch.choose_worker_count(pipeline.Batches(corpora.make_recipe("synthetic"), 512)) == 0
    )
    meta = token_cache.CacheRecipe("x", "", "ids:300", 300, document_ends=False, pairs="")
    ids = vocabularies.Vocabulary("ids:300", 20)
    meta = dataclasses.replace(meta, vocabulary=ids.fingerprint())
    for name in "ab":
        token_cache.write_cache(
            str(tmp_path / name),
            meta,
            ["x" * 30] * 20,
            lambda texts: ([np.arange(3, 33)] * len(batch) for batch in texts),
        )
    mixed = corpora.make_recipe(
        json.dumps({f"cache:{tmp_path}/{name}": 1 for name in "ab"}),
        vocab=ids.name,
        extra_ids=ids.extra_ids,
    )
    assert prefetch.choose_worker_count(pipeline.Batches(mixed, 512)) == 0
    monkeypatch.setenv("ROSETTA_DATA_WORKERS", "3")
    assert prefetch.choose_worker_count(large) == 3
    monkeypatch.setenv("ROSETTA_DATA_WORKERS", "many")
    with errors.expect_user_error(errors.INVALID, where="ROSETTA_DATA_WORKERS", value="many"):
        prefetch.choose_worker_count(large)
