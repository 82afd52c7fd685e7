"""Scores the simulator against public measurements.

    python experiments/groundtruth.py --data FOLDER
    python experiments/groundtruth.py --data FOLDER --fit OTHER --set vtrain --json results.json

FOLDER holds the measurements in the files that their sources published, one folder per source. They
are not part of this repository. Sets:

allreduce   nccl-tests' all-reduce on 2 to 8 A100 and on 2 to 8 V100, above 1 MiB (vTrain)
bigscience  iteration times and memory of BLOOM's rehearsal on 384 A100
memory      peak memory of Megatron-LM's functional tests on A100, H100 and GB200
mlperf      steps of MLPerf training on 4 to 10,752 H100 and later GPUs (GPT-3 175B, Llama 3.1)
sailor      Megatron-LM's operators on one A100
scale       all-reduce on 16 to 1,024 GPUs (SimAI), and on 16 A100 and 16 H100 (AWS)
torchtitan  iteration times and memory of Llama 3.1 on H100
vtrain      iteration times of Megatron-LM's GPT on 64 to 512 A100 (vTrain, MICRO 2024)

Without --fit, constants are fitted on one part of the rows, and errors are those of the others, for
all parts in turn. A hash of the row decides its part. With --fit, constants come from all rows of
that folder, and errors are those of all rows of FOLDER. All-reduce constants are fitted on the rows
of 2 and 8 GPUs: without --fit, these are among the rows "on 2 to 8", and the rows "on 3 to 7" are
held out.

Beside each error stand those of a naive baseline with one fitted constant (FLOPs per second; the
all-reduce's bus bandwidth; typical memory), of a roofline (the simulator with peaks only), and of
the simulator with the constants that it comes with ("as shipped"). Takes five minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from groundtruth_allreduce import score_allreduce
from groundtruth_bigscience import score_bigscience
from groundtruth_memory import score_memory
from groundtruth_mlperf import score_mlperf
from groundtruth_sailor import score_sailor
from groundtruth_scale import score_scale
from groundtruth_scores import Score
from groundtruth_torchtitan import score_torchtitan
from groundtruth_vtrain import score_vtrain
from rich.table import Table
from script import run_script

from byteprophet.errors import UserError
from byteprophet.report.console import lines_text, table_console
from byteprophet.whole_files import write_whole

SETS = {
    "allreduce": score_allreduce,
    "bigscience": score_bigscience,
    "memory": score_memory,
    "mlperf": score_mlperf,
    "sailor": score_sailor,
    "scale": score_scale,
    "torchtitan": score_torchtitan,
    "vtrain": score_vtrain,
}


def main(arguments: Sequence[str]) -> None:
    """Print the scores of all sets, or of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the measurements")
    parser.add_argument("--fit", type=Path, help="other measurements, for constants only")
    parser.add_argument("--set", choices=sorted(SETS), help="only this set")
    parser.add_argument("--json", type=Path, help="also write the scores to this file")
    options = parser.parse_args(arguments)
    for folder in (options.data, options.fit):
        if folder is not None and not folder.is_dir():
            raise UserError(f"{folder}: there are no measurements; they are not in the repository")
    same = options.fit is None or options.fit.resolve() == options.data.resolve()
    fit = None if same else options.fit
    scores: list[Score] = []
    for name, score in SETS.items():
        if options.set in (None, name):
            scores += score(options.data, fit)
    table_console().print(_table(scores))
    if options.json is not None:
        rows = [score.as_json() for score in scores]
        write_whole(options.json, json.dumps(rows, indent=1) + "\n")


def _table(scores: Sequence[Score]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("measurements")
    for name in (
        "rows",
        "MAPE",
        "median",
        "within 5%",
        "p95",
        "worst",
        "naive",
        "roofline",
        "shipped",
    ):
        table.add_column(name, justify="right")
    for score in scores:
        table.add_row(
            score.name,
            str(len(score.errors)),
            f"{score.mape:.1%}",
            f"{score.median:.1%}",
            f"{score.within:.0%}",
            f"{score.p95:.1%}",
            f"{score.worst:+.1%}",
            f"{score.naive_mape:.1%}",
            "" if score.roofline_mape is None else f"{score.roofline_mape:.1%}",
            f"{score.shipped_mape:.1%}",
        )
    table.caption = lines_text(
        (score.constants for score in scores if score.constants), "table.caption"
    )
    table.caption_justify = "left"
    return table


if __name__ == "__main__":
    run_script(main)
