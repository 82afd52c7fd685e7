"""The time of operators: never faster than the peak, and slower if waves are not full."""

from __future__ import annotations

import pytest

from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.steps import Compute, Phase
from byteprophet.simulate.costs.roofline import Roofline
from byteprophet.simulate.models.layers import Layers
from byteprophet.simulate.operation.mesh import Mesh
from byteprophet.simulate.operation.operator import Access, Kind, Operator

_GPU = find_cluster("dgx-a100").gpu


def _linear(rows: int, columns: int, inner: int) -> Operator:
    make = Layers({"batch": rows, "columns": columns, "inner": inner})
    source, output = Access("x", ("batch", "inner")), Access("y", ("batch", "columns"))
    return make.linear("linear", source, output, ("columns", "inner"))


def _time_ns(operator: Operator, phase: Phase = Phase.FORWARD, mesh: Mesh | None = None) -> float:
    splits = (("batch", ("dp",)),) if mesh else ()
    return Roofline(_GPU, mesh or Mesh()).time_ns(Compute(operator, splits, phase))


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT])
def test_large_products_run_at_the_efficiency(phase: Phase) -> None:
    size = 108 * 256
    operator = _linear(size, size, size)
    rate = operator.flops / (_time_ns(operator, phase) / 1e9)
    assert rate == pytest.approx(_GPU.flops_per_s * _GPU.matmul_efficiency, rel=0.02)


@pytest.mark.parametrize("rows", [1, 100, 4097, 9000])
def test_small_products_are_never_faster(rows: int) -> None:
    operator = _linear(rows, 4096, 4096)
    peak_ns = operator.flops / (_GPU.flops_per_s * _GPU.matmul_efficiency) * 1e9
    assert _time_ns(operator) >= peak_ns


def test_a_product_of_few_rows_takes_the_time_of_reading_its_weight() -> None:
    size = 16384
    read_ns = 2 * size * size / (_GPU.memory_bytes_per_s * _GPU.memory_efficiency) * 1e9
    assert _time_ns(_linear(1, size, size)) == pytest.approx(read_ns, rel=0.01)


def test_split_operators_take_less() -> None:
    operator = _linear(108 * 128 * 8, 4096, 4096)
    whole, part = _time_ns(operator), _time_ns(operator, mesh=Mesh(dp=8))
    assert part == pytest.approx(whole / 8, rel=0.1)


def test_views_take_no_time() -> None:
    make = Layers({"batch": 8, "width": 64})
    tensors = [Access("x", ("batch", "width"))], [Access("y", ("batch", "width"))]
    assert _time_ns(make.memory("view", *tensors, kind=Kind.VIEW)) == 0
    moved_ns = 2 * 8 * 64 * 2 / (_GPU.memory_bytes_per_s * _GPU.memory_efficiency) * 1e9
    assert _time_ns(make.memory("copy", *tensors)) == pytest.approx(moved_ns)


def _moved_bytes(operator: Operator, phase: Phase) -> float:
    return _time_ns(operator, phase) * _GPU.memory_bytes_per_s * _GPU.memory_efficiency / 1e9


def test_the_backward_pass_reads_what_was_saved_and_not_the_inputs_again() -> None:
    """Dropout: 2 + 1 bytes per element are read (gradient, mask), and 2 are written."""
    make = Layers({"batch": 64, "width": 1024})
    dims = ("batch", "width")
    mask = Access("mask", dims, 1, differentiable=False)
    dropout = make.memory("drop", [Access("x", dims)], [Access("y", dims), mask], saves=["mask"])
    elements = 64 * 1024
    assert _moved_bytes(dropout, Phase.FORWARD) == pytest.approx(5 * elements)
    assert _moved_bytes(dropout, Phase.BACKWARD) == pytest.approx(5 * elements)
    gelu = make.memory("gelu", [Access("x", dims)], [Access("y", dims)], saves=["x"])
    assert _moved_bytes(gelu, Phase.FORWARD) == pytest.approx(4 * elements)
    assert _moved_bytes(gelu, Phase.BACKWARD) == pytest.approx(6 * elements)


def test_a_causal_softmax_reads_only_half_of_the_scores() -> None:
    make = Layers({"queries": 512, "keys": 512})
    scores, weights = (Access(name, ("queries", "keys")) for name in ("scores", "weights"))
    softmax = make.memory("softmax", [scores], [weights], saves=["weights"], causal=True)
    elements = 512 * 512
    assert _moved_bytes(softmax, Phase.FORWARD) == pytest.approx((1 + 2) * elements)
    assert _moved_bytes(softmax, Phase.BACKWARD) == pytest.approx((1 + 1 + 2) * elements)


def test_products_with_8_bit_inputs_are_faster_but_not_twice() -> None:
    gpu = find_cluster("dgx-h100").gpu
    wide, narrow = (Roofline(gpu, Mesh(), fp8=fp8) for fp8 in (False, True))
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT):
        step = Compute(_linear(16384, 16384, 16384), (), phase)
        ratio = wide.time_ns(step) / narrow.time_ns(step)
        peaks = gpu.fp8_flops_per_s / gpu.flops_per_s
        assert 1.8 < ratio <= peaks
    # With a small inner dimension, the conversion takes longer than is won.
    thin = Compute(_linear(65536, 256, 64), (), Phase.FORWARD)
    assert narrow.time_ns(thin) >= wide.time_ns(thin) * 0.9


def test_the_vocabulary_keeps_16_bits() -> None:
    gpu = find_cluster("dgx-h100").gpu
    make = Layers({"batch": 8192, "vocabulary": 8192, "hidden": 8192})
    operator = make.linear(
        "logits",
        Access("x", ("batch", "hidden")),
        Access("y", ("batch", "vocabulary")),
        ("vocabulary", "hidden"),
    )
    step = Compute(operator, (), Phase.FORWARD)
    wide, narrow = (Roofline(gpu, Mesh(), fp8=fp8).time_ns(step) for fp8 in (False, True))
    assert wide == narrow


def _convolution(products: int, of_weight: int) -> Operator:
    """A convolution by its work: ``products`` of gradients, and how many are of its weight."""
    sizes = (("batch", 64), ("rows", 4096), ("inner", 256), ("columns", 256))
    flops = 2 * 64 * 4096 * 256 * 256 * 9
    return Operator(
        "conv2d",
        Kind.CONVOLUTION,
        sizes,
        (Access("x", ("batch", "rows", "inner")),),
        (Access("y", ("batch", "rows", "columns")),),
        (Access("weight", ("columns", "inner")), Access("bias", ("columns",))),
        flops=flops,
        backward_flops=products * flops,
        weight_flops=of_weight * flops,
    )


def test_convolutions_take_the_time_of_the_gradients_that_are_wanted() -> None:
    both, of_bias = _convolution(2, 1), _convolution(1, 0)
    forward_ns = _time_ns(both)
    assert forward_ns > 0
    for operator, weights in ((both, 1), (of_bias, 0)):
        assert _time_ns(operator, Phase.BACKWARD) == pytest.approx(forward_ns)
        assert _time_ns(operator, Phase.WEIGHT) == pytest.approx(weights * forward_ns)
    of_two_activations = _convolution(2, 0)
    assert _time_ns(of_two_activations, Phase.BACKWARD) == pytest.approx(2 * forward_ns)
