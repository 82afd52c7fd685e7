"""Rules that divide the parameters into groups (buckets), in the order of readiness.

A group is a tuple of indices into ``Timing.parameters``. The rules here use only sizes, names or
times. ``grouping.py`` searches for groups by means of a model of the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from byteprophet.allreduce.timing import Timing

Groups = tuple[tuple[int, ...], ...]

BUCKET_BYTES = tuple(sorted({part << n for part in (2, 3) for n in range(17, 26)}))
"""Bucket sizes worth trying, 256 KiB to 96 MiB: powers of two, and one value between each two."""


def fixed_size(timing: Timing, bucket_bytes: int, order: Sequence[int] | None = None) -> Groups:
    """Make groups of at most ``bucket_bytes``. A larger parameter is a group of its own.

    ``order``: all parameters, in the order of readiness; None: as in ``timing``.
    """
    sizes = [parameter.size_bytes for parameter in timing.parameters]
    filled = 0

    def starts(place: int) -> bool:
        nonlocal filled
        fits = filled + sizes[place] <= bucket_bytes
        filled = filled + sizes[place] if fits else sizes[place]
        return not fits

    return _cut(timing.by_readiness if order is None else order, starts)


def near_layer(timing: Timing, layers: int) -> Groups:
    """Make groups of ``layers`` layers that become ready one after the other.

    This is DeAR-NL; the paper uses four layers. Parameters belong to the same layer if their names
    are equal up to the last dot.
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
    """Make groups by merged-gradient WFBP (Shi et al., INFOCOM 2019), for FIFO all-reduces.

    A gradient joins the preceding group if that delays the group by less than it saves. It saves
    one all-reduce, that is, alpha for each of its two halves. The rule looks only one gradient
    ahead. So if gradients become ready at shorter intervals than alpha, it waits for too many of
    them (densenet201 with alpha 2 ms: 10% slower than with the best bucket size).
    ``grouping.best_groups("allreduce", timing)`` is never worse.
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
                free_ns = start_ns + link.reduce_ns(size_bytes) + link.gather_ns(size_bytes)
            size_bytes = 0
        start_ns = max(free_ns, ready_ns)
        size_bytes += timing.parameters[place].size_bytes
        return alone

    return _cut(timing.by_readiness, starts)


def _cut(places: Iterable[int], starts: Callable[[int], bool]) -> Groups:
    """Divide ``places`` into groups, beginning one at each place for which ``starts`` is true.

    ``starts`` is called once for each place, in order.
    """
    groups: list[list[int]] = []
    for place in places:
        if starts(place) or not groups:
            groups.append([])
        groups[-1].append(place)
    return tuple(tuple(group) for group in groups)
