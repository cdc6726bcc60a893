"""The stages of a build, from a manifest to a verified environment or image."""
