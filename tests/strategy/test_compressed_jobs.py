"""Real jobs of compressed gradients: recorded, replayed, and predicted from a job without."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.job.strategy_file import read_strategy_file
from byteprophet.launcher import JobSpec, run_job
from byteprophet.measure.run import Run
from byteprophet.measure.servers import Measured, measure_run
from byteprophet.observe import recording
from byteprophet.optimize.recorded import measure_changeable
from byteprophet.replay.predict import kind_of
from byteprophet.runtime_settings import STRATEGY

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]

SCRIPT = """
import torch
from torch import distributed, nn
from byteprophet.torch import DistributedOptimizer

torch.set_num_threads(1)
distributed.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = DistributedOptimizer(optimizer, model=model, sync="allreduce", fusion=1 << 20)
for step in range(16):
    optimizer.zero_grad()
    model(torch.randn(32, 256)).square().mean().backward()
    optimizer.step()
optimizer.finish()
"""
WEIGHTS = ("0.weight", "2.weight", "3.weight")


def recorded(folder: Path, name: str, strategy: Path | None = None) -> tuple[Path, Measured]:
    """A recorded job of two ranks."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    said: list[str] = []
    spec = JobSpec(
        command=(sys.executable, str(script)),
        run_directory=folder / name,
        directory=folder,
        workers=2,
        servers=0,
        environment={
            "BYTEPROPHET_TIMEOUT_S": "100",
            recording.VARIABLE: "1",
            **({} if strategy is None else {STRATEGY: str(strategy)}),
        },
        timeout_s=200.0,
    )
    result = run_job(spec, lambda _, line: said.append(line))
    assert result.failed is None, said
    return folder / name, measure_run(Run(folder / name))


def test_a_compressed_job_is_predicted_recorded_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, _ = recorded(tmp_path, "plain")
    path = tmp_path / "compressed.json"
    made = ["strategy", "make", "dear-planned", str(plain), "--compress", "*.weight=onebit"]
    assert run_cli([*made, "--out", str(path)]) == 0
    assert "compression" in " ".join(capsys.readouterr().out.split())
    used = read_strategy_file(path)
    assert tuple(used.strategy.compressor_of) == WEIGHTS
    assert used.predicted is not None
    run, measured = recorded(tmp_path, "run", path)
    costs = {each.parameter: each for each in measured.job.cluster.costs.compressing}
    assert tuple(costs) == WEIGHTS
    assert all(each.before_ns > 0 and each.after_ns > 0 for each in costs.values())
    played = kind_of(measured.job).replay(measured.job)
    assert len(played.iterations_ns) == measured.job.iterations
    explained: list[dict[str, Any]] = []
    for source in (plain, run):
        assert run_cli(["strategy", "explain", str(path), str(source), "--json"]) == 0
        explained.append(json.loads(capsys.readouterr().out))
    loads = [{each["link"]: each["size_bytes"] for each in one["links"]} for one in explained]
    assert loads[0] == loads[1]
    # What the real ranks sent, by the spans of their collectives: forms, and a bucket of biases.
    elements = (256 * 512, 512 * 512, 512 * 4)
    forms_bytes = sum(each // 8 + 4 for each in elements)
    biases_bytes = 4 * (512 + 512 + 4)
    assert loads[0]["worker 0 up"] == pytest.approx(forms_bytes + biases_bytes, abs=16)
    assert run_cli(["replay", str(run)]) == 0
    with pytest.raises(UserError, match="its gradients are compressed, and no pass knows"):
        measure_changeable(Run(run))
