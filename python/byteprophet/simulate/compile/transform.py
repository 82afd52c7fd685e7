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

from collections.abc import Sequence
from dataclasses import replace

from byteprophet.simulate.compile.steps import Collective, CollectiveKind, Phase
from byteprophet.simulate.operation.layout import Layout
from byteprophet.simulate.operation.mesh import AXES, Mesh

_RING_TIMES = {CollectiveKind.ALL_GATHER: 1, CollectiveKind.REDUCE_SCATTER: 2}
"""How often a tensor is passed around instead of a collective."""


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


def in_ring(steps: Sequence[Collective]) -> tuple[tuple[Collective, ...], bool]:
    """``steps`` for ring attention (Liu et al. 2023), and whether it changes any of them.

    Instead of gathering keys or values, context-parallel ranks pass their parts around. Backward,
    they pass them around again, and their gradients with them.
    """
    found: list[Collective] = []
    changed = False
    for step in steps:
        times = _RING_TIMES.get(step.kind, 0) if step.axes == ("cp",) else 0
        changed |= times > 0
        found.append(
            replace(step, kind=CollectiveKind.SEND, size_bytes=times * step.size_bytes)
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
