"""The documents of an image, against the words of the image specification."""

from __future__ import annotations

import hashlib
import json

from builder.core.cache import Cache
from builder.images.oci import oci_documents
from tests.support import small_image


def test_documents_name_each_other(cache: Cache) -> None:
    index = small_image.make_index(cache)
    document = json.loads(index.document)
    assert document["schemaVersion"] == 2
    assert document["mediaType"] == "application/vnd.oci.image.index.v1+json"
    assert document["annotations"] == {"org.opencontainers.image.title": "t5x"}
    assert [each["platform"] for each in document["manifests"]] == [
        {"architecture": "amd64", "os": "linux"},
        {"architecture": "arm64", "os": "linux", "variant": "v8"},
    ]
    for image, described in zip(index.images, document["manifests"], strict=True):
        assert (
            described["digest"]
            == f"sha256:{hashlib.sha256(image.manifest).hexdigest()}"
            == image.digest
        )
        assert described["size"] == len(image.manifest)
        assert described["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
        manifest = json.loads(image.manifest)
        assert manifest["config"] == {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": image.config_digest,
            "size": len(image.config),
        }
        assert [
            (each["digest"], each["size"], each["mediaType"]) for each in manifest["layers"]
        ] == [
            (layer.digest, layer.size, "application/vnd.oci.image.layer.v1.tar+gzip")
            for layer in image.layers
        ]
        assert image.size == sum(each["size"] for each in manifest["layers"]) + len(
            image.config
        ) + len(image.manifest)


def test_config(cache: Cache) -> None:
    image = small_image.make_image(cache, "arm64")
    config = json.loads(image.config)
    assert (config["architecture"], config["variant"], config["os"], config["created"]) == (
        "arm64",
        "v8",
        "linux",
        small_image.CREATED,
    )
    assert config["config"] == small_image.SETTINGS
    assert config["rootfs"] == {
        "type": "layers",
        "diff_ids": [layer.diff_id for layer in image.layers],
    }
    assert config["history"] == [
        {"created": small_image.CREATED, "created_by": f"rosetta: {name}"}
        for name in ("base", "python", "rosetta")
    ]


def test_json_is_canonical(cache: Cache) -> None:
    assert (
        oci_documents.encode_json({"b": 1, "a": {"z": "ü", "y": [1, 2]}})
        == '{"a":{"y":[1,2],"z":"ü"},"b":1}'.encode()
    )
    image = small_image.make_image(cache)
    for data in (image.config, image.manifest, small_image.make_index(cache).document):
        assert data == oci_documents.encode_json(json.loads(data))


def test_order_of_architectures_and_settings_does_not_count(cache: Cache) -> None:
    assert (
        small_image.make_index(cache, ("arm64", "amd64")).digest
        == small_image.make_index(cache, ("amd64", "arm64")).digest
    )
    image = small_image.make_image(cache)
    turned = oci_documents.make_image(
        "amd64",
        image.layers,
        small_image.CREATED,
        dict(reversed(small_image.SETTINGS.items())),
        {"org.opencontainers.image.title": "t5x"},
    )
    assert turned.digest == image.digest


def test_one_platform_is_an_index_too_and_empty_settings_are_left_out(cache: Cache) -> None:
    index = small_image.make_index(cache, ("amd64",))
    assert len(json.loads(index.document)["manifests"]) == 1
    bare = oci_documents.make_image(
        "amd64", index.images[0].layers, small_image.CREATED, {"Env": [], "WorkingDir": ""}, {}
    )
    assert json.loads(bare.config)["config"] == {}
    assert "annotations" not in json.loads(bare.manifest)
