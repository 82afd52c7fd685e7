"""DLRM: its sizes, and how its tables are divided."""

from __future__ import annotations

from collections import Counter

import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.program import compile_program
from byteprophet.simulate.compile.steps import Collective
from byteprophet.simulate.execute.simulate import simulate
from byteprophet.simulate.models.load import load_model
from byteprophet.simulate.tree.one_line import parse_strategy


def test_it_has_the_parameters_of_flexflows_example() -> None:
    """8 tables of 1,000,000 x 64; bottom 64-512-512-64; top 576-1024-1024-1024-1, with biases."""
    bottom = 64 * 512 + 512 + 512 * 512 + 512 + 512 * 64 + 64
    top = 576 * 1024 + 1024 + 2 * (1024 * 1024 + 1024) + 1024 + 1
    model = load_model("dlrm", 32)
    assert model.parameters() == 8 * 1_000_000 * 64 + bottom + top
    forward = sum(one.flops for _, one in model.root.operators())
    products = 64 * 512 + 512 * 512 + 512 * 64 + 576 * 1024 + 2 * 1024 * 1024 + 1024
    assert forward == 2 * 32 * products


def test_divided_tables_exchange_what_was_looked_up() -> None:
    """Naumov et al. 2019: an all-to-all forward, and one backward."""
    strategy = parse_strategy("ep=8 micro_batch=64", 8)
    compiled = compile_program(load_model("dlrm", strategy.samples), strategy)
    steps = [
        step
        for block in compiled.stages[0].blocks
        for step in (*block.compiled.forward, *block.compiled.backward)
        if isinstance(step, Collective)
    ]
    sizes = Counter(step.size_bytes for step in steps if step.kind.value == "all-to-all")
    looked_up = 8 * 64 * 64 * 2  # of a rank: all tables x its samples x width x bytes
    indices = 8 * 64 * 8
    assert sizes == {looked_up: 2, indices: 1}


def test_divided_tables_need_less_memory_and_no_sum_of_their_gradients() -> None:
    results = {}
    for line in ("micro_batch=64", "ep=8 micro_batch=64"):
        strategy = parse_strategy(line, 8)
        model = load_model("dlrm", strategy.samples)
        results[line] = simulate(model, strategy, find_cluster("dgx-h100"))
    whole, divided = results.values()
    assert divided.memory[0].parameters < whole.memory[0].parameters / 7
    assert divided.iteration_ns < whole.iteration_ns / 3


def test_its_inputs_have_no_sequence() -> None:
    with pytest.raises(UserError, match="model dlrm: --sequence has no effect"):
        load_model("dlrm", 4, sequence=128)
