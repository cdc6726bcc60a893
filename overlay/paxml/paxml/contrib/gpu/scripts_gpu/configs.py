"""The experiments for GPUs under the path that --fdl_config has had: rosetta's."""

from rosetta.pax.configs import *  # noqa: F403 (all of them)
