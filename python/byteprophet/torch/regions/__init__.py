"""Regions: modules that run as one, compiled or recomputed.

calls.py    records which modules a forward calls, and with what
chains.py   finds modules of which each takes what the one before returns
fused.py    runs a region in place of its first module
autocast.py runs a model in bfloat16 where that is safe
install.py  lets a model compute as a strategy says
cost.py     measures what a region costs in each mode
probe.py    measures the regions of a script's model, in one of its first steps
memory_probe.py   measures what memory iterations take with recomputed regions
"""
