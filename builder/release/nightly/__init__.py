"""A nightly build: bump, build, train, publish and report, each a resumable stage."""
