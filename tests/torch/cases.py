"""What training scripts do to a model and its optimizer: one function per case.

Each runs in a job of two ranks, under every policy, and in one process that works on both ranks'
batches. It returns what must come out the same: parameters, state, and values seen on the way.
Parameters that are returned are looked at after the process has left BytePS.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

RANKS = 2


class Twisted(nn.Module):
    """Tied weights, a layer used twice, a non-leaf's parameter, functional use, an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(97, 64)
        self.attention = nn.MultiheadAttention(64, 2, batch_first=True)
        self.twice = nn.Linear(64, 64)
        self.scale = nn.Parameter(torch.full((64,), 0.5))
        self.wide = nn.Linear(64, 800)
        self.narrow = nn.Linear(800, 64)
        self.norm = nn.LayerNorm(64)
        self.decode = nn.Linear(64, 97, bias=False)
        self.decode.weight = self.embed.weight
        self.unused = nn.Linear(3, 2)
        self.sometimes = nn.Linear(64, 64)
        self.use_sometimes = True

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.twice(torch.tanh(self.twice(x))) * self.scale
        x = x + functional.linear(torch.relu(self.wide(x)), self.narrow.weight, self.narrow.bias)
        if self.use_sometimes:
            x = x + self.sometimes(x)
        return self.decode(self.norm(x))


def loss_of(model: nn.Module, rank: int, iteration: int) -> Tensor:
    """The loss on a batch of this rank's own."""
    generator = torch.Generator().manual_seed(1000 * rank + iteration)
    tokens = torch.randint(0, 97, (4, 6), generator=generator).to(next(model.parameters()).device)
    return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())


class Trainer:
    """What a script has at hand. ``bps`` is the module it imported, or None in one process.

    ``shipped``: it is upstream's own, which must be asked for averages before they are clipped.
    ``crossed``: the script uses upstream's ``CrossBarrier``. ``device``: where models are.
    """

    def __init__(self, bps: Any, shipped: bool, crossed: bool, device: str = "cpu") -> None:
        self.bps = bps
        self.shipped = shipped
        self.crossed = crossed
        self.device = torch.device(device)
        self.ranks = range(RANKS) if bps is None else [bps.rank()]

    def start(
        self, kind: str, passes: int = 1, make: Callable[[], nn.Module] = Twisted, **options: Any
    ) -> tuple[nn.Module, Any]:
        """A model, the same on all ranks, and its optimizer with two parameter groups."""
        model = self.model(make)
        first, *others = model.parameters()
        groups = [{"params": others}, {"params": [first], "lr": 0.02}]
        return model, self.distribute(model, getattr(torch.optim, kind)(groups, **options), passes)

    def model(self, make: Callable[[], nn.Module] = Twisted) -> nn.Module:
        """A model; ranks begin differently and then get rank 0's."""
        torch.manual_seed(self.ranks[0])
        model = make().to(self.device)
        if self.bps is not None:
            self.bps.broadcast_parameters(model.state_dict(), root_rank=0)
        return model

    def distribute(self, model: nn.Module, optimizer: Any, passes: int = 1) -> Any:
        """``optimizer`` with averaged gradients."""
        if self.bps is None:
            return optimizer
        if self.crossed:
            from byteps.torch.cross_barrier import CrossBarrier

            return CrossBarrier(model, optimizer, model.named_parameters(), num_steps=6)
        return self.bps.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), backward_passes_per_step=passes
        )

    def backward(self, model: nn.Module, iteration: int, factor: float = 1.0) -> None:
        """Gradients of this iteration's loss, times ``factor``."""
        self.descend([factor * loss_of(model, rank, iteration) for rank in self.ranks], model)

    def descend(self, losses: list[Tensor], *models: nn.Module) -> None:
        """``backward`` of this rank's loss; in one process, averages of all ranks' gradients."""
        if self.bps is not None:
            (loss,) = losses
            loss.backward()
            return
        known = [p for model in models for p in model.parameters() if p.requires_grad]
        per_rank = [torch.autograd.grad(loss, known, materialize_grads=True) for loss in losses]
        for p, *gradients in zip(known, *per_rank, strict=True):
            average = sum(gradients) / len(gradients)
            p.grad = average if p.grad is None else p.grad + average

    def clip_and_step(self, model: nn.Module, optimizer: Any, norm: float) -> Tensor:
        """Clip by the norm of the averages, then step; gives the norm."""
        if self.shipped:
            optimizer.synchronize()
        total = nn.utils.clip_grad_norm_(model.parameters(), norm)
        with optimizer.skip_synchronize() if self.shipped else nullcontext():
            optimizer.step()
        return total


