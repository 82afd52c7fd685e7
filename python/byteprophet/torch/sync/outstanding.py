"""Outstanding updates and averages, for which ranks wait before they request what comes next.

Some exchanges begin operations in the order of rank 0's requests (``Exchange.in_order``). Another
rank may wait for an outstanding update, such as by reading a parameter, before it makes the same
request. Were an operation that the script causes begun before the all-gathers of that update, it
would wait for this rank, and this rank for it. So such operations are requested when no update is
outstanding, of whatever optimizer. What does not belong to an iteration (messages, unsharding) is
sent before all others, so delayed averages of earlier iterations must have arrived, too.

Threads: the training thread and autograd's. Neither the updaters' nor the exchanges' may call
these functions, because updates wait for them.
"""

from __future__ import annotations

from collections.abc import Callable

from byteprophet.torch.sync.exchange import Exchange

_finish: list[Callable[[bool], None]] = []


def finished_by(finish: Callable[[bool], None]) -> None:
    """Register what waits for updates and, if its argument is True, for delayed averages."""
    _finish.append(finish)


def finish_updates(exchange: Exchange, averages: bool = False) -> None:
    """Wait until no update is outstanding, if ``exchange`` begins operations in one order.

    With ``averages``, also wait for delayed averages of earlier iterations.
    """
    if exchange.in_order:
        for finish in _finish:
            finish(averages)
