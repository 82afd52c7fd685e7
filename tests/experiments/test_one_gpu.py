"""What ``one_gpu.py`` trains is what it simulates; it measures, writes and compares."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from one_gpu_cases import Case
from one_gpu_train import data_of, loss_from, model_of
from torch.utils.flop_counter import FlopCounterMode

from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.execute.simulate import simulate_program
from byteprophet.simulate.tree.strategy import PRECISIONS

from ..python_process import run_python

SCRIPT = Path(__file__).parents[2] / "experiments" / "one_gpu.py"


@pytest.mark.parametrize("name", ["gpt2", "llama-1b", "bert-large", "resnet50"])
def test_parameters_and_flops_are_the_simulators(name: str) -> None:
    case = Case(name, 2)
    program = case.program
    memory = simulate_program(program, find_cluster("dgx-h100")).memory[0]
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = model_of(case)
        loss_from(case, model, *data_of(case)).backward()  # type: ignore[no-untyped-call]
    elements = sum(one.numel() for one in model.parameters())
    assert memory.parameters == elements * PRECISIONS["bf16_unfused"].parameter_bytes
    # The first convolution's input has no gradient, which the simulator does not know.
    assert counter.get_total_flops() == pytest.approx(program.model.flops(), rel=0.03)


def test_small_jobs_are_measured_and_compared(tmp_path: Path) -> None:
    file = tmp_path / "one_gpu.json"
    measure = ["--measure", "--device", "cpu", "--only", "small,small-llama", "--seconds", "60"]

    def run(*arguments: str) -> str:
        done = run_python(SCRIPT, file, *arguments, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(*measure)
    said = run()
    assert "CPU, 2 cases" in said
    assert "small-llama micro_batch=2 micro_batches=1 recompute=full sequence=8" in said


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")
    done = run_python(SCRIPT, file, timeout=60)
    assert done.returncode == 2
    assert "not what one_gpu.py --measure has written" in done.stderr
