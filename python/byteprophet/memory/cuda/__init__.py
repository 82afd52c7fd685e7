"""The memory of a training iteration on a CUDA device, foretold without one.

caching_allocator.py   PyTorch's caching allocator; without torch
gpu.py                 what of a GPU decides how much scratch memory its kernels take
scratch.py             what kernels allocate besides their results, and in which order
backward.py            the backward pass of CUDA tensors without data
device.py              lets tensors without data be on CUDA where torch was built without it
sequence.py            records what an iteration allocates and frees
peak.py                the peaks of allocated and reserved memory, and what they consist of
"""
