"""Two strategies compared: what differs, member by member and parameter by parameter."""

from __future__ import annotations

from dataclasses import replace

from byteprophet.job.compression import Compressed, OneBit, PowerSgd, RandomK, TopK
from byteprophet.job.strategy_file import Used
from byteprophet.optimize.recorded import used_by
from byteprophet.strategy.builders import build
from byteprophet.strategy.ways import differences, facts, ways

from .jobs import NAMES, mesh_job, served_job

RATE_BPS = 400_000_000


def mesh(name: str) -> Used:
    job = mesh_job([RATE_BPS, RATE_BPS, RATE_BPS // 2])
    return used_by(build(name, job), job)


def served(name: str) -> Used:
    job = served_job([RATE_BPS] * 2, [RATE_BPS] * 2)
    return used_by(build(name, job), job)


def test_a_strategy_does_not_differ_from_itself() -> None:
    for used in (mesh("dear"), mesh("owners"), served("partitioned-ps")):
        assert differences(used, used) == []
        assert list(ways(used)) == list(NAMES)


def test_what_differs_is_named() -> None:
    first, second = mesh("dear-planned"), mesh("owners")
    found = {each.what: each for each in differences(first, second)}
    assert found["owners"].second == "1, 1, 0"
    moved = served("ps-balanced")
    keys = {each.tensor: each for each in moved.strategy.keys}
    other = tuple(
        replace(each, servers=(1 - each.servers[0],)) if each.tensor == "large" else each
        for each in moved.strategy.keys
    )
    changed = replace(moved, strategy=replace(moved.strategy, keys=other))
    (only,) = differences(moved, changed)
    assert only.what == "large"
    assert only.first.endswith(f"servers {keys['large'].servers[0]}")
    assert only.second.endswith(f"servers {1 - keys['large'].servers[0]}")


def test_a_bucket_that_is_cut_changes_its_members_only() -> None:
    used = mesh("allreduce")
    largest = max(used.strategy.buckets, key=lambda bucket: len(bucket.parameters))
    rest = tuple(bucket for bucket in used.strategy.buckets if bucket != largest)
    first, *others = largest.parameters
    parts = (replace(largest, parameters=(first,)), replace(largest, parameters=tuple(others)))
    cut = replace(used, strategy=replace(used.strategy, buckets=(*rest, *parts)))
    changed = [each.what for each in differences(used, cut)]
    assert len(largest.parameters) > 1
    assert sorted(changed) == sorted(["buckets", *largest.parameters])


def test_facts_say_which_runtime_and_policy() -> None:
    assert facts(mesh("dear"))["runtime"] == "dear"
    assert facts(served("ps"))["policy"].startswith("fifo")


def compressed(*compressors: Compressed) -> Used:
    used = mesh("dear")
    alone = {name for each in compressors for name in each.parameters}
    buckets = tuple(
        replace(bucket, parameters=left)
        for bucket in used.strategy.buckets
        if (left := tuple(name for name in bucket.parameters if name not in alone))
    )
    return replace(used, strategy=replace(used.strategy, buckets=buckets, compressors=compressors))


def test_compressors_are_shown_with_what_a_rank_sends() -> None:
    used = compressed(
        Compressed(("large",), TopK(0.01)),
        Compressed(("in", "out.0"), OneBit(error_feedback=False)),
        Compressed(("out.1",), PowerSgd(4)),
    )
    found = ways(used)
    assert found["large"] == (
        "topk, k=0.01, error feedback: 120000 bytes all-gathered, updated by all"
    )
    assert found["in"].startswith("onebit, no error feedback: 12504 bytes all-gathered")
    assert "rank=4, seed=1, error feedback: 16 bytes per row and per column" in found["out.1"]
    assert facts(used)["compressors"] == "4 gradients, 66.1% of the bytes"


def test_settings_of_compressors_differ() -> None:
    one = compressed(Compressed(("large",), RandomK(0.01)))
    other = compressed(Compressed(("large",), RandomK(0.01, seed=2)))
    assert [each.what for each in differences(one, other)] == ["large"]
    assert "large" in [each.what for each in differences(mesh("dear"), one)]


def test_strategies_of_different_digests_are_never_equal() -> None:
    used = mesh("dear")
    sized = replace(used, strategy=replace(used.strategy, bucket_bytes=12345))
    assert [each.what for each in differences(used, sized)] == ["bucket_bytes"]
    for name, value in (("shardable", False), ("reduce_fixed", "it is autocast")):
        other = replace(used, strategy=replace(used.strategy, **{name: value}))
        assert [each.what for each in differences(used, other)] == [name]
        assert name in facts(other)
    turned = replace(used, model=replace(used.model, parameters=used.model.parameters[::-1]))
    assert [each.what for each in differences(used, turned)] == ["order of parameters"]
    layers = tuple(replace(each, layer="other") for each in used.model.parameters)
    layered = replace(used, model=replace(used.model, parameters=layers))
    names = [f"layer of {name}" for name in used.model.names]
    assert [each.what for each in differences(used, layered)] == names
