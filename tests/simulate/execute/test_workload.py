"""A simulated job as a workload: it has all parameters, and its times add up."""

from __future__ import annotations

import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.costs.blocks import Spent
from byteprophet.simulate.execute.result import Simulated
from byteprophet.simulate.execute.simulate import simulate
from byteprophet.simulate.execute.workload import workload_of
from byteprophet.simulate.models.load import load_model
from byteprophet.simulate.tree.one_line import parse_strategy
from byteprophet.workload import Workload

from ...thorough import THOROUGH

_UNTIED = "gpt:layers=3,hidden=64,heads=4,vocabulary=128,tied=0"
_JOBS = (
    ("gpt2", "micro_batch=2"),
    ("gpt2", "micro_batch=2 recompute=full"),
    (_UNTIED, "micro_batch=2"),
    ("bert-large", "micro_batch=2"),
    ("llama3-8b", "micro_batch=2 recompute=attention"),
    pytest.param("resnet50", "micro_batch=2", marks=THOROUGH),
    ("vgg19", "micro_batch=2"),
)


def _simulated(model: str, line: str, gpus: int = 1) -> Simulated:
    strategy = parse_strategy(line, gpus)
    return simulate(load_model(model, strategy.samples, None), strategy, find_cluster("dgx-a100"))


def _workload(model: str, line: str, gpus: int = 1) -> Workload:
    result = _simulated(model, line, gpus)
    return workload_of(result.program, result.costs)


@pytest.mark.parametrize(("model", "line"), _JOBS)
def test_all_parameters_and_all_computation_are_in_it(model: str, line: str) -> None:
    result = _simulated(model, line)
    workload = workload_of(result.program, result.costs)
    assert sum(tensor.elements for tensor in workload.tensors) == result.program.model.parameters()
    spent = result.by_use
    computes_ns = sum(spent[use] for use in spent if use is not Spent.OPTIMIZER)
    assert workload.forward_ns + workload.backward_ns == pytest.approx(computes_ns, abs=100)
    if not spent.get(Spent.LAUNCH):
        assert workload.forward_ns == pytest.approx(spent[Spent.FORWARD], abs=100)


def test_gradients_become_ready_from_the_last_layer_to_the_first() -> None:
    workload = _workload(_UNTIED, "micro_batch=2")
    names = [tensor.name for tensor in workload.tensors]
    assert names[0] == "embedding.tokens.weight"
    assert names[-1].startswith("head.")
    assert len(set(names)) == len(names)
    ready_ns = dict(zip(names, workload.ready_ns(), strict=True))
    own = ready_ns["layers.0.mlp.up.weight"], ready_ns["layers.0.mlp.up.bias"]
    assert own[0] == own[1]
    assert ready_ns["layers.1.mlp.up.weight"] < own[0] < ready_ns["layers.0.attention.qkv.weight"]
    assert ready_ns[names[0]] == workload.backward_ns


def test_ranks_change_only_what_travels() -> None:
    one = _workload("gpt2", "dp=1 micro_batch=2")
    assert _workload("gpt2", "dp=8 micro_batch=2", 8) == one
    half = _workload("gpt2", "dp=8 micro_batch=2 precision=fp16", 8)
    assert half.size_bytes == one.size_bytes // 2


@pytest.mark.parametrize(
    "line", ["tp=2 dp=4", "pp=2 dp=4", "cp=2 dp=4", "zero=3", "micro_batches=2"]
)
def test_other_parallelism_is_refused(line: str) -> None:
    with pytest.raises(UserError, match="only a data-parallel job is a workload"):
        _workload("llama3-8b", line, 8)