def evaluated(model: nn.Module) -> Tensor:
    model.eval()
    with torch.no_grad():
        loss = loss_of(model, 0, 99)
    model.train()
    return loss


def _train(t: Trainer, kind: str, **options: Any) -> list[Tensor]:
    model, optimizer = t.start(kind, **options)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
    seen = []
    for iteration in range(6):
        optimizer.zero_grad(set_to_none=False)
        t.backward(model, iteration)
        optimizer.step()
        schedule.step()
        if iteration % 3 == 2:
            seen.append(evaluated(model))
            seen.extend(value.clone() for value in model.state_dict().values())
    return [*seen, *model.parameters()]


def sgd(t: Trainer) -> list[Tensor]:
    """Momentum, weight decay and Nesterov's look ahead, two groups, a schedule."""
    return _train(t, "SGD", lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True)


def adam(t: Trainer) -> list[Tensor]:
    return _train(t, "Adam", lr=1e-2)


def adamw(t: Trainer) -> list[Tensor]:
    return _train(t, "AdamW", lr=1e-2)


def accumulated(t: Trainer) -> list[Tensor]:
    """Three backward passes per step."""
    model, optimizer = t.start("SGD", passes=3, lr=0.1, momentum=0.9)
    for iteration in range(9):
        t.backward(model, iteration)
        if iteration % 3 == 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return list(model.parameters())


def held_back(t: Trainer) -> list[Tensor]:
    """Two backward passes within ``no_sync()``, and one that sends what they have added up."""
    model, optimizer = t.start("SGD", lr=0.1, momentum=0.9)
    for iteration in range(9):
        kept = iteration % 3 != 2 and t.bps is not None
        with optimizer.no_sync() if kept else nullcontext():
            with optimizer.no_sync() if kept else nullcontext():
                pass  # one within the other does not end it
            t.backward(model, iteration)
        if iteration % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    return list(model.parameters())


def left_over(t: Trainer) -> list[Tensor]:
    """A step after one backward pass where two make one, with clipping or a scaler.

    One rank overflows in that pass, both skip the step.
    """
    model, optimizer = t.start("SGD", passes=2, lr=0.02, momentum=0.9)
    scaler = torch.amp.GradScaler(t.device.type, init_scale=8.0)
    scaler.scale(torch.ones((), device=t.device))  # as scale(loss) does, the scaler's own start
    seen = []
    for iteration in range(12):
        scaled, last = iteration >= 6, iteration % 3 == 2
        overflow = iteration == 8 and 1 in t.ranks
        factor = scaler.get_scale() if scaled else 1.0
        t.backward(model, iteration, float("inf") if overflow else factor)
        if iteration % 3 == 0:
            continue
        if scaled:
            scaler.step(optimizer)
            scaler.update()
        elif last:
            seen.append(t.clip_and_step(model, optimizer, 0.05))
        else:
            optimizer.step()
        optimizer.zero_grad()
    return [*seen, torch.tensor(scaler.get_scale()), *model.parameters()]


def clipped(t: Trainer) -> list[Tensor]:
    """Under SGD: to Adam a common factor of all gradients makes no difference."""
    model, optimizer = t.start("SGD", lr=0.5, momentum=0.9)
    norms = []
    for iteration in range(6):
        optimizer.zero_grad(set_to_none=False)
        t.backward(model, iteration)
        norms.append(t.clip_and_step(model, optimizer, 0.05))
    return [*norms, *model.parameters()]


def changed_after_step(t: Trainer) -> list[Tensor]:
    """The hyperparameters at ``step()`` count, not those set right after it."""
    model, optimizer = t.start("SGD", lr=0.1, momentum=0.9, weight_decay=1e-3)
    for iteration in range(6):
        optimizer.zero_grad(set_to_none=False)
        t.backward(model, iteration)
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.6
            group["weight_decay"] += 1e-3
    return list(model.parameters())


