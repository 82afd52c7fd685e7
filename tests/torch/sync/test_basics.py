"""What BytePS could not carry is refused before it is sent; how waits for its calls end."""

from __future__ import annotations

import pytest
import torch
from torch import distributed

from byteprophet.errors import PeerLost, TimedOut
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


@pytest.mark.parametrize(
    ("environment", "joined", "expected"),
    [
        ({}, False, False),
        ({}, True, True),  # as of torch.multiprocessing
        ({"WORLD_SIZE": "2"}, False, True),
        ({"DMLC_NUM_WORKER": "2"}, True, False),
    ],
)
def test_whether_there_are_servers(
    environment: dict[str, str], joined: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "is_initialized", lambda: joined)
    assert basics.without_servers(environment) is expected


class Servers:
    """BytePS' calls. ``error``: how all of them end; None: never."""

    def __init__(self, error: str | None) -> None:
        self._error = error

    def push_pull_async_inplace(self, *_arguments: object) -> int:
        return 7

    def poll(self, _handle: int) -> bool:
        return self._error is not None

    def synchronize(self, _handle: int) -> None:
        raise RuntimeError(self._error)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        ("rank 1 has left the job", PeerLost, "rank 1 has left the job"),
        ("no memory", RuntimeError, "no memory"),
        (None, TimedOut, r"waited 0\.1 s for 'loss': another rank may not have called push_pull"),
    ],
)
def test_waits_for_servers_end_as_others_do(
    error: str | None, kind: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BYTEPROPHET_TIMEOUT_S", "0.1")
    monkeypatch.setattr(basics, "_calls", lambda: Servers(error))
    with pytest.raises(RuntimeError, match=text) as raised:
        basics.push_pull_inplace(torch.ones(1), name="loss")
    assert raised.type is kind
