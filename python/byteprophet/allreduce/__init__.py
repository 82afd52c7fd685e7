"""All-reduce in two halves: what travels together, in which order, and how fast that can be.

timing.py     what is known of a job: sizes, ready times, forward times, the link
groups.py     which parameters travel together, by rules
grouping.py   which ones should, by search over the model
model.py      orders of halves, and how long an iteration takes under one
order.py      the orders of the runtimes: allreduce, dear, dear-planned
bounds.py     what they cannot be faster than
tuner.py      the buffer size, searched while the job trains

Plain data and arithmetic, the same on every rank; knows no torch.
"""
