"""Models that run regions: the same names, copies and hooks, and the same results."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import inspect
import io
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.autograd.graph import saved_tensors_hooks

import byteprophet.torch as bps
from byteprophet.errors import UserError
from byteprophet.job import Bucket, Model, Parameter, Strategy
from byteprophet.job.strategy import Region
from byteprophet.job.strategy_file import Used, read_strategy_file, write_strategy
from byteprophet.torch.regions.install import install
from byteprophet.torch.regions.root import at_first_call

from .models import Tower

RECOMPUTED = Region(("blocks.1", "blocks.2", "blocks.3"), recomputed=True)
COMPILED = Region(("blocks.0", "blocks.1"), compiled=True)


def tower() -> Tower:
    torch.manual_seed(0)
    return Tower()


def gradients(model: nn.Module) -> list[Tensor]:
    """Of one training pass."""
    model.zero_grad()
    model(torch.linspace(-1, 1, 24).view(3, 8)).square().mean().backward()
    return [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]


def assert_equal(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other) > 0
    for left, right in zip(one, other, strict=True):
        assert torch.equal(left, right)


def test_recomputed_regions_have_the_same_gradients() -> None:
    plain, changed = tower(), tower()
    names = list(changed.state_dict())
    install(changed, Strategy(regions=(RECOMPUTED,)), "s.json")
    for _ in range(2):
        assert_equal(gradients(changed), gradients(plain))
    assert list(changed.state_dict()) == names
    data = torch.randn(2, 8)
    with torch.no_grad():
        assert torch.equal(changed(data), plain(data))
    changed.eval()
    assert torch.equal(changed(data), plain(data))


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch makes graphs of regions, and runs them without making code, which takes it seconds.

    Real jobs do both (``test_jobs.py``).
    """
    compiled = functools.partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", compiled)


@pytest.mark.usefixtures("traced_only")
def test_a_compiled_region_is_used_and_close(capfd: pytest.CaptureFixture[str]) -> None:
    plain, changed = tower(), tower()
    install(changed, Strategy(regions=(COMPILED,)), "s.json")
    for left, right in zip(gradients(changed), gradients(plain), strict=True):
        torch.testing.assert_close(left, right)
    assert "not compiled" not in capfd.readouterr().err


def test_autocast_returns_single_precision() -> None:
    plain, changed = tower(), tower()
    install(changed, Strategy(autocast=True), "s.json")
    for _ in range(2):
        seen = gradients(changed)
        for left, right in zip(seen, gradients(plain), strict=True):
            assert left.dtype == torch.float32
            torch.testing.assert_close(left, right, rtol=0.2, atol=0.05)
    assert not all(map(torch.equal, seen, gradients(plain)))
    data = torch.randn(2, 8)
    assert changed(data).dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(changed(data), plain(data))


class Sequences(nn.Module):
    """Takes the lengths first, which stay on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2, device="meta")

    def forward(self, lengths: Tensor, data: Tensor) -> Tensor:
        output: Tensor = self.inner(data)[: len(lengths)]
        return output


def test_autocast_is_that_of_the_models_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here one that has no autocast."""
    devices: list[str] = []

    def autocast(device: str, dtype: torch.dtype) -> contextlib.AbstractContextManager[None]:
        devices.append(device)
        return contextlib.nullcontext()

    model = Sequences()
    install(model, Strategy(autocast=True), "s.json")
    monkeypatch.setattr(torch, "autocast", autocast)
    model(torch.tensor([1, 1]), torch.ones(2, 2, device="meta"))
    assert devices == ["meta"]


@pytest.mark.parametrize(
    "strategy",
    [Strategy(autocast=True), Strategy(regions=(Region(("",), recomputed=True),), autocast=True)],
)
def test_a_forward_keeps_its_signature(strategy: Strategy) -> None:
    """By which trainers find out which columns of a table the model takes."""
    model = tower()
    install(model, strategy, "s.json")
    assert "forward" in vars(model)
    assert list(inspect.signature(model.forward).parameters) == ["data"]


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor


class Distribution:
    def __init__(self, mean: Tensor) -> None:
        self.mean = mean


class Returning(Tower):
    """Returns its result in an object."""

    made: Callable[[Tensor, Tensor], Any]

    def forward(self, data: Tensor) -> Any:
        hidden = self.first(data)
        return self.made(self.last(hidden), hidden)


def test_autocast_casts_what_a_dataclass_holds() -> None:
    model = Returning()
    model.made = Output
    install(model, Strategy(autocast=True), "s.json")
    output = model(torch.ones(2, 8))
    assert isinstance(output, Output)
    assert output.logits.dtype == output.hidden.dtype == torch.float32
    torch.autograd.backward(output.logits.sum())
    assert model.last.weight.grad is not None


def test_autocast_refuses_an_object_that_it_cannot_open() -> None:
    model = Returning()
    model.made = lambda logits, hidden: Distribution(logits)
    install(model, Strategy(autocast=True), "s.json")
    with pytest.raises(RuntimeError, match="Returning returns a Distribution with a"):
        model(torch.ones(2, 8))
    model.eval()
    assert model(torch.ones(2, 8)).mean.dtype == torch.float32


