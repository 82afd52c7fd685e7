"""Connects meshes that are all in this process."""

from __future__ import annotations

import socket


def connected(size: int) -> list[list[int]]:
    """The sockets of each rank to each other one, as ``_core.Mesh`` takes them."""
    sockets = [[-1] * size for _ in range(size)]
    for one in range(size):
        for other in range(one):
            for rank, peer, end in zip(
                (one, other), (other, one), socket.socketpair(), strict=True
            ):
                end.setblocking(False)
                sockets[rank][peer] = end.detach()
    return sockets
