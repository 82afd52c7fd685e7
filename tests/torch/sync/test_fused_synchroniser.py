"""Small gradients share buffers: what comes out is the same, bit for bit, with fewer messages."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from byteprophet.torch.front.cast import Cast
from byteprophet.torch.optimizer import Uncompressed
from byteprophet.torch.sync import fused_synchroniser
from byteprophet.torch.sync.fused_synchroniser import FusedSynchroniser

LIMIT = 1 << 20
Attach = Callable[..., Any]


class Model(nn.Module):
    """An embedding, normalisation, a large layer, a layer that is used now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.first = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.sometimes = nn.Linear(8, 8)
        self.large = nn.Linear(8, 300)
        self.last = nn.Linear(300, 11)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.uses = True

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(torch.tanh(self.first(self.embed(tokens))))
        if self.uses:
            x = x + self.sometimes(x)
        return self.last(torch.relu(self.large(x)))


def loss_of(model: nn.Module, iteration: int) -> Tensor:
    generator = torch.Generator().manual_seed(iteration)
    tokens = torch.randint(0, 11, (4, 5), generator=generator)
    return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())


def make() -> Model:
    torch.manual_seed(3)
    return Model()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)


def gradients(network: Any, since: int = 0) -> list[str]:
    return [name for _, name, _ in network.submitted[since:] if name.startswith("Gradient.")]


def fused(names: Iterable[str]) -> list[str]:
    return [name for name in names if "fused" in name]


def train(model: Model, optimizer: Any, way: str, iterations: int = 6) -> None:
    for iteration in range(iterations):
        model.uses = iteration % 2 == 0
        optimizer.zero_grad(set_to_none=iteration % 3 != 0)
        loss_of(model, iteration).backward()
        if way == "accumulated":
            loss_of(model, 100 + iteration).backward()
        if way == "skipped" and iteration == 3:
            continue  # a step that a loss scaler would skip
        for parameter in model.sometimes.parameters():
            if parameter.grad is None:  # what takes part without a gradient has zeros
                parameter.grad = torch.zeros_like(parameter)
        if way == "clipped":
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if way == "read":
            assert model.first.weight.grad is not None
            model.first.weight.grad.mul_(0.5)
        optimizer.step()


@pytest.mark.parametrize("way", ["plain", "accumulated", "skipped", "clipped", "read"])
@pytest.mark.parametrize("overlap", [True, False])
def test_equals_plain_training(make_network: Any, attach: Attach, way: str, overlap: bool) -> None:
    network = make_network(seed=2, late_s=0.002)
    model, plain = make(), make()
    passes = 2 if way == "accumulated" else 1
    ours = attach(
        adam(model), network, model=model, overlap=overlap, passes=passes, fusion_bytes=LIMIT
    )
    train(model, ours, way)
    ours.finish()
    train(plain, adam(plain), way)
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other), name
    sent = gradients(network)
    assert fused(sent)


def test_later_iterations_send_fewer_messages(network: Any, attach: Attach) -> None:
    model = make()
    ours = attach(adam(model), network, model=model, fusion_bytes=LIMIT)
    counts = []
    for iteration in range(3):
        since = len(network.submitted)
        ours.zero_grad()
        loss_of(model, iteration).backward()
        ours.step()
        ours.finish()
        counts.append(len(gradients(network, since)))
    assert counts[0] == len([p for p in model.parameters() if p.requires_grad])
    assert counts[1] == counts[2] == 2  # the first buffer is small


def test_gradients_that_are_cast_share_the_same_buffers(make_network: Any, attach: Attach) -> None:
    """The limit is for parameters, so half as many bytes do not fill a buffer with more of them."""

    def places(compression: Any) -> dict[str, int]:
        """The places of shared buffers, by member, in a job of its own."""
        fused_synchroniser._used.clear()
        model = make()
        ours = attach(
            adam(model), make_network(), model=model, fusion_bytes=3000, compression=compression
        )
        for iteration in range(2):
            ours.zero_grad()
            loss_of(model, iteration).backward()
            ours.step()
        ours.finish()
        shared = ours._front.synchroniser._buffer_of
        return {name: buffer.place for name, buffer in shared.items()}

    plain = places(Uncompressed)
    gc.collect()  # the first model's parameters have their names to themselves while they live
    assert places(Cast("fp16", "FILE")) == plain
    assert len(plain) > len(set(plain.values())) > 0


def test_the_most_urgent_member_gives_the_priority(network: Any, attach: Attach) -> None:
    model = make()
    ours = attach(adam(model), network, model=model, fusion_bytes=LIMIT)
    for iteration in range(2):
        since = len(network.submitted)
        ours.zero_grad()
        loss_of(model, iteration).backward()
        ours.step()
    ours.finish()
    priorities = {
        name: priority for _, name, priority in network.submitted[since:] if "Gradient" in name
    }
    assert sorted(priorities.values()) == [-2, -1]
    by_place = sorted(priorities, key=lambda name: -priorities[name])
    assert [name.rpartition(".")[2] for name in by_place] == ["0", "1"]


