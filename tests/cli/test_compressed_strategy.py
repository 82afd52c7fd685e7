"""``byteprophet strategy`` and ``run`` with strategies that compress gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.job.strategy_file import write_strategy
from byteprophet.optimize.recorded import used_by
from byteprophet.strategy.builders import build

from ..strategy.jobs import mesh_job


def save(path: Path, *rules: dict[str, Any]) -> str:
    job = mesh_job([400_000_000] * 2)
    write_strategy(path, used_by(build("dear", job), job))
    data = json.loads(path.read_text()) | ({"compressors": rules} if rules else {})
    path.write_text(json.dumps(data))
    return str(path)


@pytest.mark.parametrize("command", [["strategy", "check"], ["strategy", "show"], ["run"]])
@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"type": "gzip"}, "rule 1: type 'gzip': must be one of onebit, topk, randomk, dithering"),
        ({"type": "onebit", "bits": 2}, "rule 1: bits: there is no such setting: onebit has only"),
        ({"type": "topk", "k": -1}, "rule 1: k: must be a fraction between 0 and 1, or a whole"),
        ({"type": "topk", "k": 0.1, "parameters": ["x"]}, "nothing is called 'x'"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path,
    command: list[str],
    rule: dict[str, Any],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = save(tmp_path / "wrong.json", {"parameters": ["*"], **rule})
    arguments = (
        [*command, file] if command != ["run"] else ["run", "--strategy", file, "--", "true"]
    )
    assert run_cli(arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_it_is_checked_shown_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = {"parameters": ["large"], "type": "topk", "k": 0.01}
    one = save(tmp_path / "one.json", large)
    same = save(tmp_path / "same.json", {**large, "parameters": ["l*e"], "error_feedback": True})
    other = save(tmp_path / "other.json", {**large, "k": 0.02})
    assert run_cli(["strategy", "check", one]) == 0
    assert "6 parameters" in capsys.readouterr().out
    assert run_cli(["strategy", "show", one]) == 0
    assert "120000 bytes all-gathered" in " ".join(capsys.readouterr().out.split())
    assert run_cli(["strategy", "diff", one, same]) == 0
    assert run_cli(["strategy", "diff", one, other]) == 1
    assert "k=0.02" in capsys.readouterr().out


def test_rules_may_be_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = save(tmp_path / "plain.json")
    out = str(tmp_path / "out.json")
    rules = [
        "out.*=none",
        "layer.?=dithering,k=3,partition=natural,error_feedback=true",
        "*=onebit",
    ]
    assert run_cli(["strategy", "compress", plain, *rules, "--out", out]) == 0
    assert "4 gradients, 88.1% of the bytes compressed" in capsys.readouterr().out
    by_hand = save(
        tmp_path / "by-hand.json",
        {"parameters": ["in", "large"], "type": "onebit"},
        {
            "parameters": ["layer.0", "layer.1"],
            "type": "dithering",
            "k": 3,
            "partition": "natural",
            "error_feedback": True,
        },
    )
    assert run_cli(["strategy", "diff", out, by_hand]) == 0


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        (["large"], "rule 'large': write PATTERN=TYPE,NAME=VALUE"),
        (["=topk"], "rule '=topk': write PATTERN=TYPE"),
        (["large=topk,k"], "rule 'large=topk,k': 'k' is not a setting: write NAME=VALUE once"),
        (["large=topk,k=1,k=2"], "'k=2' is not a setting: write NAME=VALUE once"),
        (["large=topk,k=NaN"], "k: must be a fraction between 0 and 1"),
        (["large=topk,k=many"], "plain.json: compressors: rule 1: k: must be a fraction"),
        (["huge=onebit"], "plain.json: compressors: rule 1: parameters: nothing is called 'huge'"),
    ],
)
def test_wrong_rules_are_one_line(
    tmp_path: Path, rules: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = save(tmp_path / "plain.json")
    assert run_cli(["strategy", "compress", plain, *rules, "--out", str(tmp_path / "x.json")]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x.json").exists()


def test_what_is_compressed_already_is_not_compressed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = save(tmp_path / "large.json", {"parameters": ["large"], "type": "onebit"})
    assert run_cli(["strategy", "compress", large, "in=onebit"]) == 2
    assert "it has compressors already" in capsys.readouterr().err
