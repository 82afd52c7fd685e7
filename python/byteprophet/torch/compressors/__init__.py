"""Compressors of gradients as arithmetic: no network, and nothing of optimizers.

``steps.py`` says what a compressor is here, and ``make.py`` finds it. All ranks end with the same
average bit for bit, also if their processors or numbers of threads differ: what they all compute
from what has travelled is made of elementwise operations, or exact (``orthogonal.py``).
"""
