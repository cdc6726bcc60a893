"""Locked packages: resolved, checked, and installed into environments."""
