"""A T5X run before JAX starts: its settings, its gin files as text, and its checks."""
