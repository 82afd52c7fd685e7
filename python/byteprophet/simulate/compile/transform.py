"""Infers the collectives that bring a tensor from one layout into another.

The rules hold for each mesh axis on its own. Those that make the tensor smaller come first, so that
later collectives move fewer bytes. Axes with the same change share one collective.

| from | to | collective |
|---|---|---|
| partial sum | split | reduce-scatter |
| partial sum | replicated | all-reduce |
| split | replicated | all-gather |
| split | split along another axis | all-to-all |
| replicated | split | none: each rank keeps its part |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from byteprophet.simulate.compile.steps import Collective, CollectiveKind, Phase
from byteprophet.simulate.operation.layout import Layout
from byteprophet.simulate.operation.mesh import AXES, Mesh

RING = {CollectiveKind.ALL_GATHER: 1.0, CollectiveKind.REDUCE_SCATTER: 2.0}
"""How often a tensor is passed around instead of a collective, in Liu et al. 2023."""
_WIDER = 2
"""Bytes of a gradient in PyTorch's ring attention over those of a 16-bit one: it has 32 bits."""


def transform(
    source: Layout, target: Layout, whole_bytes: int, mesh: Mesh, phase: Phase
) -> tuple[Collective, ...]:
    """The collectives that bring a tensor of ``whole_bytes`` from ``source`` into ``target``.

    ``target`` has no partial sums.
    """
    if source == target:
        return ()
    scattered, moved, reduced, gathered, kept = _changes(source, target)
    local = whole_bytes // source.parts(mesh) // mesh.parts(kept)
    done: list[Collective] = []

    def add(kind: CollectiveKind, axes: Sequence[str]) -> None:
        if axes and mesh.parts(axes) > 1:
            done.append(Collective(kind, tuple(axes), local, phase))

    add(CollectiveKind.REDUCE_SCATTER, scattered)
    local //= mesh.parts(scattered)
    add(CollectiveKind.ALL_TO_ALL, moved)
    add(CollectiveKind.ALL_REDUCE, reduced)
    local *= mesh.parts(gathered)
    add(CollectiveKind.ALL_GATHER, gathered)
    return tuple(done)


def gathered_axes(source: Layout, target: Layout) -> tuple[str, ...]:
    """The mesh axes over which a tensor is gathered, if nothing else brings it into ``target``."""
    scattered, moved, reduced, gathered, kept = _changes(source, target)
    return () if scattered or moved or reduced or kept else tuple(gathered)


def ring_of_pytorch(ranks: int, repeats: int) -> dict[CollectiveKind, float]:
    """As ``RING``, for ``torch.distributed.tensor.experimental.context_parallel``.

    Its source (``_templated_ring_attention`` and its backward pass, PyTorch 2.6 to 2.13) says:

    - Keys and values that were repeated for each head of queries travel so.
    - Forward, all ranks' keys and values are gathered at once. Backward, they are gathered again.
    - Their gradients have 32 bits, and travel ``ranks`` times, not ``ranks - 1``: the last time,
      they go home.

    Args:
        ranks: the context-parallel ranks.
        repeats: the heads of queries per head of keys.
    """
    if ranks == 1:
        return dict(RING)
    home = ranks / (ranks - 1)
    return {
        CollectiveKind.ALL_GATHER: float(repeats),
        CollectiveKind.REDUCE_SCATTER: repeats * (1 + _WIDER * home),
    }


def in_ring(
    steps: Sequence[Collective], rounds: Mapping[CollectiveKind, float] = RING
) -> tuple[tuple[Collective, ...], bool]:
    """``steps`` for ring attention, and whether it changes any of them.

    Instead of gathering keys or values, context-parallel ranks pass their parts around. Backward,
    they pass them around again, and their gradients with them. ``rounds``: how often, by the
    collective in whose place they do.
    """
    found: list[Collective] = []
    changed = False
    for step in steps:
        times = rounds.get(step.kind, 0.0) if step.axes == ("cp",) else 0.0
        changed |= times > 0
        found.append(
            replace(step, kind=CollectiveKind.SEND, size_bytes=round(times * step.size_bytes))
            if times
            else step
        )
    return tuple(found), changed


def _changes(source: Layout, target: Layout) -> tuple[list[str], ...]:
    """The mesh axes that scatter, move, reduce, gather, and keep a part, each innermost first."""
    scattered: list[str] = []
    moved: list[str] = []
    reduced: list[str] = []
    gathered: list[str] = []
    kept: list[str] = []
    for axis in AXES:
        before, after = source.where(axis), target.where(axis)
        if axis in source.partial:
            (reduced if after is None else scattered).append(axis)
        elif before is None and after is not None:
            kept.append(axis)
        elif before is not None and after is None:
            gathered.append(axis)
        elif before != after:
            moved.append(axis)
    return scattered, moved, reduced, gathered, kept
