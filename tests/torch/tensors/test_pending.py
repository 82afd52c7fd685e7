"""Whoever touches a tensor under way waits for it, whatever way he came by it."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from byteprophet.torch.tensors import pending, reads

Attach = Callable[..., Any]


def make_model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def loss_of(model: nn.Module, iteration: int) -> Tensor:
    generator = torch.Generator().manual_seed(iteration)
    return model(torch.randn(5, 6, generator=generator)).square().mean()


def train(model: nn.Module, optimizer: Any, iterations: range) -> None:
    for iteration in iterations:
        optimizer.zero_grad()
        loss_of(model, iteration).backward()
        optimizer.step()


class Pair:
    """A model of ours and a plain one, which did the same; lists made before training."""

    def __init__(self, network: Any, attach: Attach, **options: Any) -> None:
        self.network = network
        self.models = make_model(), make_model()
        self.known = [list(model.parameters()) for model in self.models]
        self.optimizers: list[Any] = [torch.optim.Adam(known, lr=0.05) for known in self.known]
        attach(self.optimizers[0], network, **options)
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            train(model, optimizer, range(2))
        self.optimizers[0].finish()

    def step(self, hold: bool = True) -> None:
        """One more iteration; ours stays under way for a while."""
        if hold:
            self.network.hold(lambda name: name.startswith("Gradient"))
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            train(model, optimizer, range(2, 3))
        if hold:
            threading.Timer(0.2, self.network.release).start()


@pytest.fixture
def pair(request: pytest.FixtureRequest, network: Any, attach: Attach) -> Iterator[Pair]:
    made = Pair(network, attach, **getattr(request, "param", {}))
    yield made
    network.release()
    made.optimizers[0].finish()
    assert not any(id(p) in pending.marks for p in made.known[0])
    assert {type(p) for p in made.known[0]} == {nn.Parameter}
    assert torch.equal(*(loss_of(model, 9) for model in made.models))


def pickled(p: Tensor) -> Tensor:
    result: Tensor = pickle.loads(pickle.dumps(p))
    return result


def saved(p: Tensor) -> Tensor:
    buffer = io.BytesIO()
    torch.save(p, buffer)
    buffer.seek(0)
    result: Tensor = torch.load(buffer)
    return result


def written(p: Tensor) -> Tensor:
    with torch.no_grad():
        p.mul_(2.0)
        p.data += 1.0
    return p.detach()


READS: dict[str, Callable[[Tensor], Any]] = {
    "detach": lambda p: p.detach().clone(),
    "data": lambda p: p.data.clone(),
    "numpy": lambda p: np.array(p.detach().numpy()),
    "array": lambda p: np.asarray(p.data),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": pickled,
    "save": saved,
    "foreach": lambda p: torch._foreach_mul([p.detach(), p], 2.0)[1],
    "list": lambda p: torch.stack([p, p]),
    "keyword": lambda p: functional.linear(torch.ones(p.shape[-1]), weight=p),
    "text": repr,
    "number": lambda p: p.flatten()[0].item(),
    "pointer": lambda p: torch.frombuffer(p.detach().numpy(), dtype=torch.float32).clone(),
    "in place": written,
}


@pytest.mark.parametrize("read", READS)
def test_a_parameter_known_from_before(pair: Pair, read: str) -> None:
    pair.step()
    ours, plain = ([READS[read](p) for p in known] for known in pair.known)
    for one, other in zip(ours, plain, strict=True):
        if isinstance(one, Tensor):
            assert torch.equal(one, other)
            assert type(one) is type(other)
        else:
            assert np.array_equal(one, other)


def test_a_gradient_known_from_before(pair: Pair) -> None:
    for model, optimizer in zip(pair.models, pair.optimizers, strict=True):
        optimizer.zero_grad()
        if model is pair.models[0]:
            pair.network.hold(lambda name: True)
        loss_of(model, 5).backward()
    threading.Timer(0.2, pair.network.release).start()
    gradients = [[p.grad for p in known] for known in pair.known]
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)  # before step(): the average
    pair.network.hold(lambda name: True)
    for optimizer in pair.optimizers:
        optimizer.step()
    pair.network.release()
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)
    assert all(p.grad is g for p, g in zip(pair.known[0], gradients[0], strict=True))


def test_gradients_changed_by_hand_before_step(pair: Pair) -> None:
    for known, model, optimizer in zip(pair.known, pair.models, pair.optimizers, strict=True):
        for iteration in range(3):
            optimizer.zero_grad()
            loss_of(model, iteration).backward()
            for p in known:
                assert p.grad is not None
                p.grad.mul_(0.5).clamp_(-0.01, 0.01)
            optimizer.step()


def test_metadata_does_not_wait(pair: Pair) -> None:
    pair.step(hold=False)
    pair.optimizers[0].finish()  # what is held must be of the next step
    pair.network.hold(lambda name: True)
    pair.step(hold=False)
    for p in pair.known[0]:
        assert isinstance(p, nn.Parameter)
        assert p.requires_grad
        assert p.is_leaf
        assert p.shape == p.size()
        assert (p.dtype, p.device.type, p.grad_fn) == (torch.float32, "cpu", None)
        assert p.numel() == p.nelement() == p.nbytes // p.element_size()
        assert len({p, p}) == 1
        assert p.grad is not None
        assert p.grad.shape == p.shape
        p.register_hook(lambda gradient: gradient).remove()
    assert pair.optimizers[0]._front.updater.outstanding == len(pair.known[0])
    pair.network.release()


def test_module_zero_grad_and_parameters_do_not_wait(pair: Pair) -> None:
    pair.network.hold(lambda name: True)
    pair.step(hold=False)
    for model in pair.models:
        model.zero_grad()
        assert len(list(model.parameters())) == 4
    assert pair.optimizers[0]._front.updater.outstanding == len(pair.known[0])
    assert all(p.grad is None for p in pair.known[0])
    pair.network.release()


def test_a_leaf_tensor_that_is_no_parameter(network: Any, attach: Attach) -> None:
    weights = [torch.ones(3, requires_grad=True) for _ in range(2)]
    optimizers = [torch.optim.SGD([weight], lr=0.1) for weight in weights]
    attach(optimizers[0], network)
    gate = nn.Identity()
    for iteration in range(4):
        if iteration == 3:
            network.hold(lambda name: True)
        for weight, optimizer in zip(weights, optimizers, strict=True):
            optimizer.zero_grad()
            (gate(weight) ** 2).sum().backward()
            if iteration == 3 and weight is weights[0]:
                threading.Timer(0.2, network.release).start()
            optimizer.step()
    assert torch.equal(weights[0].detach(), weights[1].detach())


class Subclass(nn.Parameter):
    """A class of its own, as tensor libraries have."""


def test_step_waits_for_parameters_of_other_classes(network: Any, attach: Attach) -> None:
    models = make_model(), make_model()
    for model in models:
        model[2].weight = Subclass(model[2].weight.detach())
    ours: Any = attach(torch.optim.SGD(models[0].parameters(), lr=0.1), network)
    plain = torch.optim.SGD(models[1].parameters(), lr=0.1)
    network.hold(lambda name: False)
    for model, optimizer in zip(models, (ours, plain), strict=True):
        train(model, optimizer, range(4))
    assert type(models[0][2].weight) is Subclass
    assert torch.equal(models[0][2].weight, models[1][2].weight)


def test_clipping_imported_before_our_first_optimizer(
    make_network: Callable[..., Any], attach: Attach
) -> None:
    """As ``clip_grad_norm_`` is by this file.

    One rank has no gradient for a layer: what it clips by must be the same on both.
    """
    network = make_network(size=2)
    norms: dict[int, list[float]] = {0: [], 1: []}

    def rank(number: int) -> None:
        layers = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(2)])
        for layer in layers:
            nn.init.ones_(layer.weight)
        ours = attach(torch.optim.SGD(layers.parameters(), lr=0.1), network, number)
        for iteration in range(4):
            ours.zero_grad()
            used = layers[:1] if number == 0 and iteration % 2 else layers
            sum(layer(torch.ones(1, 2)).sum() for layer in used).backward()
            norms[number].append(float(clip_grad_norm_(layers.parameters(), 0.1)))
            ours.step()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert norms[0] == norms[1]
    assert len(norms[0]) == 4


@pytest.fixture
def watched() -> Iterator[None]:
    reads.watch()
    yield
    reads.unwatch()


def line_of(text: str) -> int:
    """The number of the line of this file that has ``text`` in it."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()  # type: ignore[arg-type]
    return next(n for n, line in enumerate(lines, 1) if text in line and "line_of" not in line)