def captured(t: Trainer) -> list[Tensor]:
    """Lists made before training are read right after ``step()``: an average, a norm, a change."""
    model, optimizer = t.start("SGD", lr=0.1, momentum=0.9)
    known = list(model.parameters())
    average = [p.detach().clone() for p in known]
    seen = []
    for iteration in range(6):
        optimizer.zero_grad(set_to_none=False)
        t.backward(model, iteration)
        optimizer.step()
        seen.append(torch.stack([p.grad.norm() for p in known if p.grad is not None]).norm())
        with torch.no_grad():
            torch._foreach_lerp_(average, known, 0.1)
            known[0].mul_(0.99)
    return [*seen, *average, *known]


def zeroed(t: Trainer) -> list[Tensor]:
    """Gradients cleared in every form, at every moment."""
    model, optimizer = t.start("SGD", lr=0.1, momentum=0.9, weight_decay=1e-3)

    def by_hand() -> None:
        for p in model.parameters():
            if p.grad is not None:
                p.grad.zero_()

    def removed() -> None:
        for p in model.parameters():
            p.grad = None

    ways = [
        optimizer.zero_grad,
        lambda: optimizer.zero_grad(set_to_none=False),
        model.zero_grad,
        lambda: model.zero_grad(set_to_none=False),
        by_hand,
        removed,
    ]
    for iteration in range(12):
        moment, way = iteration % 2, ways[iteration // 2]
        if moment == 0:
            way()
        elif iteration > 1:
            way()  # once more, after a pass whose gradients are dropped
        t.backward(model, iteration)
        if moment == 1 and iteration < 8:
            optimizer.zero_grad()
            t.backward(model, iteration + 50)
        optimizer.step()
        if moment == 0:
            way()
    optimizer.zero_grad()
    return list(model.parameters())


def withheld(t: Trainer) -> list[Tensor]:
    """Gradients removed or replaced before ``step()``: one layer stays, another goes its own way.

    A gradient that was taken out before is the average, and clipping counts what is there.
    """
    model, optimizer = t.start("SGD", lr=0.1, momentum=0.9, weight_decay=1e-3)
    seen = []
    for iteration in range(7):
        optimizer.zero_grad()
        t.backward(model, iteration)
        taken = model.narrow.weight.grad
        model.narrow.weight.grad = None
        model.twice.weight.grad = torch.full_like(model.twice.weight, 1e-3)
        if iteration % 4 == 2:
            seen.append(t.clip_and_step(model, optimizer, 0.05))
        else:
            optimizer.step()
        seen.append(taken.norm())
    return [*seen, *model.parameters()]


def resumed(t: Trainer) -> list[Tensor]:
    """A checkpoint in mid-training, as bytes; another model and optimizer go on from it."""
    model, optimizer = t.start("AdamW", lr=1e-2)

    def go_on(model: nn.Module, optimizer: Any, iterations: range) -> None:
        for iteration in iterations:
            optimizer.zero_grad(set_to_none=False)
            t.backward(model, iteration)
            optimizer.step()

    go_on(model, optimizer, range(4))
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    go_on(model, optimizer, range(4, 7))
    buffer.seek(0)
    checkpoint = torch.load(buffer)
    other, its_optimizer = t.start("AdamW", lr=0.5)
    other.load_state_dict(checkpoint["model"])
    its_optimizer.load_state_dict(checkpoint["optimizer"])
    go_on(other, its_optimizer, range(4, 7))
    for one, same in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, same)
    return [*model.parameters(), *other.parameters()]


def regrouped(t: Trainer) -> list[Tensor]:
    """A layer frozen and thawed, a layer that joins the optimizer later."""
    model = t.model()
    late = list(model.twice.parameters())
    early = [p for p in model.parameters() if all(p is not other for other in late)]
    for p in late:
        p.requires_grad_(False)
    optimizer = t.distribute(model, torch.optim.SGD(early, lr=0.1, momentum=0.9))
    for iteration in range(9):
        model.wide.requires_grad_(iteration not in (2, 3))
        if iteration == 5:
            for p in late:
                p.requires_grad_(True)
            optimizer.add_param_group({"params": late, "lr": 0.05})
        optimizer.zero_grad()
        t.backward(model, iteration)
        optimizer.step()
    return list(model.parameters())


