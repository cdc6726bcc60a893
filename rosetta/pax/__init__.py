"""Pax: rosetta's experiments and inputs, which paxml finds through `--exp` or `--fdl_config`."""
