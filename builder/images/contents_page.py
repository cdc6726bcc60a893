"""docs/reference/image-contents.md, from the manifest, the locks and the settings of images."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from builder.core import manifest
from builder.images import image_settings, layer_assignment
from builder.packages import debian_lock, lock_file, program_wrappers
from builder.upstream.checkout import Publisher

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from builder.core.manifest import Manifest
    from builder.packages.lock_file import Pin

PAGE = "docs/reference/image-contents.md"
_HEAD = """# What an image contains

*Reference: the versions, folders, users, variables and labels of an image. Generated from
manifest.yaml, locks and builder/images by `python build.py docs`: edit there.*

[Get an image](../how-to/get-an-image.md) shows how to pull one. `rosetta info` prints the contents
of the image that it runs in:

```text
docker run --rm IMAGE rosetta info
```

A [bare environment](../how-to/build-an-environment.md) has the same folders below its own folder,
and the same programs. It has no operating system, no entrypoint and no settings of its own.
"""
_VERSIONS = """
The versions are those of this commit, on amd64. On arm64, `tensorflow` replaces `tensorflow-cpu`.
The file `/opt/rosetta/constraints.txt` of an image lists all of its Python packages.
`python3 build.py changelog OLD NEW` compares two published images. CUDA, cuDNN and NCCL are in the
next table.
"""
_CUDA = """
Images for the CPU have none of these packages. The driver is not in the image: CUDA 12 needs
driver 525 or newer, CUDA 13 needs driver 580 or newer.

