"""Collectives that follow from splits, against the formulas of the papers that introduced them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.compile.compiled import Compiled
from byteprophet.simulate.compile.program import compile_program
from byteprophet.simulate.compile.steps import Collective, CollectiveKind, Compute
from byteprophet.simulate.models.catalogue import find_model
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.operation.operator import Kind
from byteprophet.simulate.tree.node import Tree

from ..jobs import program

_GPT = "gpt:layers=8,hidden=512,heads=8,sequence=256,vocabulary=1024"
_HIDDEN_BYTES = 256 * 512 * 2


def _layer(strategy: str, gpus: int, model: str = _GPT) -> Compiled:
    return program(model, strategy, gpus).stages[0].blocks[1].compiled


def _bytes(compiled: Compiled) -> Counter[tuple[str, tuple[str, ...]]]:
    """Bytes of collectives of both passes, by kind and axes."""
    found: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for step in (*compiled.forward, *compiled.backward):
        if isinstance(step, Collective):
            found[step.kind.value, step.axes] += step.size_bytes
    return found


def test_tensor_parallel_layers_have_megatrons_four_all_reduces() -> None:
    """Shoeybi et al. 2019: two all-reduces of the hidden state in each pass of a layer."""
    assert _bytes(_layer("tp=4", 4)) == {("all-reduce", ("tp",)): 4 * _HIDDEN_BYTES}


def test_sequence_parallel_layers_move_the_same_bytes() -> None:
    """Korthikanti et al. 2022: an all-reduce is a reduce-scatter and an all-gather."""
    assert _bytes(_layer("tp=4 sp=1", 4)) == {
        ("all-gather", ("tp",)): 4 * _HIDDEN_BYTES,
        ("reduce-scatter", ("tp",)): 4 * _HIDDEN_BYTES,
    }


def test_recomputation_repeats_the_forward_passs_all_reduces() -> None:
    assert _bytes(_layer("tp=4 recompute=full", 4)) == {("all-reduce", ("tp",)): 6 * _HIDDEN_BYTES}


@pytest.mark.parametrize(("copies", "gathers"), [(0, 4), (1, 2)])
def test_context_parallel_attention_gathers_keys_and_values(copies: int, gathers: int) -> None:
    """Megatron-LM keeps parts, and its attention's backward pass waits until they are whole again.

    PyTorch keeps them whole.
    """
    layer = _layer(f"cp=4 copies={copies}", 4)
    expected = {("all-gather", ("cp",)): gathers, ("reduce-scatter", ("cp",)): 2}
    assert _bytes(layer) == {key: count * _HIDDEN_BYTES for key, count in expected.items()}
    gathered = [
        isinstance(step, Collective) and step.kind is CollectiveKind.ALL_GATHER
        for step in layer.backward
    ]
    (at,) = (
        number
        for number, step in enumerate(layer.backward)
        if isinstance(step, Compute) and step.operator.kind is Kind.ATTENTION
    )
    assert gathered[at - 2 : at] == [not copies] * 2


def test_ring_attention_passes_keys_and_values_around() -> None:
    """Liu et al. 2023: forward all keys and values; backward these, and their gradients."""
    found = _bytes(_layer("cp=4 ring=1", 4))
    assert found == {("point-to-point", ("cp",)): (2 + 2 * 2) * _HIDDEN_BYTES}
    with pytest.raises(UserError, match=r"ring: model .* has no fused attention"):
        _layer("cp=4 ring=1", 4, f"{_GPT},fused_attention=0")


def test_ring_attention_needs_parts_of_keys_and_values_at_a_time() -> None:
    """PyTorch's gathers all of them in each pass. Here, attention needs more than all others."""
    model = f"{_GPT},inner=64"
    lines = ("cp=8", "cp=8 ring=1 copies=1", "cp=8 ring=1")
    whole, gathered, parts = (_layer(line, 8, model).transient_bytes for line in lines)
    assert whole == gathered
    assert whole - parts == 2 * _HIDDEN_BYTES * (2 - 4 / 8)


def test_experts_exchange_tokens_twice_in_each_pass() -> None:
    model = "llama:layers=8,hidden=512,heads=8,sequence=256,experts=4,active_experts=2"
    sent = 2 * _HIDDEN_BYTES  # a rank's tokens, to two experts each
    found = _bytes(_layer("ep=4", 4, model))
    assert found == {("all-to-all", ("ep",)): 4 * sent}


