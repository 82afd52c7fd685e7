"""``torch.distributed.checkpoint`` between plain torch and two real ranks of ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from byteprophet.job.staleness import with_local_sgd
from byteprophet.job.strategy_file import read_strategy_file, write_strategy

from .shared_jobs import start, succeed
from .test_stale import assert_bits, write


@pytest.mark.job
@pytest.mark.timeout(300)
def test_plain_checkpoints_are_loaded_and_saved(tmp_path: Path) -> None:
    """What other ways of training load is loaded as by load_state_dict()."""
    write(tmp_path, "none", "dear", {})
    write(tmp_path, "delayed", "dear", {"first.*": 2, "sometimes.weight": 1})
    rule = {"parameters": ["second.weight"], "type": "topk", "k": 0.1}
    write(tmp_path, "compressed", "allreduce", {}, [rule])
    write(tmp_path, "accumulated", "dear", {}, accumulation=2)
    write(tmp_path, "local", "allreduce", {})
    used = read_strategy_file(tmp_path / "local.json")
    write_strategy(
        tmp_path / "local.json", replace(used, strategy=with_local_sgd(used.strategy, 3))
    )
    ways = ["none", "delayed", "compressed", "accumulated", "local"]
    succeed(start(2, "checkpoint_worker.py", out=str(tmp_path), ways=ways))
    for rank in (0, 1):
        found = torch.load(tmp_path / f"rank-{rank}.pt")
        assert_bits(found["none set"], found["plain"], "loaded")
        ours, plain = found["ours"], found["plain state"]
        assert_bits(ours["model"], plain["model"], "model")
        assert_bits(ours["optimizer"]["state"], plain["optimizer"]["state"], "state")
        assert ours["optimizer"]["param_groups"] == plain["optimizer"]["param_groups"]
        for way in ways:
            assert_bits(found[f"{way} set"], found[f"{way} load"], way)
        for way in ways[1:]:  # so that they are not the plain job
            with pytest.raises(AssertionError):
                assert_bits(found[f"{way} set"], found["plain"], way)