@pytest.mark.parametrize("made", [copy.deepcopy, "pickled"])
def test_a_copy_has_its_own_forward(made: Callable[[nn.Module], nn.Module] | str) -> None:
    model = tower()
    install(model, Strategy(regions=(RECOMPUTED,)), "s.json")
    before = gradients(model)
    if callable(made):
        copied = made(model)
    else:
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        copied = torch.load(saved, weights_only=False)
    assert_equal(gradients(copied), before)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
        assert not copied(torch.randn(2, 8)).any()
    assert_equal(gradients(model), before)


class Skipping(Tower):
    """Leaves out a block, or changes or looks at what it gets, when it is told to."""

    skip = shift = scaled = other = look = step = False

    def forward(self, data: Tensor) -> Tensor:
        data = self.first(data)
        for number, block in enumerate(self.blocks):
            if number == 2:
                if self.skip:
                    continue
                if self.shift:
                    data = data + 1
                if self.other:
                    data = torch.ones(2, 8)
                if self.look:
                    assert data.shape
                if self.step:
                    self.scale += 1
            data = block(data, 2 * self.scale if self.scaled and number == 2 else self.scale)
        output: Tensor = self.last(data)
        return output


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("other", "'blocks.2' ran in a region with 'blocks.1', but its input is not what"),
        ("skip", "'blocks.3' ran in a region with 'blocks.1', but its input is not what"),
        ("scaled", "'blocks.2' ran in a region with 'blocks.1', but its further inputs differ"),
        ("step", "'blocks.2' ran in a region with 'blocks.1', but its further inputs were changed"),
        ("shift", "a region with 'blocks.1' is not the last of it, but not only the next module"),
        ("look", "a region with 'blocks.1' is not the last of it, but not only the next module"),
    ],
)
def test_a_pass_that_calls_modules_otherwise_is_an_error(change: str, said: str) -> None:
    model = Skipping()
    install(model, Strategy(regions=(RECOMPUTED,)), "s.json")
    gradients(model)
    setattr(model, change, True)
    with pytest.raises(RuntimeError, match=said):
        gradients(model)


def two_layers() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    install(model, Strategy(regions=(Region(("0", "1"), recomputed=True),)), "s.json")
    return model


@pytest.mark.parametrize("first", [True, False])
def test_a_region_runs_under_one_mode_of_torch(first: bool) -> None:
    model = two_layers()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=first):
        between = model[0](torch.randn(2, 4))
    with torch.set_grad_enabled(first), pytest.raises(RuntimeError, match="switched otherwise"):
        model[1](between)


def test_what_an_earlier_pass_returned_is_not_taken() -> None:
    model = two_layers()
    earlier = model[0](torch.zeros(2, 4))
    model[0](torch.ones(2, 4))
    with pytest.raises(RuntimeError, match="its input is not what the module before it returned"):
        model[1](earlier)


def test_a_recomputed_part_with_hooks_stays_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    model, calls = tower(), 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    model.blocks[1].inner.register_forward_hook(count)
    install(model, Strategy(regions=(Region(("blocks.1",), recomputed=True),)), "s.json")
    gradients(model)
    assert calls == 1
    said = "module 'blocks.1' is not recomputed: hooks of its part 'inner' would run twice"
    assert said in capfd.readouterr().err


def test_a_pass_that_never_calls_a_module_is_an_error() -> None:
    model = tower()
    install(model, Strategy(regions=(Region(("blocks.2", "blocks.3"), recomputed=True),)), "s.json")
    gradients(model)
    del model.blocks[3]
    model.last = nn.Identity()
    with pytest.raises(RuntimeError, match=r"ran 'blocks\.3' in a region .* but never"):
        gradients(model)


class Speaking(nn.Module):
    """Its forward has keywords that ``torch.utils.checkpoint`` has, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(
        self, data: Tensor, *, debug: float = 1.0, context_fn: float = 1.0, early_stop: float = 1.0
    ) -> Tensor:
        output: Tensor = self.layer(data * debug) * context_fn + early_stop
        return output


class Asking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Speaking()

    def forward(self, data: Tensor) -> Tensor:
        output: Tensor = self.inner(data, debug=2.0, context_fn=3.0, early_stop=0.5)
        return output


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_recomputed_forward_gets_all_its_keywords(
    compiled: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    model = Asking()
    plain = copy.deepcopy(model)
    install(
        model, Strategy(regions=(Region(("inner",), compiled=compiled, recomputed=True),)), "s.json"
    )
    data = torch.randn(2, 4)
    for each in (model, plain):
        each(data).square().sum().backward()
    for left, right in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(left.grad, right.grad)
    assert "not compiled" not in capfd.readouterr().err


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_region_of_the_whole_model_does_not_keep_it_alive(compiled: bool) -> None:
    model = tower()
    region = Region(("",), compiled=compiled, recomputed=not compiled)
    install(model, Strategy(regions=(region,)), "s.json")
    gradients(model)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


class Breaking(nn.Module):
    """Its value decides what it does, which torch cannot compile as one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, data: Tensor) -> Tensor:
        output: Tensor = self.layer(data)
        return output if output.sum().item() > 0 else -output


