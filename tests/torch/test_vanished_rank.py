"""A rank whose host is gone, in a real job without servers: nothing closes its connections."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from byteprophet.launcher import JobSpec, run_job
from byteprophet.launcher.leftovers import marked_processes
from byteprophet.network import cut_cable

from ..namespaces import why_not_permitted

_REASON = why_not_permitted()
NAMED_WITHIN_S = 30.0
"""The kernel gives a silent connection up after 15 s (``native/exchange/sockets.cc``)."""
ENDS_WITHIN_S = 90.0
"""Well before the job's other limits. Interpreters end slowly on a busy machine."""
VANISHES = "worker-1"
# The one that is cut off misses the others, too, and may do so first: it stays until it is ended.
LOOP = """
import os, time
import torch
from torch import distributed, nn
from byteprophet import PeerLost
from byteprophet.torch import DistributedOptimizer

distributed.init_process_group("gloo")
model = nn.Linear(300, 300)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
optimizer = DistributedOptimizer(optimizer, model=model, sync="dear")
try:
    while True:
        optimizer.zero_grad()
        model(torch.ones(2, 300)).sum().backward()
        optimizer.step()
        print("iteration", flush=True)
        time.sleep(0.01)  # others need the processors
except PeerLost:
    if os.environ["RANK"] == "1":
        time.sleep(100)
    raise
"""


class Cable:
    """Cut once all of ``ranks`` train. Notes when, and when a rank names the one that is gone."""

    def __init__(self, run_directory: Path, ranks: int) -> None:
        self._run_directory = str(run_directory)
        self._ranks = ranks
        self._training: set[str] = set()
        self.cut_s = float("inf")
        self.named_s = float("inf")

    def echo(self, role: str, line: str) -> None:
        if "is gone" in line:
            self.named_s = min(self.named_s, time.monotonic())
        if line.startswith("iteration") and role not in self._training:
            self._training.add(role)
            if len(self._training) == self._ranks:
                threading.Thread(target=self._cut).start()

    def _cut(self) -> None:
        (pid,) = marked_processes(self._run_directory, VANISHES)
        self.cut_s = time.monotonic()
        cut_cable(pid)


@pytest.mark.job
@pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
def test_the_others_name_it_and_end(tmp_path: Path) -> None:
    spec = JobSpec(
        command=(sys.executable, "-c", LOOP),
        run_directory=tmp_path / "run",
        directory=tmp_path,
        workers=3,
        servers=0,
        environment={"BYTEPROPHET_TIMEOUT_S": "200"},
        namespaces=True,
        timeout_s=150.0,
    )
    cable = Cable(spec.run_directory, spec.workers)
    result = run_job(spec, cable.echo)
    named_after_s, ended_after_s = (
        moment_s - cable.cut_s for moment_s in (cable.named_s, time.monotonic())
    )
    assert named_after_s < NAMED_WITHIN_S, (named_after_s, ended_after_s)
    assert ended_after_s < ENDS_WITHIN_S, (named_after_s, ended_after_s)
    assert result.exit_status == 1
    named = [
        line
        for number in (0, 2)
        for line in (tmp_path / "run" / "logs" / f"worker-{number}.log").read_text().splitlines()
        if "is gone" in line
    ]
    assert named
    assert all("rank 1 is gone: " in line for line in named)
