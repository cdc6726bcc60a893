"""A bare environment: packages with their bytecode, and everything put together."""
