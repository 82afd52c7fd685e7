"""All-reduce in two halves: what travels together, in which order, and how fast that can be.

mesh.py       connects the ranks of a job with each other

Knows no torch.
"""
