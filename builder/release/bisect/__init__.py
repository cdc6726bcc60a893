"""Find the change between a good and a bad build that broke something."""
