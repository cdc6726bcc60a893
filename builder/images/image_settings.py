"""What an image has besides the environment: entrypoint, banner, settings, labels, work folders.

All functions depend on lock.json, the labels also on who built the image, and the banner on the
known issues of the build.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.images.oci import tar_entry
from builder.packages import build_record, program_wrappers
from builder.upstream.checkout import UNKNOWN_PUBLISHER, Publisher
from builder.upstream.public_urls import format_source_uri
from rosetta.core import first_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.images.oci.tar_entry import Entry

HOME = "opt/rosetta"
DISTRIBUTION = "io.rosetta.distribution"  # an annotation and a label
ACCELERATOR = "io.rosetta.accelerator"  # an annotation and a label
ENTRYPOINT = f"/{HOME}/entrypoint"
BANNER = f"{HOME}/banner.txt"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BANNER_PACKAGES = ("jax", "jaxlib", "flax", "orbax-checkpoint", "tensorflow", "tensorflow-cpu")
_WIDTH = 100
# Links in the working folder of T5X, so that command lines with these relative paths work.
_T5X_LINKS = {
    "t5x": "../opt/t5x/t5x",
    **{
        name: f"../{HOME}/bin/{name}"
        for name in ("run_t5_pretraining.py", "run_t5_finetuning.py", "run_bert_pretraining.py")
    },
}

# The command runs whatever happens before it. So nothing in this script may fail or read stdin, and
# the banner is only for terminals.
ENTRYPOINT_TEXT = f"""\
#!/bin/sh
{program_wrappers.HOME}
[ $# -gt 0 ] || set -- bash
export UV_CONSTRAINT="${{UV_CONSTRAINT:-/{HOME}/constraints.txt}}"
if [ -t 1 ] && [ -t 2 ]; then
  case ${{1##*/}} in
    sh | bash | dash | zsh)
      case ${{2:--i}} in
        -i | -l | --login) [ $# -gt 2 ] || cat /{BANNER} 2>/dev/null || : ;;
      esac
      ;;
  esac
fi
exec "$@"
"""
# Debian's /etc/profile sets PATH anew in a login shell, such as `bash -l` in a Slurm job.
PROFILE_TEXT = f"""\
case ":$PATH:" in
  *:/{HOME}/bin:*) ;;
  *) export PATH="/{HOME}/bin:$PATH:/{HOME}/env/bin" ;;
