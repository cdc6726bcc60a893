"""What `reproduce` refuses before it builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from builder.pipeline import reproduction
from tests.support import errors

if TYPE_CHECKING:
    from builder.core.command_context import Context


def test_an_image_with_projects_is_refused() -> None:
    lock: dict[str, Any] = {
        "distribution": "t5x",
        "accelerator": "cpu",
        "base": {"name": "bootstrap"},
        "compression": "gzip",
        "projects": {"mt3": None},
    }
    with errors.expect_user_error(errors.UNSUPPORTED, where="oci:image", names="mt3"):
        reproduction._make_request(cast("Context", None), "oci:image", "", "", {"amd64": lock})
