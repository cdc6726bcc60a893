"""Container images: what goes into their layers, and where a finished image goes."""
