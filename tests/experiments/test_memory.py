"""What experiments/memory.py writes: no rows are lost that it does not measure again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import memory
import pytest
from memory import merged

from byteprophet.errors import UserError


def row(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, **more}


def test_rows_of_other_parts_and_models_stay() -> None:
    kept = {"variants": [row("gpt", old=1), row("vgg", old=1)], "ranks": [row("gpt")]}
    found = merged(kept, {"variants": [row("gpt", new=1)], "sharded": []})
    assert found == {"variants": [row("vgg", old=1), row("gpt", new=1)], "ranks": [row("gpt")]}


def test_one_part_is_added_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = {"cores": 2}
    path = tmp_path / "memory.json"
    before = {"schema": 1, "machine": machine, "results": {"mixes": [row("gpt")]}}
    path.write_text(json.dumps(before))
    measured = {"runtime": "ddp", "measured_bytes": 100, "least_bytes": 90, "most_bytes": 101}
    monkeypatch.setattr(memory, "describe_machine", lambda: machine)
    monkeypatch.setattr(memory, "compiled", lambda folder: folder)
    monkeypatch.setattr(memory, "rank_rows", lambda _: [row("gpt", **measured)])
    options = ["--parts", "ranks", "--out", str(tmp_path)]
    memory.main(options)
    assert json.loads(path.read_text())["results"] == {
        "mixes": [row("gpt")],
        "ranks": [row("gpt", **measured)],
    }
    machine["cores"] = 512
    with pytest.raises(UserError, match=r"memory\.json: was measured with the machine"):
        memory.main(options)
