"""Simulates jobs with servers: the real policies, on a virtual clock and network.

simulation.py  a job on virtual time, and its result
paced.py       a paced job on links with their configured rates
sweep.py       ranks settings by the simulated iteration time

prophet/engine/job.h describes the model and its approximations. A graph of the same job
(graph/ps_graph.py) has the same times to the nanosecond. Building and replaying it takes several
times as long (experiments/engines.py), so controllers and sweeps use the engine.
"""

from __future__ import annotations

from byteprophet.engine.paced import COSTS, paced_job
from byteprophet.engine.simulation import SimulatedRun, simulate
from byteprophet.engine.sweep import rank_settings, tuning_grid

__all__ = ["COSTS", "SimulatedRun", "paced_job", "rank_settings", "simulate", "tuning_grid"]
