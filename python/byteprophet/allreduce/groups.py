"""Parameters that travel together: partitions of them in the order of their readiness.

A group is a tuple of places in ``Timing.parameters``. The rules here look at sizes, names or
times alone; ``grouping.py`` searches with the model of a runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from byteprophet.allreduce.timing import Timing

Groups = tuple[tuple[int, ...], ...]

BUFFER_BYTES = tuple(sorted({part << n for part in (2, 3) for n in range(17, 26)}))
"""Buffer sizes worth trying, 256 KiB to 96 MiB: powers of two, and one value between."""


def fixed_size(timing: Timing, buffer_bytes: int) -> Groups:
    """Groups of at most so many bytes; a larger parameter is a group of its own."""
    sizes = [parameter.size_bytes for parameter in timing.parameters]
    filled = 0

    def starts(place: int) -> bool:
        nonlocal filled
        fits = filled + sizes[place] <= buffer_bytes
        filled = filled + sizes[place] if fits else sizes[place]
        return not fits

    return _cut(timing.by_readiness, starts)


def near_layer(timing: Timing, layers: int) -> Groups:
    """Groups of so many layers that are neighbours in readiness (DeAR-NL; the paper takes four).

    Parameters are of one layer if their names differ in nothing before the last dot.
    """
    if layers < 1:
        raise ValueError(f"{layers} layers: must be at least one")
    current: str | None = None
    count = 0

    def starts(place: int) -> bool:
        nonlocal current, count
        layer = timing.parameters[place].name.rpartition(".")[0]
        if layer and layer == current:
            return False
        current, count = layer, count + 1
        return count % layers == 1 % layers

    return _cut(timing.by_readiness, starts)


def merged_gradient(timing: Timing) -> Groups:
    """Merged-gradient WFBP (Shi et al., INFOCOM 2019): for all-reduces, first in first out.

    A gradient joins the group before it if waiting for it delays that group by less than an
    all-reduce less saves: alpha for either half. The rule sees one gradient ahead, so where
    gradients come closer together than that, it waits for too many (densenet201, alpha 2 ms: 10%
    behind the best buffer size); ``grouping.best_groups("allreduce", timing)`` is never worse.
    """
    link = timing.link
    saved_ns = 2 * link.message_cost_ns
    free_ns = start_ns = size_bytes = 0

    def starts(place: int) -> bool:
        nonlocal free_ns, start_ns, size_bytes
        ready_ns = timing.ready_ns[place]
        alone = size_bytes == 0 or ready_ns - start_ns >= saved_ns
        if alone:
            if size_bytes:
                free_ns = start_ns + 2 * link.half_ns(size_bytes)
            size_bytes = 0
        start_ns = max(free_ns, ready_ns)
        size_bytes += timing.parameters[place].size_bytes
        return alone

    return _cut(timing.by_readiness, starts)


def _cut(places: Iterable[int], starts: Callable[[int], bool]) -> Groups:
    """``places`` in their order, a new group at each that ``starts`` one; asked once for each."""
    groups: list[list[int]] = []
    for place in places:
        if starts(place) or not groups:
            groups.append([])
        groups[-1].append(place)
    return tuple(tuple(group) for group in groups)