@pytest.mark.usefixtures("watched")
def test_debug_names_the_line_that_waits(pair: Pair) -> None:
    pair.step()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pair.known[0][2].sum()  # the line that reads a weight
    (warning,) = caught
    assert warning.category is reads.PendingReadWarning
    assert (warning.filename, warning.lineno) == (__file__, line_of("# the line that reads a w"))
    assert "waits for parameter 'push_pull.noname.2'" in str(warning.message)


@pytest.mark.usefixtures("watched")
def test_debug_refuses_aliases_made_before(pair: Pair) -> None:
    alias = pair.known[0][0].view(-1)[3:]
    pair.network.hold(lambda name: True)
    pair.step(hold=False)
    with pytest.raises(RuntimeError, match="in flight, through another tensor") as refused:
        alias.sum()  # the line that reads an alias
    place = re.escape(f"{__file__}:{line_of('# the line that reads an a')} uses the memory")
    assert re.search(place, str(refused.value))
    pair.network.release()
    pair.optimizers[0].finish()
    alias.sum()


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("pair", [{}, {"fusion_bytes": 20_000}], indirect=True)
def test_debug_is_quiet_about_what_is_right(pair: Pair) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model, optimizer in zip(pair.models, pair.optimizers, strict=True):
            train(model, optimizer, range(3, 8))
            model.state_dict()
            optimizer.state_dict()


