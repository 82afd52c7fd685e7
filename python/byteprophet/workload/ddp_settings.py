"""What a paced job tells DistributedDataParallel; booleans are 0 or 1.

The defaults are the strongest we know on slow links: buckets far smaller than PyTorch's 25 MiB, so
that the link has work early and little is left to do when backward ends; gradients that live in
their buckets; a graph that is known to be the same in every iteration.
"""

from __future__ import annotations

from collections.abc import Mapping

from byteprophet.errors import UserError

DEFAULTS: Mapping[str, int] = {
    "bucket_cap_mb": 4,
    "gradient_as_bucket_view": 1,
    "static_graph": 1,
}
_LARGEST: Mapping[str, int] = {"bucket_cap_mb": 1 << 20}


def resolve(overrides: Mapping[str, int]) -> dict[str, int]:
    """All settings; UserError for what is unknown or out of range."""
    for name, value in overrides.items():
        if name not in DEFAULTS:
            raise UserError(f"setting {name!r}: of ddp there are {', '.join(DEFAULTS)}")
        smallest, largest = (1, _LARGEST[name]) if name in _LARGEST else (0, 1)
        if not smallest <= value <= largest:
            raise UserError(f"setting {name}={value}: must be from {smallest} to {largest}")
    return {**DEFAULTS, **overrides}