esac
"""


def make_text_file(path: str, content: str, mode: int = 0o644) -> Entry:
    """Return a text file of an image."""
    return tar_entry.make_file(path, content, mode)


def list_entries(
    record: Mapping[str, Any], versions: Mapping[str, str], issues: Sequence[Mapping[str, Any]]
) -> Iterator[Entry]:
    """Yield the files and folders that describe an image.

    Args:
        record: The image's lock.json.
        versions: The versions of its packages, by name.
        issues: The known issues of the build.
    """
    yield make_text_file(f"{HOME}/entrypoint", ENTRYPOINT_TEXT, 0o755)
    yield make_text_file(BANNER, format_banner(record, versions, issues))
    yield make_text_file("etc/profile.d/rosetta.sh", PROFILE_TEXT)
    work_folder = choose_work_folder(record)
    if work_folder.endswith("_home"):
        yield tar_entry.make_folder(work_folder, 0o1777)  # any user may work there
        for name, target in _T5X_LINKS.items():
            yield tar_entry.make_link(f"{work_folder}/{name}", target)
    for name in ("datasets", "workspace", "vocab"):
        yield tar_entry.make_folder(f"{work_folder}/{name}", 0o1777)


def choose_work_folder(record: Mapping[str, Any]) -> str:
    """Return the folder in which commands start, relative to /.

    It is t5x_home for T5X, and the source tree for Pax, as the documentation of both says.
    """
    framework = str(record["distribution"]).partition("-")[0]
    return "opt/paxml" if framework == "pax" else f"{framework}_home"


def describe_transformer_engine(record: Mapping[str, Any]) -> str:
    """Return the version of Transformer Engine, or "none: <reason>"."""
    transformer_engine = record.get("transformer_engine")
    if transformer_engine:
        return str(transformer_engine["version"])
    reason = record.get("transformer_engine_reason") or "not asked for when this was built"
    return f"none: {reason}"


def format_banner(
    record: Mapping[str, Any], versions: Mapping[str, str], issues: Sequence[Mapping[str, Any]]
) -> str:
    """Return what a person at a terminal reads when a shell starts: a few lines of ASCII."""
    packages = [f"{name} {versions[name]}" for name in _BANNER_PACKAGES if name in versions]
    sources = [
        f"{name} {source['commit'][:12]} + {len(source['patches'])} patches"
        for name, source in record["sources"].items()
    ]
    lines = [
        (
            f"rosetta {record['builder']}: {record['distribution']} for {record['accelerator']} "
            f"on {record['architecture']}, Python {record['python']}"
        ),
        ", ".join(packages),
        ", ".join(sources),
        f"Transformer Engine: {describe_transformer_engine(record)}",
    ]
    if issues:
        lines.append("Known issues:")
        lines += [_format_issue(issue) for issue in issues]
    command = first_command.make_first_command(
        record["distribution"], record["accelerator"], f"/{HOME}"
    )
    if command:
        lines += ["Train a tiny model:", f"  {command}"]
    lines.append(f"More: rosetta info; licence texts: /{HOME}/LICENSES")
    return "\n".join(lines).encode("ascii", "replace").decode() + "\n"


def _format_issue(issue: Mapping[str, Any]) -> str:
    return textwrap.fill(
        f"- {issue['line']} ({issue['see']})",
        _WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def make_env(base_env: Sequence[str] = ()) -> list[str]:
    """Return the ENV lines of an image.

    Of the base's ENV only PATH stays: no setting of a library or of XLA belongs in an image. The
    image's own programs come first on PATH, so that `python` has JAX. The programs of packages come
    last, so that none hides one of the system.
    """
    base_path = next((line for line in base_env if line.startswith("PATH=")), "")
    path = base_path.removeprefix("PATH=") or SYSTEM_PATH
    system_folders = [
        folder for folder in path.split(":") if folder and not folder.startswith(f"/{HOME}/")
    ]
    return [
        f"PATH={':'.join([f'/{HOME}/bin', *system_folders, f'/{HOME}/env/bin'])}",
        "NVIDIA_VISIBLE_DEVICES=all",  # without it enroot shows no GPU
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        # A cluster mounts the user's home, with packages of another Python and JAX.
        "PYTHONNOUSERSITE=1",
        f"PIP_CONSTRAINT=/{HOME}/constraints.txt",
    ]


@dataclass(frozen=True)
class Origin:
    """What the labels of an image say, and lock.json does not.

    Attributes:
        publisher: Who built the image.
        licences: The licences of all that is inside, as parts of an SPDX expression.
    """

    publisher: Publisher = UNKNOWN_PUBLISHER
    licences: tuple[str, ...] = ()


def make_annotations(record: Mapping[str, Any], origin: Origin) -> dict[str, str]:
    """Return the annotations of manifests and indexes.

    Their names are those of the OCI image specification ("Annotations"), and some of rosetta.

    Args:
        record: The image's lock.json.
        origin: What lock.json does not say.
    """
    publisher = origin.publisher
    documentation = f"{publisher.url}/tree/{publisher.commit or 'main'}/docs"
    values = {
        "title": f"{record['distribution']}-{record['accelerator']}",
        "description": _describe_contents(record),
        "version": str(record["builder"]),
        "created": format_creation_time(record),
        "source": publisher.url,
        "revision": publisher.commit,
        "url": publisher.url,
        "documentation": documentation if publisher.url else "",
        "vendor": publisher.owner,
        "licenses": " AND ".join(origin.licences),
        "base.name": str(record["base"]["name"]),
    }
    annotations = {f"org.opencontainers.image.{key}": value for key, value in values.items()}
    annotations |= {
        DISTRIBUTION: str(record["distribution"]),
        ACCELERATOR: str(record["accelerator"]),
    }
    for name, source in record["sources"].items():
        annotations[f"io.rosetta.source.{name}"] = format_source_uri(source)
        annotations[f"io.rosetta.source.{name}.patched"] = str(source["patched_commit"])
    return {name: value for name, value in annotations.items() if value}


def _describe_contents(record: Mapping[str, Any]) -> str:
    """Return a sentence about what an image is for."""
    framework = str(record["distribution"]).partition("-")[0]
    name = {"t5x": "T5X", "pax": "Pax"}.get(framework, framework)
    accelerator = str(record["accelerator"])
    target = "CPUs" if accelerator == "cpu" else f"NVIDIA GPUs with CUDA {accelerator[4:]}"
    engine = record.get("transformer_engine")
    with_engine = f", with Transformer Engine {engine['version']}" if engine else ""
    return f"{name} on JAX for {target}{with_engine}, built by rosetta {record['builder']}"


def format_creation_time(record: Mapping[str, Any]) -> str:
    """Return the time of the newest pinned commit, RFC 3339 in UTC."""
    newest = max(int(source["date"]) for source in record["sources"].values())
    return dt.datetime.fromtimestamp(newest, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def make_labels(record: Mapping[str, Any], origin: Origin) -> dict[str, str]:
    """Return the labels of one architecture's image."""
    lock = hashlib.sha256(build_record.lock_text(dict(record)).encode()).hexdigest()
    return make_annotations(record, origin) | {
        "org.opencontainers.image.base.digest": str(record["base"]["digest"]),
        "io.rosetta.line": str(record["line"]),
        "io.rosetta.lock.sha256": lock,
        "io.rosetta.te.version": describe_transformer_engine(record),
    }


def make_settings(
    record: Mapping[str, Any], origin: Origin, base_env: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the settings of an image, as `config` of an OCI image has them.

    Args:
        record: The image's lock.json.
        origin: What the labels say besides.
        base_env: The ENV lines of the base.
    """
    return {
        "Env": make_env(base_env),
        "Entrypoint": [ENTRYPOINT],
        "Cmd": ["bash"],
        "WorkingDir": f"/{choose_work_folder(record)}",
        "Labels": make_labels(record, origin),
    }
