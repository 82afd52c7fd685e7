"""Modules that run in micro-batches of their own."""

from __future__ import annotations

import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.compile.compiled import Compiled
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.compile.schedules import Act, actions_of
from byteprophet.simulate.compile.steps import Collective, Compute
from byteprophet.simulate.models.catalogue import find_model
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.tree.node import Tree
from byteprophet.simulate.tree.one_line import parse_strategy

_GPT = "gpt:layers=4,hidden=512,heads=8,sequence=256,vocabulary=1024"


def _tree(mesh: Mesh | None = None) -> Tree:
    tree = Tree(mesh or Mesh())
    tree.split("batch", "dp").split(("heads", "inner", "vocabulary"), "tp")
    tree.schedule(2, micro_batch=8)
    return tree


def _program(tree: Tree) -> Program:
    strategy = tree.strategy()
    return compile_program(build(*find_model(_GPT), strategy.samples), strategy)


def _block(tree: Tree, place: int) -> Compiled:
    return _program(tree).stages[0].blocks[place].compiled


def _flops(compiled: Compiled) -> int:
    steps = (*compiled.forward, *compiled.backward)
    return sum(step.operator.flops for step in steps if isinstance(step, Compute))


def _moved(compiled: Compiled) -> tuple[int, int]:
    """Collectives, and their bytes."""
    sizes = [
        step.size_bytes
        for step in (*compiled.forward, *compiled.backward)
        if isinstance(step, Collective)
    ]
    return len(sizes), sum(sizes)


def test_the_same_work_in_more_pieces() -> None:
    plain, tree = _tree(Mesh(tp=2)), _tree(Mesh(tp=2))
    tree["layers.*"].schedule(4)
    one, four = _block(plain, 1), _block(tree, 1)
    assert len(four.forward) == 4 * len(one.forward)
    assert len(four.backward) == 4 * len(one.backward)
    assert _flops(four) == _flops(one)
    assert _moved(four) == (4 * _moved(one)[0], _moved(one)[1])
    assert four.saved == one.saved
    assert four.parameters == one.parameters
    assert four.transient_bytes * 4 == one.transient_bytes


def test_recomputed_pieces_keep_their_inputs_only() -> None:
    plain, tree = _tree(), _tree()
    plain["layers.*"].recompute()
    tree["layers.*"].recompute().schedule(4)
    one, four = _block(plain, 1), _block(tree, 1)
    assert four.saved == one.saved
    assert four.transient_bytes * 4 == one.transient_bytes


def test_the_last_block_may_begin_its_backward_pass_before_its_forward_pass_ends() -> None:
    """As fused linear cross-entropy: logits of one micro-batch only, but the same work."""
    plain, tree = _tree(), _tree()
    tree["head"].schedule(8, max_ongoing=1, along="sequence")
    one, eight = _block(plain, -1), _block(tree, -1)
    assert eight.backward == ()
    assert _flops(eight) == _flops(one)
    inner = {tensor: size for (tensor, _), size in one.saved.items()}
    outer = {tensor: size for (tensor, _), size in eight.saved.items()}
    assert outer.items() < inner.items()
    kept_bytes = one.saved_bytes - eight.saved_bytes
    assert eight.transient_bytes == (one.transient_bytes + kept_bytes) / 8


def test_nodes_inside_nodes_are_cut_again() -> None:
    tree, flat = _tree(), _tree()
    tree["layers.*"].schedule(2)
    tree["layers.*.mlp"].schedule(4)
    flat["layers.*"].schedule(2)
    nested, once = _block(tree, 1), _block(flat, 1)
    assert _flops(nested) == _flops(once)
    assert len(once.forward) < len(nested.forward) < 4 * len(once.forward)


@pytest.mark.parametrize(
    ("path", "settings", "said"),
    [
        ("layers.*", {"micro_batches": 3}, r"layers.0: batch has size 8, which cannot be cut into"),
        ("layers.*", {"micro_batches": 2, "along": "width2"}, "no operator has this dimension"),
        ("layers.*", {"micro_batches": 2, "max_ongoing": 1}, r"layers.0: max_ongoing: only the l"),
        ("layers.*.mlp", {"micro_batches": 2, "max_ongoing": 1}, r"0.mlp: max_ongoing: only the l"),
        ("layers.*.mlp.up", {"micro_batches": 2}, "cannot be recomputed or scheduled by itself"),
        ("head", {"micro_batches": 2, "max_ongoing": 3}, "head: max_ongoing is 3: must be from 1"),
        ("head", {"micro_batches": -1}, "head: micro_batches is -1"),
    ],
)
def test_what_cannot_be_is_refused(path: str, settings: dict[str, int], said: str) -> None:
    tree = _tree()
    tree[path].schedule(**settings)
    with pytest.raises(UserError, match=said):
        _program(tree)


def test_the_roots_micro_batches_are_those_of_the_schedule() -> None:
    with pytest.raises(UserError, match="root: schedule along sequence"):
        _tree().schedule(2, along="sequence")


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_micro_batches_are_between_forward_and_backward(most: int) -> None:
    strategy = parse_strategy(f"pp=4 micro_batches=8 max_ongoing={most}", 4)
    for rank in range(4):
        ongoing, seen = 0, []
        for action in actions_of(strategy, rank):
            ongoing += 1 if action.act is Act.FORWARD else -1
            seen.append(ongoing)
        assert max(seen) == min(most, 4 - rank)
        assert seen[-1] == 0
    with pytest.raises(UserError, match="only 1f1b can be limited"):
        parse_strategy("pp=4 schedule=gpipe max_ongoing=2", 4)
