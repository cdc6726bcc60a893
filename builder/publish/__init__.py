"""Publishing: images go into a registry whole, signed and described, and only then do tags move."""
