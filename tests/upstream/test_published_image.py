"""The first command that people run: T5X's script for one machine, in an image that is published.

The image is built from the real sources, published in a registry that the test starts, and pulled
and run by a real Docker. There is no GPU, so the script trains on the CPU, and a plan compiles.

ROSETTA_MIRROR=DIR python build.py test --no-lint tests/upstream/test_published_image.py

Where podman is installed, it also pulls the image by tag and by digest.

By default the image is the one for the newest CUDA version, and takes 28 GB of disk. If the cache has
no wheel of Transformer Engine, it is built first. With ROSETTA_TEST_ACCELERATOR=cpu, the image is the
one for CPUs, which takes 9 GB. ROSETTA_TEST_DISTRIBUTION=t5x-next chooses the line of the newest JAX.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.core.accelerators import NEWEST_CUDA
from builder.images.engines import engine_program
from builder.images.engines.container_engine import RunLimits
from builder.release.publish import image_variants
from rosetta.core import run_folders
from tests.support import container_engines, corpora, image_registry, published_project
from tests.support.shipped_sources import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.upstream

DISTRIBUTION = os.environ.get("ROSETTA_TEST_DISTRIBUTION", "t5x")
ACCELERATOR = os.environ.get("ROSETTA_TEST_ACCELERATOR", NEWEST_CUDA)
STEPS = 60


@contextlib.contextmanager
def serve_registry(folder: Path) -> Iterator[str]:
    """Yield the address of a registry that keeps its images in a folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": address},
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="ascii")
    program = image_registry.find_registry_program()
    process = subprocess.Popen([program, "serve", str(folder / "config.json")])
    try:
        for _ in range(100):
            with contextlib.suppress(urllib.error.URLError):
                urllib.request.urlopen(f"http://{address}/v2/")
                break
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


def publish_distribution(repository: str, folder: Path, mirror: str) -> None:
    """Build the distribution for this machine's architecture and publish it."""
    for name in ("patches", "overlay", "locks"):
        shutil.copytree(ROOT / name, folder / name)
    text = (ROOT / "manifest.yaml").read_text(encoding="utf-8")
    line = next(
        line for line in text.splitlines() if line.startswith(f"  {DISTRIBUTION}: {{line: ")
    )
    own = line.replace("[amd64, arm64]", f"[{container_engines.HERE}]")
    (folder / "manifest.yaml").write_text(text.replace(line, own), encoding="utf-8")
    key = published_project.make_key_pair(folder, "key").with_suffix(".pem")
    argv = [sys.executable, "build.py", "publish", DISTRIBUTION]
    argv += ["--to", repository, "--key", str(key)]
    argv += ["--accelerator", ACCELERATOR, "--manifest", str(folder / "manifest.yaml")]
    argv += ["--mirror", mirror, "--compression", "zstd"]
    subprocess.run(argv, cwd=ROOT, check=True, timeout=3000)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Publish the image in a registry, and yield its name with its tag."""
    mirror = os.environ.get("ROSETTA_MIRROR", "")
    if not mirror:
        pytest.skip("NOT TESTED: set ROSETTA_MIRROR to a folder with clones of the upstreams")
    folder = tmp_path_factory.mktemp("registry")
    with serve_registry(folder) as address:
        repository = f"{address}/owner/{DISTRIBUTION}"
        publish_distribution(repository, tmp_path_factory.mktemp("copy"), mirror)
        yield f"{repository}:latest{image_variants.find_suffix(ACCELERATOR)}"
    shutil.rmtree(folder / "data")


@pytest.fixture(scope="module")
def image(published: str) -> Iterator[str]:
    """Pull the image into docker by its tag, and remove it in the end."""
    container_engines.need_engine("docker")
    subprocess.run(["docker", "pull", "--quiet", published], check=True, timeout=1800)
    try:
        yield published
    finally:
        subprocess.run(["docker", "image", "rm", "--force", published], check=True)


@pytest.mark.parametrize("way", ["tag", "digest"])
def test_podman_pulls_the_whole_image(published: str, way: str) -> None:
    if not shutil.which("podman"):
        pytest.skip("NOT TESTED: podman is not installed")
    repository = published.rpartition(":")[0]
    digest = image_registry.pull_manifest(published).digest
    name = published if way == "tag" else f"{repository}@{digest}"
    _run_podman("pull", "--quiet", "--tls-verify=false", name)
    try:
        (facts,) = json.loads(_run_podman("image", "inspect", name))
        assert digest in {entry.partition("@")[2] for entry in facts["RepoDigests"]}
        words = ["python", "-c", "import t5x"]
        done = container_engines.need_engine("buildah").run(name, words, RunLimits())
        assert done.returncode == 0, done.stderr
    finally:
        _run_podman("image", "rm", "--force", name)


def _run_podman(*words: str) -> str:
    done = engine_program.run_program("podman", "--cgroup-manager=cgroupfs", *words)
    return str(done.stdout)


def run_in_image(image: str, options: Sequence[str], command: str) -> str:
    """Run a command in a container without a network; return its output."""
    argv = ["docker", "run", "--rm", "--network=none", *options, image, *command.split()]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=2400, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_script_for_one_machine_trains(image: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(corpora.make_sentences(1500)), encoding="utf-8")
    # The corpus and the size of the run replace the Pile and its 10,000 steps.
    settings = {
        "JAX_PLATFORMS": "cpu",
        "DATA": "text:/runs/text.txt",
        "VOCAB": "byte",
        "TRAIN_STEPS": STEPS,
        "ENC_SL": 64,
        "DEC_SL": 32,
        "LEARNING_RATE": 5e-3,
        "WARMUP_STEPS": 10,
    }
    run_in_image(
        image,
        ["-v", f"{tmp_path}:/runs", *(f"--env={name}={value}" for name, value in settings.items())],
        "bash singlenode_pretrain_pile.sh tiny float32 1 8 /runs/logs /runs/model",
    )
    assert run_folders.list_checkpoint_steps(str(tmp_path / "model"))[-1] == STEPS
    lines = (tmp_path / "model/progress.jsonl").read_text(encoding="utf-8").splitlines()
    loss = json.loads(lines[-1])["loss"]
    assert loss < 0.8 * math.log(384), "a guess among the 384 pieces of the vocabulary of bytes"


def test_the_image_compiles_for_an_h100(image: str) -> None:
    """The compiler finds its files, although the manifest leaves out parts of CUDA's packages."""
    if ACCELERATOR == "cpu":
        pytest.skip("NOT TESTED: the image for CPUs has no compiler for GPUs")
    words = "rosetta plan t5x --size small --card h100 --gpus 1 --batch-per-gpu 4 --json"
    document = json.loads(run_in_image(image, [], words))
    assert document["ok"], document
