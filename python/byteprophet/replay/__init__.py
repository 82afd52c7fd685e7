"""Replays graphs on virtual time.

engine.py   computes a graph's times, critical path, and use of devices, links and memory; selects
            parts of graphs
what_if.py  the changes to a recorded job
predict.py  predicts iteration times, next to measured times and simpler predictions
kinds.py    the interface to the kinds of jobs, which ps.py, all_reduce.py and mixed.py implement
"""

from __future__ import annotations

from byteprophet.replay.engine import Replayed, part, replay

__all__ = ["Replayed", "part", "replay"]
