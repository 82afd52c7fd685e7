"""The schedulers by name: the policies of the core, and "stock", which is BytePS as shipped."""

from __future__ import annotations

from collections.abc import Mapping

from byteprophet import _core
from byteprophet.errors import UserError

STOCK = "stock"
DEFAULT = "prophet"
PARTITION, LARGEST_PARTITION = "partition_bytes", "partition_max_bytes"
PLANNED_FOR = "plan_bandwidth_bps"
"""The setting of a policy that plans an order: the slowest link's rate; 0: it plans none."""
WINDOW_FLOOR, WINDOW_MAX = "window_floor_bytes", "window_max_bytes"
"""Settings of a policy that limits what is in flight; a floor of 0 follows the link."""
COMMON_ORDER = "common_order"
"""The setting of a policy whose workers agree on a planned order among themselves if it is 1."""
BANDWIDTH = "bandwidth_bps"
"""The setting of a policy that estimates its link, unless it is given the rate; 0: it is not."""
STOCK_PARTITION_BYTES = 4_096_000
"""BytePS' own."""
MAX_PARTITION_BYTES = 2**30
"""As in prophet/settings.h."""

PLANNED = frozenset({"prophet", "prophet-paper"})
"""Those that use plans, and so have a controller unless it is switched off."""

names: tuple[str, ...] = (STOCK, *_core.policy_names())


def resolve(
    name: str, overrides: Mapping[str, int], partition_bytes: int | None = None
) -> tuple[dict[str, int], int]:
    """The complete settings of scheduler ``name`` and the partition size to start BytePS with.

    ``overrides`` replace defaults; ``partition_bytes`` is another way to write the setting of that
    name. The settings of "stock" are only that. UserError names what is unknown or out of range.
    """
    if name not in names:
        raise UserError(f"scheduler {name!r}: choose one of {', '.join(names)}")
    chosen = dict(overrides)
    if partition_bytes is not None:
        chosen.setdefault(PARTITION, partition_bytes)
    if partition_bytes not in (None, chosen.get(PARTITION)):
        raise UserError(
            f"partition bytes {partition_bytes}, but setting {PARTITION}={chosen[PARTITION]}:"
            " give one of them"
        )
    if name == STOCK:
        unknown = sorted(set(chosen) - {PARTITION})
        if unknown:
            raise UserError(f"setting {unknown[0]!r}: {STOCK} has only {PARTITION}")
        settings = {PARTITION: STOCK_PARTITION_BYTES, **chosen}
    else:
        try:
            _core.Policy(name, chosen)
        except ValueError as error:
            raise UserError(str(error)) from None
        except TypeError:
            raise UserError(f"settings of {name}: must be integers of at most 64 bits") from None
        defaults = _core.default_settings(name)
        if PARTITION in chosen and LARGEST_PARTITION in defaults:
            chosen.setdefault(LARGEST_PARTITION, 0)  # a size that is given stays
        settings = {**defaults, **chosen}
    if not 0 < settings[PARTITION] <= MAX_PARTITION_BYTES:
        raise UserError(
            f"setting {PARTITION}={settings[PARTITION]}: must be from 1 to {MAX_PARTITION_BYTES}"
        )
    return settings, settings[PARTITION]


def settings_text(settings: Mapping[str, int]) -> str:
    """``name=value,...``, which ``_core.parse_settings`` reads."""
    return ",".join(f"{name}={value}" for name, value in settings.items())


def preferred_partition_bytes(name: str, settings: Mapping[str, int], link_bps: int) -> int | None:
    """The partition size that a policy prefers on a link of this payload rate; None: no wish.

    ``name``: of a policy that has the setting ``BANDWIDTH``.
    """
    return _core.Policy(name, {**settings, BANDWIDTH: link_bps}).preferred_partition_bytes
