"""byteprophet."""

from byteprophet.errors import PeerLost, TimedOut

__all__ = ["PeerLost", "TimedOut"]
