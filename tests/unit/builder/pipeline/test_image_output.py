"""The image that the options of the command `build` ask for."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from builder.commands import build, image_options
from builder.core.cache import Cache
from builder.core.command_context import Context
from builder.images import image_target
from builder.pipeline import image_output

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("place", "more", "local"),
    [
        ("image", (), True),
        ("image:mine:1", (), True),
        ("oci:out", (), True),
        ("image", ("--locked",), False),
        ("oci:out", ("--locked",), False),
        ("bundle:out", (), False),
        ("registry:reg.example/t5x:1", (), False),
    ],
)
def test_only_what_stays_here_may_take_current_debian_packages(
    place: str, more: tuple[str, ...], local: bool, cache: Cache
) -> None:
    parser = argparse.ArgumentParser()
    build.add_arguments(parser)
    arguments = parser.parse_args(["--distribution", "t5x", "--output", place, *more])
    context = Context(ROOT, ROOT / "manifest.yaml", cache)
    assert (
        image_output.make_request(
            context,
            "t5x",
            image_options.read_image_options(arguments),
            image_target.parse_output(place, "t5x", "cpu"),
        ).local
        is local
    )
