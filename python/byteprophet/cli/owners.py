"""``--owners``: how much each rank of a job without servers owns."""

from __future__ import annotations

from collections.abc import Sequence

from byteprophet.allreduce.levelled import levelled
from byteprophet.errors import UserError
from byteprophet.job.owners import Owners, parse_weights

EQUAL, AUTO = "equal", "auto"
OWNERS_HELP = (
    "Without servers: how much each rank owns of every gradient, as weights, e.g. 1,1,1,0; auto: so"
    " that the loads of links with these rates are level; equal"
)


def parse_owners(text: str, rates_bps: Sequence[int | None], local_ranks: int = 1) -> Owners:
    """The owners that ``text`` asks for.

    Args:
        text: weights, ``equal`` or ``auto``.
        rates_bps: the rate of each worker's link; None: no limit.
        local_ranks: the ranks that share a worker's link.

    Raises ``UserError`` if the weights do not fit the job.
    """
    if text == EQUAL:
        return Owners.equal(len(rates_bps) * local_ranks)
    if text == AUTO:
        return levelled(
            [(rate or 0) // local_ranks for rate in rates_bps for _ in range(local_ranks)]
        )
    try:
        weights = parse_weights(text, "--owners")
    except UserError as error:
        raise UserError(f"{error}, {EQUAL} or {AUTO}") from None
    return Owners.of(weights, len(rates_bps) * local_ranks)
