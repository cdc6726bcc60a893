from __future__ import annotations

from pathlib import Path

import pytest

from rosetta.data import data_spec, tfds
from tests.support import corpora, errors

TRAIN = [[corpora.encode_example(text=[b"a b"])] * 3, [corpora.encode_example(text=[b"c"])] * 2]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    return tmp_path


def test_a_prepared_set_is_found_and_checked(root: Path) -> None:
    place = corpora.write_tfds_folder(
        root, "c4/en", {"train": TRAIN, "validation": [TRAIN[1]]}, "3.1.0"
    )
    corpora.write_tfds_folder(root, "c4/en", {"train": [TRAIN[1]]}, "2.3.1")
    summary = tfds.check(data_spec.parse_spec("tfds:c4/en"), "train")
    assert summary == {
        "folder": str(place),
        "files": 2,
        "bytes": sum(path.stat().st_size for path in place.glob("*train*")),
        "examples": 5,
    }
    assert [
        Path(path).name[-14:]
        for path in tfds.find_shards(data_spec.parse_spec("tfds:c4/en"), "train")
    ] == [
        "00000-of-00002",
        "00001-of-00002",
    ]
    assert len(tfds.find_shards(data_spec.parse_spec("tfds:c4/en:2.3.1"))) == 1
    assert len(tfds.find_shards(data_spec.parse_spec("tfds:c4/en#validation"), "train")) == 1


def test_each_fault_of_a_copy_is_refused(root: Path) -> None:
    place = corpora.write_tfds_folder(root, "the_pile", {"train": TRAIN})
    shards = sorted(place.glob("*train*"))
    for name, value in (("nothing", "nothing"), ("the_pile:9.9.9", "9.9.9")):
        with errors.expect_user_error(errors.UNKNOWN, value=value):
            tfds.find_shards(data_spec.parse_spec(f"tfds:{name}"))
    with errors.expect_user_error(errors.UNKNOWN, where=place, value="test"):
        tfds.find_shards(data_spec.parse_spec("tfds:the_pile#test"))
    whole_shard = shards[1].read_bytes()
    shards[1].write_bytes(whole_shard[:30])
    with errors.expect_user_error(errors.DAMAGED, where=shards[1], value=30):
        tfds.check(data_spec.parse_spec("tfds:the_pile"), "train")
    shards[1].write_bytes(whole_shard[: len(whole_shard) // 2])
    with errors.expect_user_error(errors.DAMAGED, where=shards[1], value=1, names="2"):
        tfds.check(data_spec.parse_spec("tfds:the_pile"), "train")
    shards[1].write_bytes(b"")
    with errors.expect_user_error(errors.DAMAGED, where=shards[1], value=0):
        tfds.check(data_spec.parse_spec("tfds:the_pile"), "train")
    shards[1].write_bytes(b"x" * len(whole_shard))
    with errors.expect_user_error(errors.DAMAGED, where=shards[1], value=None):
        tfds.check(data_spec.parse_spec("tfds:the_pile"), "train")
    shards[1].unlink()
    with errors.expect_user_error(errors.MISSING, where=place, names=("1", "2", "train")):
        tfds.find_shards(data_spec.parse_spec("tfds:the_pile"))
    (place / "dataset_info.json").unlink()
    with errors.expect_user_error(errors.MISSING, where=place, names="dataset_info.json"):
        tfds.find_shards(data_spec.parse_spec("tfds:the_pile"))


def test_a_config_must_be_named_if_there_are_several(root: Path) -> None:
    place = corpora.write_tfds_folder(root, "glue/mnli", {"train": TRAIN})
    assert tfds.find_set_folder("glue") == tfds.find_set_folder("glue:1.0.0") == str(place)
    corpora.write_tfds_folder(root, "glue/qqp", {"train": TRAIN})
    with errors.expect_user_error(errors.UNKNOWN, where="glue", remedy="glue/mnli"):
        tfds.find_set_folder("glue")
