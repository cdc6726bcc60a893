"""What only an image has: its entrypoint with the banner, its settings and labels, and the folder
work starts in. Pure functions of lock.json.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import textwrap
from typing import TYPE_CHECKING, Any

from builder.images.oci import tar_entry
from builder.packages import environment_parts, known_issues, program_wrappers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.images.oci.tar_entry import Entry

HOME = "opt/rosetta"
ENTRYPOINT = f"/{HOME}/entrypoint"
BANNER = f"{HOME}/banner.txt"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BANNER_PACKAGES = ("jax", "jaxlib", "flax", "orbax-checkpoint", "tensorflow", "tensorflow-cpu")
_WIDTH = 100

# The command is run whatever happens before it: nothing here may fail, read stdin, or write where
# no person looks.
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
# Debian's /etc/profile sets PATH anew in a login shell, as `bash -l` in a Slurm job is one.
PROFILE_TEXT = f"""\
case ":$PATH:" in
  *:/{HOME}/bin:*) ;;
  *) export PATH="/{HOME}/bin:$PATH:/{HOME}/env/bin" ;;
esac
"""


def make_text_file(path: str, content: str, mode: int = 0o644) -> Entry:
    """Return a text file of an image."""
    return tar_entry.make_file(path, content, mode)


def list_entries(record: Mapping[str, Any], versions: Mapping[str, str]) -> Iterator[Entry]:
    """Yield the files and folders; `record` is lock.json, `versions` are those of its packages."""
    yield make_text_file(f"{HOME}/entrypoint", ENTRYPOINT_TEXT, 0o755)
    yield make_text_file(BANNER, format_banner(record, versions))
    yield make_text_file("etc/profile.d/rosetta.sh", PROFILE_TEXT)
    place = choose_work_folder(record)
    if place.endswith("_home"):
        yield tar_entry.make_folder(place, 0o1777)  # any user may work there
    for name in ("datasets", "workspace", "vocab"):
        yield tar_entry.make_folder(f"{place}/{name}", 0o1777)


def choose_work_folder(record: Mapping[str, Any]) -> str:
    """Return the folder that the documented commands start in, relative to /: /t5x_home for T5X,
    the tree itself for Pax.
    """
    framework = str(record["distribution"]).partition("-")[0]
    return "opt/paxml" if framework == "pax" else f"{framework}_home"


def describe_transformer_engine(record: Mapping[str, Any]) -> str:
    """Its version, or "none: <reason>"."""
    known = record.get("transformer_engine")
    if known:
        return str(known["version"])
    return f"none: {record.get('transformer_engine_reason') or 'not asked for when this was built'}"


# Framework -> a first command that trains: a tiny T5 on a text file, a GPT on made-up data.
_FIRST_COMMANDS = {
    "t5x": "rosetta run t5x-tiny DATA=text:FILE VOCAB=byte TRAIN_STEPS=200 MODEL_DIR=/tmp/tiny",
    "pax": "rosetta pax train CONFIG=Synthetic126M NUM_GPUS=1 MAX_STEPS=100 LOG_DIR=/tmp/gpt",
}


def format_banner(record: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """Return what a person at a terminal reads when a shell starts: a few lines of ASCII."""
    named = ", ".join(f"{name} {versions[name]}" for name in _BANNER_PACKAGES if name in versions)
    sources = ", ".join(
        f"{name} {source['commit'][:12]} + {len(source['patches'])} patches"
        for name, source in record["sources"].items()
    )
    rows = [
        (
            f"rosetta {record['builder']}: {record['distribution']} for {record['accelerator']} "
            f"on {record['architecture']}, Python {record['python']}"
        ),
        named,
        sources,
        f"Transformer Engine: {describe_transformer_engine(record)}",
    ]
    issues = known_issues.select_issues(known_issues.load_issues(), record, versions)
    if issues:
        rows.append("Known issues:")
        rows += [
            textwrap.fill(
                f"- {issue['line']} ({issue['see']})",
                _WIDTH,
                initial_indent="  ",
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            for issue in issues
        ]
    command = _FIRST_COMMANDS.get(
        record["distribution"].partition("-")[0]
    )  # a manifest may have others
    rows += [f"Train: {command}"] if command else []
    rows.append(f"More: rosetta info; licence texts: /{HOME}/LICENSES")
    return "\n".join(rows).encode("ascii", "replace").decode() + "\n"


def make_env(base: Sequence[str] = ()) -> list[str]:
    """Return the image's ENV. Of the base's only PATH is kept: no setting of a library or of XLA
    belongs in an image.

    Our programs come first on PATH, so that `python` has JAX; those of packages come last, so that
    none hides a system's.
    """
    path = (
        next((line.partition("=")[2] for line in base if line.startswith("PATH=")), "")
        or SYSTEM_PATH
    )
    kept = [part for part in path.split(":") if part and not part.startswith(f"/{HOME}/")]
    return [
        f"PATH={':'.join([f'/{HOME}/bin', *kept, f'/{HOME}/env/bin'])}",
        "NVIDIA_VISIBLE_DEVICES=all",  # without it enroot shows no GPU
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        # A cluster mounts the user's home, with packages of another Python and JAX.
        "PYTHONNOUSERSITE=1",
        f"PIP_CONSTRAINT=/{HOME}/constraints.txt",
    ]


def make_annotations(record: Mapping[str, Any]) -> dict[str, str]:
    """Return what manifests and indexes say of themselves; the same for every architecture."""
    first = list(record["sources"].values())[-1]  # the framework: what it stands on comes before it
    name = "org.opencontainers.image."
    cuda = record["accelerator"] != "cpu"
    found = {
        "title": f"{record['distribution']}-{record['accelerator']}",
        "version": str(record["builder"]),
        "revision": str(first["patched_commit"]),
        "created": format_creation_time(record),
        "source": str(first["url"]).removesuffix(".git"),
        "licenses": "Apache-2.0 AND LicenseRef-NVIDIA-EULA" if cuda else "Apache-2.0",
        "base.name": str(record["base"]["name"]),
    }
    return {name + key: value for key, value in found.items()}


def format_creation_time(record: Mapping[str, Any]) -> str:
    """Return the date of the newest pinned commit, in UTC."""
    newest = max(int(source["date"]) for source in record["sources"].values())
    return dt.datetime.fromtimestamp(newest, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def make_labels(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of one architecture's image."""
    lock = hashlib.sha256(environment_parts.lock_text(dict(record)).encode()).hexdigest()
    return make_annotations(record) | {
        "org.opencontainers.image.base.digest": str(record["base"]["digest"]),
        "io.rosetta.distribution": str(record["distribution"]),
        "io.rosetta.accelerator": str(record["accelerator"]),
        "io.rosetta.line": str(record["line"]),
        "io.rosetta.lock.sha256": lock,
        "io.rosetta.te.version": describe_transformer_engine(record),
    }


def make_settings(record: Mapping[str, Any], base: Sequence[str] = ()) -> dict[str, Any]:
    """Return the `config` of an OCI image; `base` is the ENV of its base."""
    return {
        "Env": make_env(base),
        "Entrypoint": [ENTRYPOINT],
        "Cmd": ["bash"],
        "WorkingDir": f"/{choose_work_folder(record)}",
        "Labels": make_labels(record),
    }
