"""The patches and the overlay that stand on a source: read, tried, applied, explained, renewed."""
