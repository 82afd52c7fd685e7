"""What BytePS could not carry is refused before it is sent."""

from __future__ import annotations

import pytest
import torch

from byteprophet.torch.sync import basics


@pytest.mark.parametrize(
    ("elements", "dtype", "fits"),
    [
        ((1 << 30) - 1, torch.float32, True),
        (1 << 30, torch.float32, False),
        ((1 << 30) - 1, torch.bfloat16, True),  # which travels as float32
        (1 << 30, torch.bfloat16, False),
        ((1 << 31) - 1, torch.float16, True),
        (1 << 29, torch.complex64, False),
    ],
)
def test_a_tensor_has_less_than_4_gib(elements: int, dtype: torch.dtype, fits: bool) -> None:
    tensor = torch.empty(elements, dtype=dtype, device="meta")
    if fits:
        basics.check_size("tensor 'a'", tensor)
        return
    with pytest.raises(ValueError, match=r"tensor 'a' takes 4294967296 bytes .* less than 4 GiB"):
        basics.check_size("tensor 'a'", tensor)
