"""Commands that read a run, on files that were cut off, damaged, emptied, taken from elsewhere.

Whatever is in them, a command does what it can or says in one line what is wrong, and where.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from byteprophet.bench import Case, Plan, run_bench
from byteprophet.cli.main import run_cli
from byteprophet.network import monitoring
from byteprophet.profile.saving import PROFILING
from byteprophet.timeline.events import load_events
from byteprophet.workload import Tensor, Workload, to_toml

pytestmark = pytest.mark.job
MS = 1_000_000
TURNS = 30
COMMANDS = (
    ("timeline", "RUN", "--json"),
    ("timeline", "RUN", "--format", "perfetto", "--out", "OUT/perfetto.json"),
    ("timeline", "RUN", "--format", "chakra", "--out", "OUT/chakra"),
    ("replay", "RUN", "--json"),
    ("profile", "RUN", "--waits", "--bandwidth", "1gbit"),
    ("profile", "RUN", "--json"),
    ("network", "RUN"),
    ("plan", "RUN"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real job with all that these commands read."""
    directory = tmp_path_factory.mktemp("recorded")
    tensors = tuple(Tensor(f"layer{n}", 200_000 * n + 4000, MS, 2 * MS) for n in range(4))
    (directory / "small.toml").write_text(to_toml(Workload("small", 4, tensors)))
    case = Case(
        str(directory / "small.toml"),
        "prophet",
        None,
        partition_bytes=65536,
        environment={monitoring.VARIABLE: "1", PROFILING: "1"},
    )
    plan = Plan((case,), iterations=15, rounds=1, record=True, controller=True)
    (row,) = run_bench(plan, directory / "runs", False, lambda _: None)
    return Path(row["run"])


def flipped(content: bytes, random: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice([1, 1, 3, 30]) if content else 0):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut off": lambda content, random: content[: random.randrange(len(content) + 1)],
    "bits flipped": flipped,
    "half-written": lambda content, _: content[: len(content) // 2].ljust(len(content), b"\0"),
    "foreign": lambda _, random: random.choice([b"", b"PAR1", b"{}", b"[1, 2]\n", b"a = 1\n"]),
}


def said(arguments: tuple[str, ...], run: Path, out: Path, capsys: object) -> tuple[int, str]:
    assert isinstance(capsys, pytest.CaptureFixture)
    capsys.readouterr()
    status = run_cli([part.replace("RUN", str(run)).replace("OUT", str(out)) for part in arguments])
    return status, capsys.readouterr().err


def test_the_run_itself_is_read_by_all(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in COMMANDS:
        assert said(command, run, tmp_path, capsys) == (0, "")


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_is_wrong_is_one_line(
    damage: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = random.Random(damage)
    refused = 0
    for turn in range(TURNS):
        copy = tmp_path / f"run{turn}"
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("logs", "results"))
        suffixes = (".arrows", ".toml", ".json", ".jsonl")
        files = [path for path in sorted(copy.rglob("*")) if path.suffix in suffixes]
        path = generator.choice(files)
        path.write_bytes(DAMAGES[damage](path.read_bytes(), generator))
        for command in COMMANDS:
            status, line = said(command, copy, tmp_path, capsys)
            about = f"{damage}, {path.relative_to(copy)}, turn {turn}: {command}: {line}"
            assert status in (0, 2), about
            if status == 2:
                refused += 1
                assert line.count("\n") == 1, about
                assert str(copy) in line, about
    assert refused


def test_a_file_that_was_cut_off_is_read_and_marked(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    for path in (copy / "events").glob("*.arrows"):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * 3 // 4])
        part, whole = load_events(path), load_events(run / "events" / path.name)
        assert not part.whole
        assert 0 < len(part.rows) < len(whole.rows)
        assert part.rows.tolist() == whole.rows[: len(part.rows)].tolist()
    status, line = said(("timeline", "RUN"), copy, tmp_path, capsys)
    assert (status, line) == (0, "")
