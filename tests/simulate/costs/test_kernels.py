"""Measured attention, convolutions and unaligned products, and what is made of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.clusters.kernels import Curve
from byteprophet.simulate.compile.program import compile_program
from byteprophet.simulate.compile.steps import Compute, Phase
from byteprophet.simulate.costs.blocks import BlockCosts
from byteprophet.simulate.costs.collect_kernels import (
    measured_attention,
    measured_convolutions,
    measured_transposed,
    measured_unaligned,
    training_launch_ns,
    update_bytes_per_s,
)
from byteprophet.simulate.costs.reference_operators import (
    reference,
    reference_attention,
    reference_convolution,
)
from byteprophet.simulate.costs.roofline import Roofline
from byteprophet.simulate.costs.sources import with_costs
from byteprophet.simulate.costs.table import CostTable, read_table, write_table
from byteprophet.simulate.models.load import load_model
from byteprophet.simulate.models.traced import traced
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.operation.operator import Kind, Operator
from byteprophet.simulate.tree.one_line import parse_strategy

from ..jobs import program

CLUSTER = find_cluster("dgx-h100")
TABLE = CostTable(
    "a test",
    memory_bytes_per_s=3e12,
    update_bytes_per_s=2e12,
    operators=(
        ("relu", "forward", 1024, 1024, 5_000.0),
        ("relu", "forward", 8192, 8192, 100_000.0),
    ),
    attention=(
        ("forward", "causal", 4, 12, 1024, 64, 32_000.0),
        ("backward", "causal", 4, 12, 1024, 64, 93_000.0),
        ("forward", "full", 4, 12, 1024, 64, 36_000.0),
    ),
    convolutions=(
        ("forward", 4, 8, 16, 3, 2, 32, 7_000.0),
        ("backward", 4, 8, 16, 3, 2, 32, 11_000.0),
        ("weight", 4, 8, 16, 3, 2, 32, 13_000.0),
    ),
    unaligned=(
        ("forward", 8192, 50257, 1024, 8_848_000.0),
        ("backward", 8192, 50257, 1024, 6_008_800.0),
        ("weight", 8192, 50257, 1024, 5_659_300.0),
    ),
)


def model(table: CostTable) -> Roofline:
    cluster = with_costs(CLUSTER, table)
    return Roofline(cluster.gpu, Mesh(), operators=cluster.operators, kernels=cluster.kernels)


def test_a_table_with_all_rows_is_the_same_when_it_is_read(tmp_path: Path) -> None:
    write_table(tmp_path / "table.json", TABLE)
    assert read_table(tmp_path / "table.json") == TABLE


@pytest.mark.parametrize(
    ("key", "row", "said"),
    [
        ("attention", ["forward", "left", 1, 1, 1, 1, 1.0], "a mask of causal, full"),
        ("attention", ["forward", "full", 1, 1, 1, 1.0], r"\[phase, mask, samples, heads"),
        ("convolutions", ["sideways", 1, 1, 1, 1, 1, 1, 1.0], "a phase of forward, backward, we"),
        ("unaligned", ["forward", 1.5, 1, 1, 1.0], r"\[phase, rows, columns, inner, ns\]"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, key: str, row: list[Any], said: str) -> None:
    path = tmp_path / "table.json"
    changed: dict[str, Any] = {key: (tuple(row),)}
    write_table(path, replace(TABLE, **changed))
    with pytest.raises(UserError, match=f"{key}: .*{said}"):
        read_table(path)


def test_attention_takes_as_long_as_measured() -> None:
    roofline = model(TABLE)
    for phase, mask, *sizes, measured_ns in TABLE.attention:
        operator = reference_attention(*sizes, causal=mask == "causal")
        assert roofline.time_ns(Compute(operator, (), Phase(phase))) == pytest.approx(measured_ns)
    again = reference_attention(4, 12, 1024, 64, causal=True)
    assert roofline.time_ns(Compute(again, (), Phase.RECOMPUTE)) == pytest.approx(32_000)


def test_attention_of_a_model_is_found_by_its_heads_on_a_rank() -> None:
    """Of 24 heads, each of two tensor-parallel ranks has 12."""
    job = program("gpt:layers=1,hidden=1536,heads=24,sequence=1024", "tp=2 micro_batch=4", 2)
    (step,) = (
        step
        for step in job.stages[0].blocks[1].compiled.forward
        if isinstance(step, Compute) and step.operator.kind is Kind.ATTENTION
    )
    cluster = with_costs(CLUSTER, TABLE)
    costs = BlockCosts(cluster, job.strategy.mesh)
    assert costs.roofline.time_ns(step) == pytest.approx(32_000)


def test_a_convolution_of_a_traced_model_is_found_by_its_shape() -> None:
    def make(batch: int) -> tuple[nn.Module, tuple[Any, ...]]:
        layers = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        return nn.Sequential(*layers), (torch.zeros(batch, 3, 32, 32),)

    operators = [one for _, one in traced("two", make)(4).root.operators()]
    assert [one.kind for one in operators] == [Kind.CONVOLUTION] * 2
    roofline = model(TABLE)
    for phase, *_, measured_ns in TABLE.convolutions:
        step = Compute(operators[1], (), Phase(phase))
        assert roofline.time_ns(step) == pytest.approx(measured_ns)


def test_the_first_convolution_has_a_gradient_of_its_weight_only() -> None:
    def phases(operator: Operator) -> list[Phase]:
        steps = [step for block in blocks for step in block.compiled.backward]
        return [one.phase for one in steps if isinstance(one, Compute) and one.operator is operator]

    job = compile_program(load_model("vgg19", 2), parse_strategy("micro_batch=2", 1))
    blocks = job.stages[0].blocks
    first, second, *_ = (
        one for _, one in job.model.root.operators() if one.kind is Kind.CONVOLUTION
    )
    assert phases(first) == [Phase.WEIGHT]
    assert phases(second) == [Phase.BACKWARD, Phase.WEIGHT]


def product_ns(vocabulary: int, phase: Phase, roofline: Roofline) -> float:
    job = program(f"gpt:layers=1,hidden=1024,heads=16,sequence=1024,vocabulary={vocabulary}",
                  "micro_batch=8", 1)  # fmt: skip
    (operator,) = (one for _, one in job.model.root.operators() if one.name == "logits")
    return roofline.time_ns(Compute(operator, (), phase))


def test_an_odd_vocabulary_takes_as_long_as_measured() -> None:
    measured = model(TABLE)
    for phase, *_, measured_ns in TABLE.unaligned:
        assert product_ns(50257, Phase(phase), measured) == pytest.approx(measured_ns)
    plain = Roofline(CLUSTER.gpu, Mesh())
    even = product_ns(50264, Phase.FORWARD, plain)
    assert product_ns(50264, Phase.FORWARD, measured) < 1.5 * even
    slow = [product_ns(columns, Phase.FORWARD, plain) for columns in (50257, 50258, 50260)]
    assert slow[0] == pytest.approx(
        2e9 * 8192 * 50257 * 1024 / (CLUSTER.gpu.flops_per_s * CLUSTER.gpu.unaligned_efficiency)
    )
    assert slow[0] > slow[1] > slow[2] > even
    unknown = Roofline(replace(CLUSTER.gpu, unaligned_efficiency=0.0), Mesh())
    assert product_ns(50257, Phase.FORWARD, unknown) == pytest.approx(even, rel=0.01)


def test_products_with_a_transposed_matrix_take_as_long_as_measured() -> None:
    """Of a linear layer: those of two activations, and gradients of inputs, stay as they are."""
    rows, columns, inner = 2048, 1024, 512
    table = replace(
        TABLE,
        products=((rows, columns, inner, 9_000.0), (inner, columns, rows, 9_000.0)),
        transposed=(
            ("forward", rows, columns, inner, 10_000.0),
            ("weight", rows, columns, inner, 12_000.0),
        ),
    )
    cluster = with_costs(CLUSTER, table)
    roofline = BlockCosts(cluster, Mesh()).roofline
    job = program(f"gpt:layers=1,hidden={inner},heads=4,sequence=256,vocabulary={columns}",
                  "micro_batch=8", 1)  # fmt: skip
    (logits,) = (one for _, one in job.model.root.operators() if one.name == "logits")
    times = {phase: roofline.time_ns(Compute(logits, (), phase)) for phase in Phase}
    assert times[Phase.FORWARD] == times[Phase.RECOMPUTE] == pytest.approx(10_000)
    assert times[Phase.WEIGHT] == pytest.approx(12_000)
    plain = BlockCosts(with_costs(CLUSTER, replace(table, transposed=())), Mesh()).roofline
    assert times[Phase.BACKWARD] == plain.time_ns(Compute(logits, (), Phase.BACKWARD))


def test_operators_between_two_sizes_have_a_ratio_between() -> None:
    roofline = model(TABLE)

    def ratio(rows: int, columns: int) -> float:
        step = Compute(reference("relu", rows, columns), (), Phase.FORWARD)
        return roofline.time_ns(step) / roofline.memory_ns(4 * rows * columns)

    ends = ratio(1024, 1024), ratio(8192, 8192)
    assert ends[0] * 4 * 1024**2 / 3e3 == pytest.approx(5_000)
    assert ends[1] < ratio(4096, 4096) < ratio(2048, 2048) < ends[0]
    assert ratio(16, 16) == pytest.approx(ends[0])
    assert Curve((0.0, 2.0), (1.0, 3.0)).at(2.718281828) == pytest.approx(2.0)


def test_adam_has_a_rate_of_its_own() -> None:
    costs = BlockCosts(with_costs(CLUSTER, TABLE), Mesh())
    assert costs.update_ns(2e12) == pytest.approx(1e9)
    plain_ns = Roofline(CLUSTER.gpu, Mesh()).memory_ns(100)
    assert BlockCosts(CLUSTER, Mesh()).update_ns(100) == pytest.approx(plain_ns)


def once(run: Callable[[], Any]) -> float:
    began_ns = time.perf_counter_ns()
    run()
    return float(time.perf_counter_ns() - began_ns)


def test_kernels_are_measured_by_shape(tmp_path: Path) -> None:
    """On the CPU, of which convolutions, unaligned products and Adam's step are not used."""
    about = torch, "cpu", torch.float32, once
    with torch.no_grad():
        table = CostTable(
            "here",
            update_bytes_per_s=update_bytes_per_s(torch, "cpu", once),
            launch_ns=training_launch_ns(torch, "cpu", lambda: None),
            attention=tuple(measured_attention(*about)),
            convolutions=tuple(measured_convolutions(*about)),
            unaligned=tuple(measured_unaligned(*about)),
            transposed=tuple(measured_transposed(*about)),
        )
    write_table(tmp_path / "here.json", table)
    assert read_table(tmp_path / "here.json") == table
    assert {row[:2] for row in table.attention} == {
        (phase, mask) for phase in ("forward", "backward") for mask in ("causal", "full")
    }
    assert [row[0] for row in table.convolutions[:2]] == ["forward", "weight"]
    assert {columns % 8 for _, _, columns, *_ in table.unaligned} == {1, 2, 4}
    assert {row[0] for row in table.transposed} == {"forward", "weight"}


def test_a_reference_convolution_is_pytorchs() -> None:
    sizes = 2, 16, 32, 3, 2, 15
    samples, inputs, outputs, kernel, stride, side = sizes
    made = nn.functional.conv2d(
        torch.zeros(samples, inputs, side, side),
        torch.zeros(outputs, inputs, kernel, kernel),
        stride=stride,
        padding=kernel // 2,
    )
    operator = reference_convolution(*sizes)
    assert operator.elements(operator.outputs[0]) == made.numel()
    assert operator.flops == 2 * made.numel() * prod((inputs, kernel, kernel))
