"""The settings to choose from, per scheduler, as data.

Values are powers of two; credit also has one value between each two. Neighbours differ by a few
percent at most, and the candidates are few enough to evaluate the model at all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import product

from byteprophet.errors import UserError

_KIB, _MIB = 1 << 10, 1 << 20
_MOST_MESSAGES = 256  # most messages that any policy has in flight per server; more has no effect

Settings = dict[str, int]


@dataclass(frozen=True)
class Space:
    """``values`` by setting, in ascending order; ``allows`` tells which combinations are useful."""

    values: Mapping[str, tuple[int, ...]]
    allows: Callable[[Mapping[str, int]], bool] = lambda settings: True


def _powers_of_two(first: int, last: int) -> tuple[int, ...]:
    return tuple(1 << n for n in range(first.bit_length() - 1, last.bit_length()))


def _with_middles(powers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted({*powers, *(power + power // 2 for power in powers[:-1])}))


def _credit_is_useful(settings: Mapping[str, int]) -> bool:
    messages = settings["credit_bytes"] / settings["partition_bytes"]
    return 1 <= messages <= _MOST_MESSAGES


SPACES: Mapping[str, Space] = {
    "p3": Space(
        {
            "partition_bytes": _powers_of_two(32 * _KIB, 4 * _MIB),
            "outstanding_messages": _powers_of_two(1, 32),
        }
    ),
    "bytescheduler": Space(
        {
            "partition_bytes": _powers_of_two(64 * _KIB, 4 * _MIB),
            "credit_bytes": _with_middles(_powers_of_two(64 * _KIB, 64 * _MIB)),
        },
        _credit_is_useful,
    ),
}


def free_settings(scheduler: str, pinned: Collection[str] = ()) -> tuple[str, ...]:
    """The settings of ``scheduler`` that can be tuned and are not ``pinned``; UserError if none."""
    if scheduler not in SPACES:
        raise UserError(
            f"scheduler {scheduler!r} has nothing to tune; these have: {', '.join(SPACES)}"
        )
    free = tuple(name for name in SPACES[scheduler].values if name not in pinned)
    if not free:
        raise UserError(
            f"scheduler {scheduler!r}: nothing is left to tune, because all settings are given"
        )
    return free


def candidates(
    scheduler: str, free: Collection[str], settings: Mapping[str, int]
) -> list[Settings]:
    """Every choice of the ``free`` settings, in a fixed order; the others are as in ``settings``.

    UserError if a name cannot be tuned, or no choice suits the other settings.
    """
    space = SPACES[scheduler] if scheduler in SPACES else Space({})
    unknown = sorted(set(free) - set(space.values))
    if unknown or not free:
        raise UserError(
            f"scheduler {scheduler!r} cannot tune {', '.join(unknown) or 'nothing'}; "
            f"it can tune {', '.join(space.values) or 'no setting'}"
        )
    names = [name for name in space.values if name in free]
    found = [
        dict(zip(names, choice, strict=True))
        for choice in product(*(space.values[name] for name in names))
        if space.allows({**settings, **dict(zip(names, choice, strict=True))})
    ]
    if not found:
        raise UserError(f"scheduler {scheduler!r}: no {', '.join(names)} fits the settings given")
    return found
