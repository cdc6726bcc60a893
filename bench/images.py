"""Compare an edit of one line in rosetta/, up to an image in Docker, with `docker build`.

    .venv/bin/python bench/images.py --distribution t5x [--accelerator cpu] [--mirror DIR]
        [--pairs 5] [--dockerfile layers|uv]

Ours is `build.py build --output image:NAME`. The other way is a well-ordered Dockerfile: the locked
packages first, the patched sources after them, and rosetta/ as the last step. `docker build` has
all steps but the last one in its cache, so an edit repeats `COPY rosetta/` only.

With `--dockerfile uv`, the Dockerfile begins with the base of our image, and installs the lock with
uv and a cache mount. This needs the network. With `--dockerfile layers`, the Dockerfile begins with
the layers of the packages of our own image. No edit changes the packages.

Each pair has one edit, of another file in each pair. Both ways build it, in alternating order. The
time ends when the image has its name in Docker. A container of each image then shows that the image
has the edit; this is not timed. A ratio is our time divided by that of `docker build`.

The Dockerfile does less: our image also has bytecode and shell completion of the edited package,
and lock.json with the digests of all layers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.builder import ROOT, copy_checkout, time_command
from builder.core import cache_folder, package_index
from builder.core.cache import Cache
from builder.core.command_context import Context
from builder.images import image_target
from builder.images.engines.docker import Docker
from builder.images.oci import oci_documents
from builder.packages import uv
from builder.pipeline import image_output

DOCKERFILES = {
    "layers": """ARG BASE
FROM ${BASE}
COPY sources/ /opt/
COPY rosetta/ /opt/rosetta/rosetta/
""",
    "uv": """ARG BASE
FROM ${BASE}
COPY uv /usr/bin/uv
COPY packages.txt /opt/packages.txt
RUN --mount=type=cache,target=/root/.cache/uv --mount=type=secret,id=certificates \\
    uv venv --quiet /opt/env && SSL_CERT_FILE=/run/secrets/certificates UV_LINK_MODE=copy \\
    uv pip install --quiet --python /opt/env/bin/python --no-deps --require-hashes \\
    --requirements /opt/packages.txt