`rosetta te` prints the version of Transformer Engine. If the image has none, the command prints the
reason and ends with status 2. `--transformer-engine no` builds an image without it.
"""
_LAYERS = """
The table lists the layers from the bottom up. Files of a layer are sorted, belong to root, and have
the date 1980-01-01, so the digest depends only on the content. `t5x` and `pax` for the same GPUs
share all layers below `own`. A new version of one package changes one of the `python` layers. An
edit of one file of rosetta changes one of the `rosetta` layers. Each of them also changes `record`.
"""
_STRIPPED = """
These files of Python packages are in no environment and no image: nothing that is shipped opens
them. Licence texts always stay. `pip install --force-reinstall --no-deps pandas==3.1.1` brings
the files of such a package back. To build with them, remove the package from `strip` in [the
manifest](manifest.md#strip).
"""
_DEBIAN = """
These packages are installed into every base, together with those that they need.
[docker/packages](../../docker/packages) gives the reason for each. `locks/base-NAME-*.json` lists
all packages of a base with their hashes.
"""
_FOLDERS = """
`datasets`, `vocab` and `workspace` are empty, and every user may write there. They are places for
mounts: `-v /data:/t5x_home/datasets`.
"""
_VARIABLES = """
An image has no setting of XLA or NCCL, and keeps none of the base but `PATH`. `rosetta run` and
the scripts set what a run needs.
"""
_USERS = """
An image runs as any user: `docker run --user 12345`, `--read-only`, and without network. By default
it runs as root.

- If `HOME` is not set, is `/`, is missing or cannot be written, the programs use another folder:
  `$ROSETTA_HOME`, or else `/tmp/rosetta-UID`, which no other user can read. If `/tmp` cannot be
  written, they take `/var/tmp` or `/dev/shm`. The folder becomes `HOME`. If the old `HOME` can be
  read, it stays `HOME`, so that credentials in it are found, and only caches move.
- A user without an entry in `/etc/passwd` gets the name `uidN`.
- With a read-only root, `--tmpfs /tmp` gives a run more space than `/dev/shm` has.
- Packages that you install with `pip` go to [another
  folder](../how-to/add-packages.md#install-a-package-with-pip) if the environment is read-only.
"""
_START = """
An image exposes no ports, declares no volumes and sets no user. TensorBoard listens where you tell
it: `docker run -p 6006:6006 IMAGE tensorboard --bind_all --logdir /t5x_home/workspace`.

| setting | `t5x` | `pax` |
|---|---|---|
"""
_ENTRYPOINT = """
The entrypoint starts your command and becomes it, so signals and exit statuses are those of the
command. It adds nothing to the output, with one exception: when a shell starts on a terminal, it
prints a banner with the versions and the known issues. enroot and `command:` of Kubernetes skip
the entrypoint. The programs work there, too; only the banner and `UV_CONSTRAINT` are missing.
"""
_PROGRAMS = """
`/opt/rosetta/bin` is first on `PATH`: {programs}, and [the
scripts](public-api.md#scripts) of the distribution. So `bash singlenode_pretrain_pile.sh` works in
every folder. The programs of Python packages, such as `tensorboard`, come last on `PATH`, so that
they hide no program of the system. A login shell (`bash -l`) has the same `PATH`.
"""
_REST = """
## Completion in bash and zsh

bash and zsh complete the commands of `rosetta` with files in `/opt/rosetta/share`: options,
settings such as `T5_SIZE=`, their values, presets, GPUs and paths. In a bare environment, the
folder is `build/t5x-cpu/opt/rosetta/share`.

| shell | command |
|---|---|
| bash | `source /opt/rosetta/share/bash-completion/completions/rosetta` |
| zsh | `fpath=(/opt/rosetta/share/zsh/site-functions $fpath)`, before `compinit` |

bash-completion 2.12 and newer finds the file by itself.

## Licences and known issues

- `/opt/rosetta/LICENSES` has the licence texts of rosetta, the sources and the Python packages,
  with `index.json` and `index.txt`. `rosetta info --licences` prints the list. The licences of
  Debian packages are in `/usr/share/doc/*/copyright`.
- `/opt/rosetta/known_issues.json` has the known issues of exactly these versions. The banner and
  `rosetta info` show them. `rosetta doctor` shows those that apply to the machine.
- [lock.json](public-api.md#files-of-the-builder) says what the image was made from: sources,
  patches, locks, base and layers.

## Not in an image

- The NVIDIA driver, a C compiler and an SSH server.
- Nsight Systems. Mount it from the host, for example with
  `-v /opt/nvidia/nsight-systems:/opt/nvidia/nsight-systems:ro`. `rosetta profile` and `WITH_NSYS=1`
  take `$NSYS`, or else `nsys` on `PATH`, or else the newest below `/opt/nvidia/nsight-systems*` and
  `/usr/local/cuda*/bin`.
- Plugins of the network, such as aws-ofi-nccl, UCX and libfabric. Mount them, and name their folder
  in `LD_LIBRARY_PATH`. The libraries that they need (libibverbs, librdmacm, libnuma, libhwloc) are
  in the image.
"""
# Packages whose versions people ask for first.
_NAMED = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-text",
    "seqio",
)
# Path in an image -> what is there.
PATHS = {
    "/opt/t5x": "T5X, with the patches",
    "/opt/paxml": "Paxml, with the patches; the working folder of Pax images",
    "/opt/praxis": "Praxis, with the patches",
    "/opt/rosetta": "everything else of rosetta",
    "/opt/rosetta/env": "the Python environment",
    "/opt/rosetta/bin": "the programs, first on PATH",
    "/opt/rosetta/bin/rosetta": "the program `rosetta`",
    "/opt/rosetta/rosetta": "the Python package `rosetta`",
    "/opt/rosetta/sources": "the patches of each source, and `PATCHES.json`",
    "/opt/rosetta/lock.json": "what the image was made from",
    "/opt/rosetta/constraints.txt": "the locked versions, for pip",
    "/opt/rosetta/known_issues.json": "the known issues of these versions",
    "/opt/rosetta/revision.json": "the commit of rosetta, for `rosetta info`",
    "/opt/rosetta/LICENSES": "the licence texts",
    "/opt/rosetta/share": "the completion files of bash and zsh",
    "/opt/rosetta/entrypoint": "the entrypoint",
    "/opt/rosetta/banner.txt": "what a shell on a terminal prints first",
    "/etc/profile.d/rosetta.sh": "the PATH of login shells",
    "/t5x_home": "the working folder of T5X images",
    "/t5x_home/datasets": "for a mount",
    "/t5x_home/vocab": "for a mount",
    "/t5x_home/workspace": "for a mount",
    "/t5x_home/t5x": "a link to the package `t5x`",
    "/t5x_home/run_t5_pretraining.py": "a link to [the program](../coming-from/t5-experiments.md)",
    "/t5x_home/run_t5_finetuning.py": "a link to the program",
    "/t5x_home/run_bert_pretraining.py": "a link to the program, which refuses: T5 only",
    "/opt/paxml/datasets": "for a mount",
    "/opt/paxml/vocab": "for a mount",
    "/opt/paxml/workspace": "for a mount",
}
# Layer -> its content, and what changes it.
LAYERS = {
    "base": ("a minimal Debian", "the lock of the base"),
    "os": ("[the packages of Debian](#packages-of-debian)", "the lock of the base"),
    "cuda": ("the CUDA libraries of NVIDIA (not in images for the CPU)", "the lock"),
    "jax": ("jax, jaxlib, the CUDA plugins and Transformer Engine", "the lock"),
    "tensorflow": ("TensorFlow, TensorFlow Text and Keras", "the lock"),
    "python": (
        "all other packages that the distributions share, by the hash of the name",
        "the lock",
    ),
    "own": ("packages that only this distribution has", "the lock"),
    "sources": ("the patched sources", "a pin or a patch"),
    "licences": ("the licence texts", "the lock, a pin or a patch"),
    "programs": (
        "the programs, the patches, the entrypoint, known issues and constraints",
        "the lock, a pin or a patch",
    ),
    "rosetta": ("the package `rosetta`, by the hash of the path", "an edit of `rosetta/`"),
    "record": ("`lock.json`, the commit and the completion of shells", "every change"),
}
_VARIABLE_MEANINGS = {
    "PATH": "the programs of rosetta first, those of Python packages last",
    "NVIDIA_VISIBLE_DEVICES": "the container runtime gives the container all GPUs",
    "NVIDIA_DRIVER_CAPABILITIES": "the container runtime adds CUDA and nvidia-smi",
    "PYTHONNOUSERSITE": "Python does not read the packages in your home folder",
    "PIP_CONSTRAINT": "`pip install` keeps the locked versions",
}
_LABEL_MEANINGS = {
    "org.opencontainers.image.title": "the distribution and the accelerator",
    "org.opencontainers.image.version": "the version of rosetta",
    "org.opencontainers.image.description": "what the image is for",
    "org.opencontainers.image.revision": "the commit of rosetta",
    "org.opencontainers.image.created": "the date of the newest pinned commit",
    "org.opencontainers.image.source": "the publisher's repository of rosetta",
    "org.opencontainers.image.url": "the same, for a browser",
    "org.opencontainers.image.documentation": "the documentation of that commit",
    "org.opencontainers.image.vendor": "the owner of the publisher's repository",
    "org.opencontainers.image.licenses": "the licences of the contents, as an SPDX expression",
    "org.opencontainers.image.base.name": "the base",
    "org.opencontainers.image.base.digest": "the digest of the base, or of its list of packages",
    "io.rosetta.source.t5x": "an upstream source: its repository and pinned commit",
    "io.rosetta.source.t5x.patched": "the commit of the source with the patches",
    "io.rosetta.distribution": "the distribution",
    "io.rosetta.accelerator": "the accelerator",
    "io.rosetta.line": "the line",
    "io.rosetta.lock.sha256": "the hash of `lock.json`",
    "io.rosetta.te.version": "the version of Transformer Engine, or `none:` and the reason",
}
_SOURCE: dict[str, Any] = {
    "commit": "0",
    "patched_commit": "0",
    "url": "",
    "date": 0,
    "patches": [],
}


def render(root: Path) -> str:
    """Return the whole page.

    Args:
        root: The checkout, for the manifest and the locks.
    """
    shipped = manifest.load(root / "manifest.yaml")
    programs = ", ".join(f"`{name}`" for name in program_wrappers.PROGRAMS)
    sections = [
        _HEAD,
        "## Images\n",
        _render_table(_IMAGE_COLUMNS, _image_rows(shipped)),
        f"\n## Versions in the image: JAX, CUDA, cuDNN, NCCL, TensorFlow and Python\n{_VERSIONS}",
        _render_table(("package", *_code(shipped.lines)), _version_rows(shipped)),
        *_cuda_sections(shipped),
        f"\n## Layers\n{_LAYERS}",
        _render_table(
            ("layer", "content", "changes with"),
            _layer_rows(),
        ),
        f"\n## Files left out of packages\n{_STRIPPED}",
        _render_table(("package", "files", "reason"), _stripped_rows(shipped)),
        f"\n## Folders and files\n{_FOLDERS}",
        _render_table(("path", "content"), ((f"`{path}`", text) for path, text in PATHS.items())),
        f"\n## Programs on PATH\n{_PROGRAMS.format(programs=programs)}",
        f"## Environment variables\n{_VARIABLES}",
        _render_table(("variable", "value", "effect"), _variable_rows()),
        f"\n## Users, read-only root and HOME\n{_USERS}",
        f"## Entrypoint, command, working folder and ports\n{_START.rstrip()}",
        *_start_rows(),
        _ENTRYPOINT,
        "## Labels\n",
        _render_table(("label", "value"), _label_rows()),
        f"\n## Packages of Debian\n{_DEBIAN}",
        _render_table(("package", *_code(shipped.bases)), _debian_rows(shipped)),
        _REST,
    ]
    return "\n".join(sections)


_IMAGE_COLUMNS = ("distribution", "accelerators", "architectures", "sources", "line", "base")


def _render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _code(names: Iterable[str]) -> list[str]:
    return [f"`{name}`" for name in names]


def _image_rows(shipped: Manifest) -> Iterator[list[str]]:
    for name, entry in shipped.distributions.items():
        base = shipped.lines[entry.line].base
        yield [
            f"`{name}`",
            " ".join(_code(entry.accelerators)),
            " ".join(_code(entry.architectures)),
            ", ".join(_code(entry.sources)),
            f"`{entry.line}`",
            f"Debian {shipped.bases[base].bootstrap}" if base else "none",
        ]


def _pins(shipped: Manifest, line: str) -> dict[str, Pin]:
    """Return the locked packages of a line for its own Python on amd64, by name."""
    entry = shipped.lines[line]
    place = lock_file.marker_environment(entry.python, f"{entry.python}.0", "amd64")
    names = [name for name, each in shipped.distributions.items() if each.line == line]
    locks = [shipped.folder(entry.common).with_suffix(".txt")]
    locks += [shipped.folder(f"locks/{name}-cpu.txt") for name in names]
    return {
        pin.name: pin
        for lock in locks
        for pin in lock_file.read_lock(lock)
        if pin.applies_to(place)
    }


def _version_rows(shipped: Manifest) -> Iterator[list[str]]:
    lines = {name: _pins(shipped, name) for name in shipped.lines}
    yield ["Python", *(entry.python for entry in shipped.lines.values())]
    for name in _NAMED:
        versions = [pins[name].version if name in pins else "-" for pins in lines.values()]
        if set(versions) != {"-"}:
            yield [f"`{name}`", *versions]


def _cuda_sections(shipped: Manifest) -> Iterator[str]:
    """Yield a section for each line that is built for CUDA."""
    for line in shipped.lines:
        accelerators = _cuda_accelerators(shipped, line)
        if accelerators:
            yield f"\n## Versions of CUDA, cuDNN, NCCL and Transformer Engine in `{line}`\n{_CUDA}"
            yield _render_table(
                ("package", *_code(accelerators)), _cuda_rows(shipped, line, accelerators)
            )


def _cuda_accelerators(shipped: Manifest, line: str) -> list[str]:
    accelerators = {
        accelerator
        for entry in shipped.distributions.values()
        if entry.line == line
        for accelerator in entry.accelerators
    }
    return sorted(accelerators - {"cpu"})


def _cuda_rows(shipped: Manifest, line: str, accelerators: Sequence[str]) -> Iterator[list[str]]:
    te = shipped.transformer_engine
    if te and line in te.lines:
        has_te = [te.version if name in te.accelerators else "-" for name in accelerators]
        yield ["Transformer Engine", *has_te]
    versions = {name: _cuda_versions(shipped, line, name) for name in accelerators}
    for project in sorted({project for projects in versions.values() for project in projects}):
        yield [f"`{project}`", *(found.get(project, "-") for found in versions.values())]


def _cuda_versions(shipped: Manifest, line: str, accelerator: str) -> dict[str, str]:
    """Return the packages of NVIDIA and the plugins of JAX, named alike for every CUDA."""
    name = next(
        name
        for name, entry in shipped.distributions.items()
        if entry.line == line and accelerator in entry.accelerators
    )
    pins = lock_file.read_lock(shipped.folder(f"locks/{name}-{accelerator}.txt"))
    return {
        re.sub(r"-cu\d+$", "", pin.name.replace(accelerator, "cudaNN")): pin.version
        for pin in pins
        if pin.name.startswith(("nvidia-", f"jax-{accelerator}"))
    }


def _layer_rows() -> Iterator[list[str]]:
    names = ["base", "os", *layer_assignment.LAYERS]
    counts = Counter(map(layer_assignment.find_group, names))
    for group, count in counts.items():
        name = f"`{group}`" if count == 1 else f"`{group}-1` to `{group}-{count}`"
        yield [name, *LAYERS[group]]


def _variable_rows() -> Iterator[list[str]]:
    for line in image_settings.make_env():
        name, _, value = line.partition("=")
        shown = value.replace(image_settings.SYSTEM_PATH, "...")
        yield [f"`{name}`", f"`{shown}`", _VARIABLE_MEANINGS[name]]


EXAMPLE_ORIGIN = image_settings.Origin(
    Publisher("https://example.org/OWNER/rosetta", "0" * 40), ("Apache-2.0",)
)


def example_record(distribution: str) -> dict[str, Any]:
    """Return a lock.json that is good enough for the settings of an image."""
    return {
        "distribution": distribution,
        "accelerator": "cuda13",
        "line": "current",
        "builder": "0",
        "base": {"name": "bootstrap:trixie", "digest": "sha256:0"},
        "sources": {distribution: _SOURCE},
    }


def _stripped_rows(shipped: Manifest) -> Iterator[list[str]]:
    for entry in shipped.strip:
        if entry.files:
            yield [f"`{entry.name}`", "<br>".join(_code(entry.files)), entry.why]


def _start_rows() -> list[str]:
    t5x, pax = (
        image_settings.make_settings(example_record(name), EXAMPLE_ORIGIN)
        for name in ("t5x", "pax")
    )
    rows = [
        ("entrypoint", t5x["Entrypoint"][0], pax["Entrypoint"][0]),
        ("command", t5x["Cmd"][0], pax["Cmd"][0]),
        ("working folder", t5x["WorkingDir"], pax["WorkingDir"]),
    ]
    return [f"| {name} | `{of_t5x}` | `{of_pax}` |" for name, of_t5x, of_pax in rows]


def _label_rows() -> Iterator[list[str]]:
    for name in image_settings.make_labels(example_record("t5x"), EXAMPLE_ORIGIN):
        yield [f"`{name}`", _LABEL_MEANINGS[name]]


def _debian_rows(shipped: Manifest) -> Iterator[list[str]]:
    locked = {base: _debian_versions(shipped, base) for base in shipped.bases}
    for name in debian_lock.read_package_names():
        # Debian 13 has another name for libraries with 64-bit times.
        versions = [found.get(name) or found.get(f"{name}t64", "-") for found in locked.values()]
        yield [f"`{name}`", *versions]


def _debian_versions(shipped: Manifest, base: str) -> Mapping[str, str]:
    lock = debian_lock.load_lock(shipped, base, "amd64")
    return {deb.name: deb.version for deb in lock.packages}
