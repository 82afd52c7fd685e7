"""Random timings, and those of networks of equal layers, whose iterations have closed forms."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from byteprophet.allreduce.groups import Groups
from byteprophet.allreduce.timing import Link, Parameter, Timing
from byteprophet.workload import load

NS_PER_BYTE = Link(ranks=2, bandwidth_bps=4 * 10**9)
"""Half of a byte goes over it, at half a byte per nanosecond."""

SWEEP = tuple(int(2 ** (18 + place * 8.6 / 19)) for place in range(20))
"""Twenty bucket sizes, 256 KiB to 100 MB."""

MODELS = ("resnet50", "densenet201", "inception-v4", "bert-base")
"""The paper's."""


def even(layers: int, *, forward_ns: int, backward_ns: int, all_reduce_ns: int) -> Timing:
    """Layers alike, with these times in all, multiples of twice their number; messages free."""
    parameters = tuple(
        Parameter(
            f"layer{place}.weight",
            all_reduce_ns // (2 * layers),
            (layers - place) * backward_ns // layers,
            forward_ns // layers,
        )
        for place in range(layers)
    )
    return Timing(parameters, backward_ns, NS_PER_BYTE)


def of_model(
    name: str, all_reduce_share: float, *, ranks: int = 4, message_cost_ns: int = 0
) -> Timing:
    """A built-in workload whose all-reduce takes so much of its compute."""
    workload = load(name)
    moved_bits = 2 * (ranks - 1) / ranks * workload.size_bytes * 8
    compute_ns = workload.forward_ns + workload.backward_ns
    bandwidth_bps = round(moved_bits * 1e9 / (all_reduce_share * compute_ns))
    return Timing.of_workload(workload, Link(ranks, bandwidth_bps, message_cost_ns))


@st.composite
def timings(draw: st.DrawFn, most: int = 7, longest_ns: int = 12) -> Timing:
    """Few distinct values, so that ties and gaps are common; any order of readiness."""
    count = draw(st.integers(1, most))
    backward_ns = draw(st.integers(0, longest_ns))
    ready = st.none() | st.integers(0, backward_ns)
    parameters = tuple(
        Parameter(
            f"layer{place // 2}.{place}",
            draw(st.integers(1, 9)),
            draw(ready),
            draw(st.integers(0, 4)),
        )
        for place in range(count)
    )
    link = Link(draw(st.integers(2, 4)), draw(st.sampled_from([3, 4, 8])) * 10**9, draw(costs))
    return Timing(parameters, backward_ns, link)


costs = st.sampled_from([0, 0, 1, 3])


@st.composite
def partitions(draw: st.DrawFn, count: int) -> Groups:
    """Of so many places, in any order and of any sizes."""
    places = draw(st.permutations(range(count)))
    cuts = sorted(draw(st.sets(st.integers(1, count - 1)))) if count > 1 else []
    edges = [0, *cuts, count]
    return tuple(tuple(places[a:b]) for a, b in pairwise(edges))