def used_by_one(t: Trainer) -> list[Tensor]:
    """In some iterations only one rank uses a layer, in others none; plain clipping."""
    model, optimizer = t.start("SGD", lr=0.1, momentum=0.9)
    norms = []
    for iteration in range(6):
        optimizer.zero_grad()
        losses = []
        for rank in t.ranks:
            model.use_sometimes = iteration % 4 == 0 or iteration % 4 == rank + 1
            losses.append(loss_of(model, rank, iteration))
        t.descend(losses, model)
        norms.append(t.clip_and_step(model, optimizer, 0.5))
    return [*norms, *model.parameters()]


def idle(t: Trainer) -> list[Tensor]:
    """One rank has no backward pass in an iteration, and all passes of another are held back."""
    model, optimizer = t.start("SGD", lr=0.1, momentum=0.9)
    norms = []
    for iteration in range(6):
        optimizer.zero_grad()
        held = iteration == 4 and t.bps is not None
        with optimizer.no_sync() if held else nullcontext():
            working = [rank for rank in t.ranks if iteration != 2 or rank == 0]
            losses = [loss_of(model, rank, iteration) for rank in working]
            if t.bps is None and iteration == 2:
                losses = [losses[0] / RANKS]
            if losses:
                t.descend(losses, model)
        norms.append(t.clip_and_step(model, optimizer, 0.05))
    return [*norms, *model.parameters()]


def cleared_by_hand(t: Trainer) -> list[Tensor]:
    """Gradients set to None, or to others, without ``zero_grad()``, also after a skipped step.

    A layer is used by one rank alone, and a rank once has no backward pass.
    """
    model, optimizer = t.start("SGD", lr=0.1, momentum=0.9)
    norms = []
    for iteration in range(8):
        for p in model.parameters():
            p.grad = None
        working = [rank for rank in t.ranks if iteration not in (3, 6) or rank == 0]
        losses = []
        for rank in working:
            model.use_sometimes = iteration == 2 or iteration % 2 == rank
            losses.append(loss_of(model, rank, iteration))
        if iteration == 4:
            known = [*model.parameters()]
            per_rank = [torch.autograd.grad(loss, known, materialize_grads=True) for loss in losses]
            for p, *gradients in zip(known, *per_rank, strict=True):
                p.grad = torch.stack(gradients).mean(0)
        elif losses:
            share = len(working) / len(t.ranks)
            t.descend([loss * share for loss in losses], model)
        if iteration == 2:  # as after an overflow
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05))
        else:
            norms.append(t.clip_and_step(model, optimizer, 0.05))
    return [*norms, *model.parameters()]


def zeroed_by_hand(t: Trainer) -> list[Tensor]:
    """Gradients zeroed in place, without ``zero_grad()``.

    A rank has no backward pass in some iterations, one of them after a skipped step.
    """
    model, optimizer = t.start("SGD", lr=0.1, momentum=0.9)
    norms = []
    for iteration in range(8):
        for p in model.parameters():
            if p.grad is not None:
                (p.grad if iteration % 2 else p.grad.data).zero_()
        working = [rank for rank in t.ranks if iteration not in (2, 5, 6) or rank == 0]
        share = len(working) / len(t.ranks)
        losses = [share * loss_of(model, rank, iteration) for rank in working]
        if losses:
            t.descend(losses, model)
        if iteration == 4:  # as after an overflow
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05))
        else:
            norms.append(t.clip_and_step(model, optimizer, 0.05))
    return [*norms, *model.parameters()]


def stepped_early(t: Trainer) -> list[Tensor]:
    """``step()`` before any backward pass updates nothing; then one rank begins alone."""
    model, optimizer = t.start("SGD", lr=0.1, momentum=0.9, weight_decay=0.1)
    optimizer.step()
    norms = [t.clip_and_step(model, optimizer, 0.5)]
    assert all(p.grad is None for p in model.parameters())
    for iteration in range(4):
        optimizer.zero_grad()
        working = [rank for rank in t.ranks if iteration or rank == 0]
        share = len(working) / len(t.ranks)
        losses = [share * loss_of(model, rank, iteration) for rank in working]
        if losses:
            t.descend(losses, model)
        norms.append(t.clip_and_step(model, optimizer, 0.5))
    return [*norms, *model.parameters()]


