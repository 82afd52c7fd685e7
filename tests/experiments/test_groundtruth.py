"""Scores against public measurements, on rows that are made here."""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import groundtruth
import groundtruth_bigscience
import groundtruth_sailor
import groundtruth_scale
import groundtruth_torchtitan
import pytest
from groundtruth_allreduce import predict, rows, with_constants
from groundtruth_scores import Score, half_of, repeated_folds

from byteprophet.errors import UserError

_PUBLIC = Path(__file__).parents[3] / "shared" / "groundtruth"
needs_measurements = pytest.mark.skipif(
    not _PUBLIC.is_dir(), reason=f"the public measurements are not at {_PUBLIC}"
)


@dataclass(frozen=True)
class _Row:
    text: str


def test_says_that_measurements_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are no measurements"):
        groundtruth.main(["--data", str(tmp_path / "nowhere")])
    with pytest.raises(UserError, match=r"ground_truth_multi.csv: cannot be read"):
        groundtruth.main(["--data", str(tmp_path), "--set", "vtrain"])


def test_figures_of_errors() -> None:
    score = Score("rows", [0.01, -0.04, 0.10, -0.20], [0.5], [0.0])
    assert score.mape == pytest.approx(0.0875)
    assert score.median == pytest.approx(0.07)
    assert (score.within, score.worst) == (0.5, -0.20)


def test_halves_depend_on_the_row_alone() -> None:
    halves = [half_of(f"row {at}") for at in range(1000)]
    assert halves == [half_of(f"row {at}") for at in range(1000)]
    assert 400 < sum(halves) < 600


def test_folds_hold_out_every_row_once_per_repeat_and_never_split_equal_rows() -> None:
    some = [_Row(f"row {at // 2}") for at in range(60)]
    pairs = repeated_folds(some, folds=5, repeats=2)
    assert len(pairs) == 10
    for fitted, held_out in pairs:
        assert len(fitted) + len(held_out) == 60
        assert not {row.text for row in fitted} & {row.text for row in held_out}
    for repeat in (pairs[:5], pairs[5:]):
        tested = [row.text for _, held_out in repeat for row in held_out]
        assert sorted(tested) == sorted(row.text for row in some)
    assert [held for _, held in pairs[:5]] != [held for _, held in pairs[5:]]


def test_constants_of_a_network_are_found_again() -> None:
    sizes, nodes = [1 << at for at in range(24, 35)], (2, 4, 8, 16, 32)
    made = groundtruth_scale.with_constants("SimAI, 16 to 1,024 GPUs", (0.8, 0.3))
    some = [
        groundtruth_scale.Row("", 8 * count, size, 1.0)
        for size, count in itertools.product(sizes, nodes)
    ]
    times = groundtruth_scale.predict(some, made)
    measured = [
        groundtruth_scale.Row("", row.gpus, row.size_bytes, time)
        for row, time in zip(some, times, strict=True)
    ]
    found = groundtruth_scale.fit("SimAI, 16 to 1,024 GPUs", measured)
    assert found == pytest.approx([0.8, 0.3], rel=0.02)


@needs_measurements
def test_rows_of_the_chronicle_are_what_its_text_says() -> None:
    """Sizes in the chronicle's words, against parameters of the models that are simulated."""
    found = groundtruth_bigscience.rows(_PUBLIC)
    assert len(found) > 20
    for row in found:
        billions = float(row.text.split(",")[1].removesuffix("B"))
        assert row.program.model.parameters() / 1e9 == pytest.approx(billions, rel=0.02)
        assert row.program.strategy.samples * row.program.strategy.micro_batches <= 2048


@needs_measurements
def test_one_folder_for_both_holds_rows_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scores of a set, with and without --fit, and errors within what documents promise."""
    path = tmp_path / "scores.json"
    arguments = ["--data", str(_PUBLIC), "--set", "scale", "--json", str(path)]
    groundtruth.main(arguments)
    alone = json.loads(path.read_text())
    groundtruth.main([*arguments, "--fit", str(_PUBLIC / ".." / "groundtruth")])
    assert json.loads(path.read_text()) == alone
    assert "SimAI" in capsys.readouterr().out
    assert alone[0]["mape"] < 0.10
    assert alone[0]["mape"] < alone[0]["roofline_mape"] < alone[0]["naive_mape"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (gzip.compress(b"header\nno size,0,float,1\n", mtime=0), "not a table of nccl-tests"),
        (gzip.compress(b"header\n4194304,0\n", mtime=0), "not a table of nccl-tests"),
        (b"no gzip", "is damaged: Not a gzipped file"),
        (gzip.compress(bytes(1000), mtime=0)[:-9], "is damaged: "),
        (gzip.compress(b"\xff", mtime=0), "is damaged: "),
    ],
)
def test_damaged_tables_are_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    for name in ("vtrain/a100/AR_GPU2_1M_1024M_LUT", "sailor/aceso_op_profiles"):
        path = tmp_path / f"{name}.csv.gz"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    with pytest.raises(UserError, match=f"AR_GPU2.*: {complaint}"):
        rows(tmp_path, "a100")
    if "damaged" in complaint:
        with pytest.raises(UserError, match=f"aceso.*: {complaint}"):
            groundtruth_sailor.rows(tmp_path)


@needs_measurements
def test_rows_of_torchtitan_have_their_parallel_degrees() -> None:
    for row in groundtruth_torchtitan.rows(_PUBLIC):
        mesh = row.program.strategy.mesh
        assert f"FSDP {mesh.dp}, CP {mesh.cp}" in row.text
        assert mesh.ranks == 8


def test_constants_are_found_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables that the model itself makes with known constants: no error, and the constants."""
    made = {"a100": ("dgx-a100", (0.7, 3.0, 2.0, 0.3)), "v100": ("dgx-1v", (0.8, 4.0, 3.0, 0.1))}
    sizes = [(2 << 20) * at for at in range(1, 120, 7)]
    for gpu, (cluster, constants) in made.items():
        folder = tmp_path / "vtrain" / gpu
        folder.mkdir(parents=True)
        for gpus in range(2, 9):
            lines = [f"{size},0,float,1,0,0,0" for size in sizes]
            path = folder / f"AR_GPU{gpus}_1M_1024M_LUT.csv.gz"
            path.write_bytes(gzip.compress("\n".join(["header", *lines]).encode()))
        times = iter(predict(rows(tmp_path, gpu), with_constants(cluster, constants)))
        for gpus in range(2, 9):
            lines = [f"{size},0,float,{next(times):.0f},0,0,0" for size in sizes]
            path = folder / f"AR_GPU{gpus}_1M_1024M_LUT.csv.gz"
            path.write_bytes(gzip.compress("\n".join(["header", *lines]).encode()))
    groundtruth.main(["--data", str(tmp_path), "--set", "allreduce"])
    printed = capsys.readouterr().out
    assert "a100: efficiency 0.700, step 3000 ns, base 20000 ns, own step 0.30" in printed
    assert "v100: efficiency 0.800, step 4000 ns, base 30000 ns, own step 0.10" in printed
