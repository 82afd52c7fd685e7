"""Computes the expected parameters of a paced job from the formulas alone.

``gradient.py`` has the same formulas. They are written twice on purpose, here with numpy instead of
torch and without importing the job's code, because a check that shares code with what it checks
also shares its mistakes.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from byteprophet.workload.model import Workload

Float32Array = npt.NDArray[np.float32]

_PERIOD = 255


def expected_parameters(
    workload: Workload,
    workers: int,
    updates: int,
    delays: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[tuple[str, Float32Array]]:
    """Yields the name and the values, shape (elements,), of each tensor after training.

    Tensors come in forward order. ``workers`` ranks have made ``updates`` iterations, from
    iteration 0 on. Elements that are 255 apart have the same pattern, and so the same values. So
    one period is computed and repeated over the tensor. ``delays``: how many iterations old the
    averages are by which a tensor is updated; 0 for those that have no entry.
    """
    for tensor in workload.tensors:
        crc = zlib.crc32(tensor.name.encode("utf-8"))
        places = (np.arange(_PERIOD, dtype=np.int64) + crc) % _PERIOD
        pattern = ((places - 127) / 128).astype(np.float32)
        parameter = pattern * np.float32(1 / 16)
        for iteration in range(updates - delays.get(tensor.name, 0)):
            total = np.zeros(_PERIOD, dtype=np.float32)
            for rank in range(workers):
                total += pattern * np.float32((1 + (crc + 3 * rank + 5 * iteration) % 7) / 8)
            mean = total / np.float32(workers)
            parameter -= np.float32(1 / 16) * mean
        yield tensor.name, np.resize(parameter, tensor.elements)


def parameters_sha256(parameters: Iterable[tuple[str, Float32Array]]) -> str:
    """The SHA-256, in hexadecimal, of the values as little-endian float32, in the given order.

    The names are not part of it. Raises ``TypeError`` if values are not float32.
    """
    digest = hashlib.sha256()
    for name, values in parameters:
        if values.dtype != np.float32:
            raise TypeError(f"parameter '{name}' is {values.dtype}, must be float32")
        digest.update(np.ascontiguousarray(values, dtype="<f4").data)
    return digest.hexdigest()
