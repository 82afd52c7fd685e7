"""Measured costs: what is read from files and packages, and what is made of it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from byteprophet.errors import UserError
from byteprophet.simulate.calibrate.interval import interval
from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.compile.steps import CollectiveKind, Compute, Phase
from byteprophet.simulate.costs.collect_operators import Inputs
from byteprophet.simulate.costs.collectives import CollectiveCosts, Group, OneCollective
from byteprophet.simulate.costs.reference_operators import name_of, names, reference
from byteprophet.simulate.costs.roofline import Roofline
from byteprophet.simulate.costs.sources import (
    cluster_with_costs,
    find_costs,
    measured_sources,
    with_collectives,
    with_costs,
)
from byteprophet.simulate.costs.table import CostTable, read_table, write_table
from byteprophet.simulate.execute.simulate import simulate_program
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.operation.operator import Kind

from ..jobs import program

CLUSTER = find_cluster("dgx-a100")
PRODUCTS = tuple(
    (m, n, k, 2 * m * n * k / (200e3 if m >= 1024 else 50e3) + 5_000)
    for m in (128, 1024, 8192)
    for n in (1024, 8192)
    for k in (1024, 8192)
)
TABLE = CostTable("a test", PRODUCTS, memory_bytes_per_s=1.5e12, launch_ns=4_000)


def test_measured_shapes_take_as_long_as_measured() -> None:
    cluster = with_costs(CLUSTER, TABLE)
    roofline = Roofline(cluster.gpu, Mesh(), cluster.shapes)
    for m, n, k, measured_ns in PRODUCTS:
        assert roofline.product_ns(1, m, n, k) == pytest.approx(measured_ns, rel=1e-3)
    between = roofline.product_ns(1, 8192, 4096, 8192)
    rate = 2 * 8192 * 4096 * 8192 / between
    assert rate == pytest.approx(200e3, rel=0.1)
    assert cluster.gpu.launch_ns == 4_000
    assert cluster.gpu.memory_efficiency == pytest.approx(1.5e12 / cluster.gpu.memory_bytes_per_s)


def test_constants_have_the_source_of_the_table_and_still_count() -> None:
    cluster = with_costs(CLUSTER, TABLE)
    assert measured_sources(CLUSTER) == []
    assert measured_sources(cluster) == ["a test"]
    job = program("gpt3-175b", "tp=8 pp=2 micro_batches=2", 16)
    result = simulate_program(job, cluster)
    largest = interval(result, cluster).influences[0]
    assert largest.name == "gpu.matmul_efficiency"
    assert (largest.source, largest.uncertainty) == ("a test", 0.03)
    faster = replace(CLUSTER.gpu, matmul_efficiency=0.9)
    assert simulate_program(job, replace(cluster, gpu=faster)).iteration_ns < result.iteration_ns


def test_a_table_is_the_same_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write_table(path, TABLE)
    assert read_table(path) == TABLE
    text = (Path(find_cluster.__code__.co_filename).parent / "dgx-a100.toml").read_text("utf-8")
    (tmp_path / "mine.toml").write_text('costs = "table.json"\n' + text, encoding="utf-8")
    named = cluster_with_costs(str(tmp_path / "mine.toml"))
    assert named.gpu == with_costs(CLUSTER, TABLE).gpu


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("format", "other", "not a table of costs"),
        ("schema", 2, "not a table of costs"),
        ("source", 3, "source must be a text"),
        ("products", [[1, 2, 3]], "expected .rows, columns, inner, ns."),
        ("products", [[1, 2, 3.5, 1.0]], "expected .rows, columns, inner, ns."),
        ("products", [[10**110, 2, 3, 1.0]], "expected .rows, columns, inner, ns."),
        ("products", [[1, 2, 3, -1.0]], "expected .rows, columns, inner, ns."),
        ("launch_ns", "fast", "launch_ns is 'fast'"),
    ],
)
def test_a_wrong_table_is_named(tmp_path: Path, key: str, value: object, said: str) -> None:
    path = tmp_path / "table.json"
    write_table(path, TABLE)
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**data, key: value}), encoding="utf-8")
    with pytest.raises(UserError, match=said):
        read_table(path)


def test_more_than_the_peak_is_refused() -> None:
    fast = CostTable("a test", ((8192, 8192, 8192, 1_000.0),))
    with pytest.raises(UserError, match="peak is lower than what was measured"):
        with_costs(CLUSTER, fast)


def test_a_table_of_another_device_is_refused() -> None:
    slow = CostTable("a laptop", ((2048, 2048, 2048, 1e9),))
    with pytest.raises(UserError, match=r"a laptop: .* would be 6e-05"):
        with_costs(CLUSTER, slow)


@pytest.mark.parametrize("name", ["memory_bytes_per_s", "launch_ns"])
def test_the_source_of_a_table_without_products_is_said(name: str) -> None:
    table = CostTable("a test", **{name: 1e12 if name.endswith("_s") else 5_000.0})
    assert measured_sources(with_costs(CLUSTER, table)) == ["a test"]
    assert measured_sources(CLUSTER) == []


def packaged(folder: Path) -> None:
    """A package with the name and the layout of aiconfigurator-core, and few rows."""
    info = folder / "aiconfigurator_core-9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: aiconfigurator-core\nVersion: 9.9\n"
    )
    data = folder / "aiconfigurator_core" / "systems" / "data" / "a100_sxm"

    def save(path: str, rows: list[dict[str, object]]) -> None:
        (data / path).parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), data / path)

    product = {"gemm_dtype": "bfloat16", "m": 8192, "n": 8192, "k": 8192, "latency": 4.4}
    save(
        "gemm/vllm/1.0/gemm_perf.parquet", [product, {**product, "gemm_dtype": "fp8", "latency": 1}]
    )
    attention = {
        "attn_dtype": "bfloat16", "batch_size": 4, "isl": 8192, "num_heads": 32, "head_dim": 128,
        "step": 0, "latency": 12.0,
    }  # fmt: skip
    save("attention/vllm/1.0/context_attention_perf.parquet", [attention])
    reduce = {"op_name": "all_reduce", "nccl_dtype": "half", "num_gpus": 8}
    save(
        "comm/nccl/2.2/nccl_perf.parquet",
        [
            {**reduce, "message_size": 128, "latency": 0.05},
            {**reduce, "message_size": 256 << 20, "latency": 4.05},
            {**reduce, "num_gpus": 4, "message_size": 128, "latency": 9.0},
        ],
    )


def test_the_package_is_read_in_its_own_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times are milliseconds, and message sizes count elements of two bytes."""
    packaged(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    table = find_costs("aiconfigurator", CLUSTER)
    assert table is not None
    assert table.source == "aiconfigurator-core 9.9, a100_sxm, vllm 1.0"
    assert table.products == ((8192, 8192, 8192, 4.4e6),)
    assert table.attention_flops_per_s == pytest.approx(2 * 4 * 32 * 128 * 8192**2 / 12e-3)
    assert table.node_latency_ns == pytest.approx(50_000)
    assert table.node_bytes_per_s == pytest.approx(7 / 4 * (512 << 20) / 4e-3)
    own = (7 + CLUSTER.node.own_step) / 7  # a rank's own part takes time, too
    efficiency = with_costs(CLUSTER, table).node.efficiency
    assert efficiency == pytest.approx(own * table.node_bytes_per_s / 300e9)
    with pytest.raises(UserError, match="has no GPU V100-SXM2-32GB: it has a100_sxm"):
        find_costs("aiconfigurator", find_cluster("dgx-1v"))


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(UserError, match=r"pip install byteprophet\[costs\]"):
        find_costs("aiconfigurator", CLUSTER)


def test_other_costs_are_files() -> None:
    cluster: Cluster = CLUSTER
    assert find_costs("", cluster) is None
    with pytest.raises(UserError, match="nowhere"):
        find_costs("nowhere.json", cluster)


COLLECTIVES = (
    ("all-reduce", 2, 1 << 16, 4e5),
    ("all-reduce", 2, 1 << 20, 9e5),
    ("point-to-point", 2, 1 << 20, 8e5),
)


def test_measured_collectives_take_as_long_as_measured(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write_table(path, replace(TABLE, collectives=COLLECTIVES))
    table = read_table(path)
    assert table.collectives == COLLECTIVES
    cluster = with_costs(CLUSTER, table)
    for kind, ranks, size_bytes, measured_ns in COLLECTIVES:
        one = OneCollective(CollectiveKind(kind), ranks, size_bytes)
        assert one.time_ns(cluster) == pytest.approx(measured_ns, rel=1e-6)
    plain = with_costs(CLUSTER, TABLE)
    other = OneCollective(CollectiveKind.ALL_GATHER, 2, 1 << 18)
    assert other.time_ns(cluster) == other.time_ns(plain)


def test_between_measured_sizes_the_ratio_is_between() -> None:
    cluster = with_costs(CLUSTER, replace(TABLE, collectives=COLLECTIVES))
    plain = with_costs(CLUSTER, TABLE)

    def ratio(ranks: int, size_bytes: int) -> float:
        one = OneCollective(CollectiveKind.ALL_REDUCE, ranks, size_bytes)
        return one.time_ns(cluster) / one.time_ns(plain)

    ends = ratio(2, 1 << 16), ratio(2, 1 << 20)
    assert min(ends) < ratio(2, 1 << 18) < max(ends)
    assert ratio(2, 1 << 10) == pytest.approx(ends[0])
    assert ratio(4, 1 << 24) == pytest.approx(ends[1])


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.6])
def test_what_a_collective_takes_longer_its_links_are_in_use(factor: float) -> None:
    """Beside another transfer it is slowed by as much as one whose bytes take that long."""
    group, size_bytes = Group(1, 2), 4 << 20
    kind = CollectiveKind.ALL_GATHER
    model = CollectiveCosts(CLUSTER, Mesh(dp=16))
    transfer = model.transfer(kind, group, size_bytes)
    takes_ns = factor * model.alone_ns(transfer)
    cluster = with_collectives(CLUSTER, [(kind.value, 2, size_bytes, takes_ns)])
    costs = CollectiveCosts(cluster, Mesh(dp=16))
    measured = costs.transfer(kind, group, size_bytes)
    assert costs.alone_ns(measured) == pytest.approx(takes_ns)
    assert measured.latency_ns == pytest.approx(transfer.latency_ns)