def kept_gradients(t: Trainer) -> list[Tensor]:
    """References to gradients that the script reads after it has cleared them."""
    model, optimizer = t.start("AdamW", lr=0.01)
    kept, seen = [], []
    for iteration in range(6):
        if iteration == 2:
            for p in model.parameters():
                p.grad = None
        else:
            optimizer.zero_grad()
        t.backward(model, iteration)
        kept.append([p.grad for p in (model.wide.weight, model.twice.bias)])
        if iteration != 3:  # is dropped
            optimizer.step()
        if iteration == 4:
            seen += [gradient.clone() for gradient in kept[1]]
    optimizer.zero_grad()
    seen += [gradient.clone() for gradients in kept for gradient in gradients]
    return [*seen, *model.parameters()]


class Seldom(nn.Module):
    """A large layer that is not always used."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Linear(8, 8)
        self.large = nn.Linear(700, 700)

    def forward(self, x: Tensor, uses_large: bool) -> Tensor:
        y = self.always(x).sum()
        return y + self.large(x.new_ones(700)).square().mean() if uses_large else y


def used_by_one_again(t: Trainer) -> list[Tensor]:
    """In iterations in a row one rank alone uses a layer, which is long on its way."""
    model = t.model(Seldom)
    optimizer = t.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    for iteration in range(6):
        optimizer.zero_grad()
        losses = [
            model(
                torch.full((2, 8), rank + iteration / 8, device=t.device),
                rank == 1 or iteration < 2,
            )
            for rank in t.ranks
        ]
        t.descend(losses, model)
        optimizer.step()
    return [*model.always.parameters(), model.large.weight[:4]]


def scaled(t: Trainer) -> list[Tensor]:
    """Mixed precision's scaler; one rank overflows, both skip the step."""
    model, optimizer = t.start("AdamW", lr=1e-2)
    scaler = torch.amp.GradScaler(t.device.type, init_scale=8.0, growth_interval=2)
    scales = []
    for iteration in range(6):
        optimizer.zero_grad()
        overflow = iteration == 3 and 1 in t.ranks
        t.backward(model, iteration, scaler.get_scale() * (float("inf") if overflow else 1.0))
        scaler.scale(torch.ones((), device=t.device))  # as scale(loss) does, the scaler's own start
        if iteration % 2:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(torch.tensor(scaler.get_scale()))
    return [*scales, *model.parameters()]


class Small(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))


def adversarial(t: Trainer) -> list[Tensor]:
    """Two networks whose parameters have the same names, trained in turn, one through the other."""
    maker, critic = (t.model(Small) for _ in range(2))
    optimizers = [
        t.distribute(model, torch.optim.Adam(model.parameters(), lr=1e-2))
        for model in (maker, critic)
    ]

    def noise(iteration: int) -> list[Tensor]:
        return [
            torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * iteration + rank)).to(
                t.device
            )
            for rank in t.ranks
        ]

    for iteration in range(6):
        optimizers[1].zero_grad()
        batch = noise(iteration)
        t.descend([critic(maker(x).detach()).mean() for x in batch], critic)
        optimizers[1].step()
        optimizers[0].zero_grad()
        t.descend([-critic(maker(x)).square().mean() for x in batch], maker, critic)
        optimizers[0].step()
    return [*maker.parameters(), *critic.parameters()]


def observed(t: Trainer) -> list[Tensor]:
    """A closure, and a hook that looks at parameters after each step."""
    model, optimizer = t.start("SGD", lr=0.1)
    seen: list[Tensor] = []
    optimizer.register_step_post_hook(
        lambda *_: seen.append(torch.stack([p.detach().norm() for p in model.parameters()]))
    )

    def closure() -> float:
        optimizer.zero_grad()
        t.backward(model, len(seen))
        return 0.0

    for _ in range(4):
        optimizer.step(closure)
    return [*seen, *model.parameters()]


