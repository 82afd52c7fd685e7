"""Makes columns orthogonal, with the same bits on every machine.

Libraries of linear algebra, and even sums, add in an order that depends on the processor and on the
number of threads. Here, a dot product is a sum of whole numbers, which is exact in any order, and
all else is elementwise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_BITS = 62  # of a sum of whole numbers
_LEFT_OVER = 1e-6


def dot(one: Tensor, other: Tensor) -> float:
    """The dot product of vectors (n,) of float32.

    Products are exact in float64. They are rounded to multiples of a power of 2, which is as small
    as the sum allows: 2 to the power of -62 times n times the largest product.
    """
    products = one.double() * other.double()
    largest = float(products.abs().max())
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    shift = _BITS - len(products).bit_length() - math.frexp(largest)[1]
    # In two steps, because the power may be too large for a number.
    scaled = products.mul_(2.0 ** (shift // 2)).mul_(2.0 ** (shift - shift // 2))
    return math.ldexp(int(scaled.round_().to(torch.int64).sum()), -shift)


def orthogonalise(columns: Tensor) -> None:
    """Make the rows of ``columns`` (r, n) orthonormal, in place, by Gram and Schmidt's method.

    A row that depends on those before it becomes 0.
    """
    for number, row in enumerate(columns):
        before = dot(row, row)
        for _ in range(2):  # the second time removes what rounding has left
            for former in columns[:number]:
                row -= former * dot(former, row)
        after = dot(row, row)
        if after <= before * _LEFT_OVER**2:
            row.zero_()
        else:
            row /= math.sqrt(after)
