"""What every part of the builder uses: the cache, locks, checked files, subprocesses, the
manifest.
"""
