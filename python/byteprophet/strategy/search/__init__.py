"""A faster strategy of any architecture, for a recorded job or a workload, on given resources.

bases.py       the job with servers and without, from which candidates are made
units.py       the model in units that go to servers or over the mesh
engine.py      the time of an iteration under any routing for them
local.py       good routings: a formula, then local search
candidates.py  builders' and routings' strategies, with predictions and features
ranker.py      what real trials teach about the engine's error
trials.py      runs candidates, and keeps what they measured
choosing.py    which candidates are tried next
outcome.py     what was found: the result, its gap to the bound, what limits
kept.py        the files of a search, from which it goes on
run.py         all of it in turn
"""
