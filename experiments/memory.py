"""Peak memory of training iterations: predicted without data, beside what malloc counts.

    python experiments/memory.py

Eight small models on one core. Printed:

- *variants*: plain, all blocks checkpointed, two accumulated micro-batches, and bfloat16 autocast,
  with SGD (momentum) and Adam: the error of the prediction, of tensors alone (without the scratch
  memory of kernels), and of a naive sum of parameters, gradients, state and outputs of layers;
- *mixes*: five random mixes of checkpointed and plain blocks per model: the error of the prediction
  and of the sum of the blocks' profiles;
- *budgets*: the blocks chosen for 80, 60 and 45% of the plain peak: whether they fit as measured,
  and the processor time of an iteration over that with all blocks checkpointed, and over that with
  the choice of ``torch.distributed._tools.sac_ilp`` (needs ``pip install pulp pwlf``);
- *ranks*: two ranks of each runtime: the predicted interval, and what was measured;
- *sharded*: two ranks over gloo whose models FSDP2 shards, in units of a block, of two blocks, of a
  block that keeps its parameters until the backward pass, and of a block that is recomputed: the
  error of the prediction and of torch's own ``FSDPMemTracker``, and by how much the highest of five
  iterations was above their median.

The peak is counted by ``malloc_peak.c``, which is compiled (needs gcc) and takes the place of
malloc in the measured processes. Writes ``memory.json`` to ``--out``, by default
experiments/results; rows of parts and models that were not asked for stay there. A file of another
machine is refused. Three quarters of an hour on two cores, of which *sharded* takes a quarter;
``--models`` and ``--parts`` choose.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from malloc_peak import compiled
from memory_models import MODELS
from memory_ranks import rank_rows, sharded_rows
from recorded import PROGRESS, RESULTS
from results_file import earlier_results, write_results
from rich import box
from rich.console import Console
from rich.table import Table
from script import run_script

from byteprophet.bench import describe_machine
from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError

PARTS = ("variants", "mixes", "budgets", "ranks", "sharded")
_OF_ONE = PARTS[:3]  # without other ranks
_HERE = Path(__file__).parent
_LONGEST_S = 3600
_MB = 1e6
_WIDTH = 110

Row = dict[str, Any]
RowsOfParts = dict[str, list[Row]]


def main(arguments: Sequence[str]) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description="Compare predicted and measured peak memory.")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    models, parts = split(options.models, "--models"), split(options.parts, "--parts")
    for chosen, known, option in ((models, MODELS, "--models"), (parts, PARTS, "--parts")):
        for name in chosen:
            if name not in known:
                raise UserError(f"{option} {name}: must be some of {', '.join(known)}")
    path = options.out / "memory.json"
    kept: RowsOfParts = earlier_results(path, machine=describe_machine()) or {}
    rows: RowsOfParts = {part: [] for part in parts}
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(Path(folder))
        alone = [part for part in parts if part in _OF_ONE]
        for model in models if alone else ():
            PROGRESS.print(f"memory: {model}", markup=False)
            for part, found in _measured(model, alone, library).items():
                rows[part] += found
            _write(path, merged(kept, rows))
        if "ranks" in parts:
            rows["ranks"] = rank_rows(library)
            _write(path, merged(kept, rows))
        for model in models if "sharded" in parts else ():
            PROGRESS.print(f"memory: {model}, two ranks of FSDP2", markup=False)
            rows["sharded"] += sharded_rows(model, library)
            _write(path, merged(kept, rows))
    show = {
        "variants": _variants,
        "mixes": _mixes,
        "budgets": _budgets,
        "ranks": _ranks,
        "sharded": _sharded,
    }
    for part in parts:
        show[part](rows[part])


def merged(kept: RowsOfParts, rows: RowsOfParts) -> RowsOfParts:
    """``rows``, and those of ``kept`` of whose part and model ``rows`` have none."""
    found = {}
    for part in PARTS:
        new = rows.get(part, [])
        models = {row["model"] for row in new}
        found[part] = [row for row in kept.get(part, []) if row["model"] not in models] + new
    return {part: some for part, some in found.items() if some}


def _write(path: Path, rows: RowsOfParts) -> None:
    write_results(path, {"schema": 1, "machine": describe_machine(), "results": rows})


def _measured(model: str, parts: Sequence[str], library: Path) -> dict[str, list[Row]]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        done = subprocess.run(
            [sys.executable, str(_HERE / "memory_worker.py"), model, ",".join(parts), str(out)],
            env={**os.environ, "LD_PRELOAD": str(library)},
            capture_output=True,
            text=True,
            check=False,
            timeout=_LONGEST_S,
        )
        if done.returncode:
            raise JobFailed(f"memory: {model} failed: {done.stderr.strip().splitlines()[-1:]}")
        found: dict[str, list[Row]] = json.loads(out.read_text(encoding="utf-8"))
        return found


def _error(row: Row, name: str) -> float:
    return float(row[name]) / float(row["measured_bytes"]) - 1


def _summary(rows: Sequence[Row], names: Sequence[tuple[str, str]]) -> None:
    for name, said in names:
        errors = [abs(_error(row, name)) for row in rows]
        mean = sum(errors) / len(errors)
        print(f"{said}: mean error {mean:.2%}, worst {max(errors):.2%} of {len(errors)}")


def _variants(rows: Sequence[Row]) -> None:
    table = Table("model", "variant", "optimizer", "measured MB", "predicted", "tensors alone",
                  "naive", box=box.SIMPLE)  # fmt: skip
    names = ("predicted_bytes", "tensors_bytes", "naive_bytes")
    for row in rows:
        table.add_row(
            row["model"],
            row["variant"],
            row["optimizer"],
            f"{row['measured_bytes'] / _MB:.1f}",
            *(f"{_error(row, name):+.2%}" for name in names),
        )
    Console(width=_WIDTH).print(table)
    _summary(rows, list(zip(names, ("variants, predicted", "tensors alone", "naive"), strict=True)))


def _mixes(rows: Sequence[Row]) -> None:
    table = Table("model", "checkpointed", "measured MB", "predicted", "composed", box=box.SIMPLE)
    for row in rows:
        table.add_row(
            row["model"],
            _places(row["checkpointed"]),
            f"{row['measured_bytes'] / _MB:.1f}",
            f"{_error(row, 'predicted_bytes'):+.2%}",
            f"{_error(row, 'composed_bytes'):+.2%}",
        )
    Console(width=_WIDTH).print(table)
    _summary(rows, [("predicted_bytes", "mixes, predicted"), ("composed_bytes", "mixes, composed")])


def _budgets(rows: Sequence[Row]) -> None:
    table = Table("model", "budget", "chosen", "measured", "time/all", "sac_ilp", "its measured",
                  "time/sac_ilp", box=box.SIMPLE)  # fmt: skip
    for row in rows:
        budget, times = row["budget_bytes"], row["cpu_s"]
        chosen = ilp = ("", "")
        if "measured_bytes" in row:
            chosen = (
                f"{row['measured_bytes'] / budget:.1%}",
                f"{times['chosen'] / times['all']:.3f}",
            )
        if "ilp_bytes" in row:
            against = times["chosen"] / times["ilp"] if "chosen" in times else None
            ilp = f"{row['ilp_bytes'] / budget:.1%}", f"{against:.3f}" if against else ""
        table.add_row(
            row["model"],
            f"{row['share']:.0%}",
            _places(row["checkpointed"]) if "checkpointed" in row else "none fits",
            *chosen,
            _places(row["ilp"]) if isinstance(row["ilp"], list) else row["ilp"],
            *ilp,
        )
    Console(width=_WIDTH).print(table)
    chosen_rows = [row for row in rows if "measured_bytes" in row]
    fits = sum(row["measured_bytes"] <= row["budget_bytes"] for row in chosen_rows)
    print(f"budgets: {fits} of {len(chosen_rows)} choices fit as measured; none exists for "
          f"{len(rows) - len(chosen_rows)}")  # fmt: skip


def _ranks(rows: Sequence[Row]) -> None:
    table = Table("model", "runtime", "measured MB", "least", "most", box=box.SIMPLE)
    for row in rows:
        table.add_row(
            row["model"],
            row["runtime"],
            f"{row['measured_bytes'] / _MB:.1f}",
            *(f"{_error(row, name):+.2%}" for name in ("least_bytes", "most_bytes")),
        )
    Console(width=_WIDTH).print(table)


def _sharded(rows: Sequence[Row]) -> None:
    table = Table("model", "units", "optimizer", "measured MB", "highest", "predicted", "torch's",
                  box=box.SIMPLE)  # fmt: skip
    names = ("highest_bytes", "predicted_bytes", "tracker_bytes")
    for row in rows:
        table.add_row(
            row["model"],
            row["units"],
            row["optimizer"],
            f"{row['measured_bytes'] / _MB:.1f}",
            *(f"{_error(row, name):+.2%}" for name in names),
        )
    Console(width=_WIDTH).print(table)
    for units in dict.fromkeys(row["units"] for row in rows):
        some = [row for row in rows if row["units"] == units]
        _summary(
            some,
            [("predicted_bytes", f"sharded, {units}"), ("tracker_bytes", "torch's FSDPMemTracker")],
        )
    said = ("highest of five", "sharded, all", "torch's FSDPMemTracker")
    _summary(rows, list(zip(names, said, strict=True)))


def _places(paths: Sequence[str]) -> str:
    return " ".join(path.rpartition(".")[2] for path in paths) or "-"


if __name__ == "__main__":
    run_script(main)
