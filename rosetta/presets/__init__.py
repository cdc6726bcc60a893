"""Presets: named run configurations as data.

A run's values come from layers. From the lowest to the highest, these are what all presets share,
the GPU, the model, its switches and precision, the site, the environment and the command line.

The package needs only Python 3.9 and PyYAML, because it also runs on login nodes.
"""
