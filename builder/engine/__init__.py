"""Docker and buildah: they build Dockerfile.base, and take, run and give back images. Nothing above the base is made by them."""
