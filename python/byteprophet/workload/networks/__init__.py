"""The built-in networks, as lists of layers; ``layers.py`` makes a workload of such a list."""
