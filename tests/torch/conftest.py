"""A network in one process, for tests of the front alone.

It stands in for BytePS' network only, and is nastier: a tensor under way holds rubbish, transfers
finish late and in any order, and a test can hold them back.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from byteprophet.job.staleness import NO_DELAYS
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.tensor_names import gradient_name
from byteprophet.torch import live_fronts
from byteprophet.torch.front import stopping
from byteprophet.torch.optimizer import Uncompressed, distribute
from byteprophet.torch.sync import fused_synchroniser
from byteprophet.torch.sync.fused_synchroniser import FusedSynchroniser
from byteprophet.torch.sync.synchroniser import Unsharded

from .case_results import run_single

Done = Callable[[BaseException | None], None]


@dataclass(eq=False)
class Round:
    """One name's tensors, one per rank, until they are reduced."""

    name: str
    average: bool
    tensors: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    done: dict[int, Done] = field(default_factory=dict)


class Network:
    """Reduces tensors of ``size`` ranks in a thread of its own."""

    def __init__(self, size: int = 1, seed: int = 0, late_s: float = 0.0) -> None:
        self.size = size
        self.submitted: list[tuple[int, str, int]] = []  # rank, name, priority
        self.failures: dict[str, BaseException] = {}
        self.iterations = 0
        self._random = random.Random(seed)
        self._late_s = late_s
        self._changed = threading.Condition()
        self._open: dict[str, Round] = {}
        self._complete: list[Round] = []
        self._held: Callable[[str], bool] = lambda name: False
        self._stopping = False
        self._reducing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def rank(self, rank: int = 0) -> Member:
        return Member(self, rank)

    def hold(self, which: Callable[[str], bool]) -> None:
        with self._changed:
            self._held = which
            self._changed.notify_all()

    def release(self) -> None:
        self.hold(lambda name: False)

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout=10)

    def join_round(
        self, rank: int, name: str, tensor: Tensor, priority: int, average: bool, done: Done
    ) -> None:
        with self._changed:
            self.submitted.append((rank, name, priority))
            turn = self._open.setdefault(name, Round(name, average))
            assert rank not in turn.tensors, f"{name} was submitted again while under way"
            turn.tensors[rank] = tensor
            turn.values[rank] = tensor.clone()
            tensor.fill_(float("nan") if tensor.is_floating_point() else 77)
            turn.done[rank] = done
            if len(turn.tensors) == self.size:
                self._complete.append(self._open.pop(name))
                self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                free = [turn for turn in self._complete if not self._held(turn.name)]
                while not free:
                    if self._stopping:
                        return
                    self._changed.wait()
                    free = [turn for turn in self._complete if not self._held(turn.name)]
                turn = self._random.choice(free)
                self._complete.remove(turn)
                self._reducing = True
                if self._late_s:
                    self._changed.wait(self._random.uniform(0, self._late_s))
            self._reduce(turn)
            del turn, free  # as in every synchroniser, this thread holds nothing while it waits
            with self._changed:
                self._reducing = False
                self._changed.notify_all()

    def _reduce(self, turn: Round) -> None:
        total = sum(turn.values[rank] for rank in range(1, self.size)) + turn.values[0]
        for rank, done in turn.done.items():
            turn.tensors[rank].copy_(total / self.size if turn.average else total)
            done(self.failures.get(turn.name))

    def let_go(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._reducing, timeout_s)


class Member(Unsharded):
    """One rank's ``Synchroniser``."""

    def __init__(self, network: Network, rank: int) -> None:
        self._network = network
        self.rank = rank
        self.size = network.size
        self.declared: list[str] = []
        self.reconfigured: list[dict[str, int]] = []
        self.preferred_bytes = 0
        self.names: dict[str, Any] = {}

    def declare(self, names: Sequence[str]) -> None:
        self.declared.extend(names)

    def submit_gradient(
        self, parameter: str, gradient: Tensor, *, priority: int, done: Done
    ) -> None:
        self._join_round(gradient_name(parameter), gradient, priority, True, done)

    def submit_message(self, name: str, message: Tensor, *, done: Done) -> None:
        self._join_round(name, message, 0, False, done)

    def _join_round(
        self, name: str, tensor: Tensor, priority: int, average: bool, done: Done
    ) -> None:
        assert name in self.declared
        assert tensor.is_contiguous()
        self._network.join_round(self.rank, name, tensor, priority, average, done)

    def begin_iteration(self) -> int:
        self._network.iterations += 1
        return self._network.iterations

    def reconfigure(self, settings: Mapping[str, int]) -> None:
        self.reconfigured.append(dict(settings))

    def preferred_partition_bytes(self) -> int:
        return self.preferred_bytes

    def let_go(self, timeout_s: float) -> None:
        self._network.let_go(timeout_s)

    def close(self) -> None:
        pass


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All cases in one process."""
    sys.path.insert(0, str(Path(__file__).parent))
    from cases import CASES

    return run_single(tmp_path_factory.mktemp("single"), tuple(CASES))


@pytest.fixture
def make_network() -> Iterator[Callable[..., Network]]:
    networks: list[Network] = []

    def make(*args: Any, **kwargs: Any) -> Network:
        networks.append(Network(*args, **kwargs))
        return networks[-1]

    yield make
    for network in networks:
        network.stop()


@pytest.fixture(autouse=True)
def no_other_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer that failed in one test goes on failing; not in the next test."""
    outstanding = [updater for updater in stopping._updaters if updater.outstanding]
    failed = [updater for updater in outstanding if updater._kept is not None]
    for updater in failed:
        updater._kept = None  # until it is done, which it never is
    if failed:
        gc.collect()  # tracebacks keep it, and its hooks, alive
    monkeypatch.setattr(live_fronts, "_fronts", weakref.WeakSet())
    monkeypatch.setattr(fused_synchroniser, "_used", {})  # each test is a job of its own


@pytest.fixture
def network(make_network: Callable[..., Network]) -> Network:
    return make_network()


def attach(
    optimizer: torch.optim.Optimizer,
    network: Network,
    rank: int = 0,
    *,
    named: Any = None,
    compression: Any = Uncompressed,
    passes: int = 1,
    overlap: bool = True,
    timeout_s: float = 30.0,
    separable: bool | None = None,
    model: torch.nn.Module | None = None,
    fusion_bytes: int = 0,
    compressed: Collection[str] = (),
    accumulation: int = 1,
    staleness: Mapping[str, int] = NO_DELAYS,
    local_steps: int = 0,
) -> Any:
    member: Any = network.rank(rank)
    if fusion_bytes:
        member = FusedSynchroniser(member, fusion_bytes, timeout_s, compressed)
    return distribute(
        optimizer,
        named,
        compression,
        passes,
        model=model,
        separable=separable,
        synchroniser=member,
        settings=RuntimeSettings(overlap=overlap, timeout_s=timeout_s),
        accumulation=accumulation,
        staleness=staleness,
        local_steps=local_steps,
    )


@pytest.fixture(name="attach")
def attach_fixture() -> Callable[..., Any]:
    return attach
