"""A user's own modules: FLOPs, parameters and saved activations are those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.compile.steps import Collective
from byteprophet.simulate.execute.simulate import simulate
from byteprophet.simulate.models.inception import inception_v3
from byteprophet.simulate.models.own_code import Make, import_make
from byteprophet.simulate.models.traced import traced
from byteprophet.simulate.models.vision import resnet50, vgg19
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.tree.node import Tree
from byteprophet.simulate.tree.one_line import parse_strategy

from ...thorough import THOROUGH

_WIDTH = 64


class _Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        wide = functional.gelu(self.up(self.norm(hidden)))
        return hidden + self.down(wide)


class _Mixer(nn.Module):
    """An embedding, equal layers, an output layer that shares the embedding, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(96, _WIDTH)
        self.layers = nn.ModuleList(_Mlp() for _ in range(4))
        self.head = nn.Linear(_WIDTH, 96, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return functional.log_softmax(self.head(hidden), -1)


class _Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.next = nn.Sequential(nn.Conv2d(8, 16, 3, groups=2), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(16 * 7 * 7, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.next(self.stem(images)).flatten(1))


class _Chunks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all = nn.Linear(_WIDTH, 3 * _WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        first, second, third = self.all(hidden).chunk(3, -1)
        return first * second * third


def chunks(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    return _Chunks(), (torch.zeros(batch, _WIDTH),)


def mixer(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    return _Mixer(), (torch.zeros(batch, 12, dtype=torch.long),)


def images(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    return _Images(), (torch.zeros(batch, 3, 16, 16),)


def _program(make: Make, line: str, gpus: int) -> Program:
    strategy = parse_strategy(line, gpus)
    return compile_program(traced("own", make)(strategy.samples), strategy)


def test_flops_and_parameters_are_those_of_pytorch() -> None:
    with torch.device("meta"):
        module, inputs = mixer(6)
    with FlopCounterMode(display=False) as counter:
        module(*inputs).sum().backward()
    ours = traced("own", mixer)(6)
    assert ours.flops() == counter.get_total_flops()
    assert ours.parameters() == sum(parameter.numel() for parameter in module.parameters())


def test_forward_flops_of_convolutions_are_those_of_pytorch() -> None:
    with torch.device("meta"):
        module, inputs = images(5)
    with FlopCounterMode(display=False) as counter:
        module(*inputs)
    ours = traced("own", images)(5)
    assert sum(one.flops for _, one in ours.root.operators()) == counter.get_total_flops()
    assert ours.parameters() == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("make", [mixer, images, chunks])
def test_saved_activations_are_those_of_autograd(make: Make) -> None:
    module, inputs = make(32)
    module = module.bfloat16()
    inputs = tuple(one.bfloat16() if one.is_floating_point() else one for one in inputs)
    known = {one.untyped_storage().data_ptr() for one in (*module.parameters(), *module.buffers())}
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
    stages = _program(make, "micro_batch=32", 1).stages
    assert stages[0].saved_bytes == pytest.approx(sum(saved.values()), rel=0.05)


@pytest.mark.parametrize(
    ("make", "parameters", "multiply_adds"),
    # As torchvision states them: 4.09, 19.63 and 5.71 GFLOPS, where one is a multiplication and
    # addition.
    [
        (resnet50, 25_557_032, 4.09e9),
        (vgg19, 143_667_240, 19.63e9),
        pytest.param(inception_v3, 27_161_264, 5.71e9, marks=THOROUGH),
    ],
)
def test_built_in_networks_are_the_published_ones(
    make: Make, parameters: int, multiply_adds: float
) -> None:
    ours = traced("network", make)(2)
    assert ours.parameters() == parameters
    forward = sum(one.flops for _, one in ours.root.operators())
    assert forward / 2 / 2 == pytest.approx(multiply_adds, rel=0.002)


def test_equal_layers_are_one_module() -> None:
    blocks = traced("own", mixer)(2).blocks
    layers = [call for call in blocks if call.name.startswith("layers.")]
    assert [call.name for call in layers] == [f"layers.{at}" for at in range(4)]
    assert len({id(call.module) for call in layers}) == 1


def test_own_modules_can_be_split_and_simulated() -> None:
    tree = Tree(Mesh(tp=2, dp=2, pp=2))
    tree.split("batch", "dp")
    for path, dim in (("up", "columns"), ("gelu", "columns"), ("down", "inner")):
        tree[f"layers.*.{path}"].split(dim, "tp")
    tree.schedule(4)
    strategy = tree.strategy()
    model = traced("own", mixer)(strategy.samples)
    layer = compile_program(model, strategy).stages[0].blocks[1].compiled
    found = [step.kind.value for step in layer.forward if isinstance(step, Collective)]
    assert found == ["all-reduce"]
    assert simulate(model, strategy, find_cluster("dgx-a100")).iteration_ns > 0


class _Stack(nn.Module):
    """The layers of ``_Mixer`` two modules below the root, as in ``BertForMaskedLM``."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.tokens, self.encoder = nn.Embedding(96, _WIDTH), encoder

    def forward(self, tokens: Tensor) -> Tensor:
        return self.encoder(self.tokens(tokens))


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Mlp() for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden * 2


class _Nested(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.model = _Stack(encoder)
        self.head = nn.Linear(_WIDTH, 96, bias=False)
        self.head.weight = self.model.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.model(tokens))


def nested(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    return _Nested(_Encoder()), (torch.zeros(batch, 12, dtype=torch.long),)


def listed(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
    encoder = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(4)))
    return _Nested(encoder), (torch.zeros(batch, 12, dtype=torch.long),)


def test_layers_below_the_root_are_blocks() -> None:
    layers = [f"model.encoder.layers.{at}" for at in range(4)]
    model = traced("own", nested)(2)
    names = [call.name for call in model.blocks]
    assert names == ["model.tokens", *layers, "model.encoder.mul", "head"]
    assert len({id(call.module) for call in model.blocks[1:5]}) == 1
    names = [call.name for call in traced("own", listed)(2).blocks]
    assert names == ["model.tokens", *(f"model.encoder.{at}" for at in range(4)), "head"]


@pytest.mark.parametrize("line", ["zero=3", "pp=2 micro_batches=2", "tp=2"])
def test_where_layers_are_does_not_change_what_is_predicted(line: str) -> None:
    """All were one block: a unit of FSDP2, a bucket and a stage of their own."""

    class Flat(_Mixer):
        def forward(self, tokens: Tensor) -> Tensor:
            hidden = self.tokens(tokens)
            for layer in self.layers:
                hidden = layer(hidden)
            return self.head(hidden * 2)

    def flat(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
        return Flat(), (torch.zeros(batch, 12, dtype=torch.long),)

    strategy = parse_strategy(line, 4)
    one, other = (
        simulate(traced("own", make)(strategy.samples), strategy, find_cluster("dgx-a100"))
        for make in (flat, nested)
    )
    assert [len(stage.blocks) for stage in one.program.stages] == [
        len(stage.blocks) for stage in other.program.stages
    ]
    assert one.iteration_ns == other.iteration_ns
    assert one.memory == other.memory


def test_models_of_few_equal_layers_are_divided_by_flops() -> None:
    """All that came before four equal layers was on the first stage."""
    sizes = [_WIDTH * size for size in (1, 8, 4, 2, 6, 3, 1)]

    def make(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
        parts = [nn.Linear(one, two) for one, two in pairwise(sizes)]
        parts += [nn.Linear(_WIDTH, _WIDTH) for _ in range(4)]
        return nn.Sequential(*parts), (torch.zeros(batch, _WIDTH),)

    program = _program(make, "pp=4 micro_batches=4", 4)
    stage_of = {block.path: at for at, stage in enumerate(program.stages) for block in stage.blocks}
    flops = [0] * 4
    for call in program.model.blocks:
        flops[stage_of[call.name]] += sum(one.flops for _, one in call.module.operators())
    largest = 2 * sizes[1] * sizes[2]
    assert max(flops) == largest


def test_models_without_equal_layers_are_divided_by_flops() -> None:
    stages = _program(images, "pp=2 micro_batches=2", 2).stages
    assert sum(len(stage.blocks) for stage in stages) == 3
    assert all(stage.blocks for stage in stages)


def test_skip_connections_cross_all_stages_between() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(4))

        def forward(self, hidden: Tensor) -> Tensor:
            first = self.parts[0](hidden)
            hidden = self.parts[2](self.parts[1](first))
            return self.parts[3](hidden + first)

    def skip(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
        return Skip(), (torch.zeros(batch, _WIDTH),)

    tree = Tree(Mesh(pp=4))
    for at in range(1, 4):
        tree[f"parts.{at}"].map(at)
    stages = compile_program(traced("own", skip)(1), tree.strategy()).stages
    hidden = 2 * _WIDTH
    assert [stage.received_bytes for stage in stages] == [0, hidden, 2 * hidden, hidden]


def test_what_cannot_be_traced_is_refused() -> None:
    class Fails(nn.Module):
        def forward(self, _: Tensor) -> Tensor:
            raise KeyError("no such head")

    with pytest.raises(
        UserError, match=r"model own: 0: cannot be traced in bfloat16: KeyError: 'no such"
    ):
        traced("own", lambda batch: (nn.Sequential(Fails()), (torch.ones(batch),)))

    with pytest.raises(UserError, match="model own: lstm: recurrent layers cannot be"):
        traced("own", lambda batch: (nn.LSTM(4, 4), (torch.ones(3, batch, 4),)))(2)
    with pytest.raises(UserError, match="cannot be imported"):
        import_make("no_such_module:make")


def test_what_later_operators_keep_is_free_when_earlier_ones_go_backward() -> None:
    """The largest step is that of pooling, when the second convolution has given its input back."""

    def make(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
        layers = (
            *(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, 8, 3, padding=1), nn.ReLU()),
        )
        return nn.Sequential(*layers), (torch.zeros(batch, 3, 32, 32),)

    strategy = parse_strategy("micro_batch=4", 1)
    (stage,) = compile_program(traced("pooled", make)(4), strategy).stages
    images, wide, pooled = 4 * 3 * 32**2 * 2, 4 * 64 * 32**2 * 2, 4 * 64 * 16**2 * 2
    indices, narrow = 4 * 64 * 16**2 * 8, 4 * 8 * 16**2 * 2
    assert stage.saved_bytes == images + wide + indices + pooled + narrow
    at_pooling = images + wide + indices + (wide + pooled)
    assert stage.saved_bytes + stage.transient_bytes == at_pooling


class _Keeping(nn.Module):
    """A layer beside what no operator owns."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        self.layer = nn.Linear(_WIDTH, _WIDTH)
        if kept == "buffer":
            self.register_buffer("table", torch.zeros(1 << 18, _WIDTH))
        elif kept == "unused":
            self.table = nn.Embedding(1 << 18, _WIDTH)
        elif kept == "nothing":
            self.layer.requires_grad_(False)
        else:
            self.register_buffer("table", torch.zeros(2, _WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.layer(hidden)
        return output


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ("buffer", "table is a buffer, .* which have 32 MiB in all"),
        ("unused", r"table\.weight is used by no operator, .* which have 32 MiB in all"),
        ("nothing", "no parameter gets a gradient"),
    ],
)
def test_what_cannot_be_right_is_refused(kept: str, said: str) -> None:
    def make(batch: int, kept: str = kept) -> tuple[nn.Module, tuple[Tensor]]:
        return _Keeping(kept), (torch.zeros(batch, 4, _WIDTH),)

    with pytest.raises(UserError, match=said):
        traced("mine", make)(2)
    assert traced("mine", lambda batch: make(batch, "little"))(2).name == "mine"


class _Recomputing(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(_WIDTH, _WIDTH)
        self.reentrant = reentrant

    def forward(self, hidden: Tensor) -> Tensor:
        made: Tensor = checkpoint(self.layer, hidden, use_reentrant=self.reentrant)
        return made


@pytest.mark.parametrize("reentrant", [False, True])
def test_models_that_recompute_by_themselves_are_refused(reentrant: bool) -> None:
    def make(batch: int) -> tuple[nn.Module, tuple[Tensor]]:
        layers = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), _Recomputing(reentrant=reentrant))
        return layers, (torch.zeros(batch, _WIDTH),)

    with pytest.raises(UserError, match=r"model own: 1: torch\.utils\.checkpoint inside a model"):
        traced("own", make)
    module, inputs = make(2)
    module(*inputs).sum().backward()  # what PyTorch does is as before
    assert all(one.grad is not None for one in module.parameters())


class _Picking(nn.Module):
    """What it does depends on values of tensors."""

    def __init__(self, pick: str) -> None:
        super().__init__()
        self.pick = pick
        self.layer = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.pick == "item":
            return hidden * 2 if hidden.sum() > 0 else hidden
        chosen = hidden[hidden[:, 0] > 0]
        made: Tensor = self.layer(chosen)
        return made


@pytest.mark.parametrize(("pick", "who"), [("item", r"Tensor\.item\(\)"), ("mask", r"nonzero\(\)")])
def test_models_that_depend_on_values_are_refused_with_the_module(pick: str, who: str) -> None:
    def make(batch: int) -> tuple[nn.Module, tuple[Tensor]]:
        layers = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), _Picking(pick))
        return layers, (torch.zeros(batch, _WIDTH),)

    with pytest.raises(UserError, match=f"^model own: 1: {who}.* needs values of tensors"):
        traced("own", make)


def _filled(rows: Tensor) -> Tensor:
    made = torch.zeros_like(rows)
    made[..., : _WIDTH // 2] = rows[..., _WIDTH // 2 :]
    return made * 2


def _viewed(rows: Tensor) -> Tensor:
    before = rows.view(-1, _WIDTH)
    return rows.mul_(2) + before.view_as(rows)


class _Changing(nn.Module):
    """What it does in place is read by another view."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(_WIDTH, _WIDTH), change

    def forward(self, rows: Tensor) -> Tensor:
        return self.change(self.layer(rows))


@pytest.mark.parametrize(("change", "who"), [(_filled, "copy"), (_viewed, "mul")])
def test_changes_in_place_that_are_read_by_other_views_are_refused(
    change: Callable[[Tensor], Tensor], who: str
) -> None:
    def make(batch: int) -> tuple[nn.Module, tuple[Tensor]]:
        layers = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), _Changing(change))
        return layers, (torch.zeros(batch, _WIDTH),)

    with pytest.raises(UserError, match=rf"^model own: 1\.{who} changes a part or a view of"):
        traced("own", make)


def test_changes_in_place_that_are_read_as_they_are_count() -> None:
    def make(batch: int) -> tuple[nn.Module, tuple[Tensor]]:
        layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        return layers, (torch.zeros(batch, 3, 8, 8),)

    assert traced("own", make)(2).blocks


class _Entry(nn.Module):
    """A layer that adds its two inputs, so no operator saves them."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(_WIDTH, _WIDTH, bias=False)

    def forward(self, hidden: Tensor, other: Tensor) -> Tensor:
        return torch.relu(self.one(hidden + other))


class _Adding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.layers = nn.ModuleList(_Entry() for _ in range(4))

    def forward(self, images: Tensor) -> Tensor:
        other = hidden = self.first(images)
        for layer in self.layers:
            hidden = layer(hidden, other)
        return hidden


@pytest.mark.parametrize("ranks", [1, 2])
def test_recomputed_modules_keep_inputs_that_no_operator_saves(ranks: int) -> None:
    def adding(batch: int) -> tuple[nn.Module, tuple[Tensor]]:
        return _Adding(), (torch.zeros(batch, 8, _WIDTH),)

    tree = Tree(Mesh(dp=ranks))
    tree.split("batch", "dp")
    tree["layers.*"].recompute()
    (stage,) = compile_program(traced("own", adding)(4), tree.strategy()).stages
    hidden = 4 // ranks * 8 * _WIDTH * 2
    # The images, what the first layer makes, and what each layer but the last one makes.
    assert stage.saved_bytes == (1 + 1 + 3) * hidden


class _Repeating(nn.Module):
    """One layer, with a bias, that runs several times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        for _ in range(8):
            hidden = torch.relu(self.layer(hidden))
        return hidden


def _repeating(batch: int) -> tuple[nn.Module, tuple[Tensor]]:
    return _Repeating(), (torch.zeros(batch, _WIDTH),)


@pytest.mark.parametrize("pp", [1, 2])
def test_layers_that_run_again_count_once_on_each_pipeline_rank(pp: int) -> None:
    program = _program(_repeating, f"pp={pp} micro_batches=2", pp)
    elements = _WIDTH * _WIDTH + _WIDTH
    assert program.model.parameters() == elements
    for memory in simulate(program.model, program.strategy, find_cluster("dgx-h100")).memory:
        assert memory.parameters == 2 * elements
    assert program.tied_elements == (elements if pp > 1 else 0)


def test_layers_that_run_on_middle_pipeline_ranks_too_are_refused() -> None:
    with pytest.raises(UserError, match=r"share layer\.weight on pipeline ranks \[0, 1\]: only"):
        _program(_repeating, "pp=4 micro_batches=4", 4)


def test_large_parameters_of_several_names_are_used() -> None:
    def make(batch: int) -> tuple[nn.Module, tuple[Tensor]]:
        layer = nn.Linear(4096, 4096, bias=False)
        return nn.Sequential(layer, nn.ReLU(), layer), (torch.zeros(batch, 4096),)

    assert traced("own", make)(2).parameters() == 4096 * 4096


class _OwnBias(nn.Module):
    """The output layer has the embedding's weights and a bias of its own, as BERT's has."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(96, _WIDTH)
        self.head = nn.Linear(_WIDTH, 96)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.head(self.tokens(tokens))
        return output


def test_a_bias_of_ones_own_counts_beside_shared_weights() -> None:
    def make(batch: int) -> tuple[nn.Module, tuple[Tensor]]:
        return _OwnBias(), (torch.zeros(batch, 8, dtype=torch.long),)

    assert traced("own", make)(2).parameters() == 96 * _WIDTH + 96
