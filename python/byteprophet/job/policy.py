"""The scheduler in front of pushes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Policy:
    """A scheduling policy by its name in the registry, or "stock", with all its ``settings``.

    ``ready_times``: the profile that it is given beforehand, as rows of (tensor, priority,
    ready_ns, spread_ns).
    """

    name: str
    settings: Mapping[str, int] = field(default_factory=dict)
    ready_times: tuple[tuple[int, int, int, int], ...] = ()
