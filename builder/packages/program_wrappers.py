"""Write the programs of opt/rosetta/bin: wrappers that find their own environment.

The environment can be moved, and links to the programs work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core import value_parsing

if TYPE_CHECKING:
    from pathlib import Path

SCRIPTS = "contrib/gpu/scripts_gpu"  # below an upstream package: the scripts that get a program

# Shell code that gives every user a writable home and a name. NLTK needs the home; absl and etils
# need the name. Nothing changes for a user who has both. The wrappers and the entrypoint of images
# use this code. A folder in /tmp is used again, with what pip installed there, only if it belongs
# to the user and nobody else can have created it.
HOME = """\
# shellcheck disable=SC3065,SC3067 # a shell without -O or -k goes on to mktemp
rosetta_own() {
  mkdir -m 700 -- "$1" 2>/dev/null ||
    { [ ! -L "$1" ] && [ -d "$1" ] && [ -O "$1" ] && [ -k "${1%/*}" ] && \
chmod 700 -- "$1" 2>/dev/null && [ -w "$1" ]; }
}
if [ "${HOME:-/}" = / ] || ! [ -w "$HOME" ]; then
  if [ -z "${ROSETTA_HOME:-}" ]; then
    for rosetta_tmp in "${TMPDIR:-/tmp}" /var/tmp /dev/shm; do
      ROSETTA_HOME=$rosetta_tmp/rosetta-$(id -u)
      rosetta_own "$ROSETTA_HOME" \
|| ROSETTA_HOME=$(mktemp -d -- "$rosetta_tmp/rosetta-XXXXXXXXXX" 2>/dev/null) || continue
      [ "$rosetta_tmp" = "${TMPDIR:-/tmp}" ] || export TMPDIR="$ROSETTA_HOME"
      break
    done
  fi
  if [ -n "${ROSETTA_HOME:-}" ]; then
    export ROSETTA_HOME
    if [ "${HOME:-/}" = / ] || ! [ -x "$HOME" ]; then
      export HOME="$ROSETTA_HOME"
    else
      export XDG_CACHE_HOME="${XDG_CACHE_HOME:-$ROSETTA_HOME/cache}" \
MPLCONFIGDIR="${MPLCONFIGDIR:-$ROSETTA_HOME/matplotlib}"
    fi
  fi
fi
if [ -z "${LOGNAME:-}${USER:-}" ] && ! id -un >/dev/null 2>&1; then
  LOGNAME=uid$(id -u)
  export LOGNAME USER="$LOGNAME"
fi
"""
# Where pip puts what it installs when the environment itself cannot be written: a folder per set of
# locked packages, so that another release does not meet it. PYTHONPATH, since the image hides the
# user's own site-packages from Python, with good reason.
_ON_TOP = """\
key=
read -r _ _ key 2>/dev/null <"$here/../constraints.txt" || :
on_top=${ROSETTA_HOME:-$HOME/.rosetta}/packages/${key:-unknown}
for site in "$on_top"/lib/python3*/site-packages; do
  case :${PYTHONPATH:-}: in *":$site:"*) continue ;; esac
  [ ! -d "$site" ] || export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$site"
done
"""
_HEAD = f"""\
#!/bin/sh
unset PYTHONHOME PYTHONPLATLIBDIR
here=$(dirname -- "$(readlink -f -- "$0")")
{HOME}"""
_PYTHON = _HEAD + _ON_TOP + 'exec "$here/../env/bin/python" "$@"\n'
_ROSETTA = _HEAD + 'exec "$here/../env/bin/python" -I -m rosetta "$@"\n'
_PIP = (
    _HEAD
    + _ON_TOP
    + """\
export PIP_CONSTRAINT="${PIP_CONSTRAINT:-$here/../constraints.txt}"
for site in "$here"/../env/lib/python3*/site-packages; do [ ! -w "$site" ] || on_top=; done
if [ "${1:-}" = install ] && [ -n "$on_top" ]; then
  for word in "$@"; do
    case $word in
      -t* | --target* | --prefix* | --root* | --user | --dry-run | --help | -h) on_top= ;;
    esac
  done
  if [ -n "$on_top" ]; then
    echo "pip: the environment is read-only: what is installed goes to $on_top" >&2
    export PIP_PREFIX="$on_top" PIP_NO_WARN_SCRIPT_LOCATION=1
  fi
fi
exec "$here/../env/bin/python" -m pip "$@"
"""
)
PROGRAMS = {"python": _PYTHON, "python3": _PYTHON, "pip": _PIP, "pip3": _PIP, "rosetta": _ROSETTA}

# For bash, because people type `bash NAME`: bash searches NAME in the working folder and then on
# PATH, and BASH_SOURCE has the path that it used.
_SCRIPT = """\
#!/bin/bash
# {name} of the patched source.
here=$(dirname -- "$(readlink -f -- "${{BASH_SOURCE[0]}}")")
case $PATH in "$here" | "$here":*) ;; *) export PATH="$here:$PATH" ;; esac
read -r te <<<"${{ENABLE_TE:-0}}"
case " $* " in *' --help '* | *' -h '*) te=0 ;; esac
case ${{te,,}} in
  FALSE_WORDS) ;;
  *) "$here/rosetta" te >/dev/null || exit ;;
esac
exec bash "$here/../../{path}" "$@"
""".replace("FALSE_WORDS", " | ".join(value_parsing.FALSE_WORDS))
# sh runs the file up to its third line; Python reads that line as a string. The script runs by its
# path, because importing its package takes seconds.
_MODULE = """\
#!/bin/sh
# {name} of the patched source.
''''exec "$(dirname -- "$(readlink -f -- "$0")")/python" "$0" "$@" # '''
import os
import runpy

runpy.run_path(\
os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../{path}"), run_name="__main__")
"""
# Everything that affects the wrappers, except the scripts.
TEXTS = {**PROGRAMS, "script": _SCRIPT, "module": _MODULE}


def _is_program(path: Path) -> bool:
    """Return whether a file beside the shell scripts is a Python program that people type."""
    if path.suffix == ".py":
        return path.name.startswith(("download_", "run_"))
    return not path.suffix and path.is_file() and path.read_bytes().startswith(b"#!")


def wrappers_for_scripts(tree: Path, folder: str) -> dict[str, str]:
    """Return the text of a wrapper for each script of a patched source, by name.

    Args:
        tree: The patched source.
        folder: Its path below opt/.
    """
    wrappers = {}
    for path in sorted(tree.glob(f"*/{SCRIPTS}/*")):
        script = f"{folder}/{path.relative_to(tree).as_posix()}"
        if path.suffix == ".sh":
            wrappers[path.name] = _SCRIPT.format(name=path.name, path=script)
        elif _is_program(path):
            wrappers[path.name] = _MODULE.format(name=path.name, path=script)
    return wrappers
