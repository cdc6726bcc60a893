"""Rows of rosetta.data beside those that paxml's own SeqIO input makes of the same tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support import required_modules

seqio_input = required_modules.need_modules("praxis", "paxml", "paxml.seqio_input")

import fiddle as fdl
import jax
import jax.numpy as jnp
import seqio
import tensorflow as tf

from rosetta.data import data_spec, vocabulary_training
from rosetta.pax import inputs
from tests.support import corpora

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 48
DOCS = [f"{'word ' * (n % 5)}{n}." for n in range(60)]
BOOLQ = [
    {"passage": f"Sheep number {n}.", "question": f"is it {n}", "label": n % 2} for n in range(9)
]
PASSAGES = [f"“One,” said {n}, and Ann\u2019s {'sheep ' * (n % 6)}said two{n}" for n in range(9)]
PROVENANCE = "_seqio_provenance"


def theirs(
    name: str,
    examples: list[dict[str, Any]],
    lengths: dict[str, int],
    *,
    rows: int,
    preprocessors: Any = (),
    vocab: Any = None,
    **converter: Any,
) -> Any:
    """The first batch of paxml's SeqIOInput over these examples, without what says where each came from."""
    vocab = vocab or seqio.ByteVocabulary(extra_ids=0)
    signature = {
        key: tf.TensorSpec(
            () if isinstance(value, (str, int)) else (None,),
            tf.string if isinstance(value, str) else tf.int32,
        )
        for key, value in examples[0].items()
    }

    def read(split: str, shuffle_files: bool = False, seed: int | None = None) -> tf.data.Dataset:
        del split, shuffle_files, seed
        return tf.data.Dataset.from_generator(lambda: iter(examples), output_signature=signature)

    seqio.TaskRegistry.remove(name)
    task = seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(dataset_fn=read, splits=["test"]),
        preprocessors=list(preprocessors),
        output_features={side: seqio.Feature(vocabulary=vocab, add_eos=False) for side in lengths},
        metric_fns=[],
    )
    made = seqio_input.SeqIOInput(
        name=name,
        mixture_or_task=task,
        split_name="test",
        task_feature_lengths=lengths,
        feature_converter=seqio_input.LanguageModelFeatures(
            use_custom_packing_ops=False, **converter
        ),
        is_training=False,
        reset_for_eval=True,
        eval_loop_num_batches=-1,
        repeat=False,
        shuffle=False,
        batch_size=rows,
    ).get_next()
    return {key: np.asarray(value) for key, value in made.items() if not key.startswith(PROVENANCE)}


def same(ours: Any, upstreams: dict[str, Any]) -> None:
    assert set(ours) == set(upstreams)
    for name, expected in upstreams.items():
        assert (ours[name].dtype, ours[name].shape) == (expected.dtype, expected.shape), name
        assert (ours[name] == expected).all(), name


def ours(data: str, objective: str, rows: int, **more: Any) -> Any:
    return inputs.Input(
        name="ours",
        data=data,
        objective=objective,
        batch_size=rows,
        reset_for_eval=True,
        eval_loop_num_batches=-1,
        seq_len=more.pop("seq_len", LENGTH),
        **more,
    ).get_next()


def test_windows_of_running_text(tmp_path: Path) -> None:
    made = ours(corpora.write_text_files(tmp_path, DOCS, files=1), "lm", 4)
    tokens = [[int(one) for one in row if one] for row in made.labels]
    same(
        made,
        theirs(
            "windows", [{"targets": row} for row in tokens], {"targets": LENGTH}, rows=4, pack=False
        ),
    )


def test_packed_documents(tmp_path: Path) -> None:
    data = corpora.write_text_files(tmp_path, DOCS, files=1)
    made = inputs.Input(
        name="ours", is_training=True, data=data, batch_size=1, seq_len=LENGTH, packed=True
    ).get_next()
    documents = [
        {"targets": made.labels[0][made.segment_ids[0] == segment].tolist()}
        for segment in range(1, made.segment_ids.max() + 1)
    ]
    assert len(documents) > 3
    same(made, theirs("packed", documents, {"targets": LENGTH}, rows=1, pack=True))


