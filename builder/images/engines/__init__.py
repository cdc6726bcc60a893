"""Docker and buildah: they build Dockerfile.base, and load, run and export images."""
