"""Random numbers that depend on a seed, a parameter, a step, and nothing else.

So a resumed job draws what the interrupted one would have drawn, and ranks agree without a message.
All numbers are made of integers, so they have the same bits on all machines.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor


def lot(seed: int, name: str, *numbers: int) -> np.random.Generator:
    """A generator for the parameter ``name``; ``numbers``: the step, or the step and the rank."""
    digest = blake2b(name.encode(), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest, "little"), *numbers])


def uniform(generator: np.random.Generator, count: int) -> Tensor:
    """So many numbers of float32 from 0 to 1, without 1."""
    return torch.from_numpy(generator.random(count, dtype=np.float32))
