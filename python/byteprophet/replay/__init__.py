"""Graphs replayed on virtual time.

engine.py   a graph's times, use of devices, links and memory, critical path; parts of graphs
what_if.py  a measured job with other links, another policy, more workers
predict.py  its iteration time, beside what was measured and simpler answers
kinds.py    what a prediction asks of a kind of job; ring.py answers for all-reduce
"""

from __future__ import annotations

from byteprophet.replay.engine import Replayed, part, replay

__all__ = ["Replayed", "part", "replay"]
