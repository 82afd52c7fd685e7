"""Strategies as files: making the known ones, comparing two, and explaining one for a recorded job.

``job/strategy.py`` says what a strategy is; ``optimize/`` searches for better ones.
"""