@pytest.mark.usefixtures("watched")
def test_debug_is_quiet_about_delayed_averages(network: Any, attach: Attach) -> None:
    model = make_model()
    delays = {f"push_pull.noname.{number}": 1 for number in range(4)}
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(optimizer, network, staleness=delays)
    train(model, optimizer, range(4))
    assert len(optimizer.state_dict()["byteprophet_delayed"]) == 4


class Halves(nn.Module):
    """Two parameters that share a storage."""

    def __init__(self) -> None:
        super().__init__()
        flat = torch.arange(8.0)
        self.first, self.second = nn.Parameter(flat[:4]), nn.Parameter(flat[4:])

    def forward(self) -> Tensor:
        return (self.first * self.second).sum()


@pytest.mark.usefixtures("watched")
@pytest.mark.filterwarnings("ignore::byteprophet.torch.tensors.reads.PendingReadWarning")
def test_debug_tells_parameters_of_one_storage_apart(network: Any, attach: Attach) -> None:
    model = Halves()
    alias = model.second.detach()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(optimizer, network, named=model.named_parameters())
    for iteration in range(3):
        optimizer.zero_grad()
        loss = model()  # after the last iteration's gradients, which must not be held
        if iteration == 2:
            network.hold(lambda name: name == "Gradient.second")
        loss.backward()
        optimizer.step()
    model.first.sum()
    with pytest.raises(RuntimeError, match="uses the memory of parameter 'second'"):
        alias.sum()
    network.release()
    optimizer.finish()
    alias.sum()


def test_what_only_the_script_still_has_is_refused_in_a_forked_child() -> None:
    gradient = torch.ones(2)
    pending.mark_weakly(gradient, "the gradient of 'a'", lambda tensor: pending.unmark(tensor))
    try:
        pending.lose_weak()
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"of 'a' is read in a forked process, .* shard"):
                gradient.sum()
        assert gradient.shape == (2,)
    finally:
        pending.unmark(gradient)
    assert gradient.sum() == 2


@pytest.mark.usefixtures("watched")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_debug_is_quiet_about_rare_layouts(pair: Pair) -> None:
    compressed, matrix = torch.eye(3).to_sparse_csr(), torch.ones(3, 3)
    pair.step()
    assert torch.equal(compressed @ matrix, matrix)
    if torch.backends.mkldnn.is_available():
        assert torch.equal(matrix.to_mkldnn().to_dense(), matrix)
