"""What a paced job's parameters must be, computed from the formulas alone.

The formulas stand in ``gradient.py``. They are written here a second time on purpose, with numpy
instead of torch and without importing anything of the job, because a check that shares code with
what it checks shares its mistakes.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from byteprophet.workload.model import Workload

Float32Array = npt.NDArray[np.float32]

_PERIOD = 255


def expected_parameters(
    workload: Workload, workers: int, updates: int
) -> Iterator[tuple[str, Float32Array]]:
    """Name and values, shape (elements,), of each tensor in forward order, after training.

    ``workers`` ranks have made ``updates`` iterations, starting with iteration 0. Elements 255
    apart have the same pattern and so the same history: one period is computed, and repeated over
    the tensor.
    """
    for tensor in workload.tensors:
        crc = zlib.crc32(tensor.name.encode("utf-8"))
        places = (np.arange(_PERIOD, dtype=np.int64) + crc) % _PERIOD
        pattern = ((places - 127) / 128).astype(np.float32)
        parameter = pattern * np.float32(1 / 16)
        for iteration in range(updates):
            total = np.zeros(_PERIOD, dtype=np.float32)
            for rank in range(workers):
                total += pattern * np.float32((1 + (crc + 3 * rank + 5 * iteration) % 7) / 8)
            mean = total / np.float32(workers)
            parameter -= np.float32(1 / 16) * mean
        yield tensor.name, np.resize(parameter, tensor.elements)


def parameters_sha256(parameters: Iterable[tuple[str, Float32Array]]) -> str:
    """SHA-256, in hexadecimal, over the values as little-endian float32, in the order given.

    The names do not count. Raises ``TypeError`` for other types.
    """
    digest = hashlib.sha256()
    for name, values in parameters:
        if values.dtype != np.float32:
            raise TypeError(f"parameter '{name}' is {values.dtype}, must be float32")
        digest.update(np.ascontiguousarray(values, dtype="<f4").data)
    return digest.hexdigest()