class Extragradient(torch.optim.SGD):
    """Steps by the gradients at the point to which a first step leads."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            first = closure()
        parameters = [p for group in self.param_groups for p in group["params"]]
        before = [p.clone() for p in parameters]
        super().step()
        with torch.enable_grad():
            second = closure()
        for p, old in zip(parameters, before, strict=True):
            p.copy_(old)
        super().step()
        return first, second


def evaluated_twice(t: Trainer) -> list[Tensor]:
    """A class that evaluates its closure twice per step."""
    model = t.model()
    optimizer = t.distribute(model, Extragradient(model.parameters(), lr=0.1))
    evaluations = []

    def closure() -> int:
        optimizer.zero_grad()
        t.backward(model, len(evaluations) // 2)
        evaluations.append(float(next(model.parameters()).grad.norm()))
        return len(evaluations)

    for number in range(4):
        assert optimizer.step(closure) == (2 * number + 1, 2 * number + 2)
    return [torch.tensor(evaluations), *model.parameters()]


def copied(t: Trainer) -> list[Tensor]:
    """Copies of the model and its best state taken in mid-training."""
    model, optimizer = t.start("SGD", lr=0.1, momentum=0.9)
    copies = []
    for iteration in range(5):
        optimizer.zero_grad()
        t.backward(model, iteration)
        optimizer.step()
        copies.extend(copy.deepcopy(model).parameters())
        copies.extend(copy.deepcopy(model.state_dict()).values())
    return [*copies, *model.parameters()]


class Spectral(nn.Module):
    """Complex parameters; their gradients come as conjugates, one of them negated lazily."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(9, dtype=torch.cfloat) * 0.3)
        self.turned = nn.Parameter(torch.randn(16) * 0.2)
        self.mix = nn.Parameter(torch.randn(16, 16) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.fft.irfft(torch.fft.rfft(x) * self.filter.conj(), n=16)
        return torch.tanh(y + torch.complex(y, self.turned.expand_as(y)).conj().imag) @ self.mix


def complex_numbers(t: Trainer) -> list[Tensor]:
    """Complex parameters beside real ones, clipped together, and their state."""
    model = t.model(Spectral)
    optimizer = t.distribute(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    norms = []
    for iteration in range(6):
        optimizer.zero_grad()
        batches = [
            torch.randn(4, 16, generator=torch.Generator().manual_seed(10 * iteration + rank)).to(
                t.device
            )
            for rank in t.ranks
        ]
        t.descend([(model(x) - 1).square().mean() for x in batches], model)
        norms.append(t.clip_and_step(model, optimizer, 0.05))
    state = optimizer.state_dict()["state"]
    return [*norms, *model.parameters(), *(state[number]["exp_avg"] for number in range(3))]


def pickled(t: Trainer) -> list[Tensor]:
    """Model and optimizer saved as objects and loaded again: plain ones, at that point."""
    model, optimizer = t.start("Adam", lr=0.01)
    for iteration in range(3):
        optimizer.zero_grad()
        t.backward(model, iteration)
        optimizer.step()
    saved = io.BytesIO()
    torch.save((model, optimizer), saved)
    optimizer.zero_grad()
    t.backward(model, 3)
    optimizer.step()
    saved.seek(0)
    model_then, optimizer_then = torch.load(saved, weights_only=False)
    assert type(optimizer_then) is torch.optim.Adam
    model_copy, optimizer_copy = copy.deepcopy((model, optimizer))
    assert type(optimizer_copy) is torch.optim.Adam
    results = [*model.parameters()]
    for each, its in ((model_then, optimizer_then), (model_copy, optimizer_copy)):
        its.zero_grad()
        loss_of(each, 0, 7).backward()
        its.step()
        results.extend(each.parameters())
    return results


CASES: dict[str, Callable[[Trainer], list[Tensor]]] = {
    case.__name__: case
    for case in (
        sgd,
        adam,
        adamw,
        accumulated,
        held_back,
        left_over,
        clipped,
        changed_after_step,
        captured,
        zeroed,
        withheld,
        resumed,
        regrouped,
        used_by_one,
        used_by_one_again,
        idle,
        cleared_by_hand,
        zeroed_by_hand,
        stepped_early,
        kept_gradients,
        scaled,
        adversarial,
        observed,
        evaluated_twice,
        copied,
        complex_numbers,
        pickled,
    )
}
# Those that upstream's optimizer can do at all.
SHIPPED = ("sgd", "adam", "adamw", "clipped", "changed_after_step", "captured")
