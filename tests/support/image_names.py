"""Names of images, and how each place that runs jobs writes them."""

from __future__ import annotations

HEX = "sha256:" + "0123456789abcdef" * 4
# Name -> as Docker and Kubernetes, pyxis, and apptainer read it; None where a place cannot.
NAMES: dict[str, tuple[str | None, str | None, str | None]] = {
    "t5x": ("t5x", "t5x", "docker://t5x"),
    "t5x:cuda13": ("t5x:cuda13", "t5x:cuda13", "docker://t5x:cuda13"),
    "me/t5x:cuda13": ("me/t5x:cuda13", "me/t5x:cuda13", "docker://me/t5x:cuda13"),
    f"me/t5x@{HEX}": (f"me/t5x@{HEX}", f"me/t5x:{HEX}", f"docker://me/t5x@{HEX}"),
    f"t5x@{HEX}": (f"t5x@{HEX}", f"t5x:{HEX}", f"docker://t5x@{HEX}"),
    "docker.io/library/ubuntu:24.04": (
        "library/ubuntu:24.04",
        "library/ubuntu:24.04",
        "docker://library/ubuntu:24.04",
    ),
    "ghcr.io/me/t5x:latest": (
        "ghcr.io/me/t5x:latest",
        "ghcr.io#me/t5x:latest",
        "docker://ghcr.io/me/t5x:latest",
    ),
    "ghcr.io/me/a/b": ("ghcr.io/me/a/b", "ghcr.io#me/a/b", "docker://ghcr.io/me/a/b"),
    "localhost/t5x": ("localhost/t5x", "localhost#t5x", "docker://localhost/t5x"),
    "localhost:5000/t5x:1": (
        "localhost:5000/t5x:1",
        "localhost:5000#t5x:1",
        "docker://localhost:5000/t5x:1",
    ),
    "registry:5000/me/t5x": (
        "registry:5000/me/t5x",
        "registry:5000#me/t5x",
        "docker://registry:5000/me/t5x",
    ),
    f"ghcr.io/me/t5x@{HEX}": (
        f"ghcr.io/me/t5x@{HEX}",
        f"ghcr.io#me/t5x:{HEX}",
        f"docker://ghcr.io/me/t5x@{HEX}",
    ),
    f"ghcr.io/me/t5x:v1@{HEX}": (
        f"ghcr.io/me/t5x:v1@{HEX}",
        f"ghcr.io#me/t5x:{HEX}",
        f"docker://ghcr.io/me/t5x@{HEX}",
    ),
    f"localhost:5000/t5x:v1@{HEX}": (
        f"localhost:5000/t5x:v1@{HEX}",
        f"localhost:5000#t5x:{HEX}",
        f"docker://localhost:5000/t5x@{HEX}",
    ),
    "docker://ghcr.io/me/t5x:latest": (
        "ghcr.io/me/t5x:latest",
        "ghcr.io#me/t5x:latest",
        "docker://ghcr.io/me/t5x:latest",
    ),
    "ghcr.io#me/t5x:latest": (
        "ghcr.io/me/t5x:latest",
        "ghcr.io#me/t5x:latest",
        "docker://ghcr.io/me/t5x:latest",
    ),
    "docker://ghcr.io#me/t5x": ("ghcr.io/me/t5x", "ghcr.io#me/t5x", "docker://ghcr.io/me/t5x"),
    f"ghcr.io#me/t5x:{HEX}": (
        f"ghcr.io/me/t5x@{HEX}",
        f"ghcr.io#me/t5x:{HEX}",
        f"docker://ghcr.io/me/t5x@{HEX}",
    ),
    f"localhost:5000#t5x@{HEX}": (
        f"localhost:5000/t5x@{HEX}",
        f"localhost:5000#t5x:{HEX}",
        f"docker://localhost:5000/t5x@{HEX}",
    ),
    "$oauthtoken@nvcr.io#nvidia/jax:24.04-py3": (
        None,
        "$oauthtoken@nvcr.io#nvidia/jax:24.04-py3",
        None,
    ),
    "dockerd://t5x:cuda13": (None, "dockerd://t5x:cuda13", None),
    "oras://ghcr.io/me/t5x:1": (None, None, "oras://ghcr.io/me/t5x:1"),
    "docker-daemon:t5x:cuda13": (None, None, "docker-daemon:t5x:cuda13"),
    "/shared/t5x.sqsh": (None, "/shared/t5x.sqsh", "/shared/t5x.sqsh"),
    "./t5x.sqsh": (None, "./t5x.sqsh", "./t5x.sqsh"),
    "../t5x.sqsh": (None, "../t5x.sqsh", "../t5x.sqsh"),
    "images/t5x.sqsh": (None, "./images/t5x.sqsh", "images/t5x.sqsh"),
    "t5x.sif": (None, None, "t5x.sif"),
    "/shared/T5X v1.sif": (None, None, "/shared/T5X v1.sif"),
    "/shared/folder": (None, "/shared/folder", "/shared/folder"),
    "~/t5x.sqsh": (None, None, None),
}


def list_enroot_names() -> list[str]:
    """Return the names that enroot gets as a reference, and not as a path or with a scheme."""
    return [
        name
        for name, (_, pyxis, _) in NAMES.items()
        if pyxis and "://" not in pyxis and not pyxis.startswith((".", "/"))
    ]
