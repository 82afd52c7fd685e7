"""Finds the process groups of data parallelism.

Profiles give each group a name, a number in PyTorch, and mostly a description. The groups along one
axis of a mesh have one description, and each rank is in one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from byteprophet.errors import UserError
from byteprophet.traces.work import RankTrace


def data_parallel_groups(traces: Sequence[RankTrace], wanted: str) -> frozenset[str]:
    """The groups, as messages name them, that are those of data parallelism.

    Args:
        traces: the ranks' traces.
        wanted: a name or a description; "": the only one.

    Raises:
        UserError: there is no such group, it is not clear which one it is, or it is that of a part
            of the ranks.
    """
    of_trace = [_groups(trace) for trace in traces]
    groups = set[tuple[str, int]]().union(*of_trace)
    path = traces[0].path
    if not groups:
        raise UserError(f"{path}: has no collectives, so no other number of data-parallel ranks")
    names = _listed(name for name, _ in groups)
    if not wanted and len({_description(name) or name for name, _ in groups}) > 1:
        raise UserError(f"{path}: has several process groups: which is data parallelism's? {names}")
    found = {name for name, _ in groups if not wanted or wanted in (name, *name.split())}
    if not found:
        raise UserError(f"{path}: has no process group {wanted}, only {names}")
    for trace, its in zip(traces, of_trace, strict=True):
        own = found & {name for name, _ in its}
        if len(own) > 1:
            raise UserError(
                f"{trace.path}: {wanted or 'data parallelism'} is several process groups of this "
                f"rank: which is data parallelism's? {_listed(own)}"
            )
        if not own:
            _refuse_sibling(trace, its, {group for group in groups if group[0] in found})
    return frozenset(found)


def _refuse_sibling(
    trace: RankTrace, its: set[tuple[str, int]], found: set[tuple[str, int]]
) -> None:
    """Refuses a trace with another group of the same kind, which would keep its size."""
    descriptions = {_description(name) for name, _ in found}
    sizes = {size for name, size in found if not _description(name)}
    for name, size in sorted(its):
        description = _description(name)
        if description in descriptions if description else size in sizes:
            say = (
                f"use --group {description}" if description else "give traces of one group's ranks"
            )
            raise UserError(
                f"{trace.path}: is not in process group {_listed(one for one, _ in found)}, but in "
                f"{name or '(not named)'}, which may be data parallelism's too: {say}"
            )


def _groups(trace: RankTrace) -> set[tuple[str, int]]:
    """The groups of a rank's collectives, and their numbers of ranks."""
    return {
        (task.message.group, task.message.ranks)
        for task in trace.tasks
        if task.message is not None and not task.message.is_between_two
    }


def _description(group: str) -> str:
    return group.partition(" ")[2]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted({name or "(not named)" for name in names}))
