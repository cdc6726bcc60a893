"""A Pax run before JAX starts: its settings, its experiments as text, and its checks."""
