"""Parameters that are frozen: they take memory, but have no gradients, and need no inputs again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.execute.result import Simulated
from byteprophet.simulate.execute.simulate import block_costs, simulate
from byteprophet.simulate.execute.workload import workload_of
from byteprophet.simulate.explain.collectives import inferred_calls
from byteprophet.simulate.models.load import load_model
from byteprophet.simulate.models.traced import traced
from byteprophet.simulate.tree.one_line import parse_strategy

_WIDTH, _RANK, _TOKENS = 64, 4, 12
_LAYERS, _HIDDEN, _SEQUENCE = 2, 256, 128
_LLAMA = f"llama:layers={_LAYERS},hidden={_HIDDEN},heads=4,vocabulary=1024,sequence={_SEQUENCE}"
_LORA = 8
_ADAPTERS = _LAYERS * _LORA * ((_HIDDEN + 3 * _HIDDEN) + 2 * _HIDDEN)


class _Adapted(nn.Module):
    """A frozen linear layer with adapters, as in Hugging Face's PEFT."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(_WIDTH, _WIDTH).requires_grad_(False)
        self.down = nn.Linear(_WIDTH, _RANK, bias=False)
        self.up = nn.Linear(_RANK, _WIDTH, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        made: Tensor = self.base(rows) + self.up(self.down(rows))
        return made


class _Network(nn.Module):
    """A frozen encoder, adapted layers with a frozen norm and MLP, and a head that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.LayerNorm(_WIDTH))
        self.encoder.requires_grad_(False)
        self.layers = nn.ModuleList(_Adapted() for _ in range(2))
        self.norm = nn.LayerNorm(_WIDTH).requires_grad_(False)
        self.wide = nn.Linear(_WIDTH, 4 * _WIDTH).requires_grad_(False)
        self.head = nn.Linear(4 * _WIDTH, 10)

    def forward(self, rows: Tensor) -> Tensor:
        rows = self.encoder(rows)
        for layer in self.layers:
            rows = functional.gelu(layer(self.norm(rows)))
        made: Tensor = self.head(self.wide(rows))
        return made


def _make(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    return _Network(), (torch.zeros(batch, _TOKENS, _WIDTH),)


def test_flops_are_those_of_pytorch() -> None:
    with torch.device("meta"):
        module, inputs = _make(3)
    with FlopCounterMode(display=False) as counter:
        module(*inputs).sum().backward()
    model = traced("own", _make)(3)
    assert model.flops() == counter.get_total_flops()
    assert model.parameters() == sum(parameter.numel() for parameter in module.parameters())


def test_saved_activations_are_those_of_autograd() -> None:
    module, inputs = _make(16)
    module, inputs = module.bfloat16(), tuple(one.bfloat16() for one in inputs)
    known = {one.untyped_storage().data_ptr() for one in module.parameters()}
    saved: dict[int, int] = {}
    kept = []  # so that no storage is used again

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
            kept.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(*inputs)
    (stage,) = _program("micro_batch=16", 1).stages
    assert stage.saved_bytes == pytest.approx(sum(saved.values()), rel=0.05)


def test_a_frozen_encoder_has_no_backward_pass() -> None:
    (stage,) = _program("", 1).stages
    first = stage.blocks[0].compiled
    assert stage.blocks[0].path.startswith("encoder")
    assert first.forward
    assert not first.backward
    assert first.saved_bytes == 0


class _Images(nn.Module):
    """Pooled features of a frozen convolution behind one that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(8, 8, 3, bias=False), nn.Linear(8, 4)
        self.fixed = nn.Sequential(nn.Conv2d(8, 8, 3), nn.MaxPool2d(2)).requires_grad_(False)
        self.before = nn.Sequential(nn.Conv2d(8, 8, 3), nn.MaxPool2d(2)).requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        found = self.fixed(self.stem(self.before(images))).flatten(2)
        made: Tensor = self.head(found.transpose(1, 2)).sum(1)
        return made


def test_frozen_convolutions_keep_what_autograd_keeps() -> None:
    def make(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
        return _Images(), (torch.zeros(batch, 8, 40, 40),)

    module, inputs = make(1)
    module.bfloat16()
    known = {one.untyped_storage().data_ptr() for one in module.parameters()}
    saved: dict[int, int] = {}
    kept = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
            kept.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(inputs[0].bfloat16())
    (stage,) = compile_program(traced("own", make)(1), parse_strategy("", 1)).stages
    assert stage.saved_bytes == pytest.approx(sum(saved.values()), rel=0.02)


def test_what_has_no_backward_pass_is_not_recomputed() -> None:
    plain, again = (_program(line, 1).stages[0].blocks[0] for line in ("", "recompute=full"))
    assert again.compiled.backward == plain.compiled.backward == ()


def test_views_of_learned_queries_are_counted() -> None:
    class Queries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.queries = nn.Parameter(torch.zeros(8, _WIDTH))
            self.layer = nn.Linear(_WIDTH, _WIDTH)

        def forward(self, rows: Tensor) -> Tensor:
            found: Tensor = self.layer(self.queries.unsqueeze(0).expand(rows.shape[0], -1, -1))
            return found @ rows.transpose(1, 2)

    model = traced("own", lambda batch: (Queries(), (torch.zeros(batch, _TOKENS, _WIDTH),)))(2)
    assert model.parameters() == 8 * _WIDTH + _WIDTH * (_WIDTH + 1)


def _program(line: str, gpus: int) -> Program:
    strategy = parse_strategy(line, gpus)
    return compile_program(traced("own", _make)(strategy.samples), strategy)


def test_built_in_models_have_adapters() -> None:
    plain, adapted = load_model(_LLAMA, 4), load_model(f"{_LLAMA},lora={_LORA}", 4)
    assert adapted.parameters() - plain.parameters() == _ADAPTERS
    forward, backward = (
        [sum(getattr(one, name) for _, one in model.root.operators()) for model in (plain, adapted)]
        for name in ("flops", "backward_flops")
    )
    tokens = 4 * _SEQUENCE
    assert forward[1] - forward[0] == 2 * tokens * _ADAPTERS
    # Of each frozen matrix, one of two products is left. Attention has no parameter.
    attention = 2 * _LAYERS * 4 * 4 * _SEQUENCE**2 * _HIDDEN
    frozen = (backward[0] - attention) // 2 + attention
    assert backward[1] == frozen + 2 * 2 * tokens * _ADAPTERS


def _simulated(line: str, gpus: int, lora: int) -> Simulated:
    strategy = parse_strategy(line, gpus)
    model = load_model(f"{_LLAMA},lora={lora}", strategy.samples)
    return simulate(model, strategy, find_cluster("dgx-a100"))


def test_frozen_parameters_have_neither_gradients_nor_state() -> None:
    plain, adapted = (_simulated("micro_batch=4", 1, lora).memory[0] for lora in (0, _LORA))
    assert adapted.parameters - plain.parameters == 2 * _ADAPTERS
    assert adapted.gradients == 4 * _ADAPTERS
    assert adapted.optimizer_state == 12 * _ADAPTERS
    assert adapted.activations < plain.activations


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_only_gradients_of_adapters_are_sent(zero: int) -> None:
    program = _simulated(f"dp=4 zero={zero} micro_batch=2", 4, _LORA).program
    sent: dict[str, int] = {}
    for call, times in inferred_calls(program)[0].items():
        sent[call.kind.value] = sent.get(call.kind.value, 0) + call.size_bytes * times
    reduced = "reduce-scatter" if zero else "all-reduce"
    assert sent[reduced] == 4 * _ADAPTERS
    # FSDP2 gathers frozen parameters, too, before each pass; ZeRO 1 what the optimizer changed.
    if zero == 1:
        assert sent["all-gather"] == 2 * _ADAPTERS
    if zero == 3:
        assert sent["all-gather"] > 2 * program.model.parameters()


def test_a_workload_has_what_is_trained() -> None:
    result = _simulated("dp=4 micro_batch=2", 4, _LORA)
    workload = workload_of(result.program, block_costs(result.program, find_cluster("dgx-a100")))
    assert sum(tensor.size_bytes for tensor in workload.tensors) == 4 * _ADAPTERS
    assert all("lora" in tensor.name for tensor in workload.tensors)


def test_adapters_cost_less_than_training_all() -> None:
    strategy = parse_strategy("dp=4 micro_batch=2", 4)
    times = []
    for lora in (0, 16):
        model = load_model(f"llama2-7b:layers=4,lora={lora}", strategy.samples)
        times.append(simulate(model, strategy, find_cluster("dgx-a100")).iteration_ns)
    assert times[1] < 0.8 * times[0]  # of three products, two are left


def test_built_in_models_with_other_sizes() -> None:
    model = load_model("llama2-7b:layers=2,sequence=512", 1)
    assert model.parameters() < load_model("llama2-7b:layers=3", 1).parameters()
    narrow, described = (
        load_model(f"{text}:layers=2,hidden=384,heads=12,vocabulary=50257,sequence=1024", 1)
        for text in ("gpt2", "gpt")
    )
    assert narrow.parameters() == described.parameters()
    assert load_model("gpt2:layers=1,heads=8", 1).parameters()  # as many of keys and values
    with pytest.raises(UserError, match=r"llama2-7b: hidden=2048: give inner, too.*11008 belongs"):
        load_model("llama2-7b:hidden=2048", 1)
    assert load_model("llama2-7b:layers=1,hidden=2048,inner=5504", 1).parameters()
    with pytest.raises(UserError, match="model llama2-7b: depth=2: expected NAME=NUMBER"):
        load_model("llama2-7b:depth=2", 1)
