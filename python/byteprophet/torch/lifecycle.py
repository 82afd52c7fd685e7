"""Stopping BytePS without leaving anything of ours on the way."""

from __future__ import annotations

from byteps.torch import ops

from byteprophet.torch import flush


def shutdown() -> None:
    """Finish what is under way, then shut BytePS down."""
    flush.stop_all()
    ops.shutdown()


def suspend() -> None:
    """Finish what is under way, then suspend BytePS; ``resume`` continues."""
    flush.stop_all()
    ops.suspend()
