"""One rank: PORT of the TCPStore, RANK, SIZE. Prints one number of an all-reduce of two halves.

With a fourth argument it only stays until it is killed.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from torch.distributed import TCPStore

from byteprophet.allreduce.address import route_address
from byteprophet.allreduce.meeting import Meeting
from byteprophet.allreduce.mesh import connect

LONG_S = 120.0


def main() -> None:
    port, rank, size = map(int, sys.argv[1:4])
    store = TCPStore("127.0.0.1", port, None, is_master=False, wait_for_workers=False)
    meeting = Meeting(store, "mesh", LONG_S)
    mesh = connect(meeting, rank, size, address=route_address("127.0.0.1"))
    if len(sys.argv) > 4:
        time.sleep(LONG_S)
    values = np.full(300_001, (rank + 1) ** 2, np.float64)
    tensors = [(values.ctypes.data, values.size)]
    mesh.reduce(0, tensors, "float64", False, 1)
    assert mesh.completed(LONG_S) == [(0, None)]
    mesh.gather(1, tensors, "float64", 0)
    assert mesh.completed(LONG_S) == [(1, None)]
    assert (values == values[0]).all()
    mesh.close(LONG_S)
    print(values[0])


if __name__ == "__main__":
    main()
