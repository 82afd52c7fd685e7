"""``byteprophet memory``, as a user calls it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli

pytest.importorskip("torch")

SCRIPT = """
import functools
import torch
from torch import nn
from byteprophet.memory.training import Training


def loss_of(model, batch):
    return model(batch).mean()


def training(batch):
    with torch.device("meta"):
        layers = [nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(4)]
        model, inputs = nn.Sequential(*layers), torch.empty(batch, 512)
    return Training(model, [inputs], loss_of, functools.partial(torch.optim.SGD, lr=0.1))


def nothing(batch):
    return batch


def failing(batch):
    made = training(batch)
    def values(model, inputs):
        raise ValueError("line one\\nline two")
    return Training(made.model, made.micro_batches, values, made.optimizer)


def leaving(batch):
    raise SystemExit(3)


def sized(batch):
    made = training(batch)
    values = lambda model, inputs: model(inputs)[inputs[:, 0] > 0].mean()
    return Training(made.model, made.micro_batches, values, made.optimizer)
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``trained.py`` in the working directory."""
    path = tmp_path / "trained.py"
    path.write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "wrong.py").write_text("this is no Python", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trained", raising=False)
    return path


def test_larger_batches_and_recomputed_modules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "memory.json"
    call = ["memory", "trained:training", "--batch", "2048,8192", "--json", str(out)]
    assert run_cli(call) == 0
    printed = capsys.readouterr().out
    assert "parameters and buffers" in printed
    assert "cuBLAS workspace" in printed
    small, large = json.loads(out.read_text(encoding="utf-8"))["rows"]
    # At least, the inputs and what GELU keeps grow.
    grown = large["allocated_bytes"] - small["allocated_bytes"]
    assert grown >= (8192 - 2048) * 512 * 4 * 5
    assert large["reserved_bytes"] >= large["allocated_bytes"] >= large["requested_bytes"]
    assert run_cli([*call, "--recompute", "0,1,2"]) == 0
    recomputed = json.loads(out.read_text(encoding="utf-8"))["rows"][1]
    assert recomputed["allocated_bytes"] < large["allocated_bytes"]


def test_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["memory", "trained:training", "--batch", "8192", "--limit"]
    assert run_cli([*call, "100MiB"]) == 1
    assert "Batch 8192 does not fit: out of memory" in capsys.readouterr().out
    assert run_cli([*call, "1GiB"]) == 0


def test_every_batch_that_does_not_fit_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the last one was looked at. Peaks stop where memory ran out, so all seemed to fit."""
    call = ["memory", "trained:training", "--batch", "8192,4096,64", "--limit", "100MiB"]
    assert run_cli(call) == 1
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for size, fits in (("8192", False), ("4096", False), ("64", True)):
        (row,) = (line for line in lines if line.startswith(f"{size} "))
        assert row.endswith("does not fit") != fits
        assert any(line.startswith(f"Batch {size} does not fit: ") for line in lines) != fits


def test_says_which_gpus_were_compared_with_measurements(
    capsys: pytest.CaptureFixture[str],
) -> None:
    titles = {}
    for more in ([], ["--gpu", "a100"]):
        assert run_cli(["memory", "trained:training", "--batch", "64", *more]) == 0
        titles[len(more)] = " ".join(capsys.readouterr().out.split())
    assert titles[0].startswith("Peaks on h200 in MiB batch")
    assert titles[2].startswith("Peaks on a100 in MiB (a100 was not compared with measurements)")


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (["trained:training", "--batch", "0"], "--batch 0: must be from 1 to"),
        (["trained:training", "--batch", "2", "--gpu", "tpu"], "--gpu tpu: must be one of h200"),
        (["trained:training", "--batch", "2", "--limit", "much"], "--limit much: must be a size"),
        (["trained:missing", "--batch", "2"], "trained:missing: cannot be imported"),
        (["trained", "--batch", "2"], "model trained: expected module:function"),
        (["trained:loss_of", "--batch", "2"], "trained:loss_of: failed: TypeError: "),
        (["trained:nothing", "--batch", "2"], "trained:nothing: returns int: must return a"),
        (["trained:sized", "--batch", "2"], "depends on the values of tensors"),
        (["trained:failing", "--batch", "2"], "trained:failing: failed: ValueError: line one"),
        (["trained:leaving", "--batch", "2"], "trained:leaving: failed: SystemExit: 3"),
        (["wrong:training", "--batch", "2"], "wrong:training: cannot be imported: SyntaxError: "),
        (["trained:training", "--batch", "9" * 5000], "must be from 1 to 16777216"),
        (["trained:training", "--batch", "2", "--json", "none/x"], "none/x: cannot be written: No"),
        (
            ["trained:training", "--batch", "2", "--recompute", "9"],
            "the model has no module '9'",
        ),
    ],
)
def test_what_is_refused(call: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["memory", *call]) == 2
    printed = capsys.readouterr().err
    assert line in printed
    assert printed.count("\n") == 1