def test_compressed_tensors_travel_alone(network: Any, attach: Attach) -> None:
    model = make()
    alone = "Gradient.first.weight"
    ours = attach(adam(model), network, model=model, fusion_bytes=LIMIT, compressed={alone})
    for iteration in range(3):
        ours.zero_grad()
        loss_of(model, iteration).backward()
        ours.step()
    ours.finish()
    assert gradients(network).count(alone) == 3
    assert gradients(network).count("Gradient.first.bias") == 1


def test_a_script_that_uses_gradients_early_gets_no_buffers(network: Any, attach: Attach) -> None:
    """Such as one that looks at a gradient within backward, or between two backward passes."""
    model, plain = make(), make()
    ours = attach(adam(model), network, model=model, fusion_bytes=LIMIT)
    seen: list[Tensor] = []
    for each, optimizer in ((model, ours), (plain, adam(plain))):
        each.last.weight.register_post_accumulate_grad_hook(
            lambda parameter: seen.append(parameter.grad.clone())
        )
        for iteration in range(3):
            optimizer.zero_grad()
            loss_of(each, iteration).backward()
            optimizer.step()
    ours.finish()
    assert fused(gradients(network)) == []
    assert all(torch.equal(one, other) for one, other in zip(seen[:3], seen[3:], strict=True))


def test_an_early_use_that_comes_late_is_named(network: Any, attach: Attach) -> None:
    model = make()
    ours = attach(adam(model), network, model=model, fusion_bytes=LIMIT)
    loss_of(model, 0).backward()
    ours.step()
    ours.zero_grad()
    model.large.weight.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.sum())
    with pytest.raises(RuntimeError, match=r"'large\.weight' is used within backward"):
        loss_of(model, 1).backward()
    ours.zero_grad()
    ours.finish()


def test_a_changed_type_is_named(network: Any, attach: Attach) -> None:
    model = make()
    ours = attach(adam(model), network, model=model, fusion_bytes=LIMIT)
    loss_of(model, 0).backward()
    ours.step()
    ours.zero_grad()
    model.double()
    with pytest.raises(RuntimeError, match=r"was torch.float32 .* and is now torch.float64"):
        loss_of(model, 1).backward()


def test_a_group_that_is_added_takes_part(network: Any, attach: Attach) -> None:
    model, plain = make(), make()
    made = []
    for each in (model, plain):
        groups = [each.embed, each.first, each.norm]
        optimizer: Any = torch.optim.SGD([p for m in groups for p in m.parameters()], lr=0.1)
        if each is model:
            optimizer = attach(optimizer, network, model=each, fusion_bytes=LIMIT)
        for iteration in range(6):
            if iteration == 3:
                rest = [p for p in each.parameters() if p.requires_grad]
                known = {id(p) for g in optimizer.param_groups for p in g["params"]}
                optimizer.add_param_group({"params": [p for p in rest if id(p) not in known]})
            optimizer.zero_grad()
            loss_of(each, iteration).backward()
            optimizer.step()
        made.append(optimizer)
    made[0].finish()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    assert len(set(fused(gradients(network)))) >= 3


