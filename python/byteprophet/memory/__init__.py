"""The memory of a training iteration, foretold; and which modules to checkpoint within a budget.

All but ``cheapest`` and ``on_rank`` import torch, so import them only where a model is at hand.

training.py    what one iteration does, in reality and without data
liveness.py    follows the storages of an iteration from operation to operation
kernels.py     the memory that kernels use while they run, measured once per distinct call
peak.py        the peak of an iteration, and what it consists of
mixes.py       the peaks of thousands of mixes of checkpointed and plain modules
cheapest.py    which of many mixes fit a budget, the cheapest first
without_data.py   runs iterations on tensors without data
budget.py      the cheapest mix of a model that fits a budget
on_rank.py     what a synchronisation runtime changes on a rank
runtimes.py    the peak of an iteration on one of several ranks
sharded.py     the same for a model that FSDP2 shards; sharded_liveness.py follows its iteration
gloo.py        what collectives of gloo take
cuda/          the same on a CUDA device, foretold without one
"""
