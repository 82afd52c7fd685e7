"""Compressors in strategy files: rules become a canonical form, and what is wrong is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from byteprophet.errors import UserError
from byteprophet.job import Bucket, Model, Parameter, Strategy
from byteprophet.job.compression import (
    Compressed,
    Dithering,
    Form,
    OneBit,
    PowerSgd,
    RandomK,
    TopK,
    why_unfit,
)
from byteprophet.job.strategy_file import Used, read_strategy, read_strategy_file, write_strategy

MODEL = Model(
    (
        Parameter("in.weight", 4000),
        Parameter("in.bias", 40),
        Parameter("mid.weight", 8000),
        Parameter("out.weight", 4000),
        Parameter("out.bias", 40),
    )
)
BUCKETS = (
    Bucket(("out.bias", "out.weight"), 0, 3),
    Bucket(("mid.weight", "in.bias", "in.weight"), 1, 2),
)
PLAIN = Used(MODEL, Strategy("allreduce", BUCKETS, 1000), since=3)


def read(tmp_path: Path, compressors: Any, **changes: Any) -> Used:
    path = tmp_path / "strategy.json"
    write_strategy(path, PLAIN)
    data = json.loads(path.read_text()) | {"compressors": compressors} | changes
    path.write_text(json.dumps(data))
    return read_strategy_file(path)


def test_the_first_rule_that_matches_counts_and_settings_get_values(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        [
            {"parameters": ["out.*"], "type": "none", "min_bytes": 1000},
            {"parameters": ["*.bias"], "type": "onebit"},
            {"parameters": ["*.weight", "*.bias"], "type": "topk", "k": 0.01},
        ],
    )
    assert found.strategy.compressors == (
        Compressed(("in.weight", "mid.weight"), TopK(0.01, error_feedback=True)),
        Compressed(("in.bias", "out.bias"), OneBit(error_feedback=True)),
    )
    assert [bucket.parameters for bucket in found.strategy.buckets] == [("out.weight",)]


def test_files_that_say_the_same_have_the_same_digest(tmp_path: Path) -> None:
    whole = {"parameters": ["*"], "type": "randomk", "k": 5, "min_bytes": 100}
    names = ["mid.weight", "out.weight", "in.weight"]
    said = {"parameters": names, "type": "randomk", "k": 5.0, "seed": 1, "error_feedback": True}
    one, other = read(tmp_path, [whole]), read(tmp_path, [said])
    assert one == other
    assert one.digest == other.digest != PLAIN.digest
    digests = {
        read(tmp_path, [{**said, **change}]).digest
        for change in (
            {},
            {"k": 6},
            {"seed": 2},
            {"error_feedback": False},
            {"parameters": names[:2]},
        )
    }
    assert len(digests) == 5


def test_what_is_written_is_read(tmp_path: Path) -> None:
    compressors = (
        Compressed(("in.weight",), PowerSgd(2)),
        Compressed(("in.bias",), Dithering(3, "natural", "l2", 7, True)),
        Compressed(("mid.weight",), RandomK(0.5)),
        Compressed(("out.weight",), TopK(100)),
        Compressed(("out.bias",), OneBit(error_feedback=False)),
    )
    used = replace(PLAIN, strategy=Strategy("dear", (), 0, compressors=compressors))
    write_strategy(tmp_path / "strategy.json", used)
    assert read_strategy_file(tmp_path / "strategy.json") == used
    assert read_strategy(tmp_path) == used


RULE = {"parameters": ["in.weight"], "type": "topk", "k": 3}


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ([], "compressors: must be a list of tables, one at least"),
        ([3], "compressors: must be a list of tables, one at least"),
        ([{**RULE, "type": "top-k"}], "rule 1: type 'top-k': must be one of onebit, topk, randomk"),
        ([{**RULE, "type": None}], "rule 1: type 'None': must be one of"),
        ([{**RULE, "seed": 3}], "seed: there is no such setting: topk has only k, error_feedback"),
        ([RULE, {**RULE, "type": "none"}], "rule 2: k: there is no such setting: none has no"),
        ([{"parameters": ["*"], "type": "topk"}], "rule 1: k is missing: topk needs it"),
        ([{"parameters": ["*"], "type": "powersgd"}], "rank is missing: powersgd needs it"),
        ([{**RULE, "k": 0}], "k: must be a fraction between 0 and 1, or a whole number from 1"),
        ([{**RULE, "k": 2.5}], "k: must be a fraction"),
        ([{**RULE, "k": True}], "k: must be a fraction"),
        ([{**RULE, "k": 1001}], "parameter 'in.weight': k is 1001, and it has 1000 element"),
        ([{**RULE, "error_feedback": 1}], "error_feedback: must be true or false"),
        ([{**RULE, "type": "dithering", "k": 128}], "k: must be a whole number from 1 to 127"),
        ([{**RULE, "type": "dithering", "k": 0.5}], "k: must be a whole number from 1 to 127"),
        (
            [{**RULE, "type": "dithering", "partition": "cubic"}],
            "partition: must be linear or natural",
        ),
        ([{**RULE, "type": "dithering", "normalize": 1}], "normalize: must be max or l2"),
        ([{**RULE, "type": "randomk", "seed": 0}], "seed: must be a whole number from 1"),
        ([{**RULE, "parameters": "*"}], "parameters: must be a list of names or patterns"),
        ([{**RULE, "parameters": []}], "parameters: must be a list of names or patterns"),
        ([{**RULE, "parameters": ["x.*"]}], "parameters: nothing is called 'x.\\*'"),
        ([{**RULE, "min_bytes": -1}], "min_bytes: must be a number of bytes from 0"),
        ([{**RULE, "min_bytes": 5000}], "rule 1: it is for nothing: .* fewer than 5000 bytes"),
        ([RULE, RULE], "rule 2: it is for nothing: earlier rules have its parameters"),
        ([{"parameters": ["*"], "type": "none"}], "they compress nothing: leave them out"),
    ],
)
def test_what_is_wrong_is_named(rules: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said) as refused:
        read(tmp_path, rules)
    assert str(refused.value).startswith(f"{tmp_path / 'strategy.json'}: compressors: ")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"runtime": "ddp"}, "compressors: 'ddp' has none; allreduce, dear, dear-planned have"),
        ({"reduce_dtype": "bf16"}, "compressors and reduce_dtype: a strategy has one of them"),
        (
            {"parameters": [{"name": "in.weight", "size_bytes": 6, "layer": ""}], "buckets": []},
            "parameter 'in.weight' has 6 bytes, and is not of float32",
        ),
    ],
)
def test_where_nothing_can_be_compressed(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said):
        read(tmp_path, [RULE], **changes)


@pytest.mark.parametrize(
    ("compressor", "shape", "form"),
    [
        (TopK(0.01), (100, 20), Form(20 * 8, gathered=True)),
        (TopK(0.0001), (10,), Form(8, gathered=True)),
        (RandomK(30), (100,), Form(120, gathered=False)),
        (OneBit(), (100,), Form(13 + 4, gathered=True)),
        (Dithering(1), (100,), Form(26 + 4, gathered=True)),
        (Dithering(7), (80,), Form(40 + 4, gathered=True)),
        (Dithering(127), (80,), Form(80 + 4, gathered=True)),
        (PowerSgd(2), (10, 4, 3), Form(2 * (10 + 12) * 4, gathered=False)),
    ],
    ids=str,
)
def test_forms_have_the_bytes_of_their_parts(
    compressor: Any, shape: tuple[int, ...], form: Form
) -> None:
    assert compressor.form(shape) == form


def test_a_form_is_sent_to_each_other_rank_or_all_reduced() -> None:
    assert Form(100, gathered=True).sent_bytes(4) == 300
    assert Form(100, gathered=False).sent_bytes(4) == 150


@pytest.mark.parametrize(
    ("compressor", "shape", "said"),
    [
        (PowerSgd(1), (10,), "it is no matrix: powersgd needs two dimensions or more"),
        (PowerSgd(1), (), "it is no matrix"),
        (PowerSgd(3), (6, 2, 3), "factors of rank 3 are not smaller than 6 x 6"),
        (TopK(11), (10,), "k is 11, and it has 10 element"),
        (PowerSgd(2), (6, 2, 3), ""),
        (OneBit(), (), ""),
    ],
    ids=str,
)
def test_gradients_that_are_unfit(compressor: Any, shape: tuple[int, ...], said: str) -> None:
    assert why_unfit(compressor, shape).startswith(said)
    assert bool(said) == bool(why_unfit(compressor, shape))
