"""Graphs replayed on virtual time.

engine.py   a graph's times, use of devices, links and memory, critical path; parts of graphs
what_if.py  what is to be different about a recorded job
predict.py  its iteration time, beside what was measured and simpler answers
kinds.py    what a prediction asks of a kind of job; ps.py and ring.py answer
validation.py, validation_cases.py, validation_run.py  predictions beside jobs that are then run
"""

from __future__ import annotations

from byteprophet.replay.engine import Replayed, part, replay

__all__ = ["Replayed", "part", "replay"]
