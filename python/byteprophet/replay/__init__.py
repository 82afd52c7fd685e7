"""Graphs replayed on virtual time.

engine.py   a graph's times, use of devices, links and memory, critical path; parts of graphs
"""

from __future__ import annotations

from byteprophet.replay.engine import Replayed, part, replay

__all__ = ["Replayed", "part", "replay"]
