"""Settings of runs as data, in layers: common < accelerator < model < precision and switches < site
< environment < command line.

Python 3.9 and PyYAML will do: it also runs on login nodes.
"""
