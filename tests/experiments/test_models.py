"""The models of experiments/models: sizes, gradients, and the same training under every runtime."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.nn import functional

from byteprophet.cli.main import run_cli

FOLDER = Path(__file__).parents[2] / "experiments" / "models"
NAMES = (
    *("resnet", "gpt", "llama", "bert", "mobilenet", "vgg", "dlrm", "vit"),
    *("convnext", "densenet", "mixer"),
    "paced-resnet18",
)


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("families")


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_has_a_gradient(families: ModuleType, name: str) -> None:
    assert name in (*families.KNOWN, *families.UNSEEN, *families.PACED)
    torch.manual_seed(0)
    family = families.make(name)
    *inputs, classes = family.draw(2, torch.Generator().manual_seed(0))
    logits = family.model(*inputs)
    functional.cross_entropy(logits.flatten(0, -2), classes.flatten()).backward()
    parameters = dict(family.model.named_parameters())
    assert not [name for name, each in parameters.items() if each.grad is None]
    assert 5e6 < sum(each.nbytes for each in parameters.values()) < 6e7
    trained = [each for group in family.optimizer.param_groups for each in group["params"]]
    assert {id(each) for each in trained} == {id(each) for each in parameters.values()}


@pytest.mark.job
def test_runtimes_train_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = [sys.executable, str(FOLDER / "train.py"), "--model", "vgg"]
    for sync in ("ddp", "dear", "byteps"):
        servers = ["--scheduler", "p3"] if sync == "byteps" else ["--servers", "0"]
        options = ["--sync", sync, "--batch", "2", "--iterations", "3"]
        assert run_cli(["run", *servers, "--", *script, *options]) == 0
    said = re.findall(r"digest (\w+), median iteration [0-9.]+ ms", capfd.readouterr().out)
    assert len(said) == 3
    assert len(set(said)) == 1
