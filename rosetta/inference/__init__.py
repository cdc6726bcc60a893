"""Use trained language models: generate text, and score answers."""
