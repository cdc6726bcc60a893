"""The OCI image format: layers, documents, layouts and names of images."""