@pytest.mark.parametrize("recomputed", [False, True])
def test_what_cannot_be_compiled_stays_eager_and_says_why(
    recomputed: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    model = nn.Sequential(Breaking(), Breaking())
    plain = copy.deepcopy(model)
    region = Region(("0", "1"), compiled=True, recomputed=recomputed)
    install(model, Strategy(regions=(region,)), "s.json")
    data = torch.randn(2, 4)
    kept = []
    for each in (plain, model, model):
        saved: list[Tensor] = []
        with saved_tensors_hooks(lambda tensor, saved=saved: saved.append(tensor), lambda _: data):
            outputs = each(data)
        assert torch.equal(outputs, plain(data))
        kept.append(len(saved))
    assert (kept[2] < kept[0]) == recomputed
    assert capfd.readouterr().err.count("warning: the region of 0, 1 is not compiled: ") == 1


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """This process is the only rank of a process group."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone", "traced_only")
def test_distributed_data_parallel_does_not_cut_a_region() -> None:
    """torch would compile a graph for each of its buckets."""
    model = nn.Sequential(*(nn.Linear(600, 600) for _ in range(4)))
    install(model, Strategy(regions=(Region(("0", "1", "2", "3"), compiled=True),)), "s.json")
    wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1.5)
    counters.clear()
    wrapped(torch.randn(2, 600)).sum().backward()
    assert counters["aot_autograd"]["total"] == 1


def test_regions_of_a_model_that_is_compiled_from_outside_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    called: list[nn.Module] = []
    at_first_call(model, called.append)
    nn.Linear(2, 2)(torch.ones(2))
    outside = nn.Sequential(model)
    outside(torch.ones(2))
    outside(torch.ones(2))
    assert called == [outside]
    strategy = Strategy(regions=(Region(("0", "1"), compiled=True),))
    with pytest.raises(UserError, match="the script compiles Sequential itself"):
        install(model, strategy, "s.json", nn.ModuleList([model, torch.compile(outside)]))


def test_a_script_can_apply_a_file(tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    used = Used(
        Model((Parameter("first.bias", 32),)),
        Strategy("dear", (Bucket(("first.bias",), 0, 1),), regions=(RECOMPUTED,)),
        since=0,
    )
    write_strategy(path, used)
    assert read_strategy_file(path) == used
    model = tower()
    bps.apply(model, path)
    assert_equal(gradients(model), gradients(tower()))
    assert "forward" in vars(model.blocks[1])
    with pytest.raises(UserError, match=r"another model: there is no parameter 'first\.bias' in L"):
        bps.apply(nn.Linear(2, 2), path)
    with pytest.raises(UserError, match=r"model: parameter 'first\.bias' has 32 bytes, and 64 in"):
        bps.apply(Tower(16), path)
    linear = nn.Linear(2, 2)
    with pytest.raises(UserError, match=r"another model: there is no module 'blocks\.1' in Linear"):
        install(linear, used.strategy, "s.json")
    install(linear, Strategy(autocast=True), "t.json")  # a refused strategy is none
    assert "forward" in vars(linear)


def test_a_file_of_a_job_whose_gradients_shared_buffers_is_applied(tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    size_bytes = sum(each.nbytes for each in tower().parameters()) - 32
    for more_bytes in (0, 4):
        together = Parameter("first.weight and 6 more", size_bytes + more_bytes)
        model = Model((Parameter("first.bias", 32), together))
        names = tuple(each.name for each in model.parameters)
        strategy = Strategy("dear", (Bucket(names, 0, 1),), regions=(RECOMPUTED,))
        write_strategy(path, Used(model, strategy, since=0))
        if more_bytes:
            with pytest.raises(UserError, match=r"'first\.weight and 6 more' are not all in Tower"):
                bps.apply(tower(), path)
        else:
            bps.apply(tower(), path)


def test_what_only_an_optimizer_can_apply_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "strategy.json"
    bucket = Bucket(("first.bias",), 0, 1)
    strategy = Strategy("dear", (bucket,), regions=(RECOMPUTED,), reduce_dtype="bf16")
    write_strategy(path, Used(Model((Parameter("first.bias", 32),)), strategy, since=0))
    model = tower()
    bps.apply(model, path)
    assert "forward" in vars(model.blocks[1])
    said = capfd.readouterr().err
    assert "leaves out its bf16 gradients: pass the strategy to DistributedOptimizer" in said


def test_a_model_that_the_script_compiles_is_refused() -> None:
    model = tower()
    model.blocks[0].compile()
    with pytest.raises(UserError, match="the script compiles Tower itself"):
        install(model, Strategy(regions=(RECOMPUTED,)), "s.json")
