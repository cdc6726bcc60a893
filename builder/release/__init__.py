"""What maintainers release: moved pins, published images, nightly builds."""
