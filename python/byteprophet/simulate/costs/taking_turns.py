"""On a CPU, calls with different tensors take turns, so that these are in no cache, as in a model.

With the same tensors again and again, operators that memory limits are up to twice as fast, and
matrix products of a few hundred rows by a quarter. Tensors of a GPU are large enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

Run = Callable[[], Any]
_BEYOND_CACHES = {"cpu": 16 << 20, "cuda": 0}
_MOST = 256


def copies(device: str, size_bytes: int) -> int:
    """How many sets of tensors, of ``size_bytes`` each, are in no cache when their turn comes."""
    return min(_MOST, 1 + _BEYOND_CACHES[device] // max(1, size_bytes))


def sets(device: str, tensors: Sequence[Any]) -> list[list[Any]]:
    """The tensors, and as many copies of them as are in no cache when their turn comes."""
    count = copies(device, sum(one.nbytes for one in tensors))
    return [list(tensors), *([one.clone() for one in tensors] for _ in range(count - 1))]


def both_passes(torch: Any, forward: Run, inputs: Sequence[Any]) -> tuple[Run, Run]:
    """``forward``, and the backward pass of one that is kept, with the gradients of ``inputs``."""
    with torch.enable_grad():
        out = forward()
        gradient = torch.ones_like(out)
    return forward, lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def in_turn(runs: Sequence[Run]) -> Run:
    """Runs one after the other, each of which has run before. Their last outputs are kept, too."""
    kept = deque((run() for run in runs), maxlen=len(runs))
    turn = cycle(runs)
    return lambda: kept.append(next(turn)())
