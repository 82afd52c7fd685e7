"""byteprophet."""

from byteprophet.errors import PeerLost, TimedOut, UserError

__all__ = ["PeerLost", "TimedOut", "UserError"]
