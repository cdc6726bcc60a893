"""A source: from its pin to verified objects, a patched commit and a folder of files."""
