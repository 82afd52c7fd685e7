"""How many rings NCCL can lay over GPUs that single NVLinks join, as in DGX-1's hybrid cube mesh.

Each NVLink carries one ring in each direction. So the number of rings is twice the number of cycles
through all GPUs that share no NVLink. They are searched for: there are 8 GPUs at most.
"""

from __future__ import annotations

from functools import lru_cache

_Edges = tuple[tuple[int, int, int], ...]


@lru_cache(maxsize=64)
def ring_count(links: _Edges, gpus: tuple[int, ...]) -> int:
    """The number of directed rings over these GPUs.

    Args:
        links: pairs of GPUs, the smaller one first, and the NVLinks between them.
        gpus: the GPUs.
    """
    place = {gpu: at for at, gpu in enumerate(gpus)}
    free = [[0] * len(gpus) for _ in gpus]
    for one, other, count in links:
        if one in place and other in place:
            free[place[one]][place[other]] = free[place[other]][place[one]] = count
    if len(gpus) == 2:
        return max(1, free[0][1])  # relayed if there is none
    # Without a cycle, NCCL relays one ring through a GPU in between.
    return 2 * max(1, _most_cycles(free, len(gpus)))


def _most_cycles(free: list[list[int]], gpus: int) -> int:
    """The most cycles that share no link; takes and gives back links of ``free``."""
    degree = min(sum(row) for row in free) // 2
    best = 0

    def extend(path: list[int], found: int) -> None:
        nonlocal best
        if best == degree:
            return
        here = path[-1]
        if len(path) == gpus:
            if free[here][0]:
                best = max(best, found + 1)
                _take(free, path, -1)
                extend([0], found + 1)
                _take(free, path, 1)
            return
        for to in range(1, gpus):
            if free[here][to] and to not in path:
                extend([*path, to], found)

    extend([0], 0)
    return best


def _take(free: list[list[int]], cycle: list[int], change: int) -> None:
    for one, other in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        free[one][other] += change
        free[other][one] += change
