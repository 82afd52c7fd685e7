"""Which small gradients share a buffer on their way to servers, as plain data equal on all ranks.

Every message costs processor time on workers and servers, and a small one costs more to handle than
to send. So neighbours in the agreed forward order share a buffer. A buffer is needed as early as
its first member and ready as late as its last one, so its size is limited. No buffer is larger than
everything that forward needs before it, so forward begins as early as without fusion. And none is
larger than everything behind it, whose gradients are ready earlier, so the link is busy as early as
without fusion. Larger tensors travel alone, and so does each parameter that may not be fused.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

_EDGE_BYTES = 16 << 10  # the first and the last buffer: a millisecond on a link of 130 Mbit/s


class Small(Protocol):
    """A gradient that may be fused. Only gradients of one kind share a buffer."""

    @property
    def size_bytes(self) -> int:
        """The size of its parameter."""

    @property
    def kind(self) -> Hashable:
        """What all gradients of a buffer have in common."""


def messages(
    order: Sequence[str],
    sizes_bytes: Mapping[str, int],
    small: Mapping[str, Small],
    limit_bytes: int,
) -> list[tuple[str, ...]]:
    """Divide parameters into messages, in forward order. One with several members is a buffer.

    Args:
        order: all parameters, in the order in which forward needs them.
        sizes_bytes: the size of each parameter.
        small: the parameters that may be fused.
        limit_bytes: the size of a buffer. 0: every parameter travels alone.
    """
    found: list[tuple[str, ...]] = []
    members: list[str] = []
    filled_bytes = before_bytes = 0  # of the current buffer; of all before it
    all_bytes = sum(sizes_bytes[name] for name in order)

    def close() -> None:
        nonlocal filled_bytes, before_bytes
        if members:
            found.append(tuple(members))
            members.clear()
            before_bytes += filled_bytes
            filled_bytes = 0

    for name in order:
        own = small.get(name)
        if own is None:
            close()
            found.append((name,))
            before_bytes += sizes_bytes[name]
            continue
        size_bytes = filled_bytes + own.size_bytes
        least_around = min(before_bytes, all_bytes - before_bytes - size_bytes)
        full = size_bytes > min(limit_bytes, max(_EDGE_BYTES, least_around))
        if full or (members and own.kind != small[members[-1]].kind):
            close()
        members.append(name)
        filled_bytes += own.size_bytes
    close()
    return found
