"""Strategies that cast and accumulate gradients: jobs end with the bits of plain torch code."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from byteprophet import schedulers
from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.job import Bucket, Model, Parameter, Policy, Strategy
from byteprophet.job.strategy_file import Used, read_given, write_strategy
from byteprophet.launcher import JobSpec, run_job
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.observe import recording
from byteprophet.timeline.read_events import load_run
from byteprophet.timeline.tables import Kind
from byteprophet.torch import Compression
from byteprophet.torch.front.cast import Cast, changes_of, compression_of
from byteprophet.torch.optimizer import Uncompressed
from byteprophet.torch.sync import compressed

WORKER = Path(__file__).with_name("gradients_worker.py")
STEPS = 12
SIZES_BYTES = {
    "first.weight": 480,
    "first.bias": 80,
    "second.weight": 1600,
    "second.bias": 80,
    "sometimes.weight": 1600,
    "sometimes.bias": 80,
    "last.weight": 160,
    "last.bias": 8,
}
MODEL = Model(tuple(Parameter(name, size) for name, size in SIZES_BYTES.items()))


def among_ranks(runtime: str, **changes: Any) -> Used:
    """A strategy without servers, in two buckets."""
    names = [*reversed(SIZES_BYTES)]
    sharded = runtime != "allreduce"
    buckets = (
        Bucket(tuple(names[:3]), 0, 3, sharded),
        Bucket(tuple(names[3:]), 1, 2, sharded),
    )
    return Used(MODEL, Strategy(runtime, buckets, **changes), 0)


def trained(
    folder: Path, sync: str, given: Mapping[str, Used], servers: int
) -> list[dict[str, Any]]:
    """What both ranks of a recorded job have trained under each of the strategies."""
    for way, used in given.items():
        write_strategy(folder / f"{way}.json", used)
    said: list[str] = []
    spec = JobSpec(
        command=(sys.executable, str(WORKER), sync, str(folder), *given),
        run_directory=folder / "run",
        directory=folder,
        workers=2,
        servers=servers,
        environment={"BYTEPROPHET_TIMEOUT_S": "100", recording.VARIABLE: "1"},
        timeout_s=200.0,
    )
    result = run_job(spec, lambda _, line: said.append(line))
    assert result.failed is None, said
    found = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    for results in found:
        for way, trained in results.items():
            assert trained["given"]["parameters"] == trained["by hand"]["parameters"], way
            assert trained["given"]["rate"] == trained["by hand"]["rate"], way
    return found


@pytest.mark.job
def test_without_servers_the_bits_are_those_of_plain_code(tmp_path: Path) -> None:
    given = {
        "plain": among_ranks("allreduce"),
        "bf16": among_ranks("allreduce", reduce_dtype="bf16"),
        "sharded-fp16": among_ranks("dear", reduce_dtype="fp16"),
        "four": among_ranks("dear", accumulation=4),
        "clipped": among_ranks("allreduce", accumulation=2),
        "both": among_ranks("dear-planned", reduce_dtype="bf16", accumulation=3),
    }
    (first, _) = trained(tmp_path, "allreduce", given, 0)
    by_way = {way: results["given"]["parameters"] for way, results in first.items()}
    assert len({json.dumps(parameters) for parameters in by_way.values()}) == len(given)
    exchanges = {way: results["given"]["iterations"] for way, results in first.items()}
    assert exchanges == {
        "plain": 12, "bf16": 12, "sharded-fp16": 12, "four": 3, "clipped": 6, "both": 4
    }  # fmt: skip


@pytest.mark.job
def test_distributed_data_parallel_casts_as_the_hook_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = {"0.weight": 480, "0.bias": 80, "2.weight": 1600, "2.bias": 80}
    sizes |= {"4.weight": 160, "4.bias": 8}
    names = [*reversed(sizes)]
    buckets = (Bucket(tuple(names[:3]), 0, 0), Bucket(tuple(names[3:]), 1, 1))
    model = Model(tuple(Parameter(name, size) for name, size in sizes.items()))
    write_strategy(
        tmp_path / "given.json", Used(model, Strategy("ddp", buckets, reduce_dtype="bf16"), 0)
    )
    options = ["--servers", "0", "--record", "--strategy", "given.json"]
    script = str(WORKER.with_name("ddp_gradients_script.py"))
    assert run_cli(["run", *options, "--", sys.executable, script, str(tmp_path)]) == 0
    for rank in (0, 1):
        results = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert results["torch"] == results["by hand"]
    (run,) = (tmp_path / "runs").iterdir()
    job = measure_run(Run(run)).job
    assert job.strategy.reduce_dtype == "bf16"
    assert not job.strategy.reduce_fixed
    assert job.model.size_bytes == 2 * sum(job.wire_bytes) == sum(sizes.values())
    for events in load_run(run):
        rows = events.rows[events.rows["kind"] == Kind.COLLECTIVE]
        last = rows[rows["iteration"] == rows["iteration"].max()]
        assert last["size_bytes"].sum() == sum(job.wire_bytes)


def parameters(dtype: torch.dtype = torch.float32) -> list[tuple[str, torch.Tensor]]:
    return [("a", torch.zeros(3)), ("b", torch.zeros(2, dtype=dtype))]


def test_what_cannot_be_cast_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given = among_ranks("allreduce", reduce_dtype="fp16")
    for own in (Uncompressed, Compression.none, Compression.fp16):
        cast = compression_of(given, own, "FILE")
        assert isinstance(cast, Cast)
        cast.check(parameters())
        with pytest.raises(UserError, match=r"FILE: .* as fp16, but parameter 'b' is of torch.bfl"):
            cast.check(parameters(torch.bfloat16))
    bf16 = among_ranks("allreduce", reduce_dtype="bf16")
    with pytest.raises(UserError, match="as bf16, but the script compresses them itself, with FP"):
        compression_of(bf16, Compression.fp16, "FILE")
    assert compression_of(None, Compression.fp16, "") is Compression.fp16
    monkeypatch.setattr(compressed, "names", {"Gradient.a"})
    with pytest.raises(UserError, match="the script compresses the gradient of 'a' itself"):
        cast.check(parameters())


def test_what_is_recorded_tells_what_the_script_does_itself() -> None:
    class Other(Compression.fp16):  # type: ignore[misc, name-defined]
        pass

    tensors = [tensor for _, tensor in parameters()]
    mixed = [tensor for _, tensor in parameters(torch.float64)]
    given = among_ranks("allreduce", reduce_dtype="bf16", accumulation=2)
    assert changes_of(None, Uncompressed, tensors) == Strategy()
    assert changes_of(None, Compression.fp16, tensors) == Strategy(reduce_dtype="fp16")
    assert changes_of(None, Other, tensors).reduce_fixed.endswith("itself, with Other")
    assert (
        changes_of(None, Uncompressed, mixed).reduce_fixed == "it has parameters of torch.float64"
    )
    assert changes_of(given, Uncompressed, tensors) == Strategy(reduce_dtype="bf16", accumulation=2)


@pytest.mark.job
def test_with_servers_the_bits_are_those_of_plain_code(tmp_path: Path) -> None:
    settings, size_bytes = schedulers.resolve("prophet", {})
    strategy = Strategy(partition_bytes=size_bytes, reduce_dtype="fp16", accumulation=2)
    policy = Policy("prophet", {**settings, schedulers.PARTITION: size_bytes})
    (first, _) = trained(tmp_path, "byteps", {"fp16": Used(MODEL, strategy, 0, policy)}, 1)
    assert first["fp16"]["given"]["bucketed"]  # small gradients share buffers, as without

    # The run tells what it did, and is measured in steps and full sizes.
    run = Run(tmp_path / "run")
    recorded = read_given(run.directory)
    assert recorded is not None
    assert recorded.strategy.reduce_dtype == "fp16"
    job = measure_run(run).job
    assert job.strategy.reduce_dtype == "fp16"
    assert job.strategy.accumulation == job.times.passes == 2
    assert job.model.size_bytes == MODEL.size_bytes
    assert sum(job.wire_bytes) == MODEL.size_bytes // 2