COPY sources/ /opt/
COPY rosetta/ /opt/rosetta/rosetta/
""",
}
# The first layer of our image that is not part of the image that each Dockerfile begins with.
FIRST_OWN_LAYERS = {"layers": "sources", "uv": "jax"}
# Files of different packages, below rosetta/. The builder itself imports the last one.
EDITED = ("t5x/network.py", "nn/attention.py", "pax/gpt.py", "launch/slurm.py", "core/errors.py")
TAGS = {name: f"localhost/rosetta-bench:{name}" for name in ("base", "ours", "docker_build")}


class Comparison:
    """The two ways to build the image, each with its own copy of what is edited."""

    def __init__(self, arguments: argparse.Namespace, scratch: Path) -> None:
        """Copy the checkout, build our image once, and prepare the context of `docker build`."""
        self.engine = Docker()
        self.checkout = copy_checkout(scratch / "checkout")
        self._commit_checkout()
        self.context = scratch / "context"
        self.image_ids: set[str] = set()
        self._arguments = arguments
        self.build("ours")
        self._load_base()
        (self.context / "sources").mkdir(parents=True)
        (self.context / "Dockerfile").write_text(DOCKERFILES[arguments.dockerfile])
        lock = f"{arguments.distribution}-{arguments.accelerator}.txt"
        shutil.copy(self.checkout / "locks" / lock, self.context / "packages.txt")
        shutil.copy(uv.find_program(), self.context / "uv")
        shutil.copytree(self.checkout / "rosetta", self.context / "rosetta")
        self._copy_patched_sources()
        self.build("docker_build")

    def build(self, way: str) -> float:
        """Build the image in one way, and return the seconds that the build took."""
        if way == "ours":
            seconds = time_command(self._make_command(), cwd=self.checkout)
        else:
            certificates = package_index.find_ca_bundle() or "/etc/ssl/certs/ca-certificates.crt"
            command = ["docker", "build", "--quiet", "--network", "host", "--tag", TAGS[way]]
            command += ["--secret", f"id=certificates,src={certificates}"]
            command += ["--build-arg", f"BASE={TAGS['base']}", str(self.context)]
            seconds = time_command(command, env={"DOCKER_BUILDKIT": "1"})
        self.image_ids.add(self.engine.find_digest(TAGS[way]))
        return seconds

    def edit(self, name: str, text: str) -> None:
        """Append a line to a file of rosetta/ in both copies."""
        for root in (self.checkout, self.context):
            with open(root / "rosetta" / name, "a", encoding="utf-8") as file:
                file.write(f"{text}\n")

    def require_edit(self, way: str, name: str, text: str) -> None:
        """End the program if a container of the image does not have the edit."""
        command = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "grep"]
        time_command([*command, TAGS[way], "-q", text, f"/opt/rosetta/rosetta/{name}"])

    def remove_images(self) -> None:
        """Remove all images that the benchmark made."""
        self.engine.remove([*TAGS.values(), *sorted(self.image_ids - {""})])

    def _commit_checkout(self) -> None:
        """Make the copy a git repository: a build asks git for the commit, for the labels."""
        git = ["git", "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
        for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "copy")):
            time_command([*git, *words], cwd=self.checkout)

    def _make_command(self) -> list[str]:
        arguments = self._arguments
        # sys.executable is that of the builder's environment; users start build.py with another.
        python = os.path.realpath(sys.executable)
        command = [python, "build.py", "build", "--distribution", arguments.distribution]
        command += ["--accelerator", arguments.accelerator, "--transformer-engine", "no"]
        command += ["--engine", "docker", "--output", f"image:{TAGS['ours']}"]
        return command + (["--mirror", arguments.mirror] if arguments.mirror else [])

    def _load_base(self) -> None:
        """Load the lower layers of our image as the image that the Dockerfile begins with."""
        cache = Cache(cache_folder.default_root())
        context = Context(self.checkout, self.checkout / "manifest.yaml", cache)
        options = image_output.Options(
            self._arguments.accelerator, engine="docker", transformer_engine="no"
        )
        target = image_target.Output("image", TAGS["ours"])
        notes = image_output.open_notes(context, self._arguments.distribution, options, target)
        found = notes.find()
        if found is None:
            sys.exit("the builder has no notes of the image that it has just built")
        ((architecture, lower),) = found.by_architecture.items()
        names = [layer.name for layer in lower.layers]
        layers = lower.layers[: names.index(FIRST_OWN_LAYERS[self._arguments.dockerfile])]
        image = oci_documents.make_image(
            architecture, layers, "2026-01-01T00:00:00Z", {"Env": ["PATH=/usr/bin:/bin"]}, {}
        )
        self.engine.load(cache, oci_documents.make_index([image], {}), TAGS["base"])
        self.image_ids.add(self.engine.find_digest(TAGS["base"]))

    def _copy_patched_sources(self) -> None:
        """Copy the patched sources out of our image into the context of `docker build`."""
        container = subprocess.check_output(
            ["docker", "create", TAGS["ours"], "true"], text=True
        ).strip()
        for name in ("t5x", "praxis", "paxml"):
            subprocess.run(
                ["docker", "cp", "-q", f"{container}:/opt/{name}", str(self.context / "sources")],
                capture_output=True,
                check=False,  # a distribution does not have all sources
            )
        subprocess.run(["docker", "rm", container], capture_output=True, check=True)


def run_pairs(comparison: Comparison, pairs: int) -> list[dict[str, object]]:
    """Edit and build in both ways, `pairs` times; return what each pair took."""
    rows: list[dict[str, object]] = []
    for number in range(pairs):
        name = EDITED[number % len(EDITED)]
        text = f"# edit {number} at {time.time_ns()}"
        comparison.edit(name, text)
        ways = ["ours", "docker_build"]
        seconds = {way: comparison.build(way) for way in (ways if number % 2 else ways[::-1])}
        for way in ways:
            comparison.require_edit(way, name, text)
        ratio = seconds["ours"] / seconds["docker_build"]
        load = os.getloadavg()[0]
        rows.append({"edited": name, **seconds, "ratio": ratio, "load": load})
        print(
            f"{name}: ours {seconds['ours']:.2f} s, docker build {seconds['docker_build']:.2f} s, "
            f"ratio {ratio:.2f}, load {load:.1f}",
            file=sys.stderr,
            flush=True,
        )
    return rows


def main() -> None:
    """Run the benchmark that the command line describes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--distribution", default="t5x")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--mirror", default="")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--dockerfile", choices=list(DOCKERFILES), default="layers")
    arguments = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as scratch:
        comparison = Comparison(arguments, Path(scratch))
        try:
            rows = run_pairs(comparison, arguments.pairs)
        finally:
            comparison.remove_images()
    ratios = [float(str(row["ratio"])) for row in rows]
    result = {
        "distribution": arguments.distribution,
        "accelerator": arguments.accelerator,
        "dockerfile": arguments.dockerfile,
        "pairs": rows,
        "ratio_median": round(statistics.median(ratios), 2),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
