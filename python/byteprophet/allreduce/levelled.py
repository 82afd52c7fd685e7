"""How much each rank should own if links differ: the shares that level the load of the links.

In an all-reduce, a rank with the share s sends, and receives, 1 + (P - 2) s of every byte: its own
part to the owners of the rest, and its shard to all others. Loads of all ranks add up to 2 (P - 1)
whatever the shares are. So with rates b, no shares make the busiest link of an all-reduce of one
byte faster than

    T = max( 1 / min b,  2 (P - 1) / sum b )

and no other algorithm does (``bound.py``). ``levelled`` reaches T. It fills a vessel: there is one
level t such that every rank that owns anything has its link busy for t, and a rank whose own part
alone takes longer, 1 / b >= t, owns nothing. If all own something, t = 2 (P - 1) / sum b. If not,
those who own nothing are busy for longer than t, the slowest of them for T = 1 / min b. The loads
are the most even ones among all that reach T: to take load from a busy link below that level, some
other owner's link would have to be busier.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from byteprophet.job.owners import Owners

_FINE = 1 << 16
"""Weights are rounded to this sum if they have no smaller exact one."""


def levelled(rates_bps: Sequence[int]) -> Owners:
    """The owners whose links have the most even loads, for the rate of each rank's link.

    0: a link without a limit. Such ranks own everything, equally.
    """
    ranks = len(rates_bps)
    if 0 in rates_bps:
        return Owners.of([int(rate == 0) for rate in rates_bps], ranks)
    if ranks <= 2:  # every byte crosses both links, once in each direction
        return Owners.equal(ranks)
    total_bps = count = 0
    # A rank belongs to the owners as long as its own part takes less than the level,
    # t = (P - 2 + owners) / sum of their rates.
    for rate_bps in sorted(rates_bps, reverse=True):
        if count and rate_bps * (ranks - 2 + count) <= total_bps:
            break
        total_bps, count = total_bps + rate_bps, count + 1
    # (t b - 1) / (P - 2), times the common denominator.
    weights = [max(0, rate * (ranks - 2 + count) - total_bps) for rate in rates_bps]
    divisor = gcd(*weights)
    weights = [weight // divisor for weight in weights]
    if (sum_ := sum(weights)) > _FINE:
        weights = [round(weight * _FINE / sum_) for weight in weights]
    return Owners.of(weights, ranks)
