"""The size of buffers that small gradients share, as the environment gives it."""

from __future__ import annotations

import pytest

from byteprophet.errors import UserError
from byteprophet.runtime_settings import (
    DEFAULT_FUSION_BYTES,
    FUSION_BYTES,
    LARGEST_FUSION_BYTES,
    RuntimeSettings,
)


def test_the_size_of_buffers() -> None:
    assert RuntimeSettings.from_environment({}).fusion_bytes == DEFAULT_FUSION_BYTES
    for size_bytes in (0, 1, LARGEST_FUSION_BYTES):
        settings = RuntimeSettings.from_environment({FUSION_BYTES: str(size_bytes)})
        assert settings.fusion_bytes == size_bytes


@pytest.mark.parametrize("text", ["", "-1", "1.5", "64k", str(LARGEST_FUSION_BYTES + 1)])
def test_a_wrong_size_is_named(text: str) -> None:
    with pytest.raises(UserError, match=f"{FUSION_BYTES}={text}: must be"):
        RuntimeSettings.from_environment({FUSION_BYTES: text})