@pytest.mark.parametrize(
    "row", [["broadcast", 2, 1, 1.0], ["all-reduce", 1, 1, 1.0], ["all-reduce", 2, 1.5, 1.0], [1]]
)
def test_wrong_collectives_are_named(tmp_path: Path, row: list[object]) -> None:
    path = tmp_path / "table.json"
    write_table(path, TABLE)
    data = json.loads(path.read_text()) | {"collectives": [row]}
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match=r"collectives: .*expected .kind, ranks, bytes, ns."):
        read_table(path)


OPERATORS = tuple(
    (name, phase, 1024, 768, 1e5 * number)
    for number, (name, phase) in enumerate(product(names(), ("forward", "backward")), 1)
)


def test_measured_operators_take_as_long_as_measured(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write_table(path, replace(TABLE, operators=OPERATORS))
    table = read_table(path)
    assert table.operators == OPERATORS
    cluster = with_costs(CLUSTER, table)
    roofline = Roofline(cluster.gpu, Mesh(), operators=cluster.operators)
    for name, phase, rows, columns, measured_ns in OPERATORS:
        step = Compute(reference(name, rows, columns), (), Phase(phase))
        assert roofline.time_ns(step) == pytest.approx(measured_ns)
    again = Compute(reference("loss", 2048, 768), (), Phase.RECOMPUTE)
    (once,) = (ns for name, phase, *_, ns in OPERATORS if (name, phase) == ("loss", "forward"))
    assert roofline.time_ns(again) == pytest.approx(2 * once)


@pytest.mark.parametrize(
    "model", ["gpt:layers=1,hidden=64,heads=2", "llama:layers=1,hidden=64,heads=2"]
)
def test_operators_of_models_are_known_by_the_names_of_costs(model: str) -> None:
    kinds = Kind.MEMORY, Kind.LOOKUP
    known = {
        name_of(operator)
        for block in program(model, "dp=1", 1).model.blocks
        for _, operator in block.module.operators()
        if operator.kind in kinds
    }
    assert known - {"positions"} <= set(names())
    assert len(known) >= 5


def test_wrong_operators_are_named(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write_table(path, TABLE)
    data = json.loads(path.read_text()) | {"operators": [["softmax", "forward", 1, 1, 1.0]]}
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match=r"operators: .*with a name of layer norm, "):
        read_table(path)


@pytest.mark.parametrize("name", names())
def test_what_is_measured_is_what_the_name_says(name: str) -> None:
    """A forward pass of ours reads and writes as many elements as the operator of the models."""
    made = Inputs(torch, "cpu", torch.float32, 64, 192)
    with torch.enable_grad():
        run, inputs = made.of(name)
        gradients = torch.autograd.grad(run().sum(), inputs)
    operator = reference(name, 64, 192)
    activations = [one for one in operator.inputs if one.differentiable]
    expected = sum(operator.elements(one) for one in (*activations, *operator.parameters))
    if name == "rotary":  # values are in the fused tensor, but they are not turned
        expected = expected * 2 // 3
    assert sum(each.numel() for each in gradients) == expected
