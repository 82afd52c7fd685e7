"""Checkpointed modules: the same gradients, and everything as before afterwards."""

from __future__ import annotations

import subprocess
import sys

import torch

from byteprophet.memory.training import checkpointed

from .small_models import BLOCKS, loss_of, training


def test_checkpointing_changes_no_gradient_and_is_undone() -> None:
    made = training("attention")
    found = []
    for paths in ((), BLOCKS[:2]):
        torch.manual_seed(2)  # dropout
        with checkpointed(made.model, paths):
            loss_of(made.model, made.micro_batches[0]).backward()
        found.append([each.grad for each in made.model.parameters()])
        made.model.zero_grad(set_to_none=True)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert "forward" not in vars(made.model.get_submodule(BLOCKS[0]))


def test_a_forward_of_the_script_is_kept() -> None:
    made = training("attention")
    block = made.model.get_submodule(BLOCKS[0])
    own = block.forward
    block.forward = own  # type: ignore[method-assign]
    with checkpointed(made.model, BLOCKS):
        assert block.forward is not own
    assert block.forward is own


def test_modules_hooks_run_once() -> None:
    made = training("attention")
    runs = []
    made.model.get_submodule(BLOCKS[0]).register_forward_hook(lambda *_: runs.append(1))
    with checkpointed(made.model, BLOCKS):
        loss_of(made.model, made.micro_batches[0]).backward()
    assert len(runs) == 1


def test_the_rest_of_the_room_does_not_import_torch() -> None:
    code = (
        "import sys, byteprophet.optimize, byteprophet.memory, byteprophet.cli.main;"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
