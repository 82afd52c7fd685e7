"""Classifies errors of native code and torch.distributed by their text."""

from __future__ import annotations

import re

from byteprophet.errors import PeerLost, TimedOut

# native/exchange/inbox.cc, outbox.cc; native/byteps/heartbeat/push_pulls.cc
_LOST = re.compile(r"rank \d+ (is gone|has left the job)|takes no part in this one")
_TIMED_OUT = re.compile(r"tim(ed |e)out", re.IGNORECASE)


def by_text(text: str) -> RuntimeError:
    """Make the error for native code's message ``text``: ``PeerLost`` or ``RuntimeError``."""
    return PeerLost(text) if _LOST.search(text) else RuntimeError(text)


def of_collective(error: Exception, text: str) -> RuntimeError:
    """Make an error with message ``text``, after a collective or a store has raised ``error``."""
    if not isinstance(error, RuntimeError):  # other ranks have not caused it
        return RuntimeError(text)
    return TimedOut(text) if _TIMED_OUT.search(str(error)) else PeerLost(text)
