"""The command lines of yurakuratov/t5-experiments: read their options, and run them with T5X."""
