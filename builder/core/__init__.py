"""What every part of the builder uses: cache, locks, checked files, subprocesses, manifest."""
