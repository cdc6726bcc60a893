"""Upstream sources: fetched and verified by their pins, and patched."""
