"""Classifies errors of native code and torch.distributed."""

from __future__ import annotations

import re

from torch import distributed

from byteprophet.errors import PeerLost, TimedOut

# native/exchange/inbox.cc, outbox.cc; native/byteps/heartbeat/push_pulls.cc
_LOST = re.compile(r"rank \d+ (is gone|has left the job)|takes no part in this one")
_TIMED_OUT = re.compile(r"tim(ed |e)out", re.IGNORECASE)
_GLOO_TRANSPORT = re.compile(r"gloo/transport/|connection (closed|reset|refused)", re.IGNORECASE)


def by_text(text: str) -> RuntimeError:
    """Make the error for native code's message ``text``: ``PeerLost`` or ``RuntimeError``."""
    return PeerLost(text) if _LOST.search(text) else RuntimeError(text)


def is_of_others(error: Exception) -> bool:
    """Whether other ranks have caused ``error``, which a collective or a store has raised.

    NCCL and stores raise errors of their own class. Gloo raises plain ones, like torch itself where
    memory is short or an argument is wrong.
    """
    if isinstance(error, distributed.DistError):
        return True
    text = str(error)
    told = _TIMED_OUT.search(text) or _GLOO_TRANSPORT.search(text)
    return type(error) is RuntimeError and told is not None


def is_timeout(error: Exception) -> bool:
    """Whether a time limit has passed, and nothing else is wrong."""
    return _TIMED_OUT.search(str(error)) is not None


def of_collective(error: Exception, text: str) -> RuntimeError:
    """Make an error with message ``text``, after a collective or a store has raised ``error``."""
    if not is_of_others(error):
        return RuntimeError(text)
    return TimedOut(text) if is_timeout(error) else PeerLost(text)
