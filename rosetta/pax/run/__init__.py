"""Prepare and check a run of Pax before JAX starts: settings, experiments as text, checkpoints."""