def test_lambada(tmp_path: Path) -> None:
    tfds_lambada = pytest.importorskip("paxml.contrib.gpu.scripts_gpu.tfds_lambada")
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": passage}) + "\n" for passage in PASSAGES), encoding="utf-8"
    )
    read = [
        {"inputs": record["text"], "targets": record["target"]}
        for record in tfds_lambada.LambadaReader(str(tmp_path / "a.jsonl"))
    ]
    expected = theirs(
        "lambada",
        read,
        {"inputs": 128, "targets": 64},
        rows=9,
        preprocessors=[seqio.preprocessors.tokenize],
        pack=False,
        weights_on_targets_only=True,
    )
    same(ours(f"jsonl:{tmp_path}/a.jsonl", "lambada", 9, seq_len=192), expected)


def test_boolq_with_a_sentencepiece_vocabulary(tmp_path: Path) -> None:
    tasks = pytest.importorskip("paxml.contrib.gpu.scripts_gpu.tasks")
    words = corpora.write_text_files(
        tmp_path / "t",
        [
            f"{record['passage']} yes no question: {record['question']}? answer:"
            for record in BOOLQ * 20
        ],
    )
    model = vocabulary_training.train_vocabulary(
        data_spec.parse_parts(words), str(tmp_path / "v.model"), size=300, extra_ids=0
    ).name
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in BOOLQ), encoding="utf-8"
    )
    steps = [tasks.concatenate_passage_and_question, seqio.preprocessors.tokenize]
    given: dict[str, Any] = {
        "pack": False,
        "weights_on_targets_only": True,
        "bos_id": 1,
        "eos_id": 2,
    }
    expected = theirs(
        "boolq",
        BOOLQ,
        {"inputs": 128, "targets": 64},
        rows=9,
        preprocessors=steps,
        vocab=seqio.SentencePieceVocabulary(model),
        **given,
    )
    same(
        ours(f"jsonl:{tmp_path}/a.jsonl", "boolq", 9, seq_len=192, vocab=model, bos_id=1), expected
    )


def test_lambadas_accuracy_is_what_counting_by_hand_gives(tmp_path: Path) -> None:
    required_modules.need_modules("praxis.contrib.gpu.scripts_gpu.models")
    from praxis import base_hyperparams, base_layer

    from rosetta.pax import configs

    (tmp_path / "a.txt").write_text(
        "".join(f"passage {n} ends in word{n}\n" for n in range(6)), encoding="utf-8"
    )
    size: dict[str, Any] = {
        "NUM_LAYERS": 1,
        "NUM_HEADS": 2,
        "MODEL_DIMS": 32,
        "HIDDEN_DIMS": 64,
        "DIMS_PER_HEAD": 16,
        "VOCAB_SIZE": 264,
        "MAX_SEQ_LEN": 128,
        "FPROP_DTYPE": jnp.float32,
        "ICI_MESH_SHAPE": (1, 1, 1),
        "DCN_MESH_SHAPE": (1, 1, 1),
        "DATA": f"text:{tmp_path}/a.txt",
        "VOCAB": "byte",
        "PERCORE_BATCH_SIZE": 8 / jax.local_device_count(),
    }
    experiment = type("Small", (configs.Lambada126M,), size)()
    batch = fdl.build(experiment.datasets()[0]).get_next()
    assert batch.eval_sample_weights.tolist() == [1] * 6 + [0] * 2
    config = experiment.task().model
    config.return_predictions = True
    model = base_hyperparams.instantiate(config)
    with base_layer.JaxContext.new_context(hparams=base_layer.JaxContext.HParams(do_eval=True)):
        variables = model.init(jax.random.PRNGKey(0), batch)

        def evaluate() -> Any:
            return model.apply(
                variables, batch, mutable=["aux_loss", "summaries", "non_trainable"]
            )[0]

        predicted = np.asarray(evaluate()[1].per_example_argmax)
        # Rows 0, 2 and 5 end in what the model says, row 1 but for its last token; so does what fills the batch.
        for row in (0, 1, 2, 5, 6, 7):
            batch.labels[row] = predicted[row]
        batch.labels[1, np.flatnonzero(batch.weights[1])[-1]] += 1
        metrics, said = evaluate()
    correct = sum(
        bool(
            (batch.labels[row] == np.asarray(said.per_example_argmax)[row])[
                batch.weights[row] > 0
            ].all()
        )
        for row in range(6)
    )
    assert correct == 3
    accuracy, weight = metrics["acc_strict"]
    assert (float(accuracy), float(weight)) == (correct / 6, 6.0)
    # Each answer is a space and `wordN`, in bytes; what fills the batch weighs nothing in the loss either.
    assert float(metrics["num_predictions"][0]) == 6 * 6
