"""The base of an image: from a registry, an engine, or locked Debian packages."""
