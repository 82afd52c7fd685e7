"""Staleness in strategy files: patterns become names, buckets are divided, bad input is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from byteprophet.errors import UserError
from byteprophet.job import Bucket, Model, Parameter, Policy, Strategy
from byteprophet.job.staleness import divided, steps_by_name, with_staleness
from byteprophet.job.strategy import Delay
from byteprophet.job.strategy_file import (
    Used,
    read_strategy_file,
    with_compressors,
    write_strategy,
)

NAMES = ("embed.word", "embed.place", "layer.weight", "layer.bias")
MODEL = Model(tuple(Parameter(name, 400) for name in NAMES))
BUCKETS = (
    Bucket(("layer.bias", "embed.place", "layer.weight"), 0, 3, sharded=True),
    Bucket(("embed.word",), 1, 2, sharded=True),
)
USED = Used(MODEL, Strategy("dear-planned", BUCKETS), 0)


def given(folder: Path, staleness: Any, used: Used = USED) -> Used:
    """What is read from a file that a user has added ``staleness`` to."""
    path = folder / "strategy.json"
    write_strategy(path, used)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"staleness": staleness}))
    return read_strategy_file(path)


def test_patterns_become_names_in_forward_order(tmp_path: Path) -> None:
    read = given(tmp_path, {"layer.bias": 2, "embed.*": 1, "embed.place": 0})
    assert read.strategy.staleness == (Delay("embed.word", 1), Delay("layer.bias", 2))
    write_strategy(tmp_path / "again.json", read)
    assert read_strategy_file(tmp_path / "again.json") == read


def test_equal_delays_have_equal_digests(tmp_path: Path) -> None:
    by_pattern = given(tmp_path, {"embed.[pw]*": 1})
    by_name = given(tmp_path, {"embed.place": 1, "embed.word": 1})
    other = given(tmp_path, {"embed.place": 1, "embed.word": 2})
    none = given(tmp_path, {"*": 0})
    assert by_pattern.digest == by_name.digest
    assert len({by_name.digest, other.digest, none.digest}) == 3
    assert none.digest == USED.digest


def test_buckets_have_one_delay_each(tmp_path: Path) -> None:
    read = given(tmp_path, {"embed.place": 1}).strategy
    assert [(each.parameters, each.sharded) for each in read.buckets] == [
        (("layer.bias", "layer.weight"), True),
        (("embed.place",), False),
        (("embed.word",), True),
    ]
    places = [(each.reduce_place, each.gather_place) for each in read.buckets]
    assert sorted(place for both in places for place in both) == list(range(6))
    # Halves are in the order in which they were.
    assert places == [(0, 4), (1, 5), (2, 3)]


def test_buckets_that_need_no_division_keep_their_places() -> None:
    steps = {"embed.word": 1}
    late = replace(BUCKETS[1], sharded=False)
    assert divided(BUCKETS, steps) == (BUCKETS[0], late)
    assert divided(divided(BUCKETS, steps), steps) == divided(BUCKETS, steps)
    assert divided(BUCKETS, {}) == BUCKETS
    assert steps_by_name((Delay("a", 1),)) == {"a": 1}


@pytest.mark.parametrize(
    ("staleness", "said"),
    [
        ([], "staleness: must be a table: steps by names or patterns of parameters"),
        ({"embed.word": 3}, "staleness: 'embed.word' must be an integer from 0 to 2"),
        ({"embed.word": True}, "staleness: 'embed.word' must be an integer from 0 to 2"),
        ({"embed.word": "1"}, "staleness: 'embed.word' must be an integer from 0 to 2"),
        ({"embeds.*": 1}, "staleness: 'embeds.*' matches no parameter"),
        (
            {"embed.*": 1, "*.word": 2},
            "staleness: 'embed.*' and '*.word' give parameter 'embed.word' different numbers",
        ),
    ],
)
def test_what_is_wrong_is_named(staleness: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        given(tmp_path, staleness)
    assert str(refused.value) == f"{tmp_path}/strategy.json: {said}"


def test_only_exchanged_parameters_can_be_delayed(tmp_path: Path) -> None:
    partial = replace(USED, strategy=replace(USED.strategy, buckets=BUCKETS[1:]))
    with pytest.raises(UserError, match=r"staleness: parameter 'layer\.bias' is in no bucket"):
        given(tmp_path, {"layer.bias": 1}, partial)
    whole = tuple(replace(bucket, sharded=False) for bucket in BUCKETS)
    ddp = replace(USED, strategy=Strategy("ddp", whole))
    with pytest.raises(UserError, match="staleness: 'ddp' has none; byteps, allreduce, dear"):
        given(tmp_path, {"layer.bias": 1}, ddp)
    served = Used(MODEL, Strategy(partition_bytes=65536), 0, Policy("p3", {}))
    read = given(tmp_path, {"layer.bias": 1}, served)
    assert read.strategy.staleness == (Delay("layer.bias", 1),)
    assert read.strategy.is_told_to_workers


def test_compressed_gradients_may_be_delayed(tmp_path: Path) -> None:
    """A file with both is read as what was written, also if its rules are patterns."""
    rules = [{"parameters": ["embed.*"], "type": "onebit"}]
    late = given(tmp_path, {"embed.word": 1, "layer.bias": 2})
    then_compressed = with_compressors(late, rules)
    strategy = with_compressors(USED, rules).strategy
    delayed = with_staleness(strategy, late.strategy.staleness)
    assert then_compressed.strategy.staleness == delayed.staleness
    assert all("embed.word" not in each.parameters for each in then_compressed.strategy.buckets)
    write_strategy(tmp_path / "both.json", replace(USED, strategy=delayed))
    read = read_strategy_file(tmp_path / "both.json")
    assert read.strategy == delayed
    again = json.loads((tmp_path / "both.json").read_text())
    again["compressors"] = rules
    (tmp_path / "by-hand.json").write_text(json.dumps(again))
    assert read_strategy_file(tmp_path / "by-hand.json").digest == read.digest