def both(run: Callable[[int], None]) -> None:
    """Run two ranks, and raise what one raises."""
    raised: list[BaseException] = []

    def of(rank: int) -> None:
        try:
            run(rank)
        except BaseException as error:  # noqa: BLE001 (raised again below)
            raised.append(error)

    threads = [threading.Thread(target=of, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if raised:
        raise raised[0]


ORDER = ("b", "a", "c")


def rank_of(network: Any, rank: int, limit_bytes: int = LIMIT) -> FusedSynchroniser:
    synchroniser = FusedSynchroniser(network.rank(rank), limit_bytes, timeout_s=20.0)
    named = [(name, nn.Parameter(torch.zeros(3))) for name in ORDER]
    synchroniser.declare_parameters(named)
    synchroniser.declare([f"Gradient.{name}" for name in ORDER])
    synchroniser.declare_buffers()
    return synchroniser


def averaged(synchroniser: FusedSynchroniser, values: dict[str, float]) -> dict[str, list[float]]:
    """Average gradients of three elements each."""
    synchroniser.begin_iteration()
    tensors = {name: torch.full((3,), value) for name, value in values.items()}
    events = {name: threading.Event() for name in values}
    errors: list[BaseException | None] = []
    for name, tensor in tensors.items():

        def done(error: BaseException | None, name: str = name) -> None:
            errors.append(error)
            events[name].set()

        synchroniser.submit_gradient(name, tensor, priority=-1, done=done)
    synchroniser.flush(())
    assert all(event.wait(20) for event in events.values())
    assert errors == [None] * len(values)
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def test_a_member_without_a_gradient_counts_as_zeros(make_network: Any) -> None:
    network = make_network(size=2)
    ranks = [rank_of(network, rank) for rank in range(2)]

    def run(rank: int) -> None:
        synchroniser = ranks[rank]
        averaged(synchroniser, dict.fromkeys(ORDER, 1.0))
        assert synchroniser.agreed(ORDER) == [0, 0, 0]
        values = {"b": 2.0, "a": 4.0, "c": 6.0} if rank == 0 else {"c": 8.0}
        expected = {"b": [1.0] * 3, "a": [2.0] * 3, "c": [7.0] * 3}
        assert averaged(synchroniser, values) == {name: expected[name] for name in values}

    both(run)
    assert len(fused(gradients(network))) == 2


@pytest.mark.parametrize("why", ["early", "limit"])
def test_one_rank_that_wants_no_buffers_is_enough(make_network: Any, why: str) -> None:
    network = make_network(size=2)
    limits = [LIMIT, 0 if why == "limit" else LIMIT]
    ranks = [rank_of(network, rank, limits[rank]) for rank in range(2)]

    def run(rank: int) -> None:
        synchroniser = ranks[rank]
        averaged(synchroniser, dict.fromkeys(ORDER, 1.0))
        if why == "early" and rank == 1:
            synchroniser.begin_iteration()
            assert not synchroniser.holds_back("a")
        assert list(synchroniser.agreed(ORDER)) == [0, 1, 2]
        assert not synchroniser.bucketed
        averaged(synchroniser, dict.fromkeys(ORDER, 1.0))

    both(run)
    assert fused(gradients(network)) == []


def test_after_a_resumption_gradients_travel_alone_until_all_agree(make_network: Any) -> None:
    """A rank that joins has no buffers yet, and other ranks may come with another order."""
    network = make_network(size=2)
    ranks = [rank_of(network, rank) for rank in range(2)]

    def before(rank: int) -> None:
        averaged(ranks[rank], dict.fromkeys(ORDER, 1.0))
        ranks[rank].agreed(ORDER)

    both(before)
    ranks[0].resumed()
    ranks[1] = joined = rank_of(network, 1)
    known, anew = (dict.fromkeys(each._base.declared) for each in (ranks[0], joined))
    assert list(known) == list(anew)
    since = len(network.submitted)

    def after(rank: int) -> None:
        averaged(ranks[rank], dict.fromkeys(ORDER, 1.0))
        ranks[rank].agreed(ORDER[::-1])
        averaged(ranks[rank], dict.fromkeys(ORDER, 3.0))

    both(after)
    assert len(gradients(network, since)) == 2 * (len(ORDER) + 1)


def test_a_name_keeps_its_size(network: Any) -> None:
    """BytePS' servers have a buffer of that size."""
    for sizes, shares in (((3, 3), True), ((3, 5), False), ((3, 3), True)):
        synchroniser = FusedSynchroniser(network.rank(), LIMIT, timeout_s=20.0)
        named = [("a", nn.Parameter(torch.zeros(sizes[0]))), ("b", nn.Parameter(torch.zeros(3)))]
        named[1] = ("b", nn.Parameter(torch.zeros(sizes[1])))
        synchroniser.declare_parameters(named)
        synchroniser.declare(["Gradient.a", "Gradient.b"])
        synchroniser.declare_buffers()
        synchroniser.begin_iteration()
        for name, parameter in named:
            synchroniser.submit_gradient(
                name, torch.zeros_like(parameter), priority=-1, done=lambda error: None
            )
        synchroniser.agreed(["a", "b"])
        assert synchroniser.bucketed == shares


def test_a_missing_member_is_named(network: Any) -> None:
    synchroniser = rank_of(network, 0)
    averaged(synchroniser, dict.fromkeys(ORDER, 1.0))
    synchroniser.agreed(ORDER)
    synchroniser.submit_gradient("a", torch.zeros(3), priority=-1, done=lambda error: None)
    assert synchroniser.holds_back("a")
    assert "'b'" in synchroniser.awaited("Gradient.a")


def test_a_failure_reaches_every_member(network: Any) -> None:
    synchroniser = rank_of(network, 0)
    averaged(synchroniser, dict.fromkeys(ORDER, 1.0))
    synchroniser.agreed(ORDER)
    network.failures["Gradient.byteprophet.fused.a.3.0"] = failure = RuntimeError("cut")
    errors: list[BaseException | None] = []
    over = threading.Semaphore(0)

    def done(error: BaseException | None) -> None:
        errors.append(error)
        over.release()

    for name in ORDER:
        synchroniser.submit_gradient(name, torch.zeros(3), priority=-1, done=done)
    assert all(over.acquire(timeout=20) for _ in ORDER)
    assert errors == [failure] * 3
