"""Sums small integers over all ranks, as a tensor of BytePS.

Threads: everything here runs in the training thread, which waits for the other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import mxnet as mx
from byteps.mxnet import ops

from byteprophet.mxnet.waiting import wait_for


def summed(values: Sequence[int], name: str, what: str) -> list[int]:
    """The sums of all ranks' ``values``. All ranks must call this at the same time.

    ``name`` is that of the tensor, whose size must not change, so the length is added to it.
    ``what`` names what this rank waits for if the others do not answer.
    """
    name = f"{name}.{len(values)}"
    message = mx.nd.array(values, dtype="int32")
    ops.byteps_declare_tensor(name)
    ops.byteps_push_pull(message, priority=0, name=name, is_average=False)
    wait_for(message.wait_to_read, what)
    return [int(value) for value in message.asnumpy()]