@pytest.mark.parametrize("strategy", ["tp=4", "cp=4", "tp=2 cp=2", "tp=4 sp=1", "dp=4", "ep=4"])
def test_ranks_do_all_the_work_once(strategy: str) -> None:
    """FLOPs and parameters of all ranks add up; what is replicated is no matrix product's work."""
    model = "llama:layers=8,hidden=512,heads=8,sequence=256,experts=4,active_experts=2"
    compiled = program(model, strategy, 4)
    mesh = compiled.strategy.mesh
    flops = 0.0
    for step in compiled.stages[0].blocks[1].compiled.forward:
        if isinstance(step, Compute) and step.operator.name != "router":
            flops += step.operator.flops / mesh.parts(a for _, axes in step.splits for a in axes)
    layer = compiled.model.blocks[1].module
    whole = sum(one.flops for _, one in layer.operators() if one.name != "router")
    assert flops * mesh.ranks == pytest.approx(whole)


def test_saved_activations_are_those_of_korthikanti_et_al() -> None:
    """With fused attention and no dropout: 32 sbh bytes per layer, and 8 + 24 / t of it split.

    Their 34 sbh has 2 bytes of masks. Of the rest, 10 are replicated, or 8 without masks; here the
    input of the second norm and of the first are two of them, and their outputs two more.
    """
    elements = 256 * 512
    assert _layer("tp=1", 1).saved_bytes == 32 * elements
    assert _layer("tp=4", 4).saved_bytes == (8 + 24 / 4) * elements
    assert _layer("tp=4 sp=1", 4).saved_bytes == 32 / 4 * elements
    assert _layer("tp=1 recompute=full", 1).saved_bytes == 2 * elements


def test_pytorch_keeps_inputs_as_they_were_gathered() -> None:
    """DTensor gathers before an operator, so autograd keeps what it made of both norms' outputs."""
    parts, whole = (_layer(f"tp=4 sp=1 copies={copies}", 4) for copies in (0, 1))
    assert whole.saved_bytes - parts.saved_bytes == 2 * (1 - 1 / 4) * _HIDDEN_BYTES
    tree = Tree(Mesh(tp=4))
    tree.split(["heads", "inner", "sequence"], "tp")
    tree["layers.*.mlp"].recompute()
    strategy = replace(tree.strategy(), copies=True)
    compiled = compile_program(build(*find_model(_GPT), 1), strategy).stages[0].blocks[1].compiled
    kept = {name: size for (name, _), size in compiled.saved.items()}
    assert (kept["normed1"], kept["normed2"]) == (_HIDDEN_BYTES, _HIDDEN_BYTES // 4)


@pytest.mark.parametrize("strategy", ["tp=2 ep=2 sp=1", "tp=4 sp=1", "tp=4"])
def test_experts_keep_all_tokens_that_they_read(strategy: str) -> None:
    """Megatron-LM's dispatcher gathers them over tp, and its experts' layers not once more."""
    model = "llama:layers=8,hidden=512,heads=8,sequence=256,experts=4,active_experts=2"
    kept = {name: size for (name, _), size in _layer(strategy, 4, model).saved.items()}
    assert kept["mlp.sent"] == 2 * _HIDDEN_BYTES


def test_splits_of_a_node_replace_those_above() -> None:
    tree = Tree(Mesh(tp=4))
    tree.split(["heads", "inner"], "tp")
    tree["layers.*.mlp"].split("batch", "tp")
    model = build(*find_model(_GPT), 4)
    compiled = compile_program(model, tree.strategy()).stages[0].blocks[1].compiled
    splits = {
        step.operator.name: dict(step.splits)
        for step in compiled.forward
        if isinstance(step, Compute)
    }
    assert splits["qkv"] == {"heads": ("tp",)}
    assert splits["up"] == {"batch": ("tp",)}


@pytest.mark.parametrize(
    ("node", "dims", "axis", "said"),
    [
        ("layers.*.norm1", "hidden", "tp", "layers.0.norm1: hidden cannot be split"),
        ("layers.3.mlp", "inner", "dp", "layers.3.mlp.up: inner has size 2048.*3 equal parts"),
        ("layers.*.mpl", "inner", "tp", "layers..*.mpl: model .* has no such node"),
        ("layers.*", "inner", "pp", "no mesh axis pp"),
        ("layers.*.mlp", "iner", "tp", "layers..*.mlp: tp splits iner, but no operator of"),
        ("layers.*.mlp", "heads", "tp", "layers..*.mlp: tp splits heads, but no operator of these"),
        ("layers.*.mlp", "inner", "tp", "strategy: dp: no operator of .* so its 3 ranks would all"),
    ],
)
def test_what_cannot_be_is_refused_with_the_nodes_path(
    node: str, dims: str, axis: str, said: str
) -> None:
    tree = Tree(Mesh(tp=2, dp=3))
    tree[node].split(dims, axis)
    with pytest.raises(UserError, match=said):
        compile_program(build(*find_model(_GPT), 3), tree.strategy())
