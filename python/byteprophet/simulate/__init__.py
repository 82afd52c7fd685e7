"""Predicts the iteration time and memory of a training job from its model, strategy and cluster.

operation/  operators as data: dimensions, tensors, FLOPs; layouts on a device mesh
models/     models as trees of operators
tree/       the strategy tree: which dimension is split over which mesh axis, and where
compile/    infers collectives from layouts, and lists what each pipeline rank does
clusters/   descriptions of clusters
costs/      the time of operators and collectives on a cluster; measured costs
execute/    builds a graph for ``byteprophet.replay``, and measures the result
calibrate/  the interval of a predicted time; sets a cluster's constants from measured runs
explain/    what a result consists of: lanes, critical path, memory; the data of the page about it

These folders stand in this order: each imports only those before it.
"""

from __future__ import annotations
