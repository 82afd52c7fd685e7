from __future__ import annotations

from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """As in jobs (OMP_NUM_THREADS): for matrices this small, threads mostly wait for each other."""
    with threadpool_limits(1):
        yield
